"""Tables and plots of the pose protocol's records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import numpy as np

from disk_ops.evaluation.pose import mean_average_accuracy
from disk_ops.evaluation.protocol import (
    Cell,
    Plot,
    Record,
    Table,
    by_method,
    comparable,
    finite,
    labelled,
    left_out,
    mean,
)

LIMITS = (5, 10, 20)
"""Degrees up to which mAA averages."""
BIN = 0.1
"""Width of the bins of covisibility."""

_ACCURACIES = tuple(f"mAA({limit}°)" for limit in LIMITS)
_COLUMNS = ("method", "n", "pairs", *_ACCURACIES, "R median °", "t median °", "matches", "inliers", "no pose")
_BEST: dict[str, Literal["max", "min"]] = {
    **dict.fromkeys((*_ACCURACIES, "inliers"), "max"),
    **dict.fromkeys(("R median °", "t median °"), "min"),
}
_NOTE = (
    "mAA: mean over 1, 2, ... degrees of the share of pairs whose rotation and translation errors are both below. "
    "Medians count a pair without pose as infinitely wrong; matches and inliers are means."
)

Name = Callable[[Record], str]


def score(records: Sequence[Record]) -> float:
    """mAA(10°), the number that counts."""
    return mean_average_accuracy(_errors(records), 10)


def pose_tables(records: Sequence[Record], how: str) -> list[Table]:
    """Tables over all pairs, by scene if there are several, and by covisibility where it is known.

    Args:
        records: of the protocol.
        how: what a reader must know of how they came about.
    """
    compared, lost = comparable(records)
    rows = [_row(method, n, group) for method, n, group in by_method(compared)]
    tables = [Table("Relative pose", _COLUMNS, rows, f"{how} {_NOTE}{left_out(lost, 'pairs')}", _BEST)]
    if len({record["scene"] for record in compared}) > 1:
        tables.append(_by_part("mAA(10°) by scene", "scene", compared, _scene))
    if any(record["covisibility"] is not None for record in compared):
        tables.append(_by_part("mAA(10°) by covisibility", "covisibility", compared, bin_name, order=True))
    return tables


def pose_plots(records: Sequence[Record]) -> list[Plot]:
    """Shares of pairs against the error, and bars of mAA by scene and by covisibility."""
    compared, _ = comparable(records)
    degrees = list(range(1, max(LIMITS) + 1))
    curves, scenes, bins = {}, {}, {}
    for label, group in labelled(compared):
        errors = np.array(_errors(group))
        curves[label] = (list(degrees), [float((errors < limit).mean()) for limit in degrees])
        scenes[label] = _series(group, _scene)
        bins[label] = _series([r for r in group if r["covisibility"] is not None], bin_name, order=True)
    plots = [Plot("Pairs with an error below", "error in degrees", "share of pairs", "lines", curves)]
    if any(len(x) > 1 for x, _ in scenes.values()):
        plots.append(Plot("mAA(10°) by scene", "scene", "mAA(10°)", "bars", scenes))
    if any(x for x, _ in bins.values()):
        plots.append(Plot("mAA(10°) by covisibility", "covisibility", "mAA(10°)", "bars", bins))
    return plots


def bin_name(record: Record) -> str:
    """The bin of a pair's covisibility, such as ``0.3–0.4``; the last one holds 1."""
    if record["covisibility"] is None:
        return "unknown"
    low = min(math.floor(record["covisibility"] / BIN + 1e-9), round(1 / BIN) - 1) * BIN
    return f"{low:.1f}–{low + BIN:.1f}"


def _scene(record: Record) -> str:
    return str(record["scene"])


def _errors(records: Iterable[Record]) -> list[float]:
    """The error of each pair in degrees; inf where there is no pose."""
    return [math.inf if record["error"] is None else record["error"] for record in records]


def _row(method: str, n: int, records: Sequence[Record]) -> tuple[Cell, ...]:
    errors = _errors(records)
    return (
        method,
        n,
        len(records),
        *(mean_average_accuracy(errors, limit) for limit in LIMITS),
        _median(records, "rotation_error"),
        _median(records, "translation_error"),
        mean(record["matches"] for record in records),
        mean(record["inliers"] for record in records),
        sum(math.isinf(error) for error in errors),
    )


def _median(records: Iterable[Record], key: str) -> float | None:
    values = [math.inf if record[key] is None else record[key] for record in records]
    return finite(float(np.percentile(values, 50, method="lower")))  # no mean of a number and infinity


def _parts(records: Iterable[Record], name: Name, order: bool) -> dict[str, list[Record]]:
    parts: dict[str, list[Record]] = {}
    for record in records:
        parts.setdefault(name(record), []).append(record)
    return dict(sorted(parts.items())) if order else parts


def _series(records: Iterable[Record], name: Name, order: bool = False) -> tuple[list[str], list[float]]:
    parts = _parts(records, name, order)
    return list(parts), [score(part) for part in parts.values()]


def _by_part(title: str, heading: str, records: Sequence[Record], name: Name, order: bool = False) -> Table:
    """A row for each part of the pairs, a column for each method."""
    columns = [(label, _parts(group, name, order)) for label, group in labelled(records)]
    rows: list[tuple[Cell, ...]] = []
    for part in _parts(records, name, order):
        found = [parts.get(part, []) for _, parts in columns]
        rows.append((part, max(map(len, found)), *(score(group) if group else None for group in found)))
    return Table(title, (heading, "pairs", *(label for label, _ in columns)), rows)
