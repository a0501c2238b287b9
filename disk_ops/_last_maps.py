"""One network pass for kornia's two-step contract, where a detector and then a descriptor see the same image."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch
from torch import Tensor, nn


class _Entry(NamedTuple):
    tensors: list[tuple[weakref.ref[Tensor], int]]  # what the maps depend on, and its version
    mode: tuple[bool, bool, bool]
    descriptors: Tensor  # [B, D, H, W]


class LastMaps:
    """Dense descriptors of the last image, given out once and only for exactly that image, mask and weights.

    They are dropped with the image (with gradients, whose graph keeps the image, by the next call). Copies and pickles
    of a detector start empty. Under ``torch.inference_mode`` tensors carry no version to compare, and while compiling
    nothing may be kept: then nothing is remembered.
    """

    def __init__(self) -> None:
        self._entry: _Entry | None = None

    def remember(self, network: nn.Module, images: Tensor, mask: Tensor | None, descriptors: Tensor) -> None:
        """Keep the descriptors of an image until they are recalled, or another image comes, or the image is gone."""
        self._entry = None
        tensors = _dependencies(network, images, mask)
        if tensors is None:
            return
        references = [(weakref.ref(images, lambda _: self._forget()), images._version)]
        references += [(weakref.ref(tensor), tensor._version) for tensor in tensors[1:]]
        self._entry = _Entry(references, _mode(network, images), descriptors)

    def recall(self, network: nn.Module, images: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the descriptors and forget them; ``None`` if they aren't those of this image, mask and weights."""
        entry, self._entry = self._entry, None
        tensors = _dependencies(network, images, mask)
        if entry is None or tensors is None or entry.mode != _mode(network, images):
            return None
        if len(tensors) != len(entry.tensors):
            return None
        for tensor, (reference, version) in zip(tensors, entry.tensors, strict=True):
            if reference() is not tensor or tensor._version != version:
                return None
        return entry.descriptors

    def _forget(self) -> None:
        self._entry = None

    def __getstate__(self) -> dict[str, None]:
        return {"_entry": None}


def _dependencies(network: nn.Module, images: Tensor, mask: Tensor | None) -> list[Tensor] | None:
    if torch.compiler.is_compiling():
        return None
    tensors = [images, *network.parameters(), *network.buffers()] + ([] if mask is None else [mask])
    return None if any(tensor.is_inference() for tensor in tensors) else tensors


def _mode(network: nn.Module, images: Tensor) -> tuple[bool, bool, bool]:
    return torch.is_grad_enabled(), network.training, torch.is_autocast_enabled(images.device.type)
