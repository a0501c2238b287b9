"""Results written one by one, so that a program that is killed at any moment loses at most the last one.

An HDF5 file is not consistent while it is written: one kill can make all of it unreadable. Therefore results first
go to a journal, ``<output>.part``: a header line with the settings, then records that are only ever appended, each
with its length and checksum. When all is done the HDF5 file is written under a temporary name and renamed.

Record: magic (4 bytes), key length, body length, CRC-32 of both (little-endian uint32 each), key (UTF-8), body (npz).
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

try:
    import fcntl
except ImportError:  # not a POSIX system: two programs writing one file are not noticed there
    fcntl = None  # type: ignore[assignment]

Arrays = Mapping[str, npt.NDArray[Any]]
Settings = Mapping[str, Any]

_HEADER = "disk_ops journal 1 "
_MAGIC = b"dkop"
_RECORD = struct.Struct("<4sIII")
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of some network file systems


class JournalError(Exception):
    """A journal that can't be used. The message names the file."""


class JournalReader:
    """The whole records of a journal, which another process may be writing. A half-written last one is left out."""

    def __init__(self, path: Path) -> None:
        """Open a journal for reading.

        Raises:
            FileNotFoundError: there is none (any more).
            JournalError: the file is something else.
        """
        self._open(path, path.open("rb"))
        try:
            self._read_existing()
        except BaseException:
            self._file.close()
            raise

    def _open(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.settings: dict[str, Any] = {}
        self.dropped_bytes = 0
        self._positions: dict[str, int] = {}
        self._end = 0
        self._file = file

    def __enter__(self) -> JournalReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, key: str) -> bool:
        return key in self._positions

    def __iter__(self) -> Iterator[str]:
        """The names of the records, in the order of writing."""
        return iter(self._positions)

    def read(self, key: str) -> dict[str, npt.NDArray[Any]]:
        """The arrays of a record."""
        record = self._read_record(self._positions[key])
        assert record is not None, f"{self.path}: record {key!r} changed on disk"
        with np.load(io.BytesIO(record[1]), allow_pickle=False) as arrays:
            return dict(arrays)

    def close(self) -> None:
        """Release the file, which stays."""
        self._file.close()

    def _read_existing(self) -> bool:
        """Read header and records; False if the file is new (or was killed before its header was whole)."""
        self._file.seek(0)
        line = self._file.readline()
        if not line.endswith(b"\n") and _HEADER.encode().startswith(line[: len(_HEADER)]):
            return False
        try:
            if not line.startswith(_HEADER.encode()):
                raise ValueError
            self.settings = json.loads(line[len(_HEADER) :])
        except ValueError:
            raise JournalError(f"{self.path} is not a journal of disk-ops") from None
        self._end = self._file.tell()
        while record := self._read_record(self._end):
            key, body = record
            self._positions[key] = self._end  # a later record of the same name wins
            self._end += _RECORD.size + len(key.encode()) + len(body)
        self.dropped_bytes = self._file.seek(0, os.SEEK_END) - self._end
        return True

    def _read_record(self, position: int) -> tuple[str, bytes] | None:
        self._file.seek(position)
        head = self._file.read(_RECORD.size)
        if len(head) < _RECORD.size:
            return None
        magic, name_length, body_length, checksum = _RECORD.unpack(head)
        if magic != _MAGIC:
            return None
        name, body = self._file.read(name_length), self._file.read(body_length)
        whole = len(name) == name_length and len(body) == body_length
        if not whole or zlib.crc32(body, zlib.crc32(name)) != checksum:
            return None
        return name.decode(), body


class Journal(JournalReader):
    """An append-only file of named records. Only one process can have it open for writing."""

    def __init__(self, path: Path, settings: Settings, *, keep: bool) -> None:
        """Open or create the journal; with ``keep`` the whole records already in it stay, else it is emptied.

        Args:
            path: the file.
            settings: stored in the header of a new journal (JSON types only).
            keep: go on with an existing journal. A broken end of it (the record being written at a kill) is cut off.
        """
        self._open(path, _open_locked(path))
        try:
            if keep and self._read_existing():
                self._file.truncate(self._end)
            else:
                self.settings = dict(settings)
                self._start()
        except BaseException:
            self._file.close()
            raise

    def append(self, key: str, arrays: Arrays) -> None:
        """Write a record; when this returns, it survives the end of this process."""
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        name, body = key.encode(), buffer.getbuffer()
        head = _RECORD.pack(_MAGIC, len(name), len(body), zlib.crc32(body, zlib.crc32(name)))
        self._file.seek(self._end)
        try:
            self._file.write(head + name)
            self._file.write(body)
            self._file.flush()
        except BaseException:
            # Disk full, or Ctrl-C in the middle: cut off the half record, so that the next one isn't lost behind it.
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
            raise
        self._positions[key] = self._end
        self._end += len(head) + len(name) + len(body)

    def remove(self) -> None:
        """Release and delete the file."""
        self.path.unlink(missing_ok=True)
        self._file.close()

    def _start(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write((_HEADER + json.dumps(self.settings) + "\n").encode())
        self._file.flush()
        self._end = self._file.tell()


def is_being_written(path: Path) -> bool:
    """Whether a process has this journal open for writing, as far as the file system can tell."""
    if fcntl is None:
        return False
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    return False


def _open_locked(path: Path) -> BinaryIO:
    """Open for reading and writing without emptying; refuse if another process has it open."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return file
            file.close()
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise JournalError(f"{path} is being written by another disk-ops") from None
            raise
    return file
