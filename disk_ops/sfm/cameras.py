"""Which camera took each image: from EXIF, as the user says, or as it is known.

COLMAP's principal points have the corner of the first pixel at (0, 0), so they are 0.5 larger than those of this
package.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from disk_ops.io.images import Size
from disk_ops.sfm.colmap import SfmError, require_pycolmap

FOCAL_FACTOR = 1.2
"""Focal length over longest edge where nothing is known, as in COLMAP."""


class Cameras(Protocol):
    """Tells which camera took an image."""

    def __call__(self, name: str, path: Path | None, size: Size) -> tuple[Hashable, Any]:
        """Return a key, which images of one camera share, and the ``pycolmap.Camera``; raise `SfmError` if none fits.

        Args:
            name: of the image.
            path: of its file, if there is one.
            size: width and height that keypoints are given in.
        """


@dataclass(frozen=True)
class CameraOptions:
    """What the user says about the cameras.

    Attributes:
        model: name of COLMAP's camera model.
        params: parameters of the model in COLMAP's convention; ``None``: from EXIF or, without, a guess to start from.
        single: one camera took all the images.
    """

    model: str = "SIMPLE_RADIAL"
    params: tuple[float, ...] | None = None
    single: bool = False


class ExifCameras:
    """Cameras by the options, and where these leave it open by EXIF.

    Without ``single``, images share a camera if their EXIF names the same camera and focal length and they have the
    same size; an image without focal length in its EXIF has one of its own. With given parameters, images of equal size
    share one.

    Raises:
        SfmError: there is no such model, or it has another number of parameters.
    """

    def __init__(self, options: CameraOptions | None = None) -> None:
        self.options = options or CameraOptions()
        pycolmap = require_pycolmap()
        models = sorted(name for name in pycolmap.CameraModelId.__members__ if name != "INVALID")
        if self.options.model not in models:
            raise SfmError(f"camera model {self.options.model!r} is not one of COLMAP's: {', '.join(models)}")
        expected = self._default((1000, 1000))
        if self.options.params is not None and len(self.options.params) != len(expected.params):
            raise SfmError(
                f"camera model {self.options.model} has the {len(expected.params)} parameters {expected.params_info}, "
                f"got {len(self.options.params)}"
            )
        self._first: Size | None = None

    def __call__(self, name: str, path: Path | None, size: Size) -> tuple[Hashable, Any]:
        """See `Cameras`."""
        options = self.options
        if options.single:
            self._first = self._first or size
            if size != self._first:
                raise SfmError(
                    f"has {size[0]}x{size[1]} pixels, which the single camera, of {self._first[0]}x{self._first[1]}, "
                    "can't have taken"
                )
        if options.params is not None:
            camera = self._default(size)
            camera.params = list(options.params)
            camera.has_prior_focal_length = True
            return size, camera
        camera, taken_with = self._from_exif(path, size)
        if options.single:
            return "single", camera
        if not camera.has_prior_focal_length:
            return name, camera
        return (taken_with, size, tuple(camera.params)), camera

    def _from_exif(self, path: Path | None, size: Size) -> tuple[Any, str | None]:
        """The camera, and what EXIF calls it."""
        pycolmap = require_pycolmap()
        if path is None:
            return self._default(size), None
        reader = pycolmap.ImageReaderOptions(camera_model=self.options.model, default_focal_length_factor=FOCAL_FACTOR)
        try:
            camera = pycolmap.infer_camera_from_image(path, reader)
        except (ValueError, RuntimeError, OSError):
            return self._default(size), None  # a format that COLMAP doesn't read; the features are there
        if (camera.width, camera.height) != size:
            raise SfmError(
                f"its features are of an image of {size[0]}x{size[1]} pixels, {path} has {camera.width}x{camera.height}"
            )
        if not camera.has_prior_focal_length:
            return camera, None
        bitmap = pycolmap.Bitmap.read(path, True)
        return camera, None if bitmap is None else bitmap.exif_camera_model()

    def _default(self, size: Size) -> Any:
        pycolmap = require_pycolmap()
        return pycolmap.Camera.create_from_model_name(1, self.options.model, FOCAL_FACTOR * max(size), *size)


class KnownCameras:
    """Pinholes with known intrinsics.

    Args:
        intrinsics: of each image by name, ``[3, 3]``, for pixels with integer centres in the size of the keypoints.
    """

    def __init__(self, intrinsics: Mapping[str, npt.ArrayLike]) -> None:
        self.intrinsics = {name: np.asarray(K, np.float64) for name, K in intrinsics.items()}

    def __call__(self, name: str, path: Path | None, size: Size) -> tuple[Hashable, Any]:
        """See `Cameras`."""
        if name not in self.intrinsics:
            raise SfmError("its intrinsics are not known")
        K = self.intrinsics[name]
        params = (K[0, 0], K[1, 1], K[0, 2] + 0.5, K[1, 2] + 0.5)
        pycolmap = require_pycolmap()
        camera = pycolmap.Camera(model="PINHOLE", width=size[0], height=size[1], params=list(params))
        camera.has_prior_focal_length = True
        return (size, params), camera
