"""What evaluations have in common: items of work that give records, and tables and plots that are made of records."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from disk_ops.evaluation.features import Matcher
from disk_ops.evaluation.methods import Method

Record = dict[str, Any]
"""One row of results, as JSON has it: always ``method`` (name), ``n`` (keypoints per image at most), ``ratio`` (of the
matcher, or None) and ``item`` (name); then what the protocol measures: numbers, texts, lists, None for nothing."""

Cell = str | float | int | None
Picture = npt.NDArray[np.uint8]
"""``[H, W, 3]`` RGB."""


@dataclass(frozen=True)
class Item:
    """A piece of work: what is done, kept and, if it fails, reported as one."""

    name: str
    files: tuple[Path, ...]  # all that it reads; when one of them changes, it is done again


@dataclass(frozen=True)
class Table:
    """A table of results."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    note: str = ""
    best: Mapping[str, Literal["max", "min"]] = field(default_factory=dict)  # which value of a column is the best


@dataclass(frozen=True)
class Plot:
    """Curves, groups of bars where x are names, or points of a map, whose axes have one scale."""

    title: str
    x_label: str
    y_label: str
    kind: Literal["lines", "bars", "points"]
    series: dict[str, tuple[list[Any], list[float]]]  # name to x and y


class Protocol(ABC):
    """A way to measure features: what it works on, what it measures, and how it shows that.

    ``settings`` holds all that changes results, apart from the files, the method, the number of keypoints and the ratio
    threshold, as JSON.
    """

    name: str
    settings: dict[str, Any]

    @abstractmethod
    def items(self) -> list[Item]:
        """The pieces of work, each with a name of its own, in a fixed order."""

    @abstractmethod
    def evaluate(self, item: Item, method: Method, n: int, matcher: Matcher) -> list[Record]:
        """Measure a method on an item.

        Args:
            item: one of :meth:`items`.
            method: gives features.
            n: keypoints per image at most.
            matcher: gives matches of the features of two images.

        Returns:
            Records without the keys that all records have; :func:`disk_ops.evaluation.runs.run` adds those.
        """

    @abstractmethod
    def tables(self, records: Sequence[Record]) -> list[Table]:
        """Tables of the records."""

    def plots(self, records: Sequence[Record]) -> list[Plot]:
        """Plots of the records."""
        return []

    def pictures(self, records: Sequence[Record], methods: Sequence[Method]) -> Iterable[tuple[str, Picture]]:
        """A few pictures of matches with titles; features are made again by those methods that records name."""
        return ()

    @abstractmethod
    def score(self, records: Sequence[Record]) -> float:
        """How good the records are (higher is better): what the ratio threshold is chosen by."""


def by_method(records: Iterable[Record]) -> Iterator[tuple[str, int, list[Record]]]:
    """The records of each method and number of keypoints, in the order in which these first occur."""
    groups: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record["method"], record["n"]), []).append(record)
    for (method, n), group in groups.items():
        yield method, n, group


def labelled(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    """The records of each method and number of keypoints, by the method's name, and the number where there are several.

    They are in the order in which these first occur.
    """
    several = len({record["n"] for record in records}) > 1
    return [(f"{method}, {n}" if several else method, group) for method, n, group in by_method(records)]


def comparable(records: Sequence[Record]) -> tuple[list[Record], int]:
    """The records of the items that all methods and numbers of keypoints have, and how many items some of them lack."""
    groups = [{record["item"] for record in group} for _, _, group in by_method(records)]
    common = set.intersection(*groups) if groups else set()
    return [record for record in records if record["item"] in common], len(set().union(*groups)) - len(common)


def left_out(lost: int, noun: str) -> str:
    """What tables of comparable records say of the items that aren't among them; empty if all are."""
    return f" Left out for all methods, as one failed on them: {lost} of the {noun}." if lost else ""


def size_limit_text(max_size: int | None) -> str:
    """In which size images are used, in words."""
    return "images in full size" if max_size is None else f"images of at most {max_size} pixels"


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that there are; None if there is none."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def share(values: Iterable[float | None], threshold: float) -> float | None:
    """The share of errors up to a threshold; None as an error means that there is no estimate. None without errors."""
    values = list(values)
    if not values:
        return None
    return sum(value is not None and value <= threshold for value in values) / len(values)


def finite(value: float) -> float | None:
    """The value as JSON can hold it: None for what is infinite or NaN."""
    return float(value) if math.isfinite(value) else None
