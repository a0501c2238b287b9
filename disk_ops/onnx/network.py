"""The U-Net of :mod:`disk_ops.model` in ONNX's operators, up to what enters its last convolution."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from disk_ops.model import ConvBlock, InstanceNorm, UNet, UpBlock
from disk_ops.onnx.graph import Graph


def features(
    graph: Graph,
    unet: UNet,
    images: str,  # [1, C, H, W], H and W divisible by the network's stride
) -> str:  # [1, C', H, W]
    """What ``unet.features`` gives, with the weights under their names in the state dict."""
    x, skips = images, []
    for level, down in enumerate(unet.path_down):
        pooling, block = down.children()
        assert isinstance(block, ConvBlock)
        if isinstance(pooling, nn.AvgPool2d):
            x = graph.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
        x = _block(graph, block, x, f"unet.path_down.{level}.1")
        skips.append(x)
    skips.pop()
    last = len(unet.path_up) - 1
    for level, up in enumerate(unet.path_up):
        assert isinstance(up, UpBlock)
        x = graph.op("Concat", _upsample(graph, x, lowest=level == 0), skips.pop(), axis=1)
        name = f"unet.path_up.{level}.conv"
        x = _block(graph, up.conv, x, name) if level < last else _activation(graph, up.conv, x, name)
    return x


def _block(
    graph: Graph,
    block: ConvBlock,
    x: str,  # [1, C, H, W]
    name: str,
) -> str:  # [1, K, H, W]
    weight, bias = convolution_weights(block[3], f"{name}.3")  # [K, C, k, k], [K]
    size = weight.shape[-1]
    return graph.op(
        "Conv",
        _activation(graph, block, x, name),
        graph.constant(weight, f"{name}.3.weight"),
        graph.constant(bias, f"{name}.3.bias"),
        kernel_shape=[size, size],
        pads=[size // 2] * 4,
    )


def _activation(
    graph: Graph,
    block: ConvBlock,
    x: str,  # [1, C, H, W]
    name: str,
) -> str:  # [1, C, H, W]
    """What enters the convolution of a block."""
    if not block.gated:
        return x
    norm, gate = block[0], block[1]
    if type(norm) is not InstanceNorm or type(gate) is not nn.PReLU:
        got = f"{type(norm).__name__} and {type(gate).__name__}"
        raise ValueError(f"{name} must hold an InstanceNorm and a PReLU to be exported, got {got}")
    slope = as_array(gate.weight)  # [C]
    ones, zeros = np.ones_like(slope), np.zeros_like(slope)
    x = graph.op("InstanceNormalization", x, graph.constant(ones), graph.constant(zeros), epsilon=norm.eps)
    return graph.op("PRelu", x, graph.constant(slope.reshape(-1, 1, 1), f"{name}.1.weight"))


def _upsample(
    graph: Graph,
    x: str,  # [1, C, H, W]
    lowest: bool,
) -> str:  # [1, C, 2H, 2W]
    scales = graph.constant(np.array([1, 1, 2, 2], np.float32))
    if not lowest:
        return graph.op("Resize", x, "", scales, mode="linear", coordinate_transformation_mode="half_pixel")
    # OpenCV 5.0 reads beyond a single row or column, which only the lowest level can have: with their edges repeated
    # there are three.
    around = graph.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    x = graph.op("Pad", x, around, mode="edge")
    x = graph.op("Resize", x, "", scales, mode="linear", coordinate_transformation_mode="half_pixel")
    return graph.slice(x, (2, 2), (-2, -2), (2, 3))


def convolution_weights(
    convolution: nn.Module, name: str
) -> tuple[np.ndarray, np.ndarray]:  # [D, C, k, k] float32, [D] float32
    """Weight and bias of a convolution of the kind that the network has."""
    if type(convolution) is not nn.Conv2d:
        raise ValueError(f"{name} must be a Conv2d to be exported, got {type(convolution).__name__}")
    size = convolution.kernel_size
    plain = convolution.stride == convolution.dilation == (1, 1) and convolution.groups == 1
    if not plain or convolution.padding != "same" or size[0] != size[1] or size[0] % 2 == 0 or convolution.bias is None:
        raise ValueError(
            f"{name} must be a convolution with a square kernel of odd size, padding='same' and a bias to be "
            f"exported, got {convolution}"
        )
    return as_array(convolution.weight), as_array(convolution.bias)


def as_array(parameter: Tensor) -> np.ndarray:
    """The values as float32, on the CPU."""
    return parameter.detach().float().cpu().numpy()
