"""Data in the layout that DISK was released with: ``dataset.json``, calibration and depth in HDF5 files.

``{scene: {image_path, calib_path, depth_path, images: [names], tuples: [[i, j, k], ...]}}``, where paths are relative
to the JSON file or absolute and ``depth_path`` may be missing. ``calib_path/calibration_<image name>.h5`` has ``K``,
``R`` (world to camera) and ``T``, ``depth_path/<image name without ending>.h5`` has ``depth``, 0 where it is unknown.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from disk_ops.io.images import IMAGE_EXTENSIONS, size_of
from disk_ops.scenes.cameras import check_camera
from disk_ops.scenes.depth_maps import median_depth, read_depth
from disk_ops.scenes.errors import DataError, SampleError
from disk_ops.training.data.framing import NO_DEPTH, PosedImage
from disk_ops.training.data.posed import PosedConfig, PosedSource, read_pixels
from disk_ops.training.data.sample import Frame, Split
from disk_ops.training.data.tuples import ListedTuples, require_scenes, split_scenes
from disk_ops.training.settings import setting

_SPLIT_FOLDERS = {"train": "train", "val": "test"}


@dataclasses.dataclass(frozen=True)
class DiskDatasetConfig(PosedConfig):
    """Settings of :class:`DiskDatasetSource`."""

    path: str = setting("", "dataset.json, its folder, or a folder with train/dataset.json and test/dataset.json")
    use_depth: bool = setting(True, "use depth maps where there are some; false: for the epipolar reward")
    pixel_center: float = setting(0.5, "where K has the centre of the first pixel: 0.5 as made from COLMAP, or 0")


class _Paths(NamedTuple):
    images: Path
    calibrations: Path
    depth: Path | None


class DiskDatasetSource(PosedSource):
    """Tuples of a dataset in DISK's layout.

    Where there are train/dataset.json and test/dataset.json, the latter is for validation; otherwise ``holdout`` says
    what is kept for it. Tuples may have any length: of longer ones, a sample takes some of the images.

    Args:
        config: settings.
        frame: size and number of the images.
        split: ``train`` or ``val``.

    Raises:
        DataError: if nothing can be used, or the JSON file isn't as it should be.
    """

    def __init__(self, config: DiskDatasetConfig, frame: Frame, split: Split) -> None:
        self.settings, name = config, f"disk-dataset {config.path}"
        file, divided = _find_json(config.path, split)
        listed, self._paths, notes = [], {}, []
        for scene, entry in _read_json(file).items():
            if config.excludes(scene):
                continue
            paths = _paths_of(file, scene, entry)
            missing = next((path for path in (paths.images, paths.calibrations) if not path.is_dir()), None)
            if missing is not None:
                notes.append(f"scene {scene}: there is no folder {missing}")
                continue
            self._paths[scene] = paths if config.use_depth else paths._replace(depth=None)
            tuples = _without_blacklisted(scene, entry["images"], _tuples_of(file, scene, entry), config)
            shorter = int(((tuples >= 0).sum(1) < frame.images).sum())
            if shorter:
                notes.append(f"scene {scene}: {shorter} tuples of fewer than {frame.images} images")
            listed.append(ListedTuples(scene, entry["images"], tuples))
        holdout = float(split == "val") if divided else config.holdout
        scenes = split_scenes(listed, frame.images, split, holdout, config.tuples_per_scene)
        why = "; ".join(notes[:3]) or "there are no tuples"
        require_scenes(scenes, name, split, holdout, f"looked for tuples of {frame.images} images in {file}: {why}")
        super().__init__(name, config, frame, scenes, split)
        self.notes = tuple(notes)
        self._paths = {scene.name: self._paths[scene.name] for scene in scenes}

    def read(self, scene: int, image: int) -> PosedImage:
        """Read an image, its calibration and depth; raises `SampleError`."""
        name, paths = self.scenes[scene].images[image], self._paths[self.scenes[scene].name]
        pixels = read_pixels(_image_file(paths.images, name))
        K, R, t = _read_calibration(paths.calibrations / f"calibration_{name}.h5")
        K[:2, 2] -= self.settings.pixel_center
        depth = NO_DEPTH
        if paths.depth is not None:
            depth = read_depth((paths.depth / name).with_suffix(".h5"), size=size_of(pixels))
        return PosedImage(pixels, np.ones(pixels.shape[:2], bool), K, R, t, depth, median_depth(depth))


def _find_json(path: str, split: Split) -> tuple[Path, bool]:
    """The JSON file, and whether another one has the other split."""
    folder = Path(path)
    if path and folder.is_file():
        return folder, False
    if path and (folder / "dataset.json").is_file():
        return folder / "dataset.json", False
    files = {key: folder / name / "dataset.json" for key, name in _SPLIT_FOLDERS.items()}
    if path and files["train"].is_file():
        divided = files["val"].is_file()
        return (files[split] if divided else files["train"]), divided
    raise DataError(f"disk-dataset: no dataset.json, and no train/dataset.json, in {path!r}")


def _read_json(file: Path) -> dict[str, dict[str, Any]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"disk-dataset: {file} can't be read: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(entry, dict) for entry in content.values()):
        raise DataError(f"disk-dataset: {file} must be an object that has an object for each scene")
    for scene, entry in content.items():
        wrong = [key for key in ("image_path", "calib_path") if not isinstance(entry.get(key), str)]
        wrong += [key for key in ("images", "tuples") if not isinstance(entry.get(key), list)]
        if wrong:
            raise DataError(f"disk-dataset: {file}: scene {scene!r} must have {', '.join(wrong)}")
        if not all(isinstance(name, str) and name for name in entry["images"]):
            raise DataError(f"disk-dataset: {file}: images of scene {scene!r} must be names")
    return content


def _paths_of(file: Path, scene: str, entry: Mapping[str, Any]) -> _Paths:
    depth = entry.get("depth_path")
    if depth is not None and not isinstance(depth, str):
        raise DataError(f"disk-dataset: {file}: depth_path of scene {scene!r} must be a text, got {depth!r}")
    base = file.parent  # an absolute path replaces it
    return _Paths(base / entry["image_path"], base / entry["calib_path"], base / depth if depth else None)


def _tuples_of(file: Path, scene: str, entry: Mapping[str, Any]) -> np.ndarray:
    """Tuples ``[N, L]``, shorter ones filled up with -1."""
    count, rows = len(entry["images"]), entry["tuples"]
    for row in rows:
        numbers = isinstance(row, list) and all(type(image) is int and 0 <= image < count for image in row)
        if not numbers or len(set(row)) < len(row):
            raise DataError(
                f"disk-dataset: {file}: a tuple of scene {scene!r} must be numbers of different images from 0 to "
                f"{count - 1}, got {row!r}"
            )
    tuples = np.full((len(rows), max(map(len, rows), default=0)), -1, np.int32)
    for index, row in enumerate(rows):
        tuples[index, : len(row)] = row
    return tuples


def _without_blacklisted(scene: str, images: list[str], tuples: np.ndarray, config: PosedConfig) -> np.ndarray:
    excluded = [index for index, image in enumerate(images) if config.excludes(scene, image)]
    return tuples[~np.isin(tuples, excluded).any(1)] if excluded else tuples


def _image_file(folder: Path, name: str) -> Path:
    """The image of that name, else one with another ending (the released loader reads .jpg whatever the name says)."""
    exact = folder / name
    if exact.is_file():
        return exact
    others = (exact.with_suffix(ending) for ending in (".jpg", *sorted(IMAGE_EXTENSIONS)))
    return next((path for path in others if path.is_file()), exact)


def _read_calibration(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    try:
        with h5py.File(path, "r") as file:
            K, R, t = (np.asarray(file[key], np.float64) for key in ("K", "R", "T"))
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise SampleError(path, f"can't be read as a calibration with K, R and T: {error}") from error
    t = t.reshape(-1)
    wrong = check_camera(K, R, t)
    if wrong is not None:
        raise SampleError(path, wrong)
    return K, R, t
