"""Arrays and attributes of HDF5 files, which any program may have written, checked when they are read."""

from __future__ import annotations

import json
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

FARTHEST = 1 << 24
"""Pixels up to which float32 holds every integer; a coordinate beyond is no place in an image."""


class StorageError(Exception):
    """A feature or match file that can't be used. The message names it."""


def read_array(
    item: object,
    where: str,
    dtype: npt.DTypeLike,
    shape: tuple[int | str, ...],
    *,
    finite: bool = True,
) -> npt.NDArray[Any]:
    """An array of numbers.

    Args:
        item: what a file has in the array's place.
        where: names the array and the file, for messages.
        dtype: of the result.
        shape: that is expected; a letter stands for any number.
        finite: refuse NaN and infinity.

    Raises:
        StorageError: it is no such array, or can't be read.
    """
    if not isinstance(item, h5py.Dataset):
        raise StorageError(f"{where}: an array is needed, got {'nothing' if item is None else 'a group'}")
    if item.dtype.kind not in "fiu":
        raise StorageError(f"{where}: numbers are needed, got the type {item.dtype}")
    got = item.shape or ()
    if len(got) != len(shape) or any(
        isinstance(edge, int) and edge != length for edge, length in zip(shape, got, strict=True)
    ):
        raise StorageError(f"{where}: [{', '.join(map(str, shape))}] is expected, got {got}")
    try:
        values = np.asarray(item)
    except (OSError, RuntimeError) as error:
        raise StorageError(f"{where}: can't be read, the file is damaged: {error}") from error
    with np.errstate(over="ignore", invalid="ignore"):
        converted = values.astype(dtype, copy=False)
    if finite and not all(np.isfinite(array).all() for array in (values, converted)):
        raise StorageError(f"{where}: holds NaN, infinity or numbers beyond float32")
    return converted


def read_attribute(file: h5py.File, name: str, kind: type) -> Any:
    """An attribute that holds JSON of a kind; None where there is none.

    Raises:
        StorageError: it holds something else.
    """
    text = file.attrs.get(name)
    if text is None:
        return None
    try:
        value = json.loads(text)
        if isinstance(value, kind):
            return value
    except (TypeError, ValueError):
        pass
    raise StorageError(f"{file.filename}: its attribute {name} is damaged")


def text_attribute(item: h5py.Group | h5py.Dataset, name: str) -> str | None:
    """An attribute that holds text of ASCII; None where there is none."""
    value = item.attrs.get(name)
    if isinstance(value, bytes):
        return value.decode("ascii", "replace")
    return value if isinstance(value, str) else None
