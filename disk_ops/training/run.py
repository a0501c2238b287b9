"""A whole training: sources, validation, log and trainer put together, in a folder that it can go on from."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from disk_ops.group import DeviceError, Group, join
from disk_ops.training.config import TrainingConfig
from disk_ops.training.data.loading import load_batches
from disk_ops.training.data.opening import Data, open_data
from disk_ops.training.folder import CONFIG, LAST, Existing, check_folder, clear, locked, read_previous, write_config
from disk_ops.training.logs import TrainingLog
from disk_ops.training.settings import SettingsError
from disk_ops.training.trainer import Outcome, Trainer
from disk_ops.training.validation import Report, SourceSamples, Validator


def train(
    config: TrainingConfig,
    folder: str | Path,
    group: Group | None = None,
    *,
    existing: Existing = "refuse",
    quiet: bool = False,
) -> Outcome:
    """Train a detector in a folder, which gets checkpoints, logs, and the weights ``best`` and ``last``.

    Data is loaded by new processes (``data.workers``), so a script that calls this needs
    ``if __name__ == "__main__":`` around it, as with any Python multiprocessing.

    Args:
        config: see :func:`disk_ops.training.read_config`.
        folder: made if it doesn't exist.
        group: the processes of the training; by default those of ``torchrun``, on ``compute.device``.
        existing: what to do with a training in the folder: ``"refuse"``, ``"resume"`` it from its last checkpoint (or
            begin, where there is none), or ``"overwrite"`` it.
        quiet: no progress bar.

    Returns:
        How far it came, and the best validation score.

    Raises:
        SettingsError, DataError, StateError, OutputError, TrainingError, GroupError: what can't be used, and why.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            'train() runs while a worker process imports the script: put it under if __name__ == "__main__"'
        )
    group = join_training(config) if group is None else group
    folder, report = Path(folder), _note if group.is_main else _ignore
    if group.size > config.data.batch_size:
        report(f"data.batch_size is {config.data.batch_size}, so only as many of the {group.size} processes have work")
    with contextlib.ExitStack() as stack:
        data, samples = group.all_or_none(lambda: _open(config, group, report))
        previous = group.all_or_none(lambda: _take(config, folder, existing, stack, report) if group.is_main else None)
        previous = group.broadcast(previous)
        start = 0 if previous is None else previous["step"]
        validator = Validator(samples, n=config.validation.n, report=report) if data.validation else None
        trainer = Trainer(config, folder, group, validator=validator, sources=data.sizes, previous=previous)
        if group.is_main:
            if existing == "overwrite":
                clear(folder)
            log = TrainingLog(folder, config.steps, start, quiet, every=config.checkpoint.log_every)
            trainer.log = stack.enter_context(log)
            write_config(config, folder / CONFIG)
        batches = load_batches(
            data.stages(config),
            config.data.batch_size,
            range(start, config.steps),
            group.rank,
            group.size,
            config.data.workers,
            group.device.type == "cuda",
        )
        outcome = trainer.run(batches)
        if outcome.finished and group.is_main:
            trainer.export(folder / LAST, outcome.step)
        return outcome


def _open(config: TrainingConfig, group: Group, report: Report) -> tuple[Data, SourceSamples]:
    """The data, and the samples for validation, of which one of each source is tried."""
    data = open_data(config, report)
    samples = SourceSamples(data.validation, config.validation.samples, config.seed, report)
    if group.is_main:
        samples.check()
    return data, samples


def _take(
    config: TrainingConfig, folder: Path, existing: Existing, stack: contextlib.ExitStack, report: Report
) -> dict[str, Any] | None:
    """Lock the folder for as long as the stack lives; return the checkpoint to go on from, if any."""
    check_folder(folder, existing)
    stack.enter_context(locked(folder))
    return read_previous(config, folder, report) if existing == "resume" else None


def join_training(config: TrainingConfig) -> Group:
    """The processes that ``torchrun`` started, on ``compute.device``; raise `SettingsError` where that can't be."""
    try:
        return join(config.compute.device)
    except DeviceError as error:
        raise SettingsError(f"compute.device {error}") from error


def _note(text: str) -> None:
    tqdm.write(f"note: {text}", file=sys.stderr)


def _ignore(text: str) -> None:
    """What the main process tells needn't be told by each."""
