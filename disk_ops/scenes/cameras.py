"""Cameras x_cam = R X_world + t with K for integer pixel centres, and the images that they took."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from disk_ops.io.images import Size
from disk_ops.scenes.errors import SampleError


def same_aspect(size: Size, other: Size) -> bool:
    """Whether one size is the other one scaled, up to rounding to whole pixels."""
    return abs(size[0] * other[1] - size[1] * other[0]) <= max(*size, *other)


def check_aspect(path: Path, size: Size, camera: Size) -> None:
    """Raise :class:`SampleError` unless an image is that of its camera, in whatever size it is stored."""
    if not same_aspect(size, camera):
        raise SampleError(path, f"is {size[0]}x{size[1]}, but its camera is for {camera[0]}x{camera[1]}")


def check_camera(K: np.ndarray, R: np.ndarray, t: np.ndarray) -> str | None:
    """What is wrong with a camera, if anything is."""
    if K.shape != (3, 3) or R.shape != (3, 3) or t.shape != (3,):
        return f"K, R and t must be 3x3, 3x3 and 3 numbers, got shapes {K.shape}, {R.shape}, {t.shape}"
    if not all(np.isfinite(array).all() for array in (K, R, t)):
        return "K, R or t has numbers that aren't finite"
    if K[0, 0] <= 0 or K[1, 1] <= 0 or np.abs(K[[1, 2, 2, 2], [0, 0, 1, 2]] - [0, 0, 0, 1]).max() > 1e-6:
        return f"K must be an upper triangular matrix with positive focal lengths and 1, got {K.tolist()}"
    if np.abs(R @ R.T - np.eye(3)).max() > 1e-3 or np.linalg.det(R) < 0:
        return f"R must be a rotation, got {R.tolist()}"
    return None


def scaling(size: Size, new: Size) -> np.ndarray:
    """The matrix ``[3, 3]`` that maps pixels of an image to those of the resized one: x to (x + 0.5) s - 0.5."""
    x, y = new[0] / size[0], new[1] / size[1]
    return np.array([[x, 0, 0.5 * x - 0.5], [0, y, 0.5 * y - 0.5], [0, 0, 1]])
