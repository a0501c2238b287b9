"""A convolution evaluated at keypoints only, L2-normalised: descriptors without the map of descriptors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from disk_ops.ops._arguments import check_tensor
from disk_ops.ops._derivatives import no_second_derivative, refuse_tangents
from disk_ops.ops._dtypes import as_autocast


def describe(
    activation: Tensor,  # [B, C, H, W]
    weight: Tensor,  # [D, C, k, k]
    bias: Tensor,  # [D]
    keypoints: Tensor,  # [B, N, 2] int64 xy
) -> Tensor:  # [B, N, D]
    r"""Evaluate a convolution at keypoints only and normalise the results: descriptors.

    .. math:: z_n = b + \sum_{c, v, u} W_{\cdot c v u}\, A_{c,\, y_n + v - r,\, x_n + u - r}, \qquad
        \mathrm{result}_n = z_n / \max(\|z_n\|, 10^{-12}), \quad r = \lfloor k / 2 \rfloor

    with zeros outside the image. The last layer of DISK is linear, so this equals, to rounding, the convolution of the
    whole image (``padding="same"``) read at the keypoints and normalised, for a small part of the work. Sums are
    float32 at least. Differentiable once in ``activation``, ``weight`` and ``bias``; results and gradients depend
    neither on the number of threads nor on the run. Under autocast, arguments are cast as those of a convolution.

    Args:
        activation: what the convolution reads, shape :math:`(B, C, H, W)`, float16, bfloat16, float32 or float64, in
            any memory format.
        weight: shape :math:`(D, C, k, k)`, k odd, of the same dtype and device.
        bias: shape :math:`(D)`, of the same dtype and device.
        keypoints: whole pixels in xy order, shape :math:`(B, N, 2)`, int64, inside the image. Outside, the CPU raises;
            CUDA, which would have to wait to find out, takes the nearest pixel.

    Returns:
        Descriptors of unit length, shape :math:`(B, N, D)`, in the dtype of ``activation``.

    Raises:
        ValueError, TypeError: an argument has a wrong shape, dtype or value; the message names it.

    Example:
        >>> convolution = torch.nn.Conv2d(4, 8, 5, padding="same")
        >>> activation = torch.rand(1, 4, 20, 30)
        >>> descriptors = describe(activation, convolution.weight, convolution.bias, torch.tensor([[[29, 0], [3, 7]]]))
        >>> dense = torch.nn.functional.normalize(convolution(activation), dim=1)
        >>> torch.allclose(descriptors[0, 1], dense[0, :, 7, 3], atol=1e-6)
        True
    """
    for name, tensor in (("activation", activation), ("weight", weight), ("bias", bias), ("keypoints", keypoints)):
        check_tensor(name, tensor)
    refuse_tangents("describe", activation, weight, bias)
    activation, weight, bias = (as_autocast(tensor) for tensor in (activation, weight, bias))
    _check(activation, weight, bias, keypoints)
    return torch.ops.disk_ops.describe(activation, weight, bias, keypoints)


def _check(activation: Tensor, weight: Tensor, bias: Tensor, keypoints: Tensor) -> None:
    if activation.ndim != 4:
        raise ValueError(f"activation must have shape [B, C, H, W], got {list(activation.shape)}")
    if not activation.is_floating_point():
        raise TypeError(f"activation must be float16, bfloat16, float32 or float64, got {activation.dtype}")
    batch, channels, height, width = activation.shape
    square = weight.ndim == 4 and weight.shape[2] == weight.shape[3] and weight.shape[2] % 2 == 1
    if not square or weight.shape[1] != channels:
        raise ValueError(f"weight must have shape [D, C, k, k] with C = {channels} and k odd, got {list(weight.shape)}")
    if bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have shape [D] with D = {weight.shape[0]}, got {list(bias.shape)}")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor.dtype != activation.dtype:
            raise TypeError(f"{name} must be of dtype {activation.dtype} as activation is, got {tensor.dtype}")
    if keypoints.ndim != 3 or keypoints.shape[2] != 2 or keypoints.shape[0] != batch:
        raise ValueError(f"keypoints must have shape [B, N, 2] with B = {batch}, got {list(keypoints.shape)}")
    if keypoints.dtype != torch.int64:
        raise TypeError(f"keypoints must be whole pixels of dtype int64, got {keypoints.dtype}")
    if keypoints.numel() and not height * width:
        raise ValueError(f"keypoints must lie inside the image, which has {width} x {height} pixels")
    for name, tensor in (("weight", weight), ("bias", bias), ("keypoints", keypoints)):
        if tensor.device != activation.device:
            raise ValueError(f"{name} must be on the device of activation ({activation.device}), got {tensor.device}")


def _fake(activation: Tensor, weight: Tensor, bias: Tensor, keypoints: Tensor) -> Tensor:
    return activation.new_empty((keypoints.shape[0], keypoints.shape[1], weight.shape[0]))


def _fake_backward(
    grad: Tensor, activation: Tensor, weight: Tensor, bias: Tensor, keypoints: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(activation), torch.empty_like(weight), torch.empty_like(bias)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    return (*torch.ops.disk_ops._describe_backward(grad, *ctx.saved_tensors), None)


torch.library.register_fake("disk_ops::describe", _fake)
torch.library.register_fake("disk_ops::_describe_backward", _fake_backward)
torch.library.register_autograd("disk_ops::describe", _backward, setup_context=_setup_context)
torch.library.register_autograd("disk_ops::_describe_backward", no_second_derivative("describe"))
