"""What every op on two sets of descriptors accepts. Each message names the argument and what came."""

from __future__ import annotations

import torch
from torch import Tensor

from disk_ops.ops._arguments import check_tensor
from disk_ops.ops._dtypes import DTYPES


def check_descriptors(
    desc1: Tensor,  # [N, D] or [B, N, D]
    desc2: Tensor,  # [M, D] or [B, M, D]
) -> None:
    """Raise for descriptors that don't go together."""
    check_tensor("desc1", desc1)
    check_tensor("desc2", desc2)
    if desc1.ndim not in (2, 3):
        raise ValueError(f"desc1 must have shape [N, D] or [B, N, D], got {list(desc1.shape)}")
    if desc1.dtype not in DTYPES:
        raise TypeError(f"desc1 must be float16, bfloat16, float32 or float64, got {desc1.dtype}")
    if desc2.ndim != desc1.ndim or desc2.shape[:-2] != desc1.shape[:-2] or desc2.shape[-1] != desc1.shape[-1]:
        raise ValueError(
            f"desc2 must have the rank, batch size and dimension of desc1 {list(desc1.shape)}, got {list(desc2.shape)}"
        )
    if desc2.dtype != desc1.dtype:
        raise TypeError(f"desc2 must be of dtype {desc1.dtype} as desc1 is, got {desc2.dtype}")
    if desc2.device != desc1.device:
        raise ValueError(f"desc2 must be on the device of desc1 ({desc1.device}), got {desc2.device}")


def check_valid(
    name: str,
    valid: Tensor | None,  # [N] or [B, N] bool
    desc: Tensor,  # [N, D] or [B, N, D]
) -> None:
    """Raise for flags that aren't those of the descriptors' rows."""
    if valid is None:
        return
    check_tensor(name, valid)
    if valid.shape != desc.shape[:-1]:
        raise ValueError(f"{name} must have shape {list(desc.shape[:-1])}, got {list(valid.shape)}")
    if valid.dtype != torch.bool:
        raise TypeError(f"{name} must be of dtype bool, got {valid.dtype}")
    if valid.device != desc.device:
        raise ValueError(f"{name} must be on the device of its descriptors ({desc.device}), got {valid.device}")
