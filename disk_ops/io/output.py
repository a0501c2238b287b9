"""An HDF5 output file that is made step by step and can be resumed after any kind of interruption."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, TypeVar

import h5py

from disk_ops.io.hdf5 import Writer, open_h5, stored_settings, write_atomically
from disk_ops.io.journal import Arrays, Journal, Settings
from disk_ops.io.shards import has_shards, remove_shards

Stored = TypeVar("Stored")

Stamps = dict[str, str | None]
"""For each image or pair of an output what it was made of, as text; None where nothing is known."""


class OutputError(Exception):
    """An output that can't be written as asked. The message names it and says what can be done."""


@dataclass(frozen=True)
class Contents:
    """What kind of results an output holds."""

    write: Writer
    of_file: Callable[[h5py.File], Stamps]
    of_record: Callable[[Arrays], str | None]
    is_current: Callable[[str, str | None], bool] = lambda name, stamp: True  # whether a result is still good


class Whole(NamedTuple):
    """An output that several processes have completed."""

    shards: int
    records: int
    failed: list[str]  # names that one of the processes couldn't do


class ResumableOutput:
    """Collects results in ``<output>.part`` and turns them into the HDF5 file at the end.

    Without ``resume`` and ``overwrite`` neither the output nor its partial file may exist. ``resume`` goes on with
    both, if they were made with the same settings. ``overwrite`` starts afresh; an existing output stays as it is
    until the new one is complete.
    """

    _afresh = "--overwrite"  # how to start afresh, for messages
    lost: Sequence[Path] = ()  # shards that an earlier run has made and that are not there any more

    def __init__(self, output: Path, settings: Settings, *, resume: bool, overwrite: bool) -> None:
        self.output = output
        self.part = part_of(output)
        self.settings = dict(settings)
        check_writable(output)
        self._check_existing(resume, overwrite)
        replaces = overwrite and (output.exists() or has_shards(output))
        header = {"settings": self.settings, "replaces": replaces}
        self.journal = Journal(self.part, header, keep=resume)
        # An interrupted run with --overwrite replaces the old output when it is resumed, too.
        self.extends = output.exists() and not self.journal.settings.get("replaces", False)
        try:
            self._check_settings(resume)
        except BaseException:
            self._release()
            raise

    def __enter__(self) -> ResumableOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def already_stored(self, read: Callable[[h5py.File], Stored]) -> Stored | None:
        """What ``read`` finds in the output that is being extended; None if there is none."""
        if not self.extends:
            return None
        with open_h5(self.output) as file:
            return read(file)

    def stored(self, contents: Contents) -> Stamps:
        """What is there from earlier runs: in the output that is being extended, and in the partial file."""
        stored = dict(self.already_stored(contents.of_file) or {})
        stored.update((key, contents.of_record(self.journal.read(key))) for key in self.journal)
        return stored

    def finish(self, write: Writer) -> bool:
        """Make the HDF5 file from the partial one, and delete that. False if there was nothing (new) to write."""
        wrote = len(self.journal) > 0
        if wrote:
            write_atomically(self.output, self.settings, self._records(), write, extend=self.extends)
            if not self.extends:
                remove_shards(self.output)  # those of the file that this one replaces
        self.journal.remove()
        return wrote

    def conclude(
        self, contents: Contents, failed: Sequence[str], missing: Callable[[Stamps], Iterable[str]]
    ) -> Whole | None:
        """Finish, and if this is the last of several processes, make one file of what all have made.

        Args:
            contents: what is written.
            failed: names of what this process could not do.
            missing: which names of all that were asked for are not among the ones stored.

        Returns:
            What the last of several processes finds complete; None for any other.
        """
        self.finish(contents.write)
        return None

    def _records(self) -> Iterator[tuple[str, Arrays]]:
        for key in self.journal:
            yield key, self.journal.read(key)

    def _release(self) -> None:
        """Close the partial file; an empty one isn't worth keeping."""
        if len(self.journal) == 0:
            self.journal.remove()
        else:
            self.journal.close()

    def _check_existing(self, resume: bool, overwrite: bool) -> None:
        if resume or overwrite:
            return
        if self.output.exists():
            raise OutputError(
                f"{self.output} exists already: use --resume to add what is missing, or --overwrite to replace it"
            )
        if self.part.exists():
            raise OutputError(
                f"{self.part} is left of an interrupted run: use --resume to go on, or --overwrite to start afresh"
            )

    def _check_settings(self, resume: bool) -> None:
        if not resume:
            return
        self._compare(self.part, self.journal.settings.get("settings", {}))
        if self.extends:
            with open_h5(self.output) as file:
                self._compare_file(self.output, file)

    def _compare_file(self, path: Path, file: h5py.File) -> None:
        stored = stored_settings(file)
        if stored is None:
            raise OutputError(f"{path} was not written by disk-ops, so --resume can't add to it")
        self._compare(path, stored)

    def _compare(self, path: Path, stored: dict[str, Any]) -> None:
        differences = [
            f"{key} was {stored.get(key)!r} and is {self.settings.get(key)!r} now"
            for key in sorted({*stored, *self.settings})
            if stored.get(key) != self.settings.get(key)
        ]
        if differences:
            raise OutputError(
                f"{path} was made with other settings ({'; '.join(differences)}): "
                f"use the same settings, another output, or {self._afresh}"
            )


def part_of(output: Path) -> Path:
    """The partial file of an output."""
    return output.with_name(output.name + ".part")


def check_writable(output: Path) -> None:
    """Raise `OutputError` if a file can't be written there, before hours of work are spent."""
    if output.is_dir():
        raise OutputError(f"{output} is a folder, a file name is needed")
    folder = output.parent
    if not folder.is_dir():
        raise OutputError(f"{output} can't be written: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"{output} can't be written: no permission to write to the folder {folder.resolve()}")


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that appears when it is complete; raise `OutputError` if it can't be written."""
    temporary = part_of(path)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OutputError(f"{path} can't be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
