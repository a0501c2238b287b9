"""What every op on heatmaps accepts."""

from __future__ import annotations

import torch
from torch import Tensor

from disk_ops.ops._arguments import check_tensor
from disk_ops.ops._dtypes import DTYPES


def check_heatmap(
    heatmap: Tensor,  # [B, 1, H, W]
    mask: Tensor | None,  # [B, 1, H, W] bool
) -> None:
    """Raise an error that names the argument and what came."""
    check_tensor("heatmap", heatmap)
    if heatmap.ndim != 4 or heatmap.shape[1] != 1:
        raise ValueError(f"heatmap must have shape [B, 1, H, W], got {list(heatmap.shape)}")
    if heatmap.dtype not in DTYPES:
        raise TypeError(f"heatmap must be float16, bfloat16, float32 or float64, got {heatmap.dtype}")
    if mask is None:
        return
    check_tensor("mask", mask)
    if mask.shape != heatmap.shape:
        raise ValueError(f"mask must have the shape of heatmap {list(heatmap.shape)}, got {list(mask.shape)}")
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be of dtype bool, got {mask.dtype}")
    if mask.device != heatmap.device:
        raise ValueError(f"mask must be on the device of heatmap ({heatmap.device}), got {mask.device}")
