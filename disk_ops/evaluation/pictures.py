"""Pictures of matches for reports: which ones are shown, and how."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from disk_ops.drawing import draw_matches, to_picture
from disk_ops.evaluation.methods import Method
from disk_ops.evaluation.protocol import Picture, Record, by_method

CORRECT = 3.0
"""Pixels up to which pictures show a match as correct."""
MOST = 3
"""Items that are pictured."""

_GREEN, _RED = (40, 180, 90), (225, 60, 50)


def spread(records: Iterable[Record], most: int = MOST) -> list[str]:
    """The names of up to so many items of the records: the first, the last, and some between them."""
    items = list(dict.fromkeys(record["item"] for record in records))
    return [items[int(index)] for index in np.unique(np.linspace(0, len(items) - 1, most).astype(int))] if items else []


def pictured(records: Iterable[Record], item: str, methods: Sequence[Method]) -> list[tuple[Method, list[Record]]]:
    """Each of the methods with its records of an item, those with the largest number of keypoints."""
    known = {method.name: method for method in methods}
    largest: dict[str, tuple[int, list[Record]]] = {}
    for name, n, group in by_method(record for record in records if record["item"] == item):
        if name in known and n >= largest.get(name, (n, []))[0]:
            largest[name] = (n, group)
    return [(known[name], group) for name, (_, group) in largest.items()]


def picture_of(
    image: Tensor,  # [3, H, W] in [0, 1]
) -> Picture:
    """The image as a picture."""
    return to_picture(image.permute(1, 2, 0).numpy())


def picture_matches(
    left: Picture,
    right: Picture,
    points1: npt.NDArray[np.float32],  # [K, 2] in the left picture
    points2: npt.NDArray[np.float32],  # [K, 2] in the right one
    errors: npt.NDArray[np.floating],  # [K]
    within: str = "px",
) -> tuple[Picture, str]:
    """Draw matches, green where their errors are at most ``CORRECT``, else red, and say how many those are.

    ``within`` is what the errors are measured in.
    """
    correct = errors <= CORRECT
    colors = np.where(correct[:, None], _GREEN, _RED).astype(np.uint8)
    picture = draw_matches(left, right, points1, points2, colors=colors)
    return picture, f"{int(correct.sum()):,} of {len(correct):,} matches within {CORRECT:g} {within}"
