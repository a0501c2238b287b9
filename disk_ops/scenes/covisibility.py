"""Which images of a reconstruction see the same points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def covisible_pairs(
    seen: Sequence[np.ndarray],  # for each image [P] int64: the points that it sees
    low: float,
    high: float,
) -> np.ndarray:
    """Return the pairs ``[P, 2]`` whose :func:`covisibility` is from ``low`` to ``high``."""
    pairs, shared = covisibility(seen)
    return pairs[(shared >= low) & (shared <= high)]


def covisibility(
    seen: Sequence[np.ndarray],  # for each image [P] int64: the points that it sees
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs ``[P, 2]`` int32 of images that have points in common, and the co-visibility ``[P]`` of each.

    It is the number of points that both see, divided by that of the one that sees fewer.
    """
    seen = [np.unique(ids) for ids in seen]
    counts = np.array([len(ids) for ids in seen], np.int64)
    points = np.unique(np.concatenate([*seen, np.zeros(0, np.int64)]), return_inverse=True)[1].ravel()
    images = np.repeat(np.arange(len(seen)), counts)[np.argsort(points, kind="stable")]  # of each point, in its order
    lengths = np.bincount(points, minlength=1)
    starts = np.cumsum(lengths) - lengths
    pairs, shared = [np.zeros((0, 2), np.int64)], [np.zeros(0)]
    for image, mine in enumerate(np.split(points, np.cumsum(counts))[:-1]):
        ends = np.cumsum(lengths[mine])
        within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths[mine], lengths[mine])
        common = np.bincount(images[np.repeat(starts[mine], lengths[mine]) + within], minlength=len(seen))
        others = np.flatnonzero(common)
        others = others[others > image]
        pairs.append(np.stack([np.full_like(others, image), others], 1))
        shared.append(common[others] / np.minimum(counts[others], counts[image]))
    return np.concatenate(pairs).astype(np.int32), np.concatenate(shared)
