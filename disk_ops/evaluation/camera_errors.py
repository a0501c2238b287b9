"""Errors of reconstructed cameras against true ones, after the similarity that aligns them best."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from disk_ops.evaluation.pose import rotation_angle

Array = npt.NDArray[np.float64]

MINIMUM_CAMERAS = 3
"""With fewer there is no alignment."""
_LINE = 1e-3  # cameras whose positions spread less across their line than this part of its length are on it


class Similarity(NamedTuple):
    """The map ``y = scale * rotation @ x + translation``."""

    scale: float
    rotation: Array  # [3, 3]
    translation: Array  # [3]


class CameraErrors(NamedTuple):
    """Errors of each camera."""

    aligned: Array  # [N, 3] their positions in the frame of the truth
    positions: Array  # [N] in the units of the truth
    rotations: Array  # [N] degrees
    extent: float  # largest distance of two true cameras


def camera_errors(
    R: npt.ArrayLike,  # [N, 3, 3] reconstructed
    t: npt.ArrayLike,  # [N, 3]
    true_R: npt.ArrayLike,  # [N, 3, 3]
    true_t: npt.ArrayLike,  # [N, 3]
) -> CameraErrors | None:
    """Align reconstructed cameras ``x_cam = R X + t`` to the true ones by their positions, and compare.

    Positions on one line say nothing of the rotation around it: then the rotations of the cameras decide on it.

    Returns:
        The errors; None with fewer than ``MINIMUM_CAMERAS`` cameras, or if either ones are all in one place.
    """
    rotations, true_rotations = (np.asarray(matrix, np.float64).reshape(-1, 3, 3) for matrix in (R, true_R))
    centres = camera_centres(rotations, t)
    true_centres = camera_centres(true_rotations, true_t)
    if len(centres) != len(true_centres):
        raise ValueError(f"R must have as many cameras as true_R ({len(true_centres)}), got {len(centres)}")
    frame = None
    if min(_across(centres), _across(true_centres)) < _LINE:
        frame = _nearest_rotation(np.einsum("nji,njk->ik", true_rotations, rotations))
    similarity = align(centres, true_centres, frame) if len(centres) >= MINIMUM_CAMERAS else None
    if similarity is None:
        return None
    aligned = similarity.scale * centres @ similarity.rotation.T + similarity.translation
    differences = true_rotations @ (rotations @ similarity.rotation.T).transpose(0, 2, 1)
    angles = np.array([rotation_angle(difference) for difference in differences])
    distances = np.linalg.norm(true_centres[:, None] - true_centres[None], axis=-1)
    return CameraErrors(aligned, np.linalg.norm(aligned - true_centres, axis=1), angles, float(distances.max()))


def align(
    points: npt.ArrayLike,  # [N, 3]
    targets: npt.ArrayLike,  # [N, 3]
    rotation: npt.ArrayLike | None = None,  # [3, 3]
) -> Similarity | None:
    """The similarity from points to targets of least squares (Umeyama, 1991); None if all are in one place.

    With ``rotation`` that is given, and only scale and translation are found.
    """
    source, target = np.asarray(points, np.float64), np.asarray(targets, np.float64)
    source_mean, target_mean = source.mean(axis=0), target.mean(axis=0)
    centred, target_centred = source - source_mean, target - target_mean
    variance, target_variance = (float((values**2).sum()) for values in (centred, target_centred))
    # Rounding of the mean leaves something of points that are equal.
    if variance <= 1e-20 * float((source**2).sum()) or target_variance <= 1e-20 * float((target**2).sum()):
        return None
    products = target_centred.T @ centred
    found = _nearest_rotation(products) if rotation is None else np.asarray(rotation, np.float64)
    scale = float((found * products).sum() / variance)
    return Similarity(scale, found, target_mean - scale * found @ source_mean)


def _nearest_rotation(matrix: Array) -> Array:
    """The rotation ``[3, 3]`` that a matrix is nearest to; never a reflection."""
    U, _, Vt = np.linalg.svd(matrix)
    return np.asarray((U * [1.0, 1.0, np.sign(np.linalg.det(U) * np.linalg.det(Vt))]) @ Vt)


def _across(points: Array) -> float:
    """How far points ``[N, 3]`` spread across the line that fits them best, as a part of how far along it."""
    spread = np.linalg.svd(points - points.mean(axis=0), compute_uv=False) if len(points) else np.zeros(0)
    return float(spread[1] / spread[0]) if len(spread) > 1 and spread[0] > 0 else 0.0


def camera_centres(
    R: npt.ArrayLike,  # [N, 3, 3]
    t: npt.ArrayLike,  # [N, 3]
) -> Array:
    """Where cameras ``x_cam = R X + t`` are: ``[N, 3]``."""
    rotations = np.asarray(R, np.float64).reshape(-1, 3, 3)
    return np.asarray(-np.einsum("nji,nj->ni", rotations, np.asarray(t, np.float64).reshape(-1, 3)))
