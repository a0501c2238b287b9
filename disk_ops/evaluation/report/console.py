"""Tables for the console."""

from __future__ import annotations

import sys
import textwrap
import unicodedata
from collections.abc import Iterable
from typing import TextIO

from disk_ops.evaluation.protocol import Table
from disk_ops.evaluation.report.cells import cells, is_number_column

WIDTH = 120
_GAP = "  "
_BEST, _NOT_BEST = "*", " "
_LONGEST = 44  # of a text; longer ones lose their middle


def print_tables(tables: Iterable[Table], file: TextIO | None = None, width: int = WIDTH) -> None:
    """Print tables with aligned columns; ``*`` marks the best values.

    Args:
        tables: what to print.
        file: where to; standard output by default.
        width: characters of a line. A wider table is broken into several, each of which begins with its first columns
            of texts, and with a number after them if it tells its rows apart.
    """
    for table in tables:
        print(table_text(table, width), file=file or sys.stdout)


def table_text(table: Table, width: int = WIDTH) -> str:
    """A table as text of lines of at most ``width`` characters, as long as a column isn't wider."""
    rows = cells(table)
    marked = any(cell.best for row in rows for cell in row)
    numeric = [is_number_column(table, index) for index in range(len(table.columns))]
    columns = []
    for index, name in enumerate(table.columns):
        marks = any(row[index].best for row in rows)
        texts = [_shortened(row[index].text) + _mark(row[index].best, marks) for row in rows]
        columns.append(_aligned([_shortened(name) + _mark(False, marks), *texts], numeric[index]))
    lines = [_shortened(table.title, width), ""]
    for block in _blocks([_width(column[0]) for column in columns], _leading(table, numeric), width):
        body = [_GAP.join(columns[index][row] for index in block).rstrip() for row in range(len(rows) + 1)]
        rule = _GAP.join("─" * _width(columns[index][0]) for index in block)
        lines += [body[0], rule, *body[1:], ""]
    if not rows:
        lines[-1:] = ["(nothing)", ""]
    for note in (table.note, f"{_BEST} best" if marked else ""):
        lines += textwrap.wrap(note, width)
    return "\n".join(lines).rstrip() + "\n"


def _mark(best: bool, marks: bool) -> str:
    return (_BEST if best else _NOT_BEST) if marks else ""


def _leading(table: Table, numeric: list[bool]) -> int:
    """How many columns say what rows are of: the texts that begin a table, and a number if that tells them apart."""
    texts = next((index for index, is_number in enumerate(numeric) if is_number), len(numeric))
    names = {row[:texts] for row in table.rows}
    numbered = {row[: texts + 1] for row in table.rows}
    return texts + 1 if len(names) < len(numbered) == len(table.rows) else texts


def _blocks(widths: list[int], leading: int, width: int) -> list[list[int]]:
    """Columns of each part of a table, so that the parts are narrow enough."""
    names = list(range(leading))
    blocks, used = [list(names)], sum(widths[:leading]) + len(_GAP) * max(0, leading - 1)
    start = used
    for index in range(leading, len(widths)):
        needed = widths[index] + (len(_GAP) if blocks[-1] else 0)
        if used + needed > width and len(blocks[-1]) > leading:
            blocks.append(list(names))
            used = start
        blocks[-1].append(index)
        used += needed
    return blocks


def _aligned(texts: list[str], right: bool) -> list[str]:
    widest = max(map(_width, texts))
    return [" " * (widest - _width(text)) + text if right else text + " " * (widest - _width(text)) for text in texts]


def _width(text: str) -> int:
    """Columns of the terminal that a text takes: two for each wide letter, none for accents that are added."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def _shortened(text: str, longest: int = _LONGEST) -> str:
    """A text in one line without control characters; a long one loses its middle."""
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"
