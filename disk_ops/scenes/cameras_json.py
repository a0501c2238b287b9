"""Images with ``cameras.json``, and with or without depth maps: RGB-D recordings, multi-view sets with known cameras.

``cameras.json``: ``{"K": [[...]], "width": w, "height": h, "cameras": {image: {"R", "t", "K", "width", "height",
"depth"}}}``, where each camera may have K and the size of its own, or take the common one; ``depth`` is the name of a
depth map. Conventions: x_cam = R X_world + t, pixel centres at integers, K for the image of the given size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from disk_ops.io.images import size_of
from disk_ops.scenes.cameras import check_camera
from disk_ops.scenes.depth_maps import find_depth, list_files, read_depth
from disk_ops.scenes.errors import DataError, SampleError
from disk_ops.scenes.overlap import coarse_depth, overlaps_by_depth

_DEPTH_FOLDERS = ("depth_registered", "depth")
_LONGEST = 2**31 - 1  # edge of an image


class Cameras(NamedTuple):
    """The images of a scene that can be used, with a camera each."""

    names: tuple[str, ...]
    files: tuple[Path, ...]
    depth: tuple[Path, ...]  # of each image, or none at all
    K: np.ndarray  # [N, 3, 3]
    R: np.ndarray  # [N, 3, 3]
    t: np.ndarray  # [N, 3]
    sizes: np.ndarray  # [N, 2] width and height that K is for; 0 if not given


def read_cameras(
    folder: Path,
    max_images: int | None = None,
    excludes: Callable[[str], bool] = lambda name: False,
) -> tuple[Cameras, list[str]]:
    """Read the cameras whose images are there, and notes on the others.

    Args:
        folder: with cameras.json.
        max_images: of more, so many at even distances are used; None: all.
        excludes: names of images that aren't used.

    Raises:
        DataError: cameras.json isn't as it should be.
    """
    images = folder / "images" if (folder / "images").is_dir() else folder
    present = list_files(images)
    depth_folder = next((folder / name for name in _DEPTH_FOLDERS if (folder / name).is_dir()), None)
    maps = list_files(depth_folder) if depth_folder else frozenset()
    rows, depth, missing, without_depth = [], [], 0, 0
    entries = [entry for entry in _entries(folder / "cameras.json") if not excludes(entry[0])]
    depth_of = [named if named in maps else find_depth(maps, name) for name, named, *_ in entries]
    for entry, map_name in zip(entries, depth_of, strict=True):
        if entry[0] not in present:
            missing += 1
        elif map_name is None and any(depth_of):
            without_depth += 1
        else:
            rows.append(entry)
            depth += [depth_folder / map_name] if depth_folder and map_name else []
    if max_images is not None and len(rows) > max_images:
        chosen = np.linspace(0, len(rows) - 1, max_images).round().astype(int).tolist()
        rows, depth = [rows[index] for index in chosen], [depth[index] for index in chosen] if depth else []
    notes = [f"{missing} images not found in {images}"] if missing else []
    notes += [f"{without_depth} images without depth map in {depth_folder}"] if without_depth else []
    names = tuple(row[0] for row in rows)
    K, R, t = (
        np.array([row[k] for row in rows]).reshape(-1, *shape) for k, shape in ((2, (3, 3)), (3, (3, 3)), (4, (3,)))
    )
    sizes = np.array([row[5] for row in rows], np.int64).reshape(-1, 2)
    return Cameras(names, tuple(images / name for name in names), tuple(depth), K, R, t, sizes), notes


def _entries(file: Path) -> Iterator[tuple[str, str | None, np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]]:
    """Name of image and depth map, K, R, t and size of each camera."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file} can't be read: {error}") from error
    cameras = content.get("cameras") if isinstance(content, dict) else None
    if not isinstance(cameras, dict):
        raise DataError(f"{file} must have an object 'cameras' with an entry for each image")
    for name, camera in sorted(cameras.items()):
        yield _entry(file, name, camera, content)


def _entry(
    file: Path, name: str, camera: Any, content: Mapping[str, Any]
) -> tuple[str, str | None, np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]:
    try:
        K, R, t = (
            np.array(value, np.float64) for value in (camera.get("K", content.get("K")), camera["R"], camera["t"])
        )
        width, height = (_edge(key, camera.get(key, content.get(key, 0))) for key in ("width", "height"))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(f"{file}: camera {name!r} must have R, t, K and a size, if any: {error!r}") from error
    t = t.reshape(-1)
    wrong = check_camera(K, R, t)
    if wrong is not None:
        raise DataError(f"{file}: camera {name!r}: {wrong}")
    depth = camera.get("depth")
    return name, depth if isinstance(depth, str) else None, K, R, t, (width, height)


def _edge(key: str, value: Any) -> int:
    """The width or height of an image, 0 where it isn't given."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST or value % 1:
        raise ValueError(f"{key} must be a whole number of pixels, got {value!r}")
    return int(value)


def measured_overlaps(cameras: Cameras, depth_scale: float = 0.001) -> tuple[np.ndarray, list[str]]:
    """:func:`overlaps_by_depth` of the images of a scene ``[N, N]``, and notes on depth maps that can't be used."""
    maps, sizes, broken, unknown = [], cameras.sizes.copy(), [], 0
    for index, path in enumerate(cameras.depth):
        try:
            width, height = sizes[index].tolist()
            depth = read_depth(path, depth_scale, (width, height) if width and height else None)
            unknown += not np.isfinite(depth).any()
        except SampleError as error:
            broken.append(str(error))
            depth = np.full((1, 1), np.nan, np.float32)
        maps.append(coarse_depth(depth))
        if not sizes[index].all():
            sizes[index] = size_of(depth)
    broken += [f"{unknown} depth maps without any known depth"] if unknown else []
    return overlaps_by_depth(np.array(maps), cameras.K, cameras.R, cameras.t, sizes), broken
