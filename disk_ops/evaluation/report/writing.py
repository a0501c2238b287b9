"""The files of a report."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from disk_ops.evaluation.protocol import Picture, Plot, Record, Table
from disk_ops.evaluation.report.page import page
from disk_ops.io.output import OutputError, whole_file

RESULTS, RECORDS, PAGE = "results.json", "results.csv", "report.html"
"""Names of the files in their folder."""

_FIRST = ("method", "n", "ratio", "item")  # columns of the CSV file that come first


def write_report(
    folder: str | Path,
    title: str,
    records: Sequence[Record],
    tables: Sequence[Table],
    plots: Sequence[Plot] = (),
    pictures: Iterable[tuple[str, Picture]] = (),
    environment: Mapping[str, Any] | None = None,
) -> Path:
    """Write ``results.json``, ``results.csv`` and ``report.html``; each appears, or replaces an old one, when complete.

    The JSON file holds everything but plots and pictures, the CSV file a line for each record, lists as JSON; the page
    holds tables, plots (if matplotlib is there) and pictures, and needs no other file. Numbers that are not finite are
    null in JSON and empty in CSV.

    Args:
        folder: is made if need be.
        title: of the page.
        records: what was measured.
        tables: of the records.
        plots: of the records.
        pictures: titles and RGB pictures ``[H, W, 3]``, taken one after the other.
        environment: how the records came about: settings, versions, machine.

    Returns:
        The page.

    Raises:
        OutputError: a file can't be written.
        ValueError: a table, plot or picture isn't as it should be.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder} can't be made: {error.strerror or error}") from error
    content = {
        "title": title,
        "environment": environment or {},
        "tables": [asdict(table) for table in tables],
        "records": list(records),
    }
    with whole_file(folder / RESULTS) as file:
        file.write(_bytes(json.dumps(as_json(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n"))
    with whole_file(folder / RECORDS) as file:
        file.write(_bytes(_csv(records)))
    with whole_file(folder / PAGE) as file:
        for part in page(title, tables, plots, pictures, environment or {}):
            file.write(_bytes(part))
    return folder / PAGE


def refuse_other_results(folder: Path, protocol: str) -> None:
    """Raise `OutputError` if a report of this protocol would replace files of something else."""
    there = [name for name in (RESULTS, RECORDS, PAGE) if (folder / name).exists()]
    if not there:
        return
    try:
        found = json.loads((folder / RESULTS).read_bytes())["environment"]["protocol"]
    except (OSError, ValueError, KeyError, TypeError):
        raise OutputError(f"{folder / there[0]} was not made by disk-ops evaluate: use another folder") from None
    if found != protocol:
        raise OutputError(f"{folder} holds the results of disk-ops evaluate {found}: use another folder")


def as_json(value: Any) -> Any:
    """A value as JSON can hold it: numbers that aren't finite as None, arrays and tuples as lists, paths as texts."""
    if isinstance(value, Mapping):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return as_json(value.tolist())
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _csv(records: Sequence[Record]) -> str:
    found = dict.fromkeys(key for record in records for key in record)
    columns = [key for key in _FIRST if key in found] + [key for key in found if key not in _FIRST]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if columns:
        writer.writerow(columns)
    writer.writerows([_field(as_json(record.get(key))) for key in columns] for record in records)
    return text.getvalue()


def _field(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
