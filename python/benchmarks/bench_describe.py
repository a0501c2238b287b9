"""describe: the last convolution at keypoints only, against the convolution of the whole image read at them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from harness import OURS, Row, compare, parse_arguments, synchronized, write
from torch import Tensor

from disk_ops.ops import describe

# channels, height, width, dimension, window, keypoints; the layer of DISK, memory format
CASES = [
    (80, 512, 512, 128, 5, 2048, torch.contiguous_format),
    (80, 512, 512, 128, 5, 2048, torch.channels_last),
]


def dense(
    activation: Tensor,  # [B, C, H, W]
    weight: Tensor,  # [D, C, k, k]
    bias: Tensor,  # [D]
    keypoints: Tensor,  # [B, N, 2]
) -> Tensor:  # [B, N, D]
    """What everyone else does."""
    output = F.conv2d(activation, weight, bias, padding="same")
    image = torch.arange(len(activation), device=activation.device)[:, None]
    return F.normalize(output[image, :, keypoints[..., 1], keypoints[..., 0]], dim=-1)


def backward(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], keypoints: Tensor) -> object:
    """Forward and gradients to activation, weight and bias."""
    descriptors = function(*inputs, keypoints)
    return torch.autograd.grad(descriptors, inputs, torch.ones_like(descriptors))


def run(arguments: argparse.Namespace) -> list[Row]:
    """Measure all cases."""
    rows: list[Row] = []
    for channels, height, width, dimension, window, count, memory_format in CASES[:1] if arguments.quick else CASES:
        activation = torch.randn(1, channels, height, width).to(arguments.device, memory_format=memory_format)
        weight = (torch.randn(dimension, channels, window, window) * 0.02).to(arguments.device)
        bias = torch.randn(dimension).to(arguments.device)
        x, y = torch.randint(width, (1, count)), torch.randint(height, (1, count))
        keypoints = torch.stack([x, y], dim=-1).to(arguments.device)
        inputs = tuple(tensor.requires_grad_() for tensor in (activation, weight, bias))
        frozen = (activation.detach(), weight.detach(), bias.detach())
        layout = "channels last" if memory_format == torch.channels_last else "contiguous"
        shape = f"{channels} x {height} x {width}, n {count}, {layout}"
        functions = {OURS: describe, "torch conv2d + gather": dense}
        forward: dict[str, Callable[[], object]] = {
            name: synchronized(partial(function, *frozen, keypoints), arguments.device)
            for name, function in functions.items()
        }
        both: dict[str, Callable[[], object]] = {
            name: synchronized(partial(backward, function, inputs, keypoints), arguments.device)
            for name, function in functions.items()
        }
        rows += compare("describe", shape, forward, arguments)
        rows += compare("describe + backward", shape, both, arguments)
    return rows


if __name__ == "__main__":
    torch.manual_seed(0)
    options = parse_arguments(__doc__, "describe_cpu.json")
    write(run(options), options, "bench_describe")
