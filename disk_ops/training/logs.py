"""What a training tells while it runs: a progress bar, ``history.csv``, ``validation.csv`` and TensorBoard.

A training that was killed at any moment goes on from a checkpoint of step k: a log opened with ``start_step=k`` forgets
what was logged of later steps, and the line that the kill may have torn.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

HISTORY = "history.csv"
VALIDATION = "validation.csv"
TENSORBOARD = "tensorboard"  # folder
HISTORY_COLUMNS = (
    *("step", "seconds", "loss", "reward", "matches", "keypoints", "correct", "lambda_fp", "lambda_kp", "theta"),
    *("learning_rate", "grad_norm", "pairs_per_second", "data_seconds", "skipped"),
)
_SUMS = ("data_seconds", "skipped")  # the other columns are means
_SHOWN = {"reward": "reward", "keypoints": "keypoints", "pairs_per_second": "pairs/s"}
_SECONDS_BETWEEN_LINES = 60.0  # where there is no terminal for a bar
_SMOOTHING = 0.05  # weight of the newest step in what the bar shows

Row = dict[str, str]

Pictures = Mapping[str, npt.NDArray[np.uint8]]  # each [H, W, 3] RGB


class NullLog:
    """A log that tells nothing: for processes other than the first, and for use as a library."""

    def __init__(self) -> None:
        self._watch = _Stopwatch(0.0)

    @property
    def seconds(self) -> float:
        """Seconds of training, those before restarts included, those of :meth:`paused` not."""
        return self._watch.seconds

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Tell the result of an optimiser step, counted from 1."""

    def validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Tell the result of a validation after ``step`` steps."""

    def pictures(self, step: int, make: Callable[[], Pictures]) -> None:
        """Show pictures, which are only made where they are shown."""

    def note(self, text: str) -> None:
        """Tell the user something."""

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Work that is no training, such as validation: it doesn't count in ``seconds`` and ``pairs_per_second``."""
        with self._watch.paused():
            yield

    def close(self) -> None:
        """Write what hasn't been written yet. May be called again."""

    def __enter__(self) -> NullLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TrainingLog(NullLog):
    """The log of a training in a folder, and on standard error.

    Args:
        folder: where the files go; made if it doesn't exist.
        total_steps: of the whole training.
        start_step: steps done before; 0 forgets all that an earlier training left in the folder.
        quiet: no bar; notes are still shown.
        tensorboard: write for TensorBoard too, if it is installed.
        every: steps that a row of ``history.csv`` averages. Rows end at multiples of it, and at the last step.
    """

    def __init__(
        self,
        folder: Path,
        total_steps: int,
        start_step: int,
        quiet: bool = False,
        tensorboard: bool = True,
        *,
        every: int = 10,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be a positive number of steps, got {every}")
        self.folder, self.total_steps, self.every = folder, total_steps, every
        folder.mkdir(parents=True, exist_ok=True)
        history, self._validations = (self._read(folder / name, start_step) for name in (HISTORY, VALIDATION))
        _write_table(folder / HISTORY, HISTORY_COLUMNS, history)
        _write_table(folder / VALIDATION, _validation_columns(self._validations), self._validations)
        self._file = (folder / HISTORY).open("a", encoding="utf-8", newline="")
        last_rows = [table[-1] for table in (history, self._validations) if table]
        self._watch = _Stopwatch(max((float(row["seconds"]) for row in last_rows), default=0.0))
        self._last_step = start_step
        self._interval = _Interval(self._watch.seconds)
        self._progress = _Progress(total_steps, start_step, quiet)
        if self._validations:
            self._progress.score = _number(self._validations[-1].get("score", ""))
        self._writer = self._open_writer(start_step) if tensorboard else None

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Tell the result of an optimiser step.

        Args:
            step: counted from 1.
            values: columns of ``history.csv`` except ``step`` and ``seconds``: ``reward`` and ``matches`` per pair,
                ``keypoints`` per image, ``data_seconds`` and ``skipped`` of this step. From ``pairs``, the number of
                pairs, ``pairs_per_second`` follows. Anything else goes to TensorBoard alone. NaN and infinity are left
                out of means.
        """
        if step <= self._last_step:
            raise ValueError(f"step must be above {self._last_step}, got {step}")
        self._last_step = step
        self._interval.add(values)
        if step % self.every == 0 or step >= self.total_steps:
            self._end_interval()
        self._progress.step(step, values)

    def validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Tell the result of a validation after ``step`` steps; the metric ``score`` is the one that counts."""
        row = {name: _text(value) for name, value in metrics.items()}
        row |= {"step": str(step), "seconds": f"{self.seconds:.3f}"}
        self._validations = [other for other in self._validations if int(other["step"]) < step] + [row]
        _write_table(self.folder / VALIDATION, _validation_columns(self._validations), self._validations)
        if self._writer is not None:
            for name, value in metrics.items():
                self._writer.add_scalar(f"validation/{name}", float(value), step)
            self._writer.flush()
        self._progress.validation(step, float(metrics.get("score", math.nan)))

    def pictures(self, step: int, make: Callable[[], Pictures]) -> None:
        """Show pictures in TensorBoard, which are only made where there is one."""
        if self._writer is None:
            return
        for name, picture in make().items():
            try:
                self._writer.add_image(name, picture, step, dataformats="HWC")
            except ImportError as error:  # Pillow encodes them
                self.note(f"no pictures in TensorBoard: {error}")
                return

    def note(self, text: str) -> None:
        """Print on standard error, above the bar."""
        _print(text)

    def close(self) -> None:
        """Write the mean of an interval that was left unfinished and close all files. May be called again."""
        if self._file.closed:
            return
        with contextlib.ExitStack() as stack:  # each is closed even if another fails
            if self._writer is not None:
                stack.callback(self._writer.close)
            stack.callback(self._file.close)
            stack.callback(self._progress.close)
            if self._interval.steps:
                self._end_interval()

    def __enter__(self) -> TrainingLog:
        return self

    def _read(self, path: Path, start_step: int) -> list[Row]:
        """The rows to go on with; a file that is no table is put aside, as that is no reason not to train."""
        try:
            return _read_table(path, start_step)
        except (ValueError, csv.Error) as error:
            aside = path.replace(path.with_name(path.name + ".damaged"))
            self.note(f"{error}; it is {aside.name} now, and another one is begun")
            return []

    def _end_interval(self) -> None:
        seconds = self.seconds
        interval, self._interval = self._interval, _Interval(seconds)
        values = interval.result(seconds)
        row = {name: _text(value) for name, value in values.items()}
        row |= {"step": str(self._last_step), "seconds": f"{seconds:.3f}"}
        self._file.write(_lines(HISTORY_COLUMNS, [row]))
        self._file.flush()
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(f"train/{name}", value, self._last_step)

    def _open_writer(self, start_step: int) -> Any:
        # TensorBoard hides what was logged of steps from purge_step on.
        purge_step = start_step + 1 if start_step else 0
        try:
            from torch.utils.tensorboard import SummaryWriter
        except Exception as error:  # missing, or broken by another package's version: no reason not to train
            self.note(f"nothing is written for TensorBoard ({error}); all numbers are in {self.folder / HISTORY}")
            return None
        return SummaryWriter(str(self.folder / TENSORBOARD), purge_step=purge_step, flush_secs=30)


class _Stopwatch:
    def __init__(self, seconds: float) -> None:
        self._before = seconds
        self._since: float | None = monotonic()  # None while paused

    @property
    def seconds(self) -> float:
        return self._before + (0.0 if self._since is None else monotonic() - self._since)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        if self._since is None:
            yield
            return
        self._before, self._since = self.seconds, None
        try:
            yield
        finally:
            self._since = monotonic()


class _Interval:
    """Sums over some steps."""

    def __init__(self, start: float) -> None:
        self.steps = 0
        self._start = start  # seconds of training
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, values: Mapping[str, float]) -> None:
        self.steps += 1
        for name, value in values.items():
            number = float(value)
            if math.isfinite(number):
                self._sums[name] = self._sums.get(name, 0.0) + number
                self._counts[name] = self._counts.get(name, 0) + 1

    def result(self, seconds: float) -> dict[str, float]:
        result = {
            name: total if name in _SUMS else total / self._counts[name]
            for name, total in self._sums.items()
            if name != "pairs"
        }
        if "pairs" in self._sums and seconds > self._start:
            result["pairs_per_second"] = self._sums["pairs"] / (seconds - self._start)
        return result


class _Progress:
    """A bar on a terminal; elsewhere a line now and then."""

    def __init__(self, total_steps: int, start_step: int, quiet: bool) -> None:
        self._total, self._start, self._step = total_steps, start_step, start_step
        self._quiet = quiet
        self._smooth: dict[str, float] = {}
        self._began = self._last_time = self._last_line = monotonic()
        self._told = start_step  # step of the last line
        self.score = math.nan
        self._bar: tqdm[Any] | None = None
        if not quiet and sys.stderr.isatty():
            self._bar = tqdm(
                total=total_steps, initial=start_step, unit="step", file=sys.stderr, dynamic_ncols=True, smoothing=0.05
            )

    def step(self, step: int, values: Mapping[str, float]) -> None:
        now = monotonic()
        if "pairs" in values and now > self._last_time:
            values = {"pairs_per_second": values["pairs"] / (now - self._last_time), **values}
        for name in _SHOWN:
            value = float(values.get(name, math.nan))
            if math.isfinite(value):
                before = self._smooth.get(name, value)
                self._smooth[name] = before + _SMOOTHING * (value - before)
        done, self._step, self._last_time = step - self._step, step, now
        if self._bar is not None:
            self._bar.set_postfix_str(self._text(), refresh=False)
            self._bar.update(done)
        elif not self._quiet and now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._tell()

    def validation(self, step: int, score: float) -> None:
        self.score = score
        self._last_time = monotonic()  # pairs per second are those of training
        if self._bar is not None:
            self._bar.set_postfix_str(self._text())
        elif not self._quiet:
            _print(f"step {step:,}/{self._total:,}: validation score {score:.4f}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        elif not self._quiet and self._step > self._told:
            self._tell()

    def _tell(self) -> None:
        self._last_line, self._told = monotonic(), self._step
        done, left = self._step - self._start, max(0, self._total - self._step)
        remaining = tqdm.format_interval((self._last_line - self._began) / max(1, done) * left)
        _print(f"step {self._step:,}/{self._total:,}: {self._text()}{f', {remaining} left' if left else ''}")

    def _text(self) -> str:
        parts = [f"{label} {self._smooth[name]:.3g}" for name, label in _SHOWN.items() if name in self._smooth]
        return ", ".join(parts + ([f"score {self.score:.4f}"] if math.isfinite(self.score) else []))


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # a terminal that was closed is no reason to stop
        tqdm.write(text, file=sys.stderr)


def _read_table(path: Path, start_step: int) -> list[Row]:
    """The rows of steps up to ``start_step``, without what a kill or a crash has broken."""
    if start_step == 0 or not path.exists():
        return []
    text = path.read_bytes().decode("utf-8", "replace")
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline=""))
    if reader.fieldnames and not {"step", "seconds"} <= set(reader.fieldnames):
        raise ValueError(f"{path} is no table of a training: its columns are {', '.join(reader.fieldnames)}")
    rows: list[Row] = []
    for row in reader:
        if None in row or None in row.values() or not row["step"].isdecimal() or math.isnan(_number(row["seconds"])):
            continue
        if (int(rows[-1]["step"]) if rows else -1) < int(row["step"]) <= start_step:
            rows.append(row)
    return rows


def last_step(path: Path) -> int:
    """The last step that ``history.csv`` tells of; 0 where it tells of none, or is no such table."""
    try:
        rows = _read_table(path, sys.maxsize)
    except (OSError, ValueError, csv.Error):
        return 0
    return int(rows[-1]["step"]) if rows else 0


def _write_table(path: Path, columns: tuple[str, ...], rows: list[Row]) -> None:
    """Write under a temporary name and rename."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(columns)
            file.write(_lines(columns, rows))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _lines(columns: tuple[str, ...], rows: list[Row]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([row.get(name, "") for name in columns] for row in rows)
    return text.getvalue()


def _validation_columns(rows: list[Row]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(["step", "seconds", "score", *(name for row in rows for name in row)]))


def _text(value: float) -> str:
    return f"{float(value):.6g}"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
