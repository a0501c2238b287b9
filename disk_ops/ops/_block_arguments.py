"""What the block ops accept, told before it is decided what computes them."""

from __future__ import annotations

from torch import Tensor

from disk_ops.ops._arguments import check_tensor
from disk_ops.ops._dtypes import DTYPES, autocast_dtype


def check_block(
    x: Tensor,  # [B, C1, h, w]
    **others: Tensor | None,
) -> None:
    """Raise TypeError unless all that is given is of one dtype, as autocast has it; sizes are left for the kernels."""
    check_tensor("x", x)
    if x.dtype not in DTYPES:
        raise TypeError(f"x must be float16, bfloat16, float32 or float64, got {x.dtype}")
    dtype = autocast_dtype(x)
    for name, tensor in others.items():
        if tensor is None:
            continue
        check_tensor(name, tensor)
        if autocast_dtype(tensor) != dtype:
            raise TypeError(f"{name} must be of dtype {dtype} as x is, got {tensor.dtype}")


def check_kernel(
    weight: Tensor,  # [K, C1 + C2, k, k]
    bias: Tensor,  # [K]
    size: int | None = None,
) -> None:
    """Raise for weights without a square kernel of odd size, or of another size than the only one that there is."""
    check_tensor("weight", weight)
    check_tensor("bias", bias)
    fits = weight.ndim == 4 and weight.shape[2] == weight.shape[3] and weight.shape[2] % 2 == 1 and weight.shape[1] > 0
    if not fits or size not in (None, weight.shape[2]):
        wanted = "[K, C1 + C2, k, k] with k odd" if size is None else f"[D, C1 + C2, {size}, {size}]"
        raise ValueError(f"weight must have shape {wanted} and at least one channel, got {list(weight.shape)}")


def check_keypoints(
    keypoints: Tensor,  # [B, N, 2] int64 xy
) -> None:
    """Raise for what has no rows of points; the rest is left for the kernels."""
    check_tensor("keypoints", keypoints)
    if keypoints.ndim != 3:
        raise ValueError(f"keypoints must have shape [B, N, 2], got {list(keypoints.shape)}")
