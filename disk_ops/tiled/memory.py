"""How much memory there is, how much an image needs at once, and how large its tiles can be."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from disk_ops.model import UNet
from disk_ops.ops._arguments import check_number
from disk_ops.ops.blocks import has_kernel, wants_gradient

# Peak memory of the network per pixel in float32, measured at 1024 x 1024 (python/benchmarks/bench_detector.py): with
# the kernels that store nothing between convolutions, and layer by layer. On CUDA convolutions read a tensor: what all
# tensors take that live at a time, and as much again for cuDNN's workspace, which nobody has measured yet.
_FUSED, _LAYERED, _FUSED_CUDA = 220, 2300, 600
_SMALL = 2**28  # bytes: with less, looking for free memory isn't worth its time
_SHARE = 0.5  # of the free memory that is taken unasked
_OF_TILES = 0.25  # of the limit that the tile in work may take
_OF_BUFFERS = 0.1  # of it, for memory that waits for the next tile; the rest is for tensors that are kept whole
_MARGIN = 192  # pixels around a tile that are computed too, all levels together
_SIDES = (128, 4096)  # of a tile: the smallest are mostly margin, and larger ones save little


class Limit(NamedTuple):
    """How an image is to be gone through."""

    side: int  # of a tile in pixels
    room: float  # bytes that tensors may take which are kept whole
    buffers: int = 2**29  # bytes that disk_ops.buffers may keep from tile to tile


def available_memory() -> int | None:
    """Bytes of main memory that can be used without swapping, None where that can't be known."""
    amounts = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                amounts.append(int(line.split()[1]) * 1024)
        group = Path("/sys/fs/cgroup")  # a container's limit; all but "anon" memory can be given back
        limit = (group / "memory.max").read_text().strip()
        used = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        if limit != "max":
            amounts.append(int(limit) - int(used["anon"]))
    except (OSError, ValueError, KeyError):
        pass
    return min(amounts, default=None)


def bytes_per_pixel(unet: UNet) -> float:
    """About how many bytes the network takes for each pixel of an image."""
    weight = next(unet.parameters())
    like = weight.detach().new_empty(1, 16, 1, 1)
    size, on_cpu = weight.element_size() / 4, like.device.type == "cpu"
    if not has_kernel(like, None):
        return _LAYERED * (max(size, 1) if on_cpu else size)  # half types are widened
    return (_FUSED if on_cpu else _FUSED_CUDA) * size


def limit_for(
    images: Tensor,  # [B, C, H, W]
    unet: nn.Module,
    norm: str,
    max_memory: float | None,
) -> Limit | None:
    """How to compute images within ``max_memory`` GB, or half of what is free; None: at once.

    Raises:
        TypeError, ValueError: ``max_memory`` is no positive number, or given where there is no other way than at once.
    """
    if max_memory is not None:
        check_number("max_memory", max_memory)
        if max_memory <= 0:
            raise ValueError(f"max_memory must be a positive number of GB, got {max_memory}")
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or images.ndim != 4:
        return None
    reason = _why_at_once(images, unet, norm)
    if reason is not None:
        if max_memory is not None:
            raise ValueError(f"max_memory {reason}")
        return None
    assert isinstance(unet, UNet)
    pixel, pixels = bytes_per_pixel(unet), images.shape[0] * images.shape[2] * images.shape[3]
    if max_memory is not None:
        limit = max_memory * 1e9
    else:
        free = None if pixel * pixels < _SMALL else _free(images.device)
        if free is None:
            return None
        limit = free * _SHARE
    if pixel * pixels <= limit:
        return None
    side = int((limit * _OF_TILES / pixel) ** 0.5) - _MARGIN
    side = max(_SIDES[0], min(side, _SIDES[1])) // unet.stride * unet.stride
    waiting = limit * _OF_BUFFERS
    return Limit(side, limit - pixel * (side + _MARGIN) ** 2 - waiting, int(waiting))


def _why_at_once(images: Tensor, unet: nn.Module, norm: str) -> str | None:
    """What is in the way of tiles."""
    if not isinstance(unet, UNet) or not unet.standard:
        return "needs the network of disk_ops.model, whose parts are known"
    if norm != "instance":
        return f"needs norm='instance', got {norm!r}"
    if wants_gradient(images, *unet.parameters()):
        return "needs torch.inference_mode(): gradients need the whole image at once"
    return None


def _free(device: torch.device) -> int | None:
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return available_memory() if device.type == "cpu" else None
