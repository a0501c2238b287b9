"""COLMAP reconstructions as training data: tuples by co-visibility, any camera model, optional depth maps."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from disk_ops.io.images import size_of
from disk_ops.scenes.cameras import check_aspect, scaling
from disk_ops.scenes.colmap import Model, read_scene
from disk_ops.scenes.colmap_files import find_model, scene_root
from disk_ops.scenes.covisibility import covisible_pairs
from disk_ops.scenes.depth_maps import read_depth
from disk_ops.scenes.errors import DataError
from disk_ops.scenes.undistortion import undistort_depth, undistort_pixels, undistortion_map
from disk_ops.training.data.framing import NO_DEPTH, PosedImage
from disk_ops.training.data.posed import PosedConfig, PosedSource, fitted_size, read_pixels
from disk_ops.training.data.sample import Frame, Split
from disk_ops.training.data.tuples import PairGraph, require_scenes, split_scenes
from disk_ops.training.settings import setting

_LOOKED_FOR = (
    "looked for cameras, images and points3D (.bin or .txt) there, in sparse/, sparse/0/ or dense/sparse/, and in the "
    "same places of its subfolders"
)


@dataclasses.dataclass(frozen=True)
class ScenesConfig(PosedConfig):
    """Settings of :class:`ScenesSource`."""

    path: str = setting(
        "", "COLMAP model, folder with sparse/ (or dense/sparse/) and images/, or folder of such scenes"
    )
    images: str = setting("", "folder of the images, in each scene's folder or absolute, {scene} allowed; '': images")
    depth: str = setting("", "folder of depth maps likewise, as stereo/depth_maps; '': none, for the epipolar reward")
    depth_scale: float = setting(0.001, "unit of depth maps that are integers")
    covisibility: tuple[float, float] = setting(
        (0.15, 0.8), "least and largest part of 3D points that each two images of a sample share"
    )
    undistort: bool = setting(True, "undistort images of cameras that aren't pinholes; false: ignore the distortion")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.depth_scale > 0:
            raise ValueError(f"depth_scale must be positive, got {self.depth_scale}")
        low, high = self.covisibility
        if not 0 <= low <= high <= 1:
            raise ValueError(f"covisibility must be two numbers from 0 to 1 in order, got {self.covisibility}")


class ScenesSource(PosedSource):
    """Tuples of images of COLMAP reconstructions.

    In a tuple, each two images share between 15 and 80 % (``covisibility``) of the 3D points of the one that sees
    fewer. With ``depth``, images without depth map aren't used; the maps belong to the images as they are stored,
    distorted or not.

    Args:
        config: settings.
        frame: size and number of the images.
        split: ``val`` is what is held out: scenes, or images of each scene if they are few.

    Raises:
        DataError: if nothing can be used.
    """

    def __init__(self, config: ScenesConfig, frame: Frame, split: Split) -> None:
        name = f"scenes {config.path}"
        self.settings = config
        graphs, self._models, notes = [], {}, []
        for scene, folder in find_scenes(config).items():
            model, note = _read(scene, folder, config)
            graphs.append(PairGraph(scene, model.names, covisible_pairs(model.seen, *config.covisibility)))
            self._models[scene] = model._replace(seen=())
            notes += [f"scene {scene}: {note}"] if note else []
        scenes = split_scenes(graphs, frame.images, split, config.holdout, config.tuples_per_scene)
        what = "; ".join(notes[:3]) or "images share too few or too many 3D points"
        low, high = config.covisibility
        looked = f"looked for {frame.images} images that share {low:g} to {high:g} of their points: {what}"
        require_scenes(scenes, name, split, config.holdout, looked)
        super().__init__(name, config, frame, scenes, split)
        self.notes = tuple(notes)
        self._models = {scene.name: self._models[scene.name] for scene in scenes}

    def read(self, scene: int, image: int) -> PosedImage:
        """Read an image, undistorted if need be; raises `SampleError`."""
        model = self._models[self.scenes[scene].name]
        path, lens = model.images / self.scenes[scene].images[image], model.lenses[model.lens[image]]
        pixels = read_pixels(path)
        size = size_of(pixels)
        check_aspect(path, size, lens.size)
        mask, K, depth = np.ones(pixels.shape[:2], bool), scaling(lens.pinhole_size, size) @ lens.K, NO_DEPTH
        if model.depth:
            depth = read_depth(model.depth / model.maps[image], self.settings.depth_scale, size)
        if lens.distorted:
            where = self._undistortion(scene, int(model.lens[image]))
            pixels, mask = undistort_pixels(pixels, lens, where)
            depth = undistort_depth(depth, where) if model.depth else NO_DEPTH
            K = scaling(lens.pinhole_size, size_of(where)) @ lens.K
        typical = np.array(model.typical_depth[image])
        return PosedImage(pixels, mask, K, model.R[image], model.t[image], depth, typical)

    def _undistortion(self, scene: int, number: int) -> np.ndarray:
        """The map of a lens at about twice the size that is needed, as the image is averaged afterwards."""
        model = self._models[self.scenes[scene].name]
        lens = model.lenses[number]
        width, height = lens.pinhole_size
        fitted = fitted_size((width, height), self.frame, self.config.fit)
        factor = min(1.0, 2 * fitted[0] / width, 2 * fitted[1] / height)
        size = (max(1, round(width * factor)), max(1, round(height * factor)))
        if (model.lens == number).sum() == 1:  # an image of its own is what is kept
            return undistortion_map(lens, size)
        return self.cache.get(("undistortion", scene, number), lambda: undistortion_map(lens, size))


def find_scenes(config: ScenesConfig) -> dict[str, Path]:
    """The folder of the model of each scene; raises :class:`DataError` if there is none."""
    path = Path(config.path)
    if not config.path or not path.is_dir():
        raise DataError(f"scenes: path must be a folder, got {config.path!r}")
    model = find_model(path)
    if model is not None:
        found = {scene_root(model).resolve().name: model}
    else:
        candidates = {folder.name: find_model(folder) for folder in sorted(path.iterdir()) if folder.is_dir()}
        found = {name: model for name, model in candidates.items() if model is not None}
    used = {name: model for name, model in found.items() if not config.excludes(name)}
    if not used:
        why = "all its scenes are blacklisted" if found else "there is no COLMAP model"
        raise DataError(f"scenes {path}: {why}; {_LOOKED_FOR}")
    return used


def _read(scene: str, folder: Path, config: ScenesConfig) -> tuple[Model, str]:
    images, depth = ((value.replace("{scene}", scene)) for value in (config.images or "images", config.depth))
    try:
        return read_scene(folder, images, depth, config.undistort, lambda name: config.excludes(scene, name))
    except DataError as error:
        raise DataError(f"scenes: {error}") from error
