"""Two cameras, and matches of points that both see."""

from __future__ import annotations

import math

import cv2
import numpy as np

K1 = np.array([[800.0, 0, 512], [0, 810, 384], [0, 0, 1]])
K2 = np.array([[650.0, 0, 320], [0, 640, 250], [0, 0, 1]])


def rotation(axis, degrees: float) -> np.ndarray:
    axis = np.asarray(axis, float)
    return cv2.Rodrigues(axis / np.linalg.norm(axis) * math.radians(degrees))[0]


def two_views(count: int, R: np.ndarray, t: np.ndarray, noise: float = 0.0, outliers: float = 0.0):
    """Matches [count, 2] twice of points in front of both cameras."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(-4, 4, count), rng.uniform(-3, 3, count), rng.uniform(6, 14, count)])
    first, second = X @ K1.T, (X @ R.T + t) @ K2.T
    points1, points2 = first[:, :2] / first[:, 2:], second[:, :2] / second[:, 2:]
    wrong = rng.permutation(count)[: round(count * outliers)]
    points2[wrong] = rng.uniform(0, 600, (len(wrong), 2))
    return points1 + rng.normal(0, noise, (count, 2)), points2 + rng.normal(0, noise, (count, 2))
