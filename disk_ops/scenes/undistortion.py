"""Images of any COLMAP camera as those of an ideal pinhole."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import cv2
import numpy as np

from disk_ops.io.images import Size, resize_pixels, size_of
from disk_ops.scenes.cameras import check_camera
from disk_ops.scenes.errors import DataError


class Lens(NamedTuple):
    """A camera of a reconstruction, and the pinhole that its images are used with."""

    model: str
    params: tuple[float, ...]
    size: Size
    distorted: bool  # whether images must be undistorted
    K: np.ndarray  # [3, 3] of the pinhole, integer pixel centres
    pinhole_size: Size


def require_pycolmap() -> ModuleType:
    """The module, or :class:`DataError` that says how to get it."""
    try:
        import pycolmap
    except ImportError as error:
        raise DataError(f"reading COLMAP reconstructions needs pycolmap: pip install pycolmap ({error})") from error
    module: ModuleType = pycolmap
    return module


def lens_of(
    camera: Any,  # pycolmap.Camera
    undistort: bool,
) -> Lens | None:
    """Describe a camera; None if no pinhole can take its place (panoramas, bad parameters)."""
    pycolmap = require_pycolmap()
    size = (int(camera.width), int(camera.height))
    if min(size) < 1 or not np.isfinite(camera.params).all() or getattr(camera, "is_spherical", lambda: False)():
        return None
    if not camera.mean_focal_length() > 0:
        return None
    distorted, pinhole = undistort and not _is_pinhole(camera, size), camera
    if distorted:
        try:
            pinhole = pycolmap.undistort_camera(pycolmap.UndistortCameraOptions(), camera)
        except (ValueError, RuntimeError):
            return None
    K = np.array(pinhole.calibration_matrix(), np.float64)
    if check_camera(K, np.eye(3), np.zeros(3)) is not None:
        return None
    K[:2, 2] -= 0.5  # COLMAP's first pixel has its corner at (0, 0)
    params = tuple(float(value) for value in camera.params)
    return Lens(camera.model.name, params, size, distorted, K, (int(pinhole.width), int(pinhole.height)))


def _is_pinhole(camera: Any, size: Size) -> bool:
    """Whether it projects as its matrix says: COLMAP calls a fisheye camera undistorted if its coefficients are 0."""
    x, y = np.meshgrid(np.linspace(0, size[0], 9), np.linspace(0, size[1], 9))
    pixels = np.stack([x.ravel(), y.ravel(), np.ones(x.size)], 1)
    projected = np.asarray(camera.img_from_cam(pixels @ np.linalg.inv(camera.calibration_matrix()).T))
    return bool(np.abs(projected - pixels[:, :2]).max() < 1e-3)  # False if there is a NaN


def undistortion_map(lens: Lens, size: Size) -> np.ndarray:
    """Where pixels of the pinhole's image, in a size of one's choice, lie in the distorted one.

    Returns:
        ``[h, w, 2]`` float32, xy as parts of width and height from the outer corner; outside [0, 1) if not there.
    """
    pycolmap = require_pycolmap()
    camera = pycolmap.Camera(model=lens.model, width=lens.size[0], height=lens.size[1], params=list(lens.params))
    x = ((np.arange(size[0]) + 0.5) * lens.pinhole_size[0] / size[0] - 0.5 - lens.K[0, 2]) / lens.K[0, 0]
    y = ((np.arange(size[1]) + 0.5) * lens.pinhole_size[1] / size[1] - 0.5 - lens.K[1, 2]) / lens.K[1, 1]
    rays = np.ones((size[1], size[0], 3))
    rays[:, :, 0], rays[:, :, 1] = x, y[:, None]
    pixels = np.asarray(camera.img_from_cam(rays.reshape(-1, 3))).reshape(size[1], size[0], 2)
    return np.nan_to_num(pixels / lens.size, nan=-1.0, posinf=-1.0, neginf=-1.0).clip(-1, 2).astype(np.float32)


def undistort_pixels(
    pixels: np.ndarray,  # [h, w, 3]
    lens: Lens,
    where: np.ndarray,  # [h', w', 2] of undistortion_map
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pinhole's image ``[h', w', 3]`` and which of its pixels ``[h', w']`` the distorted one shows."""
    factor = max(size_of(where)[0] / lens.pinhole_size[0], size_of(where)[1] / lens.pinhole_size[1])
    width, height = size_of(pixels)
    smaller = max(1, round(lens.size[0] * factor)), max(1, round(lens.size[1] * factor))
    if smaller[0] < width and smaller[1] < height:  # averaged first: the map takes single pixels
        pixels = resize_pixels(pixels, smaller)
        width, height = smaller
    x, y = where[:, :, 0] * width - np.float32(0.5), where[:, :, 1] * height - np.float32(0.5)
    undistorted = cv2.remap(pixels, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    mask = _inside(where)
    return np.asarray(undistorted) * mask[:, :, None], mask


def undistort_depth(
    depth: np.ndarray,  # [h, w]
    where: np.ndarray,  # [h', w', 2] of undistortion_map
) -> np.ndarray:
    """Return depth ``[h', w']`` of the nearest pixels, NaN outside."""
    height, width = depth.shape
    columns = np.floor(where[:, :, 0] * width).astype(int).clip(0, width - 1)
    rows = np.floor(where[:, :, 1] * height).astype(int).clip(0, height - 1)
    return np.where(_inside(where), depth[rows, columns], np.float32(np.nan))


def _inside(where: np.ndarray) -> np.ndarray:
    return np.asarray(((where >= 0) & (where < 1)).all(2))
