"""Pictures to extract from, and files read back."""

from __future__ import annotations

from pathlib import Path

import cv2
import h5py
import numpy as np

from disk_ops.io.hdf5 import image_names

N = 60


def save(path: Path, seed: int = 0, height: int = 64, width: int = 96) -> Path:
    """A random picture with structures that the detector finds."""
    generator = np.random.default_rng(seed)
    image = np.full((height, width, 3), 90, np.uint8)
    for _ in range(100):
        corner = generator.integers(0, (width, height))
        color = generator.integers(0, 256, 3).tolist()
        cv2.rectangle(image, corner.tolist(), (corner + generator.integers(4, 14, 2)).tolist(), color, cv2.FILLED)
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image)
    return path


def load(path: Path) -> dict[str, dict[str, np.ndarray]]:
    with h5py.File(path) as file:
        return {name: {key: np.asarray(item) for key, item in file[name].items()} for name in image_names(file)}


def equal(first: dict[str, dict[str, np.ndarray]], second: dict[str, dict[str, np.ndarray]]) -> bool:
    return first.keys() == second.keys() and all(
        np.array_equal(first[name][key], second[name][key]) for name in first for key in first[name]
    )


def groups(path: Path) -> set[tuple[str, str]]:
    with h5py.File(path) as file:
        return {(first, second) for first in file for second in file[first]}
