"""Which images of a scene are seen together: tuples of overlapping images, and which of them are held out."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np

from disk_ops.io.inputs import stable_number
from disk_ops.scenes.errors import DataError
from disk_ops.training.data.sample import Split

POOL = 10
"""Tuples that are kept of a scene for each one that is used in a pass."""


class Scene(NamedTuple):
    """Images and which of them make samples."""

    name: str
    images: tuple[str, ...]
    tuples: np.ndarray  # [N, L] int32, numbers of images; rows of fewer than L images end in -1


class Covisibility(Protocol):
    """What is known of the overlap between the images of a scene."""

    name: str
    images: tuple[str, ...]

    def walk(self, size: int) -> Iterator[tuple[int, ...]]:
        """Some tuples of at least ``size`` images in an order that depends on names alone."""
        ...

    def restricted(self, images: Collection[int]) -> Covisibility:
        """The same with some of the images only. Numbers stay."""
        ...

    def draw(self, size: int, limit: int) -> np.ndarray:
        """At most ``limit`` distinct tuples ``[N, L >= size]``, always the same ones."""
        ...


class PairGraph:
    """A scene given by the pairs of images that overlap. In a tuple, each image overlaps with each.

    Args:
        name: of the scene.
        images: their names.
        pairs: numbers of images.
    """

    def __init__(
        self,
        name: str,
        images: Sequence[str],
        pairs: np.ndarray,  # [P, 2] int
    ) -> None:
        self.name, self.images = name, tuple(images)
        self.pairs = np.asarray(pairs, np.int32).reshape(-1, 2)
        self.neighbours: list[set[int]] = [set() for _ in images]
        for first, second in self.pairs.tolist():
            self.neighbours[first].add(second)
            self.neighbours[second].add(first)

    def walk(self, size: int) -> Iterator[tuple[int, ...]]:
        """For each image a tuple that it is in."""
        numbers = [stable_number(image) for image in self.images]
        for image in sorted(range(len(self.images)), key=numbers.__getitem__):
            near = sorted(self.neighbours[image], key=numbers.__getitem__)
            yield from islice(self._cliques((image,), near, size), 1)

    def restricted(self, images: Collection[int]) -> PairGraph:
        """Pairs within some of the images."""
        kept = np.isin(self.pairs, np.fromiter(images, np.int32, len(images))).all(1)
        return PairGraph(self.name, self.images, self.pairs[kept])

    def draw(self, size: int, limit: int) -> np.ndarray:
        """Draw tuples ``[N, size]``: all if they are few, else about equally many for each pair."""
        rng = np.random.default_rng(int(stable_number(self.name) * 2**53))
        pairs = rng.permutation(self.pairs)
        if size == 2 or not len(pairs):
            return pairs[:limit] if size == 2 else np.zeros((0, size), np.int32)
        rank = rng.permutation(len(self.images))  # a tuple is found from the pair of its two lowest ranks only
        share = math.ceil(limit / len(pairs))
        while True:
            tuples, more = self._completed(pairs, rank, size, share, limit, rng)
            if len(tuples) >= limit or not more:
                return np.array(tuples, np.int32).reshape(-1, size)
            share *= 4

    def _completed(
        self,
        pairs: np.ndarray,  # [P, 2]
        rank: np.ndarray,  # [images]
        size: int,
        share: int,
        limit: int,
        rng: np.random.Generator,
    ) -> tuple[list[tuple[int, ...]], bool]:
        """At most ``share`` tuples for each pair, ``limit`` in all, and whether a pair has more than that."""
        tuples: list[tuple[int, ...]] = []
        more = False
        for first, second in pairs.tolist():
            last = max(rank[first], rank[second])
            common = [image for image in self.neighbours[first] & self.neighbours[second] if rank[image] > last]
            shuffled = rng.permutation(sorted(common)).tolist()
            found = list(islice(self._cliques((first, second), shuffled, size), share + 1))
            more = more or len(found) > share
            tuples += found[:share]
            if len(tuples) >= limit:
                break
        return tuples[:limit], more

    def _cliques(self, chosen: tuple[int, ...], candidates: list[int], size: int) -> Iterator[tuple[int, ...]]:
        """The chosen images completed by candidates that overlap with all of them; each set once."""
        if len(chosen) == size:
            yield chosen
            return
        for position, image in enumerate(candidates):
            later = [other for other in candidates[position + 1 :] if other in self.neighbours[image]]
            yield from self._cliques((*chosen, image), later, size)


class ListedTuples:
    """A scene whose tuples are given.

    Args:
        name: of the scene.
        images: their names.
        tuples: numbers of images; rows of fewer than L images end in -1.
    """

    def __init__(
        self,
        name: str,
        images: Sequence[str],
        tuples: np.ndarray,  # [N, L] int
    ) -> None:
        self.name, self.images, self.tuples = name, tuple(images), np.asarray(tuples, np.int32)

    def walk(self, size: int) -> Iterator[tuple[int, ...]]:
        """All the tuples that are long enough."""
        long_enough = [[image for image in row if image >= 0] for row in self._of_size(size).tolist()]
        names = [",".join(self.images[image] for image in row) for row in long_enough]
        for index in sorted(range(len(names)), key=lambda index: stable_number(names[index])):
            yield tuple(long_enough[index])

    def restricted(self, images: Collection[int]) -> ListedTuples:
        """Tuples within some of the images."""
        kept = np.isin(self.tuples, [-1, *images]).all(1)
        return ListedTuples(self.name, self.images, self.tuples[kept])

    def draw(self, size: int, limit: int) -> np.ndarray:
        """Draw tuples ``[N, L]``."""
        tuples = self._of_size(size)
        rng = np.random.default_rng(int(stable_number(self.name) * 2**53))
        return tuples if len(tuples) <= limit else rng.permutation(tuples)[:limit]

    def _of_size(self, size: int) -> np.ndarray:
        return self.tuples[(self.tuples >= 0).sum(1) >= size]


def split_scenes(scenes: Sequence[Covisibility], size: int, split: Split, holdout: float, limit: int) -> list[Scene]:
    """Divide scenes into training and validation and draw their tuples.

    A part ``holdout`` of the scenes is kept for validation, chosen by name, if that makes at least one; otherwise that
    part of the images of each scene, as triplets that overlap, and at least one triplet (pairs, if there are no
    triplets). Tuples of both kinds of images are dropped: training and validation share no image. Nothing is held out
    of a scene that would have no tuple left. What is held out doesn't depend on ``size``, which may differ.

    Args:
        scenes: what there is.
        size: images of a sample.
        split: which part to return.
        holdout: 0 to 1.
        limit: tuples of a scene that are used in a pass; ``POOL`` times as many are kept.
    """
    scenes = [scene for scene in scenes if _has_tuple(scene, 2)]
    if holdout in (0, 1):
        parts: Sequence[Covisibility] = scenes if (split == "val") == (holdout == 1) else []
    elif len(scenes) > 1 and len(scenes) * holdout >= 1:
        numbers = [stable_number(scene.name) for scene in scenes]
        held = {index for index, number in enumerate(numbers) if number < holdout} | {int(np.argmin(numbers))}
        held -= {int(np.argmax(numbers))}
        parts = [scene for index, scene in enumerate(scenes) if (index in held) == (split == "val")]
    else:
        parts = [_part_of_scene(scene, split, holdout) for scene in scenes]
    drawn = [Scene(part.name, part.images, part.draw(size, POOL * limit)) for part in parts]
    return [scene for scene in drawn if len(scene.tuples)]


def _part_of_scene(scene: Covisibility, split: Split, holdout: float) -> Covisibility:
    size = 3 if _has_tuple(scene, 3) else 2
    held: set[int] = set()
    for images in scene.walk(size):
        if len(held) >= max(size, round(holdout * len(scene.images))):
            break
        held |= set(images)
    rest = scene.restricted(set(range(len(scene.images))) - held)
    if not _has_tuple(rest, size):
        return scene if split == "train" else scene.restricted(())
    return rest if split == "train" else scene.restricted(held)


def _has_tuple(scene: Covisibility, size: int) -> bool:
    return next(scene.walk(size), None) is not None


def require_scenes(scenes: Sequence[Scene], source: str, split: Split, holdout: float, looked_for: str) -> None:
    """Raise :class:`DataError` if nothing is left."""
    if not scenes:
        why = f"for {split} (holdout is {holdout:g})" if holdout > 0 or split == "val" else ""
        raise DataError(f"{source}: nothing to use {why}".rstrip() + f"; {looked_for}")
