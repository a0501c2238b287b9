"""Errors of reconstructed cameras against true ones, after the similarity that aligns them best."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from disk_ops.evaluation.pose import rotation_angle

Array = npt.NDArray[np.float64]

MINIMUM_CAMERAS = 3
"""With fewer there is no alignment."""


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

    Returns:
        The errors; None with fewer than ``MINIMUM_CAMERAS`` cameras, or if either ones are all in one place.
    """
    rotations, true_rotations = (np.asarray(matrix, np.float64).reshape(-1, 3, 3) for matrix in (R, true_R))
    centres = camera_centres(rotations, t)
    true_centres = camera_centres(true_rotations, true_t)
    if len(centres) != len(true_centres):
        raise ValueError(f"R must have as many cameras as true_R ({len(true_centres)}), got {len(centres)}")
    similarity = align(centres, true_centres) if len(centres) >= MINIMUM_CAMERAS else None
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
) -> Similarity | None:
    """The similarity from points to targets of least squares (Umeyama, 1991); None if all are in one place."""
    source, target = np.asarray(points, np.float64), np.asarray(targets, np.float64)
    source_mean, target_mean = source.mean(axis=0), target.mean(axis=0)
    centred, target_centred = source - source_mean, target - target_mean
    variance, target_variance = (float((values**2).sum()) for values in (centred, target_centred))
    # Rounding of the mean leaves something of points that are equal.
    if variance <= 1e-20 * float((source**2).sum()) or target_variance <= 1e-20 * float((target**2).sum()):
        return None
    U, singular, Vt = np.linalg.svd(target_centred.T @ centred)
    signs = np.array([1.0, 1.0, np.sign(np.linalg.det(U) * np.linalg.det(Vt))])  # never a reflection
    rotation = (U * signs) @ Vt
    scale = float((singular * signs).sum() / variance)
    return Similarity(scale, rotation, target_mean - scale * rotation @ source_mean)


def camera_centres(
    R: npt.ArrayLike,  # [N, 3, 3]
    t: npt.ArrayLike,  # [N, 3]
) -> Array:
    """Where cameras ``x_cam = R X + t`` are: ``[N, 3]``."""
    rotations = np.asarray(R, np.float64).reshape(-1, 3, 3)
    return np.asarray(-np.einsum("nji,nj->ni", rotations, np.asarray(t, np.float64).reshape(-1, 3)))
