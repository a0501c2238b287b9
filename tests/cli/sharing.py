"""Several processes that share the work of one program: started here or for real, and what they made compared."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from stored import N

from disk_ops.cli import main
from disk_ops.io.journal import Journal

EXTRACT = ("--n", str(N), "--quiet")


def environment(rank: int, size: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}


def process(rank: int, size: int, *arguments: object) -> int:
    """One of several processes, run here, from its start to its end."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(rank, size).items():
            patch.setenv(name, value)
        return main([str(argument) for argument in arguments])


def processes(size: int, *arguments: object) -> list[int]:
    """All the processes, one after the other."""
    return [process(rank, size, *arguments) for rank in range(size)]


def everything(path: Path) -> dict[str, np.ndarray | float]:
    """All datasets and attributes of all images or pairs, as h5py reads them through links."""
    found: dict[str, np.ndarray | float] = {}

    def visit(group: h5py.Group, prefix: str) -> None:
        for name, item in group.items():
            found.update({f"{prefix}{name}@{key}": value for key, value in item.attrs.items()})
            if isinstance(item, h5py.Group):
                visit(item, f"{prefix}{name}/")
            else:
                found[prefix + name] = item[()]

    with h5py.File(path) as file:
        found["@settings"] = file.attrs["disk_ops_settings"]
        visit(file, "")
    return found


def assert_same(first: Path, second: Path) -> None:
    one, other = everything(first), everything(second)
    assert one.keys() == other.keys() and len(one) > 5
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def interrupt(rank: int, size: int, after: int, *arguments: object) -> None:
    """A process that ends after some results."""
    append = Journal.append

    def stop(journal: Journal, *record: object) -> None:
        if len(journal) == after:
            raise KeyboardInterrupt
        append(journal, *record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "append", stop)
        assert process(rank, size, *arguments) == 130
