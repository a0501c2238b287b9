"""The dtypes that the ops take, and what autocast makes of them."""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
HALF_TYPES = (torch.float16, torch.bfloat16)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """What scores, sums and statistics of tensors of this dtype are in."""
    return torch.promote_types(dtype, torch.float32)


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype in which a convolution sees a tensor: under autocast another one than its own."""
    device, dtype = tensor.device.type, tensor.dtype
    if not dtype.is_floating_point or dtype == torch.float64:
        return dtype
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return dtype
    return torch.get_autocast_dtype(device)


@overload
def as_autocast(tensor: Tensor) -> Tensor: ...
@overload
def as_autocast(tensor: Tensor | None) -> Tensor | None: ...
def as_autocast(tensor: Tensor | None) -> Tensor | None:
    """Cast as autocast casts the arguments of a convolution."""
    return None if tensor is None else tensor.to(autocast_dtype(tensor))
