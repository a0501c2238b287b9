"""Images with ``cameras.json`` (:mod:`disk_ops.scenes.cameras_json`) as training data, with or without depth."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from disk_ops.io.images import size_of
from disk_ops.scenes.cameras import check_aspect, scaling
from disk_ops.scenes.cameras_json import Cameras, measured_overlaps, read_cameras
from disk_ops.scenes.depth_maps import median_depth, read_depth
from disk_ops.scenes.errors import DataError
from disk_ops.scenes.overlap import pairs_by_direction, pairs_by_overlap
from disk_ops.training.data.framing import NO_DEPTH, PosedImage
from disk_ops.training.data.posed import PosedConfig, PosedSource, read_pixels
from disk_ops.training.data.sample import Frame, Split
from disk_ops.training.data.tuples import PairGraph, require_scenes, split_scenes
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
            cameras, left_out = _read(scene, folder, config)
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


def _read(scene: str, folder: Path, config: RgbdConfig) -> tuple[Cameras, list[str]]:
    try:
        return read_cameras(folder, config.max_images, lambda name: config.excludes(scene, name))
    except DataError as error:
        raise DataError(f"rgbd: {error}") from error


def _pairs(cameras: Cameras, config: RgbdConfig) -> tuple[np.ndarray, list[str]]:
    """Overlapping images ``[P, 2]``, and notes on depth maps that can't be used."""
    if not cameras.depth:
        return pairs_by_direction(cameras.R, cameras.t, config.max_angle, config.max_distance), []
    overlap, broken = measured_overlaps(cameras, config.depth_scale)
    return pairs_by_overlap(overlap, *config.covisibility), broken
