"""The twins of describe and its gradient; see :mod:`disk_ops.reference`, which has them too."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_EPSILON = 1e-12  # of the norm, as in torch.nn.functional.normalize


def describe(
    activation: Tensor,  # [B, C, H, W]
    weight: Tensor,  # [D, C, k, k]
    bias: Tensor,  # [D]
    keypoints: Tensor,  # [B, N, 2] int64 xy
) -> Tensor:  # [B, N, D]
    """Evaluate a convolution at keypoints and normalise; see :func:`disk_ops.ops.describe`.

    One matrix product for each pixel of the window, at all keypoints at once.
    """
    output = _convolution(activation, weight, bias, keypoints)
    return (output / _norm(output).clamp(min=_EPSILON)).to(activation.dtype)


def _describe_backward(
    grad: Tensor,  # [B, N, D]
    activation: Tensor,  # [B, C, H, W]
    weight: Tensor,  # [D, C, k, k]
    bias: Tensor,  # [D]
    keypoints: Tensor,  # [B, N, 2] int64 xy
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients to activation, weight and bias, of their shapes and dtypes."""
    output = _convolution(activation, weight, bias, keypoints)
    norm = _norm(output)
    grad = grad.to(output.dtype) / norm.clamp(min=_EPSILON)
    # Of the gradient, what points along the descriptor has no effect, unless the norm is too small to divide by.
    unit = torch.where(norm >= _EPSILON, output / norm.clamp(min=_EPSILON), 0)
    grad = grad - unit * (unit * grad).sum(-1, keepdim=True)

    batch, channels, height, width = activation.shape
    grad_weight = torch.zeros_like(weight, dtype=output.dtype)
    grad_pixels = output.new_zeros(batch * height * width, channels)
    for v, u, pixel, inside in _window(keypoints, height, width, weight.shape[-1]):
        values = _read(activation, pixel, inside)
        grad_weight[:, :, v, u] = grad.flatten(0, 1).mT @ values.flatten(0, 1)
        contribution = torch.where(inside[..., None], grad @ weight[:, :, v, u].to(grad.dtype), 0)
        _add_rows(grad_pixels, _across_images(pixel, height * width), contribution.flatten(0, 1))
    grad_activation = torch.empty_like(activation)
    grad_activation.copy_(grad_pixels.view(batch, height, width, channels).permute(0, 3, 1, 2))
    return grad_activation, grad_weight.to(weight.dtype), grad.sum((0, 1)).to(bias.dtype)


def _convolution(
    activation: Tensor,  # [B, C, H, W]
    weight: Tensor,  # [D, C, k, k]
    bias: Tensor,  # [D]
    keypoints: Tensor,  # [B, N, 2]
) -> Tensor:  # [B, N, D]
    """The convolution at keypoints, in float32 at least."""
    height, width = activation.shape[-2:]
    output = bias.to(torch.promote_types(bias.dtype, torch.float32)).expand(*keypoints.shape[:2], -1)
    for v, u, pixel, inside in _window(keypoints, height, width, weight.shape[-1]):
        output = output + _read(activation, pixel, inside) @ weight[:, :, v, u].to(output.dtype).mT
    return output


def keypoints_inside(
    keypoints: Tensor,  # [B, N, 2] int64 xy
    height: int,
    width: int,
) -> Tensor:  # [B, N, 2]
    """The keypoints; those outside the image raise on the CPU and are clamped elsewhere, see :func:`_window`."""
    if keypoints.numel() and not height * width:
        raise ValueError(f"keypoints must lie inside the image, which has {width} x {height} pixels")
    x, y = keypoints.unbind(-1)
    if keypoints.device.type == "cpu":
        outside = ((x < 0) | (x >= width) | (y < 0) | (y >= height)).nonzero()
        if len(outside):
            image, number = outside[0].tolist()
            raise ValueError(
                f"keypoints must lie inside the image of width {width} and height {height}, "
                f"got {tuple(keypoints[image, number].tolist())} as number {number} of image {image}"
            )
    return torch.stack([x.clamp(0, max(width - 1, 0)), y.clamp(0, max(height - 1, 0))], -1)


def _window(
    keypoints: Tensor,  # [B, N, 2]
    height: int,
    width: int,
    size: int,
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """For each pixel (v, u) of the window: its place in the image [B, N] for each keypoint, and whether it is inside.

    Keypoints outside the image raise on the CPU. Elsewhere that would have to wait for the device: they are clamped.
    """
    x, y = keypoints_inside(keypoints, height, width).unbind(-1)
    for v in range(size):
        for u in range(size):
            row, column = y + v - size // 2, x + u - size // 2
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            yield v, u, torch.where(inside, row * width + column, 0), inside


def _read(
    activation: Tensor,  # [B, C, H, W]
    pixel: Tensor,  # [B, N] raster indices
    inside: Tensor,  # [B, N] bool
) -> Tensor:  # [B, N, C]
    """The activation at pixels, 0 outside the image."""
    width = max(activation.shape[-1], 1)
    image = torch.arange(len(pixel), device=pixel.device)[:, None]
    values = activation[image, :, pixel.div(width, rounding_mode="floor"), pixel % width]
    return torch.where(inside[..., None], values.to(torch.promote_types(values.dtype, torch.float32)), 0)


def _across_images(
    pixel: Tensor,  # [B, N] raster indices
    pixels: int,
) -> Tensor:  # [B * N]
    return (pixel + pixels * torch.arange(len(pixel), device=pixel.device)[:, None]).flatten()


def _add_rows(
    sums: Tensor,  # [rows, C]
    index: Tensor,  # [K]
    values: Tensor,  # [K, C]
) -> None:
    """Add values to rows, in an order that doesn't change from run to run."""
    if sums.device.type == "cpu":
        sums.index_add_(0, index, values)
    else:
        sums.index_put_((index,), values, accumulate=True)


def _norm(
    output: Tensor,  # [B, N, D]
) -> Tensor:  # [B, N, 1]
    return torch.linalg.vector_norm(output, dim=-1, keepdim=True)
