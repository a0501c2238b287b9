"""Depth map files of several makers, and which of them belongs to an image."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

import h5py
import numpy as np

from disk_ops.io.images import ImageError, Size, read_image, size_of
from disk_ops.io.inputs import InputError, walk_files
from disk_ops.scenes.cameras import same_aspect
from disk_ops.scenes.errors import DataError, SampleError

_HEADER = re.compile(rb"(\d{1,9})&(\d{1,9})&(\d{1,9})&")
_ENDINGS = (".geometric.bin", ".photometric.bin", ".bin", ".h5", ".hdf5", ".npy", ".png", ".tif", ".tiff")


def read_depth(
    path: Path,
    scale: float = 0.001,
    size: Size | None = None,
) -> np.ndarray:
    """Read a depth map ``[H, W]`` float32 along the optical axis, NaN where depth is unknown.

    Args:
        path: COLMAP's ``.bin``, ``.h5`` (dataset ``depth``), ``.npy``, or a grey 16-bit image (``.png``, ``.tif``).
        scale: unit of integers; floating-point depth is taken as it is.
        size: of the image; the map may have another resolution, but not another aspect.

    Raises:
        SampleError: if the file can't be used.
    """
    try:
        values = _read(path)
    except ImageError as error:
        raise SampleError(path, error) from error
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise SampleError(path, f"can't be read as a depth map: {error}") from error
    if values.ndim == 3 and 1 in (values.shape[0], values.shape[2]):
        values = values.squeeze(0 if values.shape[0] == 1 else 2)
    if values.ndim != 2 or not values.size or values.dtype.kind not in "iuf":
        raise SampleError(path, f"a depth map must be numbers [H, W], got {values.dtype} {list(values.shape)}")
    factor = 1.0 if values.dtype.kind == "f" else scale
    depth = values.astype(np.float32) * np.float32(factor)
    if size is not None and not same_aspect(size_of(depth), size):
        width, height = size_of(depth)
        raise SampleError(path, f"depth map is {width}x{height}, but the image is {size[0]}x{size[1]}")
    depth[~(np.isfinite(depth) & (depth > 0))] = np.nan
    return depth


def _read(path: Path) -> np.ndarray:
    ending = path.suffix.lower()
    if ending == ".bin":
        return _read_colmap(path)
    if ending in (".h5", ".hdf5"):
        with h5py.File(path, "r") as file:
            return np.asarray(file["depth"])
    if ending == ".npy":
        return np.asarray(np.load(path, allow_pickle=False))
    pixels = read_image(path)
    if pixels.ndim != 2 or pixels.dtype.kind != "u" or pixels.dtype.itemsize < 2:
        raise ImageError(f"a depth image must be grey and of 16 bits, got {pixels.dtype} {list(pixels.shape)}")
    return pixels


def _read_colmap(path: Path) -> np.ndarray:
    """``width&height&channels&`` as text, then float32 with x running fastest, then y, then channels."""
    data = path.read_bytes()
    header = _HEADER.match(data)
    if header is None:
        raise ValueError("it doesn't start with width&height&channels&")
    width, height, channels = (int(number) for number in header.groups())
    expected, got = 4 * width * height * channels, len(data) - header.end()
    if got != expected:
        raise ValueError(f"{width}x{height}x{channels} floats are {expected} bytes, but {got} follow the header")
    return np.frombuffer(data, "<f4", offset=header.end()).reshape(channels, height, width)


def median_depth(depth: np.ndarray) -> np.ndarray:
    """The median of what is known of a depth map ``[h, w]``; NaN if nothing is."""
    known = depth[np.isfinite(depth)]
    return np.array(np.median(known) if known.size else np.nan, np.float64)


def list_files(folder: Path) -> frozenset[str]:
    """The files of a folder and its subfolders, as relative paths with ``/``; none if there is no such folder.

    Links to folders are followed, but no folder is visited twice. Raises `DataError` where one can't be read.
    """
    try:
        return frozenset(
            file.relative_to(folder).as_posix() for file in (walk_files(folder) if folder.is_dir() else ())
        )
    except InputError as error:
        raise DataError(str(error)) from error


def find_depth(files: Collection[str], image: str) -> str | None:
    """The depth map among ``files`` that belongs to an image, named after it with or without its ending.

    COLMAP's geometric maps come before photometric ones.
    """
    return next((name for name in _candidates(image) if name in files), None)


def _candidates(image: str) -> Iterator[str]:
    stem = str(PurePosixPath(image).with_suffix(""))
    for ending in _ENDINGS:
        yield image + ending
        yield stem + ending
