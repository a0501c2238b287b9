"""What can be wrong with data on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class DataError(Exception):
    """A source of data can't be used at all. The message names it and says why."""


class SampleError(Exception):
    """A file of a source can't be used; the rest can."""

    def __init__(self, path: str | Path, reason: object) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = str(path), str(reason)

    def __reduce__(self) -> tuple[Any, ...]:  # it crosses from worker processes
        return type(self), (self.path, self.reason)
