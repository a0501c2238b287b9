"""The cells of a table as text: the same in the console and on the page."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import NamedTuple

from disk_ops.evaluation.protocol import Table

MISSING = "–"
"""What stands for a value that there is none of."""

_DIGITS = 4  # of the largest number of a column


class Cell(NamedTuple):
    """A value as it is shown."""

    text: str
    number: bool  # aligned to the right
    best: bool  # of its column


def cells(table: Table) -> list[list[Cell]]:
    """The rows of a table as text. The numbers of a column have equally many decimals.

    The best values are those of columns that ``table.best`` names, where there are at least two different ones.

    Raises:
        ValueError: a row hasn't as many values as there are columns, or ``best`` names no column or direction.
    """
    _check(table)
    columns = []
    for index, name in enumerate(table.columns):
        values = [row[index] for row in table.rows]
        decimals, best = _decimals(values), _best(values, table.best.get(name))
        columns.append([_cell(value, decimals, best) for value in values])
    return [list(row) for row in zip(*columns, strict=True)]


def is_number_column(table: Table, index: int) -> bool:
    """Whether all the values of a column are numbers, or missing."""
    return all(_number(row[index]) is not None or row[index] is None for row in table.rows)


def _check(table: Table) -> None:
    for row in table.rows:
        if len(row) != len(table.columns):
            raise ValueError(f"table {table.title!r}: a row has {len(row)} values for {len(table.columns)} columns")
    for name, direction in table.best.items():
        if name not in table.columns or direction not in ("min", "max"):
            raise ValueError(f"table {table.title!r}: best must map columns to min or max, got {name!r}: {direction!r}")


def _number(value: object) -> float | None:
    """A number as float, None for other things. Truth values aren't numbers here."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    return float(value)


def _finite(values: Sequence[object]) -> list[float]:
    found = (_number(value) for value in values)
    return [value for value in found if value is not None and math.isfinite(value)]


def _decimals(values: Sequence[object]) -> int:
    """Decimals with which the largest number has four digits; none if all are integers."""
    finite = _finite(values)
    if all(isinstance(value, numbers.Integral) for value in values if _number(value) is not None) or not finite:
        return 0
    largest = max(map(abs, finite))
    return min(_DIGITS - 1, max(0, _DIGITS - len(str(int(largest)))))


def _best(values: Sequence[object], direction: str | None) -> float | None:
    finite = _finite(values)
    if direction is None or len(set(finite)) < 2:
        return None
    return max(finite) if direction == "max" else min(finite)


def _cell(value: object, decimals: int, best: float | None) -> Cell:
    number = _number(value)
    if value is None or (number is not None and math.isnan(number)):
        return Cell(MISSING, True, False)
    if number is None:
        return Cell({True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value), False, False)
    text = f"{number:,.{decimals}f}" if math.isfinite(number) else ("∞" if number > 0 else "−∞")
    return Cell(text, True, number == best)
