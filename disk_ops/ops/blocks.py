"""The blocks of the U-Net: what a convolution reads is computed where it is read and never stored.

Between two convolutions of DISK lie pooling or bilinear up-sampling, the concatenation with a skip, instance norm and
PReLU. Layer by layer, each of these writes a tensor and reads it again, which takes longer than its arithmetic. Here a
first pass over the input gives the norm's statistics, and the convolution takes its tiles straight from the input.
:func:`conv_block` is a whole block with its gradient; the others are its parts, for inference.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

import disk_ops.ops._block_fakes  # registers shapes  # noqa: F401
from disk_ops import _library, reference_blocks
from disk_ops.ops._block_arguments import check_block, check_kernel, check_keypoints
from disk_ops.ops._block_autograd import LANES, BlockActivation, ConvBlock
from disk_ops.ops._derivatives import has_tangent
from disk_ops.ops._dtypes import HALF_TYPES, as_autocast, autocast_dtype

Resample = Literal["none", "pool", "up"]
_SIZE = 5  # of the convolution
_PATCHES = 4096  # keypoints whose patches are in memory at a time
# What compiled kernels take, by device type.
KERNEL_DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    device: (torch.float32, *HALF_TYPES)
    for device in ("cpu", "cuda")
    if _library.has_native_kernel("block_convolution", device.upper())
}


def conv_block(
    x: Tensor,  # [B, C1, h, w]
    weight: Tensor,  # [K, C1 + C2, k, k]
    bias: Tensor,  # [K]
    skip: Tensor | None = None,  # [B, C2, H, W]
    slope: Tensor | None = None,  # [C1 + C2]
    resample: Resample = "none",
) -> Tensor:  # [B, K, H, W]
    r"""A whole block: its input resampled, joined with a skip, instance-normalised, gated by PReLU and convolved.

    .. math:: \mathrm{conv}(\mathrm{PReLU}(\mathrm{norm}([\mathrm{resample}(x), \mathrm{skip}])))

    with zeros outside the image (``padding="same"``). On the CPU 5 x 5 convolutions are made by Winograd's algorithm
    (:func:`block_convolution`), and so are both their gradients; of all that lies between input and output nothing is
    kept for the gradient, which computes it again. On CUDA there are kernels for what needs no gradient. Everything
    else runs as PyTorch's own operations. float16 and bfloat16 are what is stored between blocks: on the CPU all is
    computed in float32 and rounded once, whatever instructions the processor has. Under autocast, arguments are cast
    as those of a convolution. Differentiable once; results and gradients depend neither on the number of threads nor
    on the run.

    Args:
        x: shape :math:`(B, C_1, h, w)`; any memory format, fastest in channels-last, which results are in.
        weight: shape :math:`(K, C_1 + C_2, k, k)`, k odd, of the dtype of ``x`` like all that follows.
        bias: shape :math:`(K)`.
        skip: joined after resampling, shape :math:`(B, C_2, H, W)`.
        slope: of negative values in PReLU, shape :math:`(C_1 + C_2)`; ``None``: neither norm nor gate.
        resample: ``"pool"``: average of 2 x 2 pixels, ``"up"``: twice the size, bilinear, corners not aligned.

    Returns:
        Shape :math:`(B, K, H, W)`, in the dtype of ``x``; a single output, which is a score, in float32 at least, as
        rounding would make scores equal that are not.

    Raises:
        ValueError, TypeError, RuntimeError: an argument has a wrong shape, dtype or value; the message names it.

    Example:
        >>> x, skip = torch.rand(1, 16, 4, 4), torch.rand(1, 16, 8, 8)
        >>> conv_block(x, torch.rand(32, 32, 5, 5), torch.rand(32), skip, torch.rand(32), "up").shape
        torch.Size([1, 32, 8, 8])
    """
    check_kernel(weight, bias)
    check_block(x, weight=weight, bias=bias, skip=skip, slope=slope)
    x, weight, bias, skip, slope = _cast(x, weight, bias, skip, slope)
    missing = -len(weight) % LANES if x.device.type == "cpu" else 0
    if missing and len(weight) > 1 and _convolves(x, weight[:1], bias[:1], skip, slope, resample):
        pad = torch.nn.functional.pad  # outputs that are left out again
        padded = (pad(weight, (0, 0, 0, 0, 0, 0, 0, missing)), pad(bias, (0, missing)))
        return conv_block(x, *padded, skip, slope, resample)[:, : len(weight)]
    if not _convolves(x, weight, bias, skip, slope, resample):
        activation = block_activation(x, skip, slope, resample)
        return reference_blocks.convolution(activation, weight, bias)
    if wants_gradient(x, weight, bias, skip, slope):
        return ConvBlock.apply(x, skip, slope, resample, weight, bias)
    norm = None if slope is None else block_norm(x, skip, resample)
    return torch.ops.disk_ops.block_convolution(x, weight, bias, skip, norm, slope, resample)


def block_activation(
    x: Tensor,  # [B, C1, h, w]
    skip: Tensor | None = None,  # [B, C2, H, W]
    slope: Tensor | None = None,  # [C1 + C2]
    resample: Resample = "none",
) -> Tensor:  # [B, C1 + C2, H, W]
    """What the convolution of :func:`conv_block` reads, where that is needed as a tensor.

    Args:
        x: see :func:`conv_block`, as for the other arguments.
        skip: joined after resampling.
        slope: of negative values in PReLU; ``None``: neither norm nor gate.
        resample: how ``x`` is resampled.

    Returns:
        Shape :math:`(B, C_1 + C_2, H, W)`. Differentiable once.

    Raises:
        ValueError, TypeError, RuntimeError: an argument has a wrong shape, dtype or value; the message names it.

    Example:
        >>> x = torch.rand(1, 16, 8, 8)
        >>> torch.allclose(block_activation(x, resample="pool"), torch.nn.functional.avg_pool2d(x, 2))
        True
    """
    check_block(x, skip=skip, slope=slope)
    x, skip, slope = as_autocast(x), as_autocast(skip), as_autocast(slope)
    if not has_kernel(x, skip, slope):
        norm = None if slope is None else reference_blocks.block_norm(x, skip, resample)
        return reference_blocks.block_activation(x, skip, norm, slope, resample)
    if wants_gradient(x, skip, slope):
        return BlockActivation.apply(x, skip, slope, resample)
    norm = None if slope is None else block_norm(x, skip, resample)
    return torch.ops.disk_ops.block_activation(x, skip, norm, slope, resample)


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
        ValueError, TypeError, RuntimeError: an argument has a wrong shape, dtype or value; the message names it.

    Example:
        >>> x = torch.rand(1, 16, 8, 8)
        >>> mean, factor = block_norm(x, resample="pool")
        >>> torch.allclose(mean[0], torch.nn.functional.avg_pool2d(x, 2)[0].mean((1, 2)))
        True
    """
    check_block(x, skip=skip)
    x, skip = as_autocast(x), as_autocast(skip)
    if has_kernel(x, skip) and not wants_gradient(x, skip):
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

    with zeros outside the image (``padding="same"``). There are kernels for float32, float16 and bfloat16 without
    gradients. On the CPU 5 x 5 convolutions are made by Winograd's algorithm F(4 x 4, 5 x 5): 64 multiplications for 16
    pixels in place of 400, with about twice the rounding error of the direct sum; half types are widened where they are
    read, computed in float32 and rounded once. On CUDA, one kernel writes what a convolution reads, computed in float32
    and rounded once, and cuDNN convolves it; to one output, a kernel convolves what it computes and nothing is written
    in between. Everything else runs as PyTorch's own operations, gradients included. Under autocast, arguments are
    cast as those of a convolution.

    Args:
        x: shape :math:`(B, C_1, h, w)`; any memory format, fastest in channels-last, which results are in.
        weight: shape :math:`(K, C_1 + C_2, k, k)`, k odd, of the dtype of ``x`` like all that follows but ``norm``.
        bias: shape :math:`(K)`.
        skip: shape :math:`(B, C_2, H, W)`.
        norm: :math:`\mu` and :math:`f` of :func:`block_norm`, float32 at least; ``None``: no norm.
        slope: of negative values in PReLU, shape :math:`(C_1 + C_2)`; ``None``: no gate.
        resample: see :func:`block_norm`.

    Returns:
        Shape :math:`(B, K, H, W)`, in the dtype of ``x``; a single output, which is a score, in float32 at least.

    Raises:
        ValueError, TypeError, RuntimeError: an argument has a wrong shape, dtype or value; the message names it.

    Example:
        >>> x, weight, bias = torch.rand(1, 16, 8, 8), torch.rand(32, 16, 5, 5), torch.rand(32)
        >>> block_convolution(x, weight, bias, norm=block_norm(x, resample="pool"), resample="pool").shape
        torch.Size([1, 32, 4, 4])
    """
    check_kernel(weight, bias)
    check_block(x, weight=weight, bias=bias, skip=skip, slope=slope)
    x, weight, bias, skip, slope = _cast(x, weight, bias, skip, slope)
    gradient = wants_gradient(x, weight, bias, skip, norm, slope)
    if not gradient and _convolves(x, weight, bias, skip, slope, resample, norm):
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
        ValueError, TypeError, RuntimeError: an argument has a wrong shape, dtype or value; the message names it.

    Example:
        >>> x = torch.rand(1, 16, 8, 8)
        >>> patches = block_patches(x, torch.tensor([[[3, 4]]]))
        >>> torch.equal(patches[0, 0], x[0, :, 2:7, 1:6])
        True
    """
    check_block(x, skip=skip, slope=slope)
    check_keypoints(keypoints)
    x, skip, slope = as_autocast(x), as_autocast(skip), as_autocast(slope)
    if has_kernel(x, skip, slope, norm=norm) and not wants_gradient(x, skip, norm, slope):
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
    """:func:`block_convolution` at keypoints only, L2-normalised; see :func:`disk_ops.ops.describe`.

    Args:
        x: see :func:`block_convolution`.
        weight: shape :math:`(D, C_1 + C_2, 5, 5)`.
        bias: shape :math:`(D)`.
        keypoints: whole pixels in xy order inside the image, shape :math:`(B, N, 2)`, int64.
        skip: see :func:`block_convolution`.
        norm: see :func:`block_convolution`.
        slope: see :func:`block_convolution`.
        resample: see :func:`block_convolution`.

    Returns:
        Descriptors of unit length, shape :math:`(B, N, D)`, in the dtype of ``x``.

    Raises:
        ValueError, TypeError, RuntimeError: an argument has a wrong shape, dtype or value; the message names it.

    Example:
        >>> x, weight, bias = torch.rand(1, 16, 8, 8), torch.rand(32, 16, 5, 5), torch.rand(32)
        >>> describe_block(x, weight, bias, torch.tensor([[[3, 4], [7, 0]]])).shape
        torch.Size([1, 2, 32])
    """
    check_kernel(weight, bias, _SIZE)
    check_block(x, weight=weight, bias=bias, skip=skip, slope=slope)
    check_keypoints(keypoints)
    x, weight, bias, skip, slope = _cast(x, weight, bias, skip, slope)
    each = []
    for some in keypoints.split(_PATCHES, dim=1):
        patches = block_patches(x, some, skip, norm, slope, resample).flatten(0, 1)
        centre = some.new_full((len(patches), 1, 2), _SIZE // 2)
        descriptors = torch.ops.disk_ops.describe(patches, weight, bias, centre)
        each.append(descriptors.view(*some.shape[:2], len(bias)))
    return torch.cat(each, 1)


def has_kernel(x: Tensor, skip: Tensor | None, *others: Tensor | None, norm: Tensor | None = None) -> bool:
    """Whether compiled kernels take these, as autocast sees them; on the CPU with channels in multiples of 16."""
    if not takes(x, skip, *others, norm=norm):
        return False
    if x.device.type != "cpu":
        return True
    return all(tensor.shape[1] % LANES == 0 for tensor in (x, skip) if tensor is not None and tensor.ndim == 4)


def takes(x: Tensor, *others: Tensor | None, norm: Tensor | None = None) -> bool:
    """Whether compiled kernels are here and take tensors of this kind; those of CUDA have no gradient."""
    device, dtypes = x.device, KERNEL_DTYPES.get(x.device.type, ())
    tensors = [x, *(tensor for tensor in others if tensor is not None)]
    dtype = autocast_dtype(x)
    if dtype not in dtypes or any(autocast_dtype(t) != dtype or t.device != device for t in tensors):
        return False
    if norm is not None:
        if norm.dtype != torch.float32 or norm.device != device:
            return False
        tensors.append(norm)
    if has_tangent(*tensors):
        return False
    return device.type == "cpu" or not wants_gradient(*tensors)


def wants_gradient(*tensors: Tensor | None) -> bool:
    """Whether a gradient of one of these may be asked for."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _cast(
    x: Tensor,  # [B, C1, h, w]
    weight: Tensor,  # [K, C1 + C2, k, k]
    bias: Tensor,  # [K]
    skip: Tensor | None,  # [B, C2, H, W]
    slope: Tensor | None,  # [C1 + C2]
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The tensors of a block as autocast has them."""
    return as_autocast(x), as_autocast(weight), as_autocast(bias), as_autocast(skip), as_autocast(slope)


def _convolves(
    x: Tensor,  # [B, C1, h, w]
    weight: Tensor,  # [K, C1 + C2, k, k]
    bias: Tensor,  # [K]
    skip: Tensor | None,  # [B, C2, H, W]
    slope: Tensor | None,  # [C1 + C2]
    resample: str,
    norm: Tensor | None = None,  # [2, B, C1 + C2]
) -> bool:
    """Whether compiled kernels make this convolution."""
    fits = has_kernel(x, skip, weight, bias, slope, norm=norm)
    if x.device.type != "cpu":
        return fits and weight.shape[2:] == (_SIZE, _SIZE)
    many = weight.shape[0] % LANES == 0
    if not fits and skip is None and norm is None and slope is None and resample == "none":
        fits = many and takes(x, weight, bias) and not wants_gradient(x)  # an image has any number of channels
    return fits and weight.shape[2:] == (_SIZE, _SIZE) and (many or weight.shape[0] == 1)
