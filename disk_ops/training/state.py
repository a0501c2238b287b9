"""The state of a training on disk: atomic checkpoints, of which the last few are kept."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from disk_ops.io.output import whole_file

FORMAT = 1
_NAME = re.compile(r"step-(\d{9})\.pt")


class StateError(Exception):
    """A training can't go on from what is in its folder. The message says why."""


CHECKPOINTS = "checkpoints"


def checkpoint_folder(folder: Path) -> Path:
    """Where the checkpoints of the training in ``folder`` are."""
    return folder / CHECKPOINTS


def has_checkpoint(folder: Path) -> bool:
    """Whether the training in ``folder`` has saved one."""
    return bool(_checkpoints(folder))


def save_checkpoint(folder: Path, step: int, content: dict[str, Any], keep: int) -> Path:
    """Write a checkpoint, safe against an interruption at any moment, and remove all but the last ``keep``."""
    place = checkpoint_folder(folder)
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"step-{step:09}.pt"
    content_bytes = io.BytesIO()  # as torch's own writer tells nothing useful of a full disk, and leaves its file
    torch.save({"format": FORMAT, "step": step, **content}, content_bytes)
    with whole_file(path) as file:
        file.write(content_bytes.getbuffer())
    for old in _checkpoints(folder)[:-keep]:
        if old != path:
            old.unlink()
    for left in place.glob("*.part"):
        left.unlink()
    return path


def load_checkpoint(
    folder: Path, report: Callable[[str], None], needed: Collection[str] = (), *, only_look: bool = False
) -> dict[str, Any] | None:
    """Read the last checkpoint, or the one before it where it is damaged or lacks a key; None where there is none.

    Nothing in a checkpoint is executed. Raises `StateError` where there are only damaged ones, those of earlier calls
    included, and where one can't be read for a reason that is not in the file. Damaged ones are renamed, unless it is
    called to ``only_look``, as without the folder's lock.
    """
    for path in reversed(_checkpoints(folder)):
        try:
            content = _read(path, needed)
        except _Damaged as error:
            if not only_look:
                damaged = path.rename(path.with_suffix(".damaged"))  # or it would count as the newest for ever
                report(f"{path} can't be read ({error}) and is {damaged.name} now; trying the one before")
            continue
        return content
    place = checkpoint_folder(folder)
    damaged_ones = len(list(place.glob("step-*.damaged"))) + len(_checkpoints(folder))
    if damaged_ones:
        raise StateError(
            f"none of the {damaged_ones} checkpoints in {place} can be read: use --overwrite to begin afresh"
        )
    return None


class _Damaged(Exception):
    """A file that is no checkpoint, whatever is done."""


def _read(path: Path, needed: Collection[str]) -> dict[str, Any]:
    """The content of a checkpoint; raises `_Damaged`, or `StateError` where it may well be readable another time."""
    try:
        file = io.BytesIO(path.read_bytes())
    except OSError as error:
        raise StateError(f"{path} can't be read: {error.strerror or error}") from error
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise _Damaged("it is no checkpoint, or holds more than tensors, which is never executed") from error
    except Exception as error:  # damaged files make torch fail in every way there is
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise StateError(f"{path} can't be read: memory is short") from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise _Damaged(reason) from error
    if not isinstance(content, dict) or not {"format", "step"} <= content.keys():
        raise _Damaged("it holds no state of a training")
    if content["format"] != FORMAT:
        raise StateError(f"{path} was written by another version of disk_ops (format {content['format']})")
    lacking = [key for key in needed if key not in content]
    if lacking:
        raise _Damaged(f"it lacks {', '.join(lacking)}")
    return content


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in checkpoint_folder(folder).glob("*.pt") if _NAME.fullmatch(path.name))
