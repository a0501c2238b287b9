"""The warp of an image by a homography, exact to 1e-3 pixels.

Homographies map pixels (integer centres) of the image to those of the view. The determinant is positive where both are
seen from the same side; the third coordinate of points in front of the camera then is, too.
"""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from disk_ops.io.images import Pixels, Size

Matrix = npt.NDArray[np.floating[Any]]


def warp(
    photo: Pixels,  # [H, W, C] uint8 or float32
    homography: Matrix,  # [3, 3], photo to view
    size: Size,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Return a view ``[h, w, C]`` of ``size``, in values of the photo, and a mask ``[h, w]`` of what it shows.

    Where a view reduces the photo it is smoothed first, against aliasing. Pixels whose source isn't inside the photo
    are masked, and those that the smoothing of the photo's edge reaches. They get the value of the nearest edge:
    filters that follow shall not mix in black.
    """
    width, height = size
    factor, sigma, radius = _smoothing(scale_of(homography, (photo.shape[1], photo.shape[0]), size))
    # From here on pixels of the reduced photo, which are blocks of factor x factor pixels of the photo.
    x, y, front = sources(homography @ _enlarging(factor), size)
    last_x, last_y = photo.shape[1] // factor - 1, photo.shape[0] // factor - 1
    mask = front & (x >= radius) & (x <= last_x - radius) & (y >= radius) & (y <= last_y - radius)
    if not mask.any():
        return np.zeros((height, width, photo.shape[2]), np.float32), mask
    # Only the part of the photo that is seen is worked on.
    left, top = int(x[mask].min()) - radius, int(y[mask].min()) - radius
    right, bottom = min(math.ceil(x[mask].max()) + radius, last_x), min(math.ceil(y[mask].max()) + radius, last_y)
    part = _smooth(
        photo[top * factor : (bottom + 1) * factor, left * factor : (right + 1) * factor], factor, sigma, radius
    )
    grid = np.empty((1, height, width, 2), np.float32)
    grid[0, :, :, 0] = (x - left) * (2 / max(right - left, 1)) - 1
    grid[0, :, :, 1] = (y - top) * (2 / max(bottom - top, 1)) - 1
    source = np.stack(cv2.split(part)).astype(np.float32)[None]
    view = F.grid_sample(
        torch.from_numpy(source), torch.from_numpy(grid), mode="bilinear", padding_mode="border", align_corners=True
    )
    return view[0].permute(1, 2, 0).numpy(), mask


def sources(homography: Matrix, size: Size) -> tuple[Matrix, Matrix, npt.NDArray[np.bool_]]:
    """Where in the photo each pixel of a view comes from: x, y, and whether it is in front, each ``[h, w]``."""
    inverse = np.linalg.inv(homography) * np.sign(np.linalg.det(homography))
    columns, rows = np.arange(size[0], dtype=np.float64), np.arange(size[1], dtype=np.float64)[:, None]
    x, y, z = (row[0] * columns + (row[1] * rows + row[2]) for row in inverse)
    front = z > 1e-9 * np.abs(inverse[2]).max()
    z = 1 / np.where(front, z, 1)
    return x * z, y * z, front


def _enlarging(factor: int) -> Matrix:
    """From pixels of an image reduced by ``factor`` to those of the image ``[3, 3]``: x to (x + 0.5) factor - 0.5."""
    return np.array([[factor, 0, (factor - 1) / 2], [0, factor, (factor - 1) / 2], [0, 0, 1]])


def _smoothing(scale: float) -> tuple[int, float, int]:
    """How to smooth a photo for a view with ``scale`` pixels per pixel of the photo.

    Returns:
        The edge of the blocks of pixels to average; then sigma and radius of a Gaussian, in blocks (0, 0: none).
    """
    factor = max(int(1 / max(scale, 1e-3)), 1)
    scale *= factor
    if scale > 0.95:
        return factor, 0.0, 0
    # A view's pixel then has the blur (0.5 pixels) that a pixel of the photo has.
    sigma = 0.5 * math.sqrt(1 / max(scale, 0.5) ** 2 - 1)
    return factor, sigma, math.ceil(2.5 * sigma)


def _smooth(photo: Pixels, factor: int, sigma: float, radius: int) -> Pixels:
    """Average whole blocks of pixels, then blur. Both keep linear ramps exactly (but for the blur's edges)."""
    channels = photo.shape[2]
    if factor > 1:  # fractions of pixels, which INTER_AREA could average too, would distort by up to 0.1 pixels
        size = (photo.shape[1] // factor, photo.shape[0] // factor)
        photo = cv2.resize(np.ascontiguousarray(photo), size, interpolation=cv2.INTER_AREA)
    if radius > 0:
        edge = 2 * radius + 1
        photo = cv2.GaussianBlur(np.ascontiguousarray(photo), (edge, edge), sigma, borderType=cv2.BORDER_REFLECT_101)
    return photo.reshape(*photo.shape[:2], channels)


def scale_of(homography: Matrix, photo: Size, frame: Size) -> float:
    """Pixels of the view per pixel of the photo, in the middle of what the view shows (1 if that is nothing)."""
    grid = grid_points(*(np.linspace(0, edge - 1, 9) for edge in frame))
    inverse = np.linalg.inv(homography)
    source, front = map_points(inverse, grid)
    seen = grid[front & is_inside(source, photo)]
    z = seen @ inverse[2, :2] + inverse[2, 2]
    # The determinant of a homography's Jacobian is det(H) over the cube of the third coordinate, here 1 / z.
    areas = np.abs(z**3 * np.linalg.det(homography))
    return math.sqrt(np.median(areas)) if len(areas) else 1.0


def grid_points(columns: Matrix, rows: Matrix) -> Matrix:
    """All points ``[N, 2]`` of a grid."""
    return np.stack(np.meshgrid(columns, rows), -1).reshape(-1, 2)


def map_points(
    homography: Matrix,  # [3, 3]
    points: Matrix,  # [N, 2]
) -> tuple[Matrix, npt.NDArray[np.bool_]]:
    """Mapped points ``[N, 2]``, and which of them ``[N]`` are in front."""
    mapped = points @ homography[:, :2].T + homography[:, 2]
    front = mapped[:, 2] * np.sign(np.linalg.det(homography)) > 0
    return mapped[:, :2] / np.where(front, mapped[:, 2], 1)[:, None], front


def is_inside(
    points: Matrix,  # [N, 2]
    size: Size,
) -> npt.NDArray[np.bool_]:
    """Which points ``[N]`` lie in an image."""
    return np.asarray(((points >= 0) & (points <= np.array(size) - 1.0)).all(1))
