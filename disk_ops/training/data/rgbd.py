"""Images with ``cameras.json``, and with or without depth maps: RGB-D recordings, multi-view sets with known cameras.

``cameras.json``: ``{"K": [[...]], "width": w, "height": h, "cameras": {image: {"R", "t", "K", "width", "height",
"depth"}}}``, where each camera may have K and the size of its own, or take the common one; ``depth`` is the name of a
depth map. Conventions: x_cam = R X_world + t, pixel centres at integers, K for the image of the given size.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from disk_ops.io.images import size_of
from disk_ops.training.data.covisibility import PairGraph, require_scenes, split_scenes
from disk_ops.training.data.depth_maps import find_depth, list_files, read_depth
from disk_ops.training.data.framing import NO_DEPTH, PosedImage
from disk_ops.training.data.overlap import coarse_depth, overlaps_by_depth, pairs_by_direction, pairs_by_overlap
from disk_ops.training.data.posed import (
    PosedConfig,
    PosedSource,
    check_aspect,
    check_camera,
    median_depth,
    read_pixels,
    scaling,
)
from disk_ops.training.data.sample import DataError, Frame, SampleError, Split
from disk_ops.training.settings import setting

_DEPTH_FOLDERS = ("depth_registered", "depth")
_LONGEST = 2**31 - 1  # edge of an image
_LOOKED_FOR = "looked for cameras.json there and up to two folders below"


@dataclasses.dataclass(frozen=True)
class RgbdConfig(PosedConfig):
    """Settings of :class:`RgbdSource`."""

    path: str = setting("", "folder with cameras.json and images/, or of such folders")
    use_depth: bool = setting(True, "use depth maps where there are some; false: for the epipolar reward")
    depth_scale: float = setting(0.001, "unit of depth maps that are integers, in units of t")
    covisibility: tuple[float, float] = setting((0.4, 0.95), "with depth: least and largest overlap of two images")
    max_images: int = setting(500, "of longer recordings, so many images at even distances are used")
    max_angle: float = setting(30.0, "without depth: largest angle between the directions of two cameras, degrees")
    max_distance: float = setting(0.0, "without depth: largest distance of two cameras in units of t; 0: any")

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.covisibility
        if not 0 <= low <= high <= 1:
            raise ValueError(f"covisibility must be two numbers from 0 to 1 in order, got {self.covisibility}")
        if not self.depth_scale > 0:
            raise ValueError(f"depth_scale must be positive, got {self.depth_scale}")
        if self.max_images < 2:
            raise ValueError(f"max_images must be at least 2, got {self.max_images}")
        if not 0 <= self.max_angle <= 180:
            raise ValueError(f"max_angle must be from 0 to 180 degrees, got {self.max_angle}")
        if not self.max_distance >= 0:
            raise ValueError(f"max_distance must be at least 0, got {self.max_distance}")


class Cameras(NamedTuple):
    """The images of a scene that can be used, with a camera each."""

    names: tuple[str, ...]
    files: tuple[Path, ...]
    depth: tuple[Path, ...]  # of each image, or none at all
    K: np.ndarray  # [N, 3, 3]
    R: np.ndarray  # [N, 3, 3]
    t: np.ndarray  # [N, 3]
    sizes: np.ndarray  # [N, 2] width and height that K is for; 0 if not given


class RgbdSource(PosedSource):
    """Tuples of images with known cameras.

    If a scene has depth maps, each two images of a tuple overlap by 40 to 95 % (``covisibility``; coarsely, by
    projecting points of one into the other), and images without depth map aren't used. That is more than between images
    of a reconstruction, as all that is seen counts, and not only points that were matched. If there is no depth,
    overlap isn't known: each two cameras of a tuple look in about the same direction (``max_angle``, ``max_distance``).

    Args:
        config: settings.
        frame: size and number of the images.
        split: ``val`` is what is held out: scenes, or images of each scene if they are few.

    Raises:
        DataError: if nothing can be used, or a cameras.json isn't as it should be.
    """

    def __init__(self, config: RgbdConfig, frame: Frame, split: Split) -> None:
        self.settings, name = config, f"rgbd {config.path}"
        graphs, self._cameras, notes = [], {}, []
        for scene, folder in find_scenes(config).items():
            cameras, left_out = read_cameras(scene, folder, config)
            pairs, broken = _pairs(cameras, config)
            graphs.append(PairGraph(scene, cameras.names, pairs))
            self._cameras[scene] = cameras
            notes += [f"scene {scene}: {note}" for note in (*left_out, *broken)]
        scenes = split_scenes(graphs, frame.images, split, config.holdout, config.tuples_per_scene)
        why = "; ".join(notes[:3]) or "no images overlap as covisibility, max_angle and max_distance demand"
        require_scenes(scenes, name, split, config.holdout, f"looked for {frame.images} overlapping images: {why}")
        super().__init__(name, config, frame, scenes, split)
        self.notes = tuple(notes)

    def read(self, scene: int, image: int) -> PosedImage:
        """Read an image and its depth; raises `SampleError`."""
        cameras = self._cameras[self.scenes[scene].name]
        path, K = cameras.files[image], cameras.K[image]
        pixels = read_pixels(path)
        size = size_of(pixels)
        if cameras.sizes[image].all():
            expected = (int(cameras.sizes[image, 0]), int(cameras.sizes[image, 1]))
            check_aspect(path, size, expected)
            K = scaling(expected, size) @ K
        depth = NO_DEPTH
        if cameras.depth and self.settings.use_depth:
            depth = read_depth(cameras.depth[image], self.settings.depth_scale, size)
        mask, typical = np.ones(pixels.shape[:2], bool), median_depth(depth)
        return PosedImage(pixels, mask, K, cameras.R[image], cameras.t[image], depth, typical)


def find_scenes(config: RgbdConfig) -> dict[str, Path]:
    """The folder of each scene; raises :class:`DataError` if there is none."""
    path = Path(config.path)
    if not config.path or not path.is_dir():
        raise DataError(f"rgbd: path must be a folder, got {config.path!r}")
    if (path / "cameras.json").is_file():
        found = {path.resolve().name: path}
    else:
        files = sorted([*path.glob("*/cameras.json"), *path.glob("*/*/cameras.json")])
        found = {file.parent.relative_to(path).as_posix(): file.parent for file in files}
    used = {name: folder for name, folder in found.items() if not config.excludes(name)}
    if not used:
        why = "all its scenes are blacklisted" if found else "there is no scene"
        raise DataError(f"rgbd {path}: {why}; {_LOOKED_FOR}")
    return used


def read_cameras(scene: str, folder: Path, config: RgbdConfig) -> tuple[Cameras, list[str]]:
    """The cameras whose images are there, and notes on the others."""
    images = folder / "images" if (folder / "images").is_dir() else folder
    present = list_files(images)
    depth_folder = next((folder / name for name in _DEPTH_FOLDERS if (folder / name).is_dir()), None)
    maps = list_files(depth_folder) if depth_folder else frozenset()
    rows, depth, missing, without_depth = [], [], 0, 0
    entries = [entry for entry in _entries(folder / "cameras.json") if not config.excludes(scene, entry[0])]
    depth_of = [named if named in maps else find_depth(maps, name) for name, named, *_ in entries]
    for entry, map_name in zip(entries, depth_of, strict=True):
        if entry[0] not in present:
            missing += 1
        elif map_name is None and any(depth_of):
            without_depth += 1
        else:
            rows.append(entry)
            depth += [depth_folder / map_name] if depth_folder and map_name else []
    if len(rows) > config.max_images:
        chosen = np.linspace(0, len(rows) - 1, config.max_images).round().astype(int).tolist()
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
        raise DataError(f"rgbd: {file} can't be read: {error}") from error
    cameras = content.get("cameras") if isinstance(content, dict) else None
    if not isinstance(cameras, dict):
        raise DataError(f"rgbd: {file} must have an object 'cameras' with an entry for each image")
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
        raise DataError(f"rgbd: {file}: camera {name!r} must have R, t, K and a size, if any: {error!r}") from error
    t = t.reshape(-1)
    wrong = check_camera(K, R, t)
    if wrong is not None:
        raise DataError(f"rgbd: {file}: camera {name!r}: {wrong}")
    depth = camera.get("depth")
    return name, depth if isinstance(depth, str) else None, K, R, t, (width, height)


def _edge(key: str, value: Any) -> int:
    """The width or height of an image, 0 where it isn't given."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST or value % 1:
        raise ValueError(f"{key} must be a whole number of pixels, got {value!r}")
    return int(value)


def _pairs(cameras: Cameras, config: RgbdConfig) -> tuple[np.ndarray, list[str]]:
    """Overlapping images ``[P, 2]``, and notes on depth maps that can't be used."""
    if not cameras.depth:
        return pairs_by_direction(cameras.R, cameras.t, config.max_angle, config.max_distance), []
    overlap, broken = measured_overlaps(cameras, config.depth_scale)
    return pairs_by_overlap(overlap, *config.covisibility), broken


def measured_overlaps(cameras: Cameras, depth_scale: float) -> tuple[np.ndarray, list[str]]:
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
