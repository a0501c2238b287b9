"""Relative pose from matches, and its error: the stereo task of DISK's appendix.

Points are pixels in xy order with integer pixel centres. Cameras follow ``x_cam = R X_world + t`` and ``x = K x_cam``;
the relative pose of two is ``x_cam2 = R x_cam1 + t`` and found up to the length of t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from disk_ops.evaluation.robust import (
    CONFIDENCE,
    ITERATIONS,
    THRESHOLD,
    checked_intrinsics,
    checked_points,
    estimate_essential,
    estimate_fundamental,
    rays,
)

MINIMUM_MATCHES = 10
"""With fewer no pose is estimated."""

Geometry = Literal["fundamental", "essential"]
Array = npt.NDArray[np.float64]


class RelativePose(NamedTuple):
    """What :func:`estimate_relative_pose` found."""

    R: Array  # [3, 3]
    t: Array  # [3], of length 1
    inliers: npt.NDArray[np.bool_]  # [K] matches that agree with the matrix


class PoseError(NamedTuple):
    """Errors of a relative pose in degrees; inf where there is none."""

    rotation: float
    translation: float

    @property
    def largest(self) -> float:
        """The one that counts."""
        return max(self.rotation, self.translation)


def estimate_relative_pose(
    points1: npt.ArrayLike,  # [K, 2]
    points2: npt.ArrayLike,  # [K, 2] the matches of points1
    K1: npt.ArrayLike,  # [3, 3]
    K2: npt.ArrayLike,  # [3, 3]
    threshold: float = THRESHOLD,
    confidence: float = CONFIDENCE,
    iterations: int = ITERATIONS,
    *,
    geometry: Geometry = "fundamental",
    method: str = "magsac",
) -> RelativePose | None:
    """Estimate the fundamental or essential matrix, and from it and the intrinsics the pose.

    With ``magsac`` the result depends on the arguments only.

    Args:
        points1: pixels of image 1. Matches that are not finite count as outliers.
        points2: pixels of image 2.
        K1: intrinsics of image 1.
        K2: intrinsics of image 2.
        threshold: pixels, of the estimator.
        confidence: of the estimator.
        iterations: at most this many.
        geometry: ``fundamental``, as the paper, or ``essential``: the intrinsics then restrict the matrix, too.
        method: of :mod:`disk_ops.evaluation.robust`.

    Returns:
        The pose, or None where fewer than ``MINIMUM_MATCHES`` matches are given or none was found.

    Raises:
        ValueError: a wrong argument, or an estimator that isn't installed.
    """
    xy1, xy2 = checked_points(points1, "points1"), checked_points(points2, "points2")
    intrinsics1, intrinsics2 = checked_intrinsics(K1, "K1"), checked_intrinsics(K2, "K2")
    if geometry == "essential":
        found = estimate_essential(xy1, xy2, intrinsics1, intrinsics2, method, threshold, confidence, iterations)
    elif geometry == "fundamental":
        found = estimate_fundamental(xy1, xy2, method, threshold, confidence, iterations)
    else:
        raise ValueError(f"geometry must be fundamental or essential, got {geometry!r}")
    if found is None or np.isfinite(np.hstack([xy1, xy2])).all(axis=1).sum() < MINIMUM_MATCHES:
        return None
    E = found.matrix if geometry == "essential" else intrinsics2.T @ found.matrix @ intrinsics1
    pose = _decompose(E, rays(xy1[found.inliers], intrinsics1), rays(xy2[found.inliers], intrinsics2))
    return None if pose is None else RelativePose(*pose, found.inliers)


def _decompose(
    E: Array,  # [3, 3]
    x1: Array,  # [K, 2] inliers, in units of the focal length
    x2: Array,  # [K, 2]
) -> tuple[Array, Array] | None:
    # Of the four poses the one that has most points in front of both cameras. By default OpenCV leaves out points
    # farther away than 50 baselines, and with a short baseline decides by what is left: a few outliers, or nothing.
    try:
        _, R, t, _, _ = cv2.recoverPose(E, x1, x2, np.eye(3), distanceThresh=1e9)
    except cv2.error:
        return None
    t = t.ravel()
    return (R, t) if np.isfinite(R).all() and np.isfinite(t).all() else None


def relative_pose(
    R1: npt.ArrayLike,  # [3, 3]
    t1: npt.ArrayLike,  # [3]
    R2: npt.ArrayLike,  # [3, 3]
    t2: npt.ArrayLike,  # [3]
) -> tuple[Array, Array]:
    """The pose ``(R [3, 3], t [3])`` of camera 2 relative to camera 1."""
    R = np.asarray(R2, np.float64) @ np.asarray(R1, np.float64).T
    return R, np.asarray(t2, np.float64).ravel() - R @ np.asarray(t1, np.float64).ravel()


def pose_error(
    estimate: RelativePose | None,
    R: npt.ArrayLike,  # [3, 3] true
    t: npt.ArrayLike,  # [3] true, of any length
) -> PoseError:
    """Compare an estimate with the truth.

    Directions of translation are compared up to their sign, as in the Image Matching Challenge, whose protocol the
    paper follows: which of the two it is depends on the cheirality check rather than on the matches. Where the true
    translation is zero, there is no direction, and rotation alone counts.
    """
    if estimate is None:
        return PoseError(math.inf, math.inf)
    direction = np.asarray(t, np.float64).ravel()
    translation = angle_between(estimate.t, direction) if np.any(direction) else 0.0
    return PoseError(rotation_angle(estimate.R @ np.asarray(R, np.float64).T), min(translation, 180.0 - translation))


def rotation_angle(
    R: npt.ArrayLike,  # [3, 3]
) -> float:
    """The angle of a rotation in degrees, 0 to 180."""
    # |R - I| = 2 sqrt(2) sin(angle / 2): unlike the arc cosine of the trace, accurate for small angles.
    chord = float(np.linalg.norm(np.asarray(R, np.float64) - np.eye(3))) / (2 * math.sqrt(2))
    return math.degrees(2 * math.asin(min(chord, 1.0))) if math.isfinite(chord) else math.inf


def angle_between(
    a: npt.ArrayLike,  # [3]
    b: npt.ArrayLike,  # [3]
) -> float:
    """The angle between two vectors in degrees, 0 to 180; inf where one has no direction."""
    u, v = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    lengths = float(np.linalg.norm(u)), float(np.linalg.norm(v))
    if not all(math.isfinite(length) and length > 0 for length in lengths):
        return math.inf
    u, v = u / lengths[0], v / lengths[1]
    return math.degrees(2 * math.atan2(float(np.linalg.norm(u - v)), float(np.linalg.norm(u + v))))


def mean_average_accuracy(errors: Sequence[float], limit: int = 10) -> float:
    """The mean over 1, 2, ... ``limit`` degrees of the share of errors below: the paper's mAA.

    Args:
        errors: the larger of the rotation and translation error of each pair, in degrees; NaN counts as inf.
        limit: the last threshold.
    """
    if len(errors) == 0:
        raise ValueError("errors must hold at least one error, got none")
    if limit < 1:
        raise ValueError(f"limit must be a positive number of degrees, got {limit}")
    values = np.asarray(errors, np.float64)
    return float(np.mean([(values < threshold).mean() for threshold in range(1, limit + 1)]))
