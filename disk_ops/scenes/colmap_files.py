"""Where COLMAP reconstructions lie, and reading them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from disk_ops.scenes.errors import DataError
from disk_ops.scenes.undistortion import require_pycolmap

_PARTS = ("cameras", "images", "points3D")
_PLACES = ("dense/sparse", "dense/0/sparse", "sparse", "sparse/*", "sparse/*/*")


def find_model(folder: Path) -> Path | None:
    """The folder of a scene's model: the folder itself, or where COLMAP puts it below, undistorted ones first."""
    if _is_model(folder):
        return folder
    for place in (*_PLACES, *(["*", "*/*"] if folder.name == "sparse" else [])):
        models = [model for model in sorted(folder.glob(place)) if _is_model(model)]
        if models:  # of the parts that COLMAP left unconnected, the one with most images
            return max(models, key=_size_of_model)
    return None


def scene_root(model: Path) -> Path:
    """The folder of a model's scene, in which images/ and depth maps are looked for: the one that ``sparse`` is in."""
    above = (model, *model.absolute().parents[:2])
    return next((folder.absolute().parent for folder in above if folder.name == "sparse"), model)


def read_model(folder: Path) -> Any:
    """Read a model (``pycolmap.Reconstruction``); raises :class:`DataError`."""
    pycolmap = require_pycolmap()
    try:
        if _is_model(folder, (".bin",)):
            _check_cameras(folder / "cameras.bin", pycolmap)
            _check_images(folder / "images.bin")
            _check_points(folder / "points3D.bin")
        return pycolmap.Reconstruction(str(folder))
    except (ValueError, RuntimeError, IndexError, MemoryError, OSError) as error:
        raise DataError(f"the COLMAP model {folder} can't be read: {error}") from error


def _is_model(folder: Path, endings: tuple[str, ...] = (".bin", ".txt")) -> bool:
    return any(all((folder / f"{part}{ending}").is_file() for part in _PARTS) for ending in endings)


def _size_of_model(folder: Path) -> int:
    return max(file.stat().st_size for ending in (".bin", ".txt") for file in folder.glob(f"images{ending}"))


# pycolmap doesn't notice when a binary file ends too early: it goes on with what is in memory, or for ever. So each
# file is followed to its end first. Layouts: https://colmap.github.io/format.html
def _check_cameras(file: Path, pycolmap: Any) -> None:
    data, position, count = _start(file)
    for _ in range(count):
        _, model = _unpack("<Ii", data, position, file)
        try:
            camera = pycolmap.Camera.create_from_model_id(1, pycolmap.CameraModelId(model), 1.0, 1, 1)
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"{file.name} has a camera of the unknown model {model}") from error
        position += 24 + 8 * len(camera.params)
    _check_end(file, data, position)


def _check_images(file: Path) -> None:
    data, position, count = _start(file)
    for _ in range(count):
        name_end = data.find(b"\0", position + 64)  # id, pose and camera come first
        position = name_end + 1 if name_end >= 0 else len(data) + 1
        (points,) = _unpack("<Q", data, position, file)
        position += 8 + 24 * points
    _check_end(file, data, position)


def _check_points(file: Path) -> None:
    data, position, count = _start(file)
    for _ in range(count):
        (length,) = _unpack("<Q", data, position + 43, file)  # after id, position, colour and error
        position += 51 + 8 * length
    _check_end(file, data, position)


def _start(file: Path) -> tuple[bytes, int, int]:
    data = file.read_bytes()
    (count,) = _unpack("<Q", data, 0, file)
    return data, 8, count


def _unpack(layout: str, data: bytes, position: int, file: Path) -> tuple[Any, ...]:
    if position + struct.calcsize(layout) > len(data):
        raise ValueError(f"{file.name} is truncated or damaged")
    return struct.unpack_from(layout, data, position)


def _check_end(file: Path, data: bytes, position: int) -> None:
    if position != len(data):
        raise ValueError(f"{file.name} is truncated or damaged: {position} bytes expected, {len(data)} found")
