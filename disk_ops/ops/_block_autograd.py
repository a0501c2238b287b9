"""Gradients of whole blocks, in which nothing between a block's input and its convolution's output is kept.

The kernels of gradients take float32: tensors of half types are widened for them, and gradients rounded in the end.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.grad import conv2d_weight

from disk_ops.ops._derivatives import differentiable_once

LANES = 16  # the kernels take channels in multiples of this
_Grads = tuple[Tensor | None, ...]


class BlockActivation(torch.autograd.Function):
    """:func:`disk_ops.ops.block_activation` with compiled kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,  # [B, C1, h, w]
        skip: Tensor | None,  # [B, C2, H, W]
        slope: Tensor | None,  # [C1 + C2]
        resample: str,
    ) -> Tensor:  # [B, C1 + C2, H, W]
        """Compute it from the statistics of its own input."""
        norm = None if slope is None else torch.ops.disk_ops.block_norm(x, skip, resample)
        ctx.save_for_backward(x, skip, norm, slope)
        ctx.resample = resample
        return torch.ops.disk_ops.block_activation(x, skip, norm, slope, resample)

    @staticmethod
    @differentiable_once("block_activation")
    def backward(ctx: Any, saved: tuple[Any, ...], grad: Tensor) -> _Grads:
        """Carry the gradient back to x, skip and slope."""
        grads = _of_input(ctx, grad.float(), *_widened(saved))
        return (*_rounded(grads, saved[0].dtype), None)


class ConvBlock(torch.autograd.Function):
    """:func:`disk_ops.ops.conv_block` with compiled kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,  # [B, C1, h, w]
        skip: Tensor | None,  # [B, C2, H, W]
        slope: Tensor | None,  # [C1 + C2]
        resample: str,
        weight: Tensor,  # [K, C1 + C2, 5, 5]
        bias: Tensor,  # [K]
    ) -> Tensor:  # [B, K, H, W]
        """Compute it from the statistics of its own input."""
        norm = None if slope is None else torch.ops.disk_ops.block_norm(x, skip, resample)
        ctx.save_for_backward(x, skip, norm, slope, weight)
        ctx.resample = resample
        return torch.ops.disk_ops.block_convolution(x, weight, bias, skip, norm, slope, resample)

    @staticmethod
    @differentiable_once("conv_block")
    def backward(ctx: Any, saved: tuple[Any, ...], grad: Tensor) -> _Grads:
        """Convolve the gradient by the mirrored weights, and carry it back from there."""
        dtype, grad = saved[0].dtype, grad.float()
        *inputs, weight = _widened(saved)
        of_input: _Grads = (None, None, None)
        if any(ctx.needs_input_grad[:3]):
            mirrored = weight.flip(2, 3).transpose(0, 1).contiguous()
            nothing = weight.new_zeros(len(mirrored))
            before = torch.ops.disk_ops.block_convolution(grad, mirrored, nothing, None, None, None, "none")
            of_input = _of_input(ctx, before, *inputs)
        of_weight = _of_weight(ctx, grad, weight, *inputs) if ctx.needs_input_grad[4] else None
        of_bias = grad.sum((0, 2, 3)) if ctx.needs_input_grad[5] else None
        return (*_rounded(of_input, dtype), None, *_rounded((of_weight, of_bias), dtype))


def _widened(tensors: _Grads) -> list[Any]:
    return [None if tensor is None else tensor.float() for tensor in tensors]


def _rounded(grads: _Grads, dtype: torch.dtype) -> _Grads:
    return tuple(None if grad is None else grad.to(dtype) for grad in grads)


def _of_input(
    ctx: Any,
    grad: Tensor,  # [B, C1 + C2, H, W] of what the convolution reads
    x: Tensor,  # [B, C1, h, w]
    skip: Tensor | None,  # [B, C2, H, W]
    norm: Tensor | None,  # [2, B, C1 + C2]
    slope: Tensor | None,  # [C1 + C2]
) -> _Grads:
    """The gradients of x, skip and slope."""
    if ctx.resample == "none" and skip is None and slope is None:
        return grad, None, None
    grads = torch.ops.disk_ops._block_input_backward(grad, x, skip, norm, slope, ctx.resample)
    return grads[0], None if skip is None else grads[1], None if slope is None else grads[2]


def _of_weight(
    ctx: Any,
    grad: Tensor,  # [B, K, H, W]
    weight: Tensor,  # [K, C1 + C2, 5, 5]
    x: Tensor,  # [B, C1, h, w]
    skip: Tensor | None,  # [B, C2, H, W]
    norm: Tensor | None,  # [2, B, C1 + C2]
    slope: Tensor | None,  # [C1 + C2]
) -> Tensor:  # [K, C1 + C2, 5, 5]
    if x.shape[1] % LANES:  # an image, convolved as it is
        return conv2d_weight(x, weight.shape, grad, padding=2)
    return torch.ops.disk_ops._block_weight_backward(grad, x, skip, norm, slope, ctx.resample)
