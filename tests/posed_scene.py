"""A scene made of known points on a plane, and images of it that are exact."""

from __future__ import annotations

import math
from typing import NamedTuple

import cv2
import numpy as np

BLOB = 0.02  # standard deviation of a point's blob on the plane, in units of the scene


class Camera(NamedTuple):
    K: np.ndarray  # [3, 3], integer pixel centres
    R: np.ndarray  # [3, 3]
    t: np.ndarray  # [3]
    size: tuple[int, int]


SPACING, STEPS = 0.25, 6  # of the points on the plane, and how many there are on each side of the middle


def points_on_plane() -> np.ndarray:
    """Points [N, 3] on the plane z = 0, row by row."""
    steps = SPACING * np.arange(-STEPS, STEPS + 1)
    x, y = np.meshgrid(steps, steps)
    shift = np.random.default_rng(7).uniform(-0.02, 0.02, (2, x.size))
    return np.stack([x.ravel() + shift[0], y.ravel() + shift[1], np.zeros(x.size)], 1)


def pose(index: int) -> tuple[np.ndarray, np.ndarray]:
    """R and t of a camera that looks at the plane from about 3 units away; the next ones stand further to the right."""
    rotation = cv2.Rodrigues(np.array([0.1 * math.sin(index), 0.04 * index, 0.05 * index]))[0]
    return rotation, np.array([-0.15 * index, 0.05 * math.cos(index), 3.0 + 0.1 * math.sin(2 * index)])


def pinhole(size: tuple[int, int], index: int = 0, focal: float | None = None) -> Camera:
    focal = focal or 1.1 * max(size)
    K = np.array([[focal, 0, size[0] / 2 - 0.8], [0, focal * 1.02, size[1] / 2 + 0.7], [0, 0, 1]])
    return Camera(K, *pose(index), size)


def rays_of(camera: Camera) -> np.ndarray:
    """Directions [h, w, 3] of the pixels, with z = 1."""
    x, y = np.meshgrid(np.arange(camera.size[0]), np.arange(camera.size[1]))
    return np.stack([x, y, np.ones_like(x)], -1) @ np.linalg.inv(camera.K).T


def render(rays: np.ndarray, R: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What a camera sees: grey image [h, w] uint8 with a bright blob at each point, and depth [h, w]."""
    origin = -R.T @ t
    directions = rays @ R
    depth = -origin[2] / directions[:, :, 2]  # the rays have z = 1 in the camera
    plane = (origin + directions * depth[:, :, None])[:, :, :2]
    column, row = np.moveaxis(np.rint(plane / SPACING).astype(int) + STEPS, 2, 0)
    there = (column >= 0) & (column <= 2 * STEPS) & (row >= 0) & (row <= 2 * STEPS)
    nearest = points_on_plane()[np.where(there, row * (2 * STEPS + 1) + column, 0), :2]
    blobs = np.where(there, np.exp(-((plane - nearest) ** 2).sum(2) / (2 * BLOB**2)), 0)
    return np.rint(30 + 200 * blobs).astype(np.uint8), depth


def project(points: np.ndarray, K: np.ndarray, R: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Pixels [N, 2] of points [N, 3]."""
    projected = (points @ R.T + t) @ K.T
    return projected[:, :2] / projected[:, 2:]


def blob_errors(image: np.ndarray, expected: np.ndarray, radius: int = 7) -> np.ndarray:
    """How far the blobs of a grey image [h, w] lie from where they should [N, 2], for those well inside it."""
    height, width = image.shape
    errors = []
    dy, dx = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    for x, y in expected:
        column, row = round(x), round(y)
        if not (radius <= column < width - radius and radius <= row < height - radius):
            continue
        window = image[row - radius : row + radius + 1, column - radius : column + radius + 1].astype(float)
        weight = (window - 35).clip(0)
        if window.min() > 0:  # padding
            centre = np.array([column + (weight * dx).sum() / weight.sum(), row + (weight * dy).sum() / weight.sum()])
            errors.append(np.hypot(*(centre - [x, y])))
    return np.array(errors)
