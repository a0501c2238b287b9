"""Which keypoints of an image became 3D points of a COLMAP model, and whether matches agree with these.

Keypoints have integer pixel centres; COLMAP's have the corner of the first pixel at (0, 0), so 0.5 is added.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from disk_ops.io.images import Size
from disk_ops.scenes.colmap_files import find_model, read_model
from disk_ops.scenes.errors import DataError
from disk_ops.sfm.colmap import SfmError

SAME_PLACE = 0.5
"""Pixels within which a keypoint is the model's."""


class ModelImage:
    """A registered image of a model, with the 3D points that it sees.

    Attributes:
        name: in the model.
        size: width and height that its keypoints are given in.
        points2D: ``[P, 2]`` where it sees 3D points.
        points3D: ``[P, 3]`` these.
        keypoints2D: ``[M, 2]`` all the keypoints that the model was made of.
    """

    def __init__(self, model: Any, image: Any) -> None:  # pycolmap.Reconstruction, pycolmap.Image
        self._image = image
        self.name: str = image.name
        self.size: Size = (int(image.camera.width), int(image.camera.height))
        seen = [point for point in image.points2D if point.has_point3D()]
        self.points2D = _array([point.xy for point in seen], 2) - 0.5
        self.points3D = _array([model.points3D[point.point3D_id].xyz for point in seen], 3)
        self.keypoints2D = _array([point.xy for point in image.points2D], 2) - 0.5

    def landmarks(
        self,
        keypoints: npt.ArrayLike,  # [N, 2]
    ) -> npt.NDArray[np.float64]:
        """The 3D point ``[N, 3]`` of each keypoint: that of the model's keypoint in its place, or NaN."""
        found = _nearest(keypoints, self.points2D)
        landmarks = np.full((len(found), 3), np.nan)
        landmarks[found >= 0] = self.points3D[found[found >= 0]]
        return landmarks

    def known(
        self,
        keypoints: npt.ArrayLike,  # [N, 2]
    ) -> npt.NDArray[np.bool_]:
        """Which keypoints ``[N]`` are among those that the model was made of, with a 3D point or without."""
        return _nearest(keypoints, self.keypoints2D) >= 0

    def project(
        self,
        points: npt.NDArray[np.float64],  # [N, 3]
    ) -> npt.NDArray[np.float64]:
        """Where the camera sees 3D points: ``[N, 2]``, inf behind it, NaN for NaN."""
        projected = np.full((len(points), 2), np.nan)
        for index in np.flatnonzero(np.isfinite(points).all(1)):
            pixel = self._image.project_point(points[index])
            projected[index] = np.inf if pixel is None else pixel - 0.5
        return projected


class Model:
    """A COLMAP model.

    Args:
        folder: that it lies in, or the folder of a scene with it.

    Raises:
        SfmError: there is none, it can't be read, or pycolmap isn't installed.
    """

    def __init__(self, folder: Path) -> None:
        found = find_model(folder)
        if found is None:
            raise SfmError(f"{folder} holds no COLMAP model: cameras, images and points3D as .bin or .txt")
        self.folder = found
        try:
            self._model = read_model(found)
        except DataError as error:
            raise SfmError(str(error)) from error
        self._images = {image.name: image for image in self._model.images.values() if image.has_pose}

    @property
    def names(self) -> list[str]:
        """Of its registered images."""
        return sorted(self._images)

    def image(self, name: str) -> ModelImage:
        """One of its registered images."""
        return ModelImage(self._model, self._images[name])


def match_errors(
    image0: ModelImage,
    image1: ModelImage,
    keypoints0: npt.ArrayLike,  # [K, 2]
    keypoints1: npt.ArrayLike,  # [K, 2] the matches of keypoints0
) -> npt.NDArray[np.float64]:
    """How far each match is from the truth, in pixels: ``[K]``.

    The 3D point of a match's keypoint is projected into the other image and compared with the other keypoint. Where
    both have one, the larger distance counts; where neither has, the error is NaN; inf where a point is behind a
    camera.
    """
    points0, points1 = _array(keypoints0, 2), _array(keypoints1, 2)
    into1 = np.linalg.norm(image1.project(image0.landmarks(points0)) - points1, axis=1)
    into0 = np.linalg.norm(image0.project(image1.landmarks(points1)) - points0, axis=1)
    return np.asarray(np.fmax(into0, into1))


def _nearest(
    keypoints: npt.ArrayLike,  # [N, 2]
    places: npt.NDArray[np.float64],  # [M, 2]
) -> npt.NDArray[np.int64]:
    """For each keypoint the index ``[N]`` of the nearest place within `SAME_PLACE`, or -1."""
    wanted = _array(keypoints, 2)
    nearest = np.full(len(wanted), -1, dtype=np.int64)
    if len(wanted) and len(places):
        matches = cv2.BFMatcher(cv2.NORM_L2).match(wanted.astype(np.float32), places.astype(np.float32))
        for match in matches:
            if match.distance <= SAME_PLACE:
                nearest[match.queryIdx] = match.trainIdx
    return nearest


def _array(values: npt.ArrayLike, columns: int) -> npt.NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64).reshape(-1, columns)
