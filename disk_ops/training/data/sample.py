"""What a source of training data gives: the images of one scene and what is known of their geometry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from disk_ops.io.inputs import stable_number
from disk_ops.training.rewards import View

Split = Literal["train", "val"]


class Frame(NamedTuple):
    """What the images of a sample look like: all of one size, ``images`` of them."""

    width: int
    height: int
    images: int = 2


class Sample(NamedTuple):
    """The images of one scene. Exactly one of ``homographies`` and ``views`` is given."""

    name: str  # what a message calls it
    images: Tensor  # [T, 3, H, W] uint8 RGB
    mask: Tensor  # [T, 1, H, W] bool: pixels that show something of the scene
    homographies: Tensor | None = None  # [T, 3, 3] float64, from a common plane to each image
    views: tuple[View, ...] | None = None  # T posed views of the images as they are here


class Source(Protocol):
    """Scenes of one kind. Samples depend on nothing but the files, the configuration, the item and ``rng``."""

    name: str  # kind and place, for messages
    notes: tuple[str, ...]  # what of the files is left out, and why

    def order(self, epoch: int, seed: int) -> np.ndarray:
        """The items ``[N]`` int64 of one pass over the source, in an order of its own for each pass."""
        ...

    def load(self, item: int, rng: np.random.Generator) -> Sample:
        """Read an item; raises :class:`SampleError` where a file of it can't be used."""
        ...


def held_out_names(names: Sequence[str], holdout: float) -> set[str]:
    """Which of the names are kept for validation: a part ``holdout`` (0 to 1), chosen by nothing but the name.

    Further names move none from one split to the other. With a holdout between 0 and 1 and several names each split
    has at least one, and a single one is for training.
    """
    if holdout in (0, 1) or len(names) < 2:
        return set(names) if holdout == 1 else set()
    numbers = {name: stable_number(name) for name in names}
    held_out = {name for name, number in numbers.items() if number < holdout} | {min(numbers, key=numbers.__getitem__)}
    return held_out - {max(numbers, key=numbers.__getitem__)}
