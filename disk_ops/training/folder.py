"""The folder of a training: what is in it, whether a training may begin or go on there, and its lock."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from disk_ops.io.inputs import printable
from disk_ops.io.output import OutputError, check_writable, whole_file
from disk_ops.training.config import TrainingConfig, config_from_mapping, config_to_mapping, config_to_toml
from disk_ops.training.logs import HISTORY, TENSORBOARD, VALIDATION, last_step
from disk_ops.training.settings import SettingsError
from disk_ops.training.state import CHECKPOINTS, StateError, load_checkpoint

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

CONFIG, BEST, LAST, LOCK = "config.toml", "best.safetensors", "last.safetensors", ".lock"
_OWN = (CONFIG, BEST, LAST, HISTORY, VALIDATION, TENSORBOARD, CHECKPOINTS)
_STATE = ("extractor", "detector", "optimizer", "average", "best", "metrics", "skipped", "degeneration", "config")
# What may differ between the parts of a training that is resumed: it doesn't change what is learned.
_FREE = {"compute", "checkpoint", "validation", "preset"}
_FREE_DATA = {"workers"}
_FREE_SOURCE = {"path", "images", "depth", "cache_mb"}

Existing = Literal["refuse", "resume", "overwrite"]


def holds_training(folder: Path) -> bool:
    """Whether a training was begun in the folder."""
    return (folder / CHECKPOINTS).is_dir() or (folder / HISTORY).is_file()


def check_folder(folder: Path, existing: Existing) -> None:
    """Raise `OutputError` if a training can't begin there, or go on with ``existing="resume"``."""
    if printable(str(folder)) != str(folder):
        raise OutputError(f"{folder} can't be used: its path must be UTF-8, for safetensors and TensorBoard")
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is no folder")
    try:
        empty = not folder.is_dir() or not any(path.name != LOCK for path in folder.iterdir())
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"the folder {folder} can't be used: {error.strerror or error}") from error
    check_writable(folder / CONFIG)
    if empty or (existing != "refuse" and holds_training(folder)):
        return
    if holds_training(folder):
        raise OutputError(f"{folder} holds a training: use --resume to go on with it, or --overwrite to begin afresh")
    raise OutputError(f"{folder} is not empty and holds no training: use another folder")


def read_previous(config: TrainingConfig, folder: Path, report: Callable[[str], None]) -> dict[str, Any] | None:
    """The checkpoint to go on from, if there is one; raises where it is another training's or lost."""
    content = load_checkpoint(folder, report, _STATE)
    if content is None:
        _refuse_lost(config, folder)
        return None
    _compare(config_to_mapping(config), content["config"], folder)
    if config.steps < content["step"]:
        raise SettingsError(f"steps is {config.steps}, but the training in {folder} has done {content['step']}")
    now, before = (
        {key: value for key, value in part["validation"].items() if key != "every"}
        for part in (config_to_mapping(config), content["config"])
    )
    if now != before:
        report("validation has other settings now: the best score so far doesn't count any more")
        content["best"] = float("-inf")
    report(f"going on from step {content['step']:,}")
    return content


def _refuse_lost(config: TrainingConfig, folder: Path) -> None:
    """Raise where there must have been a checkpoint: beginning again would overwrite what was trained."""
    weights = [name for name in (BEST, LAST) if (folder / name).exists()]
    step = last_step(folder / HISTORY)  # a training may be killed before its first checkpoint
    if weights or step > config.checkpoint.every:
        what = weights[0] if weights else f"{step} steps in {HISTORY}"
        raise StateError(
            f"{folder} has {what}, but no checkpoint to go on from: use --overwrite to begin afresh, or another folder"
        )


def is_own(folder: Path, path: Path) -> bool:
    """Whether the training in ``folder`` writes that file itself."""
    place, root = path.parent.resolve() / path.name, folder.resolve()
    return any(root / name in (place, *place.parents) for name in (*_OWN, LOCK))


def clear(folder: Path) -> None:
    """Remove what a training has written, and nothing else."""
    for name in _OWN:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def write_config(config: TrainingConfig, path: Path) -> None:
    """Write all settings as TOML; the file appears when it is complete."""
    with whole_file(path) as file:
        file.write(config_to_toml(config).encode("utf-8", "surrogateescape"))


def stored_config(folder: Path, report: Callable[[str], None]) -> TrainingConfig | None:
    """The settings of the training in a folder, from its last checkpoint."""
    content = load_checkpoint(folder, report, _STATE, only_look=True) if folder.is_dir() else None
    return None if content is None else config_from_mapping(content["config"])


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from training in the folder; the lock ends with this process, however that ends."""
    if fcntl is None:
        yield
        return
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutputError(f"another process is training in {folder}") from error
        except OSError:  # a file system without locks
            pass
        yield


def is_same_training(config: TrainingConfig, stored: Mapping[str, Any]) -> bool:
    """Whether settings that a record of weights has are those of this training, apart from what may change in it."""
    try:
        return not _differences({**config_to_mapping(config), "steps": stored["steps"]}, stored)
    except (KeyError, TypeError, AttributeError):  # a record of something else
        return False


def _compare(now: Mapping[str, Any], before: Mapping[str, Any], folder: Path) -> None:
    """Raise where a resumed training would not be the one that was begun."""
    different = _differences(now, before)
    if different:
        raise OutputError(
            f"{folder} holds a training with other settings ({', '.join(different)}): resume it with the same, or "
            f"begin in another folder, if you like from its weights (model.init={folder / CHECKPOINTS}/...)"
        )


def _differences(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """The settings that make it another training."""
    keys = sorted({*now, *before} - {*_FREE, "data", "source", "steps"})
    different = [text for key in keys for text in _changes(key, now.get(key), before.get(key))]
    for key in sorted({*now["data"], *before["data"]} - _FREE_DATA):
        different += _changes(f"data.{key}", now["data"].get(key), before["data"].get(key))
    if [_fixed(source) for source in now["source"]] != [_fixed(source) for source in before["source"]]:
        different.append("source")
    if now["steps"] != before["steps"] and before["optimizer"]["decay"] != "constant":
        different.append("steps (the learning rate decays over all of them)")
    return different


def _changes(name: str, now: Any, before: Any) -> list[str]:
    """What is different in a setting, or in those of a table."""
    if isinstance(now, dict) and isinstance(before, dict):
        keys = sorted({*now, *before})
        return [text for key in keys for text in _changes(f"{name}.{key}", now.get(key), before.get(key))]
    return [] if now == before else [f"{name} was {before!r} and is {now!r} now"]


def _fixed(source: Mapping[str, Any]) -> dict[str, Any]:
    """What of a source decides on its samples: where it lies doesn't, but posed scenes are known by their name.

    Where depth maps lie doesn't, but whether there are any does: they change the reward.
    """
    fixed = {key: value for key, value in source.items() if key not in _FREE_SOURCE}
    if "depth" in source:
        fixed["depth"] = bool(source["depth"])
    return fixed if source["kind"] == "photos" else {**fixed, "name": Path(source["path"]).name}
