"""Which posed images of a scene overlap, from their depth maps or else from where the cameras look."""

from __future__ import annotations

import numpy as np

_CELLS = (48, 64)  # rows and columns at which depth is compared
_STRIDE = 4  # of these, each fourth one each way is projected
_TOLERANCE = 0.15  # by which two depths of one point may differ, as the cells are coarse


def coarse_depth(depth: np.ndarray) -> np.ndarray:
    """Depth ``[48, 64]`` at the centres of cells of a depth map ``[H, W]``."""
    rows, columns = (
        ((2 * np.arange(cells) + 1) * size) // (2 * cells) for cells, size in zip(_CELLS, depth.shape, strict=True)
    )
    return depth[rows[:, None], columns]


def overlaps_by_depth(
    depth: np.ndarray,  # [N, 48, 64] by coarse_depth
    K: np.ndarray,  # [N, 3, 3]
    R: np.ndarray,  # [N, 3, 3]
    t: np.ndarray,  # [N, 3]
    sizes: np.ndarray,  # [N, 2] width, height
) -> np.ndarray:
    """Return which part of two images shows the same, ``[N, N]``: of the image in which that part is larger.

    A point of an image is seen by another one if it lies in it at the depth that its depth map has there. Points of
    unknown depth don't count; one that lies where the other depth map isn't known isn't seen, as far as that tells.
    """
    count, (rows, columns) = len(depth), _CELLS
    to_cells = np.zeros((count, 3, 3))  # from pixels to columns and rows
    to_cells[:, [0, 1], [0, 1]] = np.array([columns, rows]) / sizes
    to_cells[:, [0, 1], 2] = 0.5 * to_cells[:, [0, 1], [0, 1]]
    to_cells[:, 2, 2] = 1
    centre = -np.mean(R.transpose(0, 2, 1) @ t[:, :, None], axis=0)  # of the cameras, as float32 is precise there only
    t = t + (R @ centre)[:, :, 0]
    rotation, shift = (to_cells @ K @ R).astype(np.float32), (to_cells @ K @ t[:, :, None]).astype(np.float32)
    x, y = np.meshgrid(np.arange(_STRIDE // 2, columns, _STRIDE), np.arange(_STRIDE // 2, rows, _STRIDE))
    part = np.zeros((count, count))
    for image in range(count):
        z = depth[image, y, x].ravel()
        known = np.isfinite(z)
        cells = np.stack([x.ravel() + 0.5, y.ravel() + 0.5, np.ones(x.size)])[:, known]
        in_camera = np.linalg.inv(to_cells[image] @ K[image]) @ cells * z[known]
        world = (R[image].T @ (in_camera - t[image][:, None])).astype(np.float32)
        column, row, distance = np.moveaxis(rotation @ world + shift, 1, 0)  # [N, points] each
        ahead = np.where(distance > 0, distance, np.float32(np.nan))
        column, row = column / ahead, row / ahead
        other, point = np.nonzero((column >= 0) & (column < columns) & (row >= 0) & (row < rows))
        there = depth[other, row[other, point].astype(int), column[other, point].astype(int)]
        seen = np.abs(distance[other, point] - there) < _TOLERANCE * there  # False where it isn't known
        part[image] = np.bincount(other[seen], minlength=count) / max(1, known.sum())
    return np.maximum(part, part.T)


def pairs_by_overlap(overlap: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the pairs ``[P, 2]`` whose overlap ``[N, N]`` is from ``low`` to ``high`` and not 0."""
    return np.argwhere(np.triu((overlap >= low) & (overlap <= high) & (overlap > 0), 1))


def pairs_by_direction(
    R: np.ndarray,  # [N, 3, 3]
    t: np.ndarray,  # [N, 3]
    max_angle: float,
    max_distance: float,
) -> np.ndarray:
    """Return the pairs ``[P, 2]`` of cameras in different places that look in about the same direction.

    Cameras in one place have no epipolar geometry.

    Args:
        R: rotations, world to camera.
        t: translations.
        max_angle: of the optical axes, in degrees.
        max_distance: between the cameras, in units of t; 0: any.
    """
    cosine = R[:, 2] @ R[:, 2].T
    centres = -(R.transpose(0, 2, 1) @ t[:, :, None])[:, :, 0]
    near = cosine >= np.cos(np.deg2rad(max_angle)) - 1e-12
    distances = np.linalg.norm(centres[:, None] - centres, axis=2)
    near &= distances > 1e-6 * distances.max(initial=0)
    if max_distance > 0:
        near &= distances <= max_distance
    return np.argwhere(np.triu(near, 1))
