"""The blocks of the U-Net for inference: what a convolution reads is computed where it is read and never stored.

Between two convolutions of DISK lie pooling or bilinear up-sampling, the concatenation with a skip, instance norm and
PReLU. Layer by layer, each of these writes a tensor and reads it again, which takes longer than its arithmetic. Here a
first pass over the input gives the norm's statistics, and the convolution takes its tiles straight from the input.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from disk_ops import _library, reference_blocks

Resample = Literal["none", "pool", "up"]
_LANES = 16  # channels come in multiples of this
_SIZE = 5  # of the convolution
_PATCHES = 4096  # keypoints whose patches are in memory at a time
_NATIVE = _library.has_native_kernel("block_convolution", "CPU")


def block_norm(
    x: Tensor,  # [B, C1, h, w]
    skip: Tensor | None = None,  # [B, C2, H, W]
    resample: Resample = "none",
) -> Tensor:  # [2, B, C1 + C2]
    r"""Statistics of the instance norm of a block's input, which is not stored.

    .. math:: \mu_c = \mathrm{mean}_{yx}(z_c), \qquad f_c = 1 / \sqrt{\mathrm{var}_{yx}(z_c) + 10^{-5}}, \qquad
        z = [\mathrm{resample}(x), \mathrm{skip}]

    Args:
        x: shape :math:`(B, C_1, h, w)`.
        skip: joined after resampling, shape :math:`(B, C_2, H, W)`.
        resample: ``"pool"``: average of 2 x 2 pixels, ``"up"``: twice the size, bilinear, corners not aligned.

    Returns:
        :math:`\mu` and :math:`f`, shape :math:`(2, B, C_1 + C_2)`, float32 at least.

    Raises:
        ValueError, RuntimeError: an argument has a wrong shape, dtype or value; the message names it.

    Example:
        >>> x = torch.rand(1, 16, 8, 8)
        >>> mean, factor = block_norm(x, resample="pool")
        >>> torch.allclose(mean[0], torch.nn.functional.avg_pool2d(x, 2)[0].mean((1, 2)))
        True
    """
    if has_kernel(x, skip):
        return torch.ops.disk_ops.block_norm(x, skip, resample)
    return reference_blocks.block_norm(x, skip, resample)


def block_convolution(
    x: Tensor,  # [B, C1, h, w]
    weight: Tensor,  # [K, C1 + C2, k, k]
    bias: Tensor,  # [K]
    skip: Tensor | None = None,  # [B, C2, H, W]
    norm: Tensor | None = None,  # [2, B, C1 + C2]
    slope: Tensor | None = None,  # [C1 + C2]
    resample: Resample = "none",
) -> Tensor:  # [B, K, H, W]
    r"""Convolve a block's input: resampled, joined with a skip, normalised and gated on the way.

    .. math:: \mathrm{conv}(\mathrm{PReLU}((z - \mu) f)), \qquad z = [\mathrm{resample}(x), \mathrm{skip}]

    with zeros outside the image (``padding="same"``). On the CPU, in float32 and without gradients, 5 x 5 convolutions
    are made by Winograd's algorithm F(4 x 4, 5 x 5): 64 multiplications for 16 pixels in place of 400, with about twice
    the rounding error of the direct sum. Everything else runs as PyTorch's own operations, gradients included.

    Args:
        x: shape :math:`(B, C_1, h, w)`; any memory format, fastest in channels-last, which results are in.
        weight: shape :math:`(K, C_1 + C_2, k, k)`.
        bias: shape :math:`(K)`.
        skip: shape :math:`(B, C_2, H, W)`.
        norm: :math:`\mu` and :math:`f` of :func:`block_norm`; ``None``: no norm.
        slope: of negative values in PReLU, shape :math:`(C_1 + C_2)`; ``None``: no gate.
        resample: see :func:`block_norm`.

    Returns:
        Shape :math:`(B, K, H, W)`.

    Raises:
        ValueError, RuntimeError: an argument has a wrong shape, dtype or value; the message names it.

    Example:
        >>> x, weight, bias = torch.rand(1, 16, 8, 8), torch.rand(32, 16, 5, 5), torch.rand(32)
        >>> block_convolution(x, weight, bias, norm=block_norm(x, resample="pool"), resample="pool").shape
        torch.Size([1, 32, 4, 4])
    """
    an_image = skip is None and norm is None and slope is None and resample == "none"  # of any number of channels
    many = weight.shape[0] % _LANES == 0
    fits = has_kernel(x, skip, weight, bias, norm, slope) or (an_image and many and takes(x, weight, bias))
    if fits and weight.shape[2:] == (_SIZE, _SIZE) and (many or weight.shape[0] == 1):
        return torch.ops.disk_ops.block_convolution(x, weight, bias, skip, norm, slope, resample)
    return reference_blocks.block_convolution(x, weight, bias, skip, norm, slope, resample)


def block_patches(
    x: Tensor,  # [B, C1, h, w]
    keypoints: Tensor,  # [B, N, 2] int64 xy
    skip: Tensor | None = None,  # [B, C2, H, W]
    norm: Tensor | None = None,  # [2, B, C1 + C2]
    slope: Tensor | None = None,  # [C1 + C2]
    resample: Resample = "none",
) -> Tensor:  # [B, N, C1 + C2, 5, 5]
    """What :func:`block_convolution` with a 5 x 5 kernel reads around keypoints, zeros outside the image.

    Args:
        x: see :func:`block_convolution`.
        keypoints: whole pixels in xy order inside the image, shape :math:`(B, N, 2)`, int64.
        skip: see :func:`block_convolution`.
        norm: see :func:`block_convolution`.
        slope: see :func:`block_convolution`.
        resample: see :func:`block_convolution`.

    Returns:
        Shape :math:`(B, N, C_1 + C_2, 5, 5)`.

    Raises:
        ValueError, RuntimeError: an argument has a wrong shape, dtype or value; the message names it.

    Example:
        >>> x = torch.rand(1, 16, 8, 8)
        >>> patches = block_patches(x, torch.tensor([[[3, 4]]]))
        >>> torch.equal(patches[0, 0], x[0, :, 2:7, 1:6])
        True
    """
    if has_kernel(x, skip, norm, slope):
        return torch.ops.disk_ops.block_patches(x, keypoints, skip, norm, slope, resample)
    return reference_blocks.block_patches(x, keypoints, skip, norm, slope, resample)


def describe_block(
    x: Tensor,  # [B, C1, h, w]
    weight: Tensor,  # [D, C1 + C2, 5, 5]
    bias: Tensor,  # [D]
    keypoints: Tensor,  # [B, N, 2] int64 xy
    skip: Tensor | None = None,  # [B, C2, H, W]
    norm: Tensor | None = None,  # [2, B, C1 + C2]
    slope: Tensor | None = None,  # [C1 + C2]
    resample: Resample = "none",
) -> Tensor:  # [B, N, D]
    """:func:`block_convolution` at keypoints only, L2-normalised; see :func:`disk_ops.ops.describe`."""
    each = []
    for some in keypoints.split(_PATCHES, dim=1):
        patches = block_patches(x, some, skip, norm, slope, resample).flatten(0, 1)
        centre = some.new_full((len(patches), 1, 2), _SIZE // 2)
        descriptors = torch.ops.disk_ops.describe(patches, weight, bias, centre)
        each.append(descriptors.view(*some.shape[:2], len(bias)))
    return torch.cat(each, 1)


def has_kernel(x: Tensor, skip: Tensor | None, *others: Tensor | None) -> bool:
    """Whether compiled kernels take these: float32 on the CPU, no gradients, channels in multiples of 16."""
    return takes(x, skip, *others) and all(
        tensor.shape[1] % _LANES == 0 for tensor in (x, skip) if tensor is not None and tensor.ndim == 4
    )


def takes(*tensors: Tensor | None) -> bool:
    """Whether compiled kernels are here and take tensors of this kind."""
    return _NATIVE and all(
        tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad and torch.is_grad_enabled())
        and not _has_tangent(tensor)
        for tensor in tensors
        if tensor is not None
    )


def _has_tangent(tensor: Tensor) -> bool:
    """Whether a derivative is being carried forward with it."""
    return not torch.compiler.is_compiling() and forward_ad.unpack_dual(tensor).tangent is not None


def _fake_norm(x: Tensor, skip: Tensor | None, resample: str) -> Tensor:
    channels = x.shape[1] + (0 if skip is None else skip.shape[1])
    return x.new_empty((2, x.shape[0], channels))


def _fake_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    skip: Tensor | None,
    norm: Tensor | None,
    slope: Tensor | None,
    resample: str,
) -> Tensor:
    size = (x.shape[0], weight.shape[0], *_size(x, resample))
    return torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _fake_patches(
    x: Tensor,
    keypoints: Tensor,
    skip: Tensor | None,
    norm: Tensor | None,
    slope: Tensor | None,
    resample: str,
) -> Tensor:
    channels = x.shape[1] + (0 if skip is None else skip.shape[1])
    flat = (keypoints.shape[0] * keypoints.shape[1], channels, _SIZE, _SIZE)
    patches = torch.empty(flat, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    return patches.view(keypoints.shape[0], keypoints.shape[1], channels, _SIZE, _SIZE)


def _size(x: Tensor, resample: str) -> tuple[int, int]:
    height, width = x.shape[2:]
    if resample == "pool":
        return height // 2, width // 2
    return (2 * height, 2 * width) if resample == "up" else (height, width)


torch.library.register_fake("disk_ops::block_norm", _fake_norm)
torch.library.register_fake("disk_ops::block_convolution", _fake_convolution)
torch.library.register_fake("disk_ops::block_patches", _fake_patches)
