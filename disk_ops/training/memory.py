"""Memory of a training: what a step keeps for the backward pass, and what the allocator keeps between steps."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from disk_ops.detector import DISKDetector

_PROBE = 64  # side of the image that is measured


def activation_bytes(detector: DISKDetector, width: int, height: int, images: int) -> int:
    """Bytes that the network keeps of so many images of this size, measured on a small one.

    All of it grows with the number of pixels. With automatic mixed precision it is up to half as much.
    """
    parameter = next(detector.parameters())
    stored: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        stored[storage.data_ptr()] = storage.nbytes()
        return tensor

    probe = torch.zeros(1, 3, _PROBE, _PROBE, device=parameter.device, dtype=parameter.dtype)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        features = detector.sample(probe, [torch.Generator().manual_seed(0)])
    weights = {parameter.untyped_storage().data_ptr() for parameter in detector.parameters()}
    pixels = sum(size for pointer, size in stored.items() if pointer not in weights)
    del features
    return round(pixels * images * width * height / _PROBE**2)


def keep_freed_memory() -> bool:
    """Tell glibc's allocator to keep memory that is freed instead of giving it back to the system after each tensor.

    A training step on the CPU allocates the same gigabytes again and again; fresh pages for them can take a third of
    its time. Returns whether the allocator is one that can be told.
    """
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # of <malloc.h>
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return all((mallopt(mmap_max, 0), mallopt(trim_threshold, 2**31 - 1), mallopt(top_pad, 64 * 2**20)))
