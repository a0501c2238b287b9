"""Folders of photographs to reconstruct, with true cameras where there are some."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.io.images import IMAGE_EXTENSIONS, Size
from disk_ops.io.inputs import natural_key
from disk_ops.scenes.cameras import check_camera
from disk_ops.scenes.cameras_json import read_cameras
from disk_ops.scenes.depth_maps import list_files
from disk_ops.scenes.errors import DataError

MINIMUM_IMAGES = 2
_STRECHA_FOLDERS = ("gt_dense_cameras", "images", "")

Array = npt.NDArray[np.float64]


class TrueCamera(NamedTuple):
    """A camera x_cam = R X_world + t, with integer pixel centres."""

    K: Array  # [3, 3]
    R: Array  # [3, 3]
    t: Array  # [3]
    size: Size | None  # that K is for; None: that of the image


@dataclass(frozen=True)
class Scene:
    """Images of one place."""

    name: str
    folder: Path  # of the images
    images: tuple[str, ...]  # names relative to the folder, in natural order
    cameras: dict[str, TrueCamera] = field(default_factory=dict)  # of images; empty where nothing is known
    truth: tuple[Path, ...] = ()  # files that the cameras are from

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that results depend on."""
        return (*(self.folder / name for name in self.images), *self.truth)


def find_scenes(root: Path) -> list[Scene]:
    """Scenes in a folder, which may be one, or hold them at any depth; in natural order.

    A scene is a folder with at least two images, or with a folder ``images`` that holds them at any depth. True cameras
    are taken from ``cameras.json`` in it (see :mod:`disk_ops.scenes.cameras_json`), or from Strecha's
    ``<image>.camera``, in ``gt_dense_cameras`` or beside the images.

    Raises:
        EvaluationError: there is none, or true cameras can't be read.
    """
    if not root.is_dir():
        raise EvaluationError(f"{root} is not a folder")
    scenes = list(_scenes_below(root, root, set()))
    if not scenes:
        raise EvaluationError(f"{root}: no scene; looked for folders with at least {MINIMUM_IMAGES} images")
    return scenes


def _scenes_below(folder: Path, root: Path, visited: set[Path]) -> Iterator[Scene]:
    if folder.resolve() in visited:  # links may lead in circles
        return
    visited.add(folder.resolve())
    name = folder.relative_to(root).as_posix() if folder != root else root.resolve().name
    scene = _scene_at(folder, name)
    if scene is not None:
        yield scene
        return
    below = [entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    for entry in sorted(below, key=lambda path: natural_key(path.name)):
        yield from _scenes_below(entry, root, visited)


def _scene_at(folder: Path, name: str) -> Scene | None:
    if (folder / "images").is_dir():
        place, files = folder / "images", list_files(folder / "images")
    else:
        place, files = folder, frozenset(entry.name for entry in folder.iterdir() if entry.is_file())
    images = sorted((file for file in files if Path(file).suffix.lower() in IMAGE_EXTENSIONS), key=natural_key)
    if len(images) < MINIMUM_IMAGES:
        return None
    if (folder / "cameras.json").is_file():
        return Scene(name, place, tuple(images), _from_json(folder), (folder / "cameras.json",))
    found = {image: file for image in images if (file := _strecha_file(folder, image)) is not None}
    cameras = {image: read_strecha_camera(file) for image, file in found.items()}
    return Scene(name, place, tuple(images), cameras, tuple(found.values()))


def _from_json(folder: Path) -> dict[str, TrueCamera]:
    try:
        found, _ = read_cameras(folder)
    except DataError as error:
        raise EvaluationError(str(error)) from error
    sizes = [(int(size[0]), int(size[1])) if size.all() else None for size in found.sizes]
    rows = zip(found.names, found.K, found.R, found.t, sizes, strict=True)
    return {image: TrueCamera(K, R, t, size) for image, K, R, t, size in rows}


def _strecha_file(folder: Path, image: str) -> Path | None:
    places = (folder / place / f"{image}.camera" for place in _STRECHA_FOLDERS)
    return next((place for place in places if place.is_file()), None)


def read_strecha_camera(file: Path) -> TrueCamera:
    """Read a camera of Strecha's sets.

    The file holds K (9 numbers), radial distortion (3 zeros), the rotation from the camera to the world (9), the
    camera's position (3), width and height.

    Raises:
        EvaluationError: the file doesn't.
    """
    try:
        numbers = np.array(file.read_text().split(), np.float64)
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{file} can't be read as a camera: {error}") from error
    if len(numbers) != 26:
        raise EvaluationError(f"{file}: a camera of Strecha's sets has 26 numbers, got {len(numbers)}")
    if numbers[9:12].any():
        raise EvaluationError(f"{file}: radial distortion {numbers[9:12].tolist()} is not supported, only 0")
    K, R = numbers[:9].reshape(3, 3), numbers[12:21].reshape(3, 3).T
    t = -R @ numbers[21:24]
    wrong = check_camera(K, R, t)
    if wrong is not None:
        raise EvaluationError(f"{file}: {wrong}")
    return TrueCamera(K, R, t, (int(numbers[24]), int(numbers[25])))
