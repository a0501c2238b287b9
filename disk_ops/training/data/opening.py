"""The sources that a configuration names, opened."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from disk_ops.scenes.errors import DataError
from disk_ops.training.config import SourceConfig, TrainingConfig
from disk_ops.training.data.kinds import KINDS
from disk_ops.training.data.mixture import Mixture, Stages
from disk_ops.training.data.sample import Frame, Source
from disk_ops.training.settings import SettingsError


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
    early_frame = Frame(data.early_size or data.width, data.early_size or data.height, data.images)
    held_out_frame = Frame(validation.width or data.width, validation.height or data.height, data.images)
    training: list[Any] = []
    early: list[Any] = []
    weights, held_out = [], []
    for source in config.source:
        make, options = KINDS[source.kind].source, _prepared(source)
        if source.use != "val":
            training.append(make(options, frame, "train"))
            weights.append(source.weight)
            if data.early_steps:
                early.append(make(_eased(options, data.early_difficulty), early_frame, "train"))
                if source.kind == "photos":
                    early[-1].cache = training[-1].cache  # decoded photos don't depend on the frame
            if config.reward.supervision == "depth" and getattr(options, "depth", None) == "":
                report(f"{training[-1].name}: no depth maps are named (depth), so the epipolar reward is used")
        if source.use != "train" and validation.every:
            try:
                held_out.append(make(options, held_out_frame, "val"))
            except DataError as error:
                if source.use == "val":
                    raise
                report(f"no validation on {source.kind} {source.options.path}: {error}")
    for note in dict.fromkeys(note for source in (*training, *held_out) for note in source.notes):
        report(note)
    return Data(tuple(training), tuple(early), tuple(weights), tuple(held_out))


def _prepared(source: SourceConfig) -> Any:
    """The options of a source; all or nothing of it is held out where it is for one use only."""
    options = dataclasses.replace(source.options, path=_expanded(source.options.path))
    share = {"train": 0.0, "val": 1.0}
    return dataclasses.replace(options, holdout=share[source.use]) if source.use in share else options


def _expanded(path: str) -> str:
    """The path with ~ replaced; an empty one, which would be the current folder, stays for the source to refuse."""
    try:
        return str(Path(path).expanduser()) if path else ""
    except RuntimeError as error:
        raise SettingsError(f"path {path!r} can't be used: there is no such user") from error


def _eased(options: Any, difficulty: float) -> Any:
    """Easier options, of kinds that have such."""
    return options.eased(difficulty) if hasattr(options, "eased") else options
