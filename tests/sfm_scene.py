"""A synthetic scene: known cameras on an arc, points in a box, and features that are exact projections of these."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import h5py
import numpy as np

from disk_ops.io.hdf5 import feature_writer, match_writer, pair_name

SIZE = (640, 480)
FOCAL = 700.0
K = np.array([[FOCAL, 0, SIZE[0] / 2 - 0.5], [0, FOCAL, SIZE[1] / 2 - 0.5], [0, 0, 1]])
PARAMS = f"{FOCAL},{FOCAL},{SIZE[0] / 2},{SIZE[1] / 2}"  # PINHOLE in COLMAP's convention


@dataclass
class SyntheticScene:
    """What is known of each image, by name, and of the points."""

    names: list[str]
    R: dict[str, np.ndarray]  # [3, 3]
    t: dict[str, np.ndarray]  # [3]
    points: np.ndarray  # [P, 3]
    keypoints: dict[str, np.ndarray]  # [N, 2]
    seen: dict[str, np.ndarray]  # [N] which point each keypoint is
    descriptors: np.ndarray  # [P, 128]

    def matches0(self, one: str, two: str) -> np.ndarray:
        """For each keypoint of the first image that of the second, or -1."""
        where = np.full(len(self.points), -1)
        where[self.seen[two]] = np.arange(len(self.seen[two]))
        return where[self.seen[one]]


def make_scene(
    count: int = 8, points: int = 300, names: str = "{}.png", seed: int = 0, turn: float = 12
) -> SyntheticScene:
    """Cameras look at the origin from the distance 6, ``turn`` degrees apart; each image shows most of the points."""
    generator = np.random.default_rng(seed)
    cloud = generator.uniform(-1.2, 1.2, (points, 3))
    descriptors = generator.normal(size=(points, 128))
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
    scene = SyntheticScene([names.format(index) for index in range(count)], {}, {}, cloud, {}, {}, descriptors)
    for index, name in enumerate(scene.names):
        angle = np.radians(turn) * index
        centre = 6 * np.array([np.sin(angle), 0.15 * np.cos(3 * angle), -np.cos(angle)])
        forward = -centre / np.linalg.norm(centre)
        right = np.cross([0, 1, 0], forward)
        right /= np.linalg.norm(right)
        R = np.stack([right, np.cross(forward, right), forward])
        scene.R[name], scene.t[name] = R, -R @ centre
        pixels = (cloud @ R.T + scene.t[name]) @ K.T
        pixels = pixels[:, :2] / pixels[:, 2:]
        inside = np.flatnonzero(((pixels > 0) & (pixels < np.array(SIZE) - 1)).all(1))
        order = generator.permutation(inside)  # the indices of matches are not all alike
        scene.keypoints[name], scene.seen[name] = pixels[order].astype(np.float32), order
    return scene


def write_images(scene: SyntheticScene, folder: Path) -> Path:
    """Pictures of a colour each, in the right size."""
    for index, name in enumerate(scene.names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(path), np.full((SIZE[1], SIZE[0], 3), 40 + index, np.uint8))
    return folder


def write_features(scene: SyntheticScene, path: Path) -> Path:
    """Exact features in hloc's layout."""
    write = feature_writer("hloc")
    with h5py.File(path, "w") as file:
        for name in scene.names:
            count = len(scene.keypoints[name])
            arrays = {
                "keypoints": scene.keypoints[name],
                "descriptors": scene.descriptors[scene.seen[name]].astype(np.float32),
                "scores": np.linspace(1, 0.1, count, dtype=np.float32),
                "image_size": np.array(SIZE),
                "uncertainty": np.float64(1),
                "source_bytes": np.int64(0),
            }
            write(file, name, arrays)
    return path


def write_matches(scene: SyntheticScene, path: Path, pairs: list[tuple[str, str]] | None = None) -> Path:
    """True matches in hloc's layout, of all pairs if none are given."""
    write = match_writer("hloc")
    names = scene.names
    pairs = pairs or [(one, two) for index, one in enumerate(names) for two in names[index + 1 :]]
    with h5py.File(path, "w") as file:
        for one, two in pairs:
            matches0 = scene.matches0(one, two).astype(np.int16)
            scores = (matches0 >= 0).astype(np.float16)
            write(file, pair_name(one, two), {"matches0": matches0, "matching_scores0": scores})
    return path
