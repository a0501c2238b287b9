"""COLMAP reconstructions as training data: tuples by co-visibility, any camera model, optional depth maps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from disk_ops.io.images import size_of
from disk_ops.training.data.colmap_files import find_model, read_model, scene_root
from disk_ops.training.data.covisibility import PairGraph, covisible_pairs, require_scenes, split_scenes
from disk_ops.training.data.depth_maps import find_depth, list_files, read_depth
from disk_ops.training.data.framing import NO_DEPTH, PosedImage
from disk_ops.training.data.posed import (
    PosedConfig,
    PosedSource,
    check_aspect,
    fitted_size,
    read_pixels,
    scaling,
)
from disk_ops.training.data.sample import DataError, Frame, Split
from disk_ops.training.data.undistortion import (
    Lens,
    lens_of,
    undistort_depth,
    undistort_pixels,
    undistortion_map,
)
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


class Model(NamedTuple):
    """What is used of a reconstruction."""

    names: tuple[str, ...]  # of the images
    images: Path  # the folder
    depth: Path | None  # the folder
    maps: tuple[str, ...]  # of each image, in the folder of depth
    lenses: tuple[Lens, ...]
    lens: np.ndarray  # [N] which one each image has
    R: np.ndarray  # [N, 3, 3]
    t: np.ndarray  # [N, 3]
    seen: tuple[np.ndarray, ...]  # for each image [P] int64: the 3D points that it sees
    typical_depth: np.ndarray  # [N] median of the points that it sees


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
            model, note = read_scene(scene, folder, config)
            graphs.append(PairGraph(scene, model.names, covisible_pairs(model.seen, *config.covisibility)))
            self._models[scene] = model._replace(seen=())
            notes += [note] if note else []
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


def _folder(model: Path, scene: str, setting_value: str) -> Path:
    return scene_root(model) / setting_value.replace("{scene}", scene)  # an absolute one replaces the root


def read_scene(scene: str, folder: Path, config: ScenesConfig) -> tuple[Model, str]:
    """The images of a reconstruction that can be used, and a note on the others; raises :class:`DataError`."""
    reconstruction = read_model(folder)
    image_folder = _folder(folder, scene, config.images or "images")
    depth_folder = _folder(folder, scene, config.depth) if config.depth else None
    files, maps = list_files(image_folder), list_files(depth_folder) if depth_folder else frozenset()
    lenses = {id: lens_of(camera, config.undistort) for id, camera in sorted(reconstruction.cameras.items())}
    usable, left_out = [], dict[str, int]()
    for image in sorted(reconstruction.images.values(), key=lambda image: str(image.name)):
        why = None
        if not image.has_pose or config.excludes(scene, image.name):
            continue
        if image.name not in files:
            why = f"not found in {image_folder}"
        elif depth_folder and find_depth(maps, image.name) is None:
            why = f"without depth map in {depth_folder}"
        elif lenses[image.camera_id] is None:
            why = f"of a camera that can't be used ({reconstruction.cameras[image.camera_id].model.name})"
        if why:
            left_out[why] = left_out.get(why, 0) + 1
        else:
            usable.append(image)
    note = ", ".join(f"{count} images {why}" for why, count in left_out.items())
    names = tuple(image.name for image in usable)
    seen, R, t, typical = _geometry(reconstruction, usable)
    used = sorted({image.camera_id for image in usable})
    model = Model(
        names=names,
        images=image_folder,
        depth=depth_folder,
        maps=tuple(str(find_depth(maps, name)) for name in names) if depth_folder else (),
        lenses=tuple(lens for id in used if (lens := lenses[id]) is not None),
        lens=np.array([used.index(image.camera_id) for image in usable], np.int64),
        R=R,
        t=t,
        seen=tuple(seen),
        typical_depth=typical,
    )
    return model, f"scene {scene}: {note}" if note else ""


def _geometry(reconstruction: Any, images: list[Any]) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    """For each image the points that it sees, R, t, and the median depth of the points."""
    points = reconstruction.points3D
    ids = np.fromiter(points.keys(), np.int64, len(points))
    order = np.argsort(ids)
    xyz = np.array([point.xyz for point in points.values()], np.float64).reshape(-1, 3)[order]
    ids = ids[order]
    seen, R, t = [], np.zeros((len(images), 3, 3)), np.zeros((len(images), 3))
    typical = np.full(len(images), np.nan)
    for index, image in enumerate(images):
        pose = image.cam_from_world() if callable(image.cam_from_world) else image.cam_from_world
        R[index], t[index] = pose.rotation.matrix(), pose.translation
        seen.append(np.array([point.point3D_id for point in image.get_observation_points2D()], np.int64))
        depth = xyz[np.searchsorted(ids, seen[-1])] @ R[index, 2] + t[index, 2]
        if (depth > 0).any():
            typical[index] = np.median(depth[depth > 0])
    return seen, R, t, typical
