"""The state of a training on disk: atomic checkpoints, of which the last few are kept."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

FORMAT = 1
_NAME = re.compile(r"step-(\d{9})\.pt")


class StateError(Exception):
    """A training can't go on from what is in its folder. The message says why."""


CHECKPOINTS = "checkpoints"


def checkpoint_folder(folder: Path) -> Path:
    """Where the checkpoints of the training in ``folder`` are."""
    return folder / CHECKPOINTS


def save_checkpoint(folder: Path, step: int, content: dict[str, Any], keep: int) -> Path:
    """Write a checkpoint, safe against an interruption at any moment, and remove all but the last ``keep``."""
    place = checkpoint_folder(folder)
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"step-{step:09}.pt"
    partial = path.with_suffix(".part")
    with open(partial, "wb") as file:
        torch.save({"format": FORMAT, "step": step, **content}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    for old in _checkpoints(folder)[:-keep]:
        if old != path:
            old.unlink()
    for left in place.glob("*.part"):
        left.unlink()
    return path


def load_checkpoint(folder: Path, report: Callable[[str], None]) -> dict[str, Any] | None:
    """Read the last checkpoint, or the one before it where it is damaged; None where there is none.

    Nothing in a checkpoint is executed.
    """
    paths = _checkpoints(folder)
    for path in reversed(paths):
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # damaged files make torch fail in every way there is
            damaged = path.rename(path.with_suffix(".damaged"))  # or it would count as the newest for ever
            reason = f"{type(error).__name__}: {error}"
            report(f"{path} can't be read ({reason}) and is {damaged.name} now; trying the one before")
            continue
        if content.get("format") != FORMAT:
            raise StateError(f"{path} was written by another version of disk_ops (format {content.get('format')})")
        return dict(content)
    if paths:
        raise StateError(f"none of the {len(paths)} checkpoints in {checkpoint_folder(folder)} can be read")
    return None


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in checkpoint_folder(folder).glob("*.pt") if _NAME.fullmatch(path.name))
