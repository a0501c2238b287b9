"""A mixture of sources as an endless sequence of samples: which sample stands at a position depends on nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch.utils.data import Dataset

from disk_ops.scenes.errors import DataError, SampleError
from disk_ops.training.data.sample import Sample, Source

_DECK = 1000  # positions after which the proportions of the sources are exact
_MOST_ATTEMPTS = 100
_SHUFFLE, _DRAW = 0, 1  # streams of random numbers


class Broken(NamedTuple):
    """A file that couldn't be used."""

    path: str
    reason: str


class Loaded(NamedTuple):
    """The sample of a position, and the broken files that were met on the way to it."""

    position: int
    sample: Sample
    broken: tuple[Broken, ...]


class Mixture(Dataset[Loaded]):
    """Samples of several sources in given proportions.

    Each source is passed through again and again, in a new order each time. A file that can't be used is reported with
    the sample that takes its place. The sample of a position is a function of the position, the seed and the files,
    so a training may go on from any position, in any number of processes.

    Args:
        sources: where samples come from.
        weights: how often, relative to each other.
        seed: of order and augmentation.
    """

    def __init__(self, sources: Sequence[Source], weights: Sequence[float], seed: int) -> None:
        if not sources or len(sources) != len(weights):
            raise ValueError(f"sources and weights must be as many and not none, got {len(sources)}, {len(weights)}")
        self.sources, self.seed = list(sources), seed
        self._deck = _make_deck(weights, seed)  # [_DECK] which source each position takes
        self._rank = np.zeros(_DECK, dtype=np.int64)  # its how-manieth of that source in the deck
        for source in range(len(sources)):
            mine = self._deck == source
            self._rank[mine] = np.arange(mine.sum())
        self._counts = np.bincount(self._deck, minlength=len(sources))
        self._orders: dict[tuple[int, int], np.ndarray] = {}

    def __getitem__(self, position: int) -> Loaded:
        """Return the sample of a position; raises `DataError` where a source has nothing that can be used."""
        deck, slot = divmod(position, _DECK)
        number = int(self._deck[slot])
        source = self.sources[number]
        draw = deck * int(self._counts[number]) + int(self._rank[slot])
        items = len(self._order(number, 0))
        item = int(self._order(number, draw // items)[draw % items])
        broken: list[Broken] = []
        for attempt in range(_MOST_ATTEMPTS):
            rng = np.random.default_rng((self.seed, _DRAW, position, attempt))
            if attempt:
                item = int(rng.choice(self._order(number, draw // items)))
            try:
                return Loaded(position, source.load(item, rng), tuple(dict.fromkeys(broken)))
            except SampleError as error:
                broken.append(Broken(error.path, error.reason))
        last = broken[-1]
        raise DataError(
            f"{source.name}: none of {_MOST_ATTEMPTS} items could be used; the last: {last.path}: {last.reason}"
        )

    def _order(self, number: int, epoch: int) -> np.ndarray:
        if (number, epoch) not in self._orders:
            order = self.sources[number].order(epoch, self.seed)
            # Two passes of each source are enough: positions come nearly in order.
            kept = {key: value for key, value in self._orders.items() if key[0] != number or key[1] in (0, epoch - 1)}
            self._orders = {**kept, (number, epoch): order}
        return self._orders[number, epoch]


class Stages(Dataset[Loaded]):
    """Mixtures that take turns: each holds from its first position to that of the next."""

    def __init__(self, stages: Sequence[tuple[int, Mixture]]) -> None:
        if not stages or stages[0][0] != 0:
            raise ValueError("stages must begin at position 0")
        self.stages = list(stages)

    def __getitem__(self, position: int) -> Loaded:
        """Return the sample of a position."""
        mixture = [mixture for start, mixture in self.stages if start <= position][-1]
        return mixture[position]


def _make_deck(weights: Sequence[float], seed: int) -> np.ndarray:
    shares = np.asarray(weights, dtype=np.float64) / np.sum(weights) * _DECK
    counts = np.maximum(1, np.floor(shares)).astype(np.int64)
    while counts.sum() != _DECK:  # the largest remainders get what is left; what is over is taken from the largest
        counts[np.argmax(shares - counts) if counts.sum() < _DECK else np.argmax(counts)] += np.sign(
            _DECK - counts.sum()
        )
    deck = np.repeat(np.arange(len(weights)), counts)
    return np.random.default_rng((seed, _SHUFFLE)).permutation(deck)
