"""Files that several processes write together: shards in a folder, and an index that is read like one file.

For the output ``features.h5``::

    features.h5.shards/00000-of-00002.h5        what process 0 of 2 made
    features.h5.shards/00000-of-00002.h5.part   its results while it works
    features.h5.shards/00000-of-00002.failed    names of what it couldn't do, until all is done
    features.h5                                 when all is done: external links to the images in the shards

The links are relative, so that the file and its folder can be moved together.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import h5py

from disk_ops.io.hdf5 import (
    linked_names,
    open_h5,
    record_names,
    store_settings,
    stored_settings,
    stored_shards,
    temporary_of,
)
from disk_ops.io.journal import JournalError, is_being_written

_OURS = re.compile(r"\d{5,}-of-\d{5,}\.(h5|h5\.part|h5\.tmp|failed|failed\.part|index\.tmp)")


class ShardsError(Exception):
    """Shards that can't be used as asked. The message names them."""


def real_path(output: Path) -> Path:
    """The file itself where the path is a symbolic link: its shards are beside it, not beside the link."""
    return output.resolve() if output.is_symlink() else output


def shards_folder(output: Path) -> Path:
    """The folder of an output's shards."""
    return output.with_name(f"{output.name}.shards")


def shard_path(output: Path, rank: int, size: int) -> Path:
    """The shard of one of several processes."""
    return shards_folder(output) / f"{rank:05}-of-{size:05}.h5"


def shards_of(output: Path) -> list[Path]:
    """All the finished shards of an output, of whatever number of processes."""
    return _files(output, ".h5")


def parts_of(output: Path) -> list[Path]:
    """All the unfinished shards."""
    return _files(output, ".h5.part")


def failures_of(output: Path) -> list[Path]:
    """The lists of what processes couldn't do."""
    return _files(output, ".failed")


def remnants_of(output: Path) -> list[Path]:
    """What processes that were killed have left half written."""
    return [path for ending in (".tmp", ".failed.part") for path in _files(output, ending)]


def has_shards(output: Path) -> bool:
    """Whether several processes have worked on this output."""
    return bool(_files(output, ""))


def refuse_if_in_work(output: Path) -> None:
    """Raise `JournalError` if a process is writing a shard."""
    for part in parts_of(output):
        if is_being_written(part):
            raise JournalError(f"{part} is being written by another disk-ops")


def remove_shards(output: Path) -> None:
    """Delete the shards of an output and, if nothing else is in it, their folder."""
    for file in _files(output, ""):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        shards_folder(output).rmdir()


def merge(index: Path, output: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
    """Make one plain file of an index and its shards; it appears, or replaces the index, when it is complete.

    The shards stay.

    Args:
        index: what several processes made.
        output: the file to write.
        progress: called with the number of images or pairs done and that of all.

    Raises:
        ShardsError: when ``index`` is one plain file already.
    """
    temporary = temporary_of(output)
    try:
        with open_h5(index) as file:
            if not stored_shards(file):
                raise ShardsError(f"{index} is one file already, not an index of several")
            names = linked_names(file)
            with h5py.File(temporary, "w") as whole:
                store_settings(whole, stored_settings(file) or {})
                for done, name in enumerate(names):
                    progress(done, len(names))
                    parent, _, last = name.rpartition("/")
                    # Copied as a whole: of two names of one dataset the second stays a link to the first.
                    whole.copy(file[name], whole.require_group(parent or "/"), last)
                progress(len(names), len(names))
        os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)


def refuse_if_unfinished(index: Path) -> None:
    """Raise `ShardsError` if the shards hold more than their index, as those of an interrupted run do."""
    with open_h5(index) as file:
        indexed = linked_names(file)
    if not indexed:
        return
    loose = parts_of(index)
    for shard in shards_of(index):
        with open_h5(shard) as file:
            if any(name not in indexed for name in record_names(file)):
                loose.append(shard)
    if loose:
        raise ShardsError(
            f"{loose[0]} holds results that {index} lacks, of an unfinished run: finish it with --resume first"
        )


def _files(output: Path, ending: str) -> list[Path]:
    try:
        names = os.listdir(shards_folder(output))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(shards_folder(output) / name for name in names if _OURS.fullmatch(name) and name.endswith(ending))
