"""A whole training: sources, validation, log and trainer put together, in a folder that it can go on from."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from disk_ops.io.output import OutputError
from disk_ops.training.config import SourceConfig, TrainingConfig, config_to_mapping, config_to_toml
from disk_ops.training.data.kinds import KINDS
from disk_ops.training.data.loading import load_batches
from disk_ops.training.data.mixture import Mixture, Stages
from disk_ops.training.data.sample import DataError, Frame, Source
from disk_ops.training.logs import NullLog, TrainingLog
from disk_ops.training.parallel import Group
from disk_ops.training.settings import SettingsError
from disk_ops.training.state import load_checkpoint
from disk_ops.training.trainer import Outcome, Trainer
from disk_ops.training.validation import SourceSamples, Validator

CONFIG, LAST = "config.toml", "last.safetensors"  # in the folder of a training
# What may differ between the parts of a training that is resumed: it doesn't change what is learned.
_FREE = {"compute", "checkpoint", "validation", "preset"}
_FREE_DATA = {"workers"}
_FREE_SOURCE = {"path", "images", "depth", "cache_mb"}


class Data(NamedTuple):
    """The sources of a training."""

    training: tuple[Source, ...]
    early: tuple[Source, ...]  # the same in the early steps; none where there are no such steps
    weights: tuple[float, ...]
    validation: tuple[Source, ...]

    @property
    def sizes(self) -> list[tuple[str, int]]:
        """Name and number of items of the sources of training."""
        return [(source.name, len(source.order(0, 0))) for source in self.training]

    def stages(self, config: TrainingConfig) -> Stages:
        """The samples of all steps."""
        stages = [(0, Mixture(self.early, self.weights, config.seed))] if self.early else []
        begin = config.data.early_steps * config.data.batch_size if self.early else 0
        return Stages([*stages, (begin, Mixture(self.training, self.weights, config.seed))])


def open_data(config: TrainingConfig, report: Callable[[str], None]) -> Data:
    """Open the sources of a configuration; raises `DataError` where one has nothing usable."""
    if not any(source.use != "val" for source in config.source):
        raise SettingsError("source must name data to train on: --data KIND:PATH, or [[source]] in the configuration")
    data, validation = config.data, config.validation
    frame = Frame(data.width, data.height, data.images)
    held_out_frame = Frame(validation.width or data.width, validation.height or data.height, data.images)
    early_frame = Frame(data.early_size or data.width, data.early_size or data.height, data.images)
    training, early, weights, held_out = [], [], [], []
    for source in config.source:
        make = KINDS[source.kind].source
        if source.use != "val":
            options = _with_holdout(source, {"train": 0.0})
            training.append(make(options, frame, "train"))
            if data.early_steps:
                early.append(make(_eased(options, data.early_difficulty), early_frame, "train"))
            weights.append(source.weight)
        if source.use != "train" and validation.every:
            try:
                held_out.append(make(_with_holdout(source, {"val": 1.0}), held_out_frame, "val"))
            except DataError as error:
                if source.use == "val":
                    raise
                report(f"no validation on {source.kind} {source.options.path}: {error}")
    for note in dict.fromkeys(note for source in (*training, *held_out) for note in source.notes):
        report(note)
    return Data(tuple(training), tuple(early), tuple(weights), tuple(held_out))


def _eased(options: Any, difficulty: float) -> Any:
    """Easier options, of kinds that have such."""
    return options.eased(difficulty) if hasattr(options, "eased") else options


def _with_holdout(source: SourceConfig, share: dict[str, float]) -> Any:
    """The options of a source; all or nothing of it is held out where it is for one use only."""
    if source.use not in share or not hasattr(source.options, "holdout"):
        return source.options
    return dataclasses.replace(source.options, holdout=share[source.use])


def train(
    config: TrainingConfig,
    folder: Path,
    group: Group | None = None,
    *,
    resume: bool = False,
    quiet: bool = False,
) -> Outcome:
    """Train a detector in a folder, which gets checkpoints, logs, and the weights ``best`` and ``last``.

    Args:
        config: see :func:`disk_ops.training.config.read_config`.
        folder: made if it doesn't exist. One that holds a training already is refused, unless ``resume``.
        group: the processes of the training, see :func:`disk_ops.training.parallel.join`.
        resume: go on from the last checkpoint in the folder, if there is one.
        quiet: no progress bar.

    Returns:
        How far it came, and the best validation score.

    Raises:
        SettingsError, DataError, StateError, OutputError, TrainingError: what can't be used, and why.
    """
    group = group or Group(0, 1, torch.device("cpu"))
    report = NullLog().note if not group.is_main else _print_note
    data = open_data(config, report)
    content = group.broadcast(_previous(config, folder, resume, report) if group.is_main else None)
    start = 0 if content is None else content["step"]
    samples = SourceSamples(data.validation, config.validation.samples, config.seed, report)
    validator = Validator(samples, n=config.validation.n, report=report) if data.validation else None
    trainer = Trainer(config, folder, group, validator=validator, sources=data.sizes)
    log = (
        TrainingLog(folder, config.steps, start, quiet, every=config.checkpoint.log_every)
        if group.is_main
        else NullLog()
    )
    with log:
        if group.is_main:
            (folder / CONFIG).write_text(config_to_toml(config), encoding="utf-8")
        trainer.log = log
        if content is not None:
            trainer.load_state(content)
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


def _previous(
    config: TrainingConfig, folder: Path, resume: bool, report: Callable[[str], None]
) -> dict[str, Any] | None:
    """The checkpoint to go on from, if any."""
    if not resume:
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder} is no folder")
        if folder.is_dir() and any(folder.iterdir()):
            raise OutputError(f"{folder} is not empty: use --resume to go on with the training in it, or --overwrite")
        return None
    content = load_checkpoint(folder, report)
    if content is not None:
        _compare(config_to_mapping(config), content["config"], folder)
    return content


def _compare(now: dict[str, Any], before: dict[str, Any], folder: Path) -> None:
    """Raise where a resumed training would not be the one that was begun."""
    different = sorted(
        key for key in {*now, *before} - {*_FREE, "data", "source", "steps"} if now.get(key) != before.get(key)
    )
    different += [
        f"data.{key}" for key in sorted({*now["data"], *before["data"]} - _FREE_DATA)
        if now["data"].get(key) != before["data"].get(key)
    ]  # fmt: skip
    fixed = [
        [{k: v for k, v in source.items() if k not in _FREE_SOURCE} for source in part["source"]]
        for part in (now, before)
    ]
    different += ["source"] if fixed[0] != fixed[1] else []
    if now["steps"] != before["steps"] and before["optimizer"]["decay"] != "constant":
        different.append("steps (the learning rate decays over all of them)")
    if different:
        raise OutputError(
            f"{folder} holds a training with other settings ({', '.join(different)}): resume it with the same, "
            "use another folder, or --overwrite"
        )


def _print_note(text: str) -> None:
    tqdm.write(f"note: {text}", file=sys.stderr)
