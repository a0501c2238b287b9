"""Homographies, fundamental and essential matrices from matches of which many are wrong, by one of three estimators.

``magsac`` is OpenCV's (USAC_MAGSAC), ``degensac`` that of pydegensac, ``poselib`` that of PoseLib; the latter two are
used where they are installed. Points are pixels in xy order with integer pixel centres. With F the fundamental and E
the essential matrix, ``x2^T F x1 = 0`` and ``E = K2^T F K1``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from disk_ops.provenance import installed_versions

METHODS = ("magsac", "degensac", "poselib")
THRESHOLD = 0.75
"""Pixels: the paper's."""
CONFIDENCE = 0.9999
ITERATIONS = 10_000

_PACKAGES = {"degensac": "pydegensac", "poselib": "poselib"}
Array = npt.NDArray[np.float64]


class RobustModel(NamedTuple):
    """What an estimator found."""

    matrix: Array  # [3, 3]
    inliers: npt.NDArray[np.bool_]  # [K] matches that agree with the matrix


class _Options(NamedTuple):
    """How long and how strictly an estimator searches."""

    threshold: float
    confidence: float
    iterations: int


_Found = tuple[Any, Any]  # a matrix and inliers as the estimators give them, or None
_Solver = Callable[[Array, Array, _Options], _Found]


def check_method(method: str, essential: bool = False) -> None:
    """Raise ``ValueError`` unless an estimator is known, installed and, if asked, able to give essential matrices."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if essential and method == "degensac":
        raise ValueError("degensac estimates no essential matrix: use magsac or poselib, or a fundamental matrix")
    if method in _PACKAGES:
        _package(method)


def estimator_versions(method: str) -> dict[str, str]:
    """The versions of the packages that results of an estimator depend on."""
    others = [_PACKAGES[method]] if method in _PACKAGES else []
    return {"opencv": cv2.__version__, **installed_versions(others)}


def estimate_homography(
    points1: npt.ArrayLike,  # [K, 2]
    points2: npt.ArrayLike,  # [K, 2] the matches of points1
    method: str = "magsac",
    threshold: float = THRESHOLD,
    confidence: float = CONFIDENCE,
    iterations: int = ITERATIONS,
) -> RobustModel | None:
    """Estimate the homography from image 1 to image 2.

    Args:
        points1: pixels of image 1. Matches that are not finite count as outliers.
        points2: pixels of image 2.
        method: ``magsac``, ``degensac`` or ``poselib``.
        threshold: pixels up to which a match agrees.
        confidence: that no better matrix was overlooked.
        iterations: at most this many.

    Returns:
        The matrix and its inliers; None with fewer than 4 matches, or where nothing was found.

    Raises:
        ValueError: a wrong argument, or an estimator that isn't installed.
    """
    solvers = {"magsac": _magsac_homography, "degensac": _degensac_homography, "poselib": _poselib_homography}
    return _estimate(solvers, points1, points2, method, 4, _Options(threshold, confidence, iterations))


def estimate_fundamental(
    points1: npt.ArrayLike,  # [K, 2]
    points2: npt.ArrayLike,  # [K, 2] the matches of points1
    method: str = "magsac",
    threshold: float = THRESHOLD,
    confidence: float = CONFIDENCE,
    iterations: int = ITERATIONS,
) -> RobustModel | None:
    """Estimate the fundamental matrix; needs 8 matches. Arguments and errors as for :func:`estimate_homography`."""
    solvers = {"magsac": _magsac_fundamental, "degensac": _degensac_fundamental, "poselib": _poselib_fundamental}
    return _estimate(solvers, points1, points2, method, 8, _Options(threshold, confidence, iterations))


def estimate_essential(
    points1: npt.ArrayLike,  # [K, 2]
    points2: npt.ArrayLike,  # [K, 2] the matches of points1
    K1: npt.ArrayLike,  # [3, 3]
    K2: npt.ArrayLike,  # [3, 3]
    method: str = "magsac",
    threshold: float = THRESHOLD,
    confidence: float = CONFIDENCE,
    iterations: int = ITERATIONS,
) -> RobustModel | None:
    """Estimate the essential matrix; needs 5 matches. DEGENSAC can't.

    Points are taken as those of cameras that both have the mean focal length of the two, which pixels of the threshold
    then belong to. Other arguments and errors as for :func:`estimate_homography`.
    """
    intrinsics1, intrinsics2 = checked_intrinsics(K1, "K1"), checked_intrinsics(K2, "K2")
    check_method(method, essential=True)
    focal = float(np.mean([intrinsics1[[0, 1], [0, 1]], intrinsics2[[0, 1], [0, 1]]]))
    solvers: dict[str, _Solver] = {
        "magsac": lambda xy1, xy2, options: _magsac_essential(xy1, xy2, focal, options),
        "poselib": lambda xy1, xy2, options: _poselib_essential(xy1, xy2, focal, options),
    }
    rays1 = rays(checked_points(points1, "points1"), intrinsics1) * focal
    rays2 = rays(checked_points(points2, "points2"), intrinsics2) * focal
    return _estimate(solvers, rays1, rays2, method, 5, _Options(threshold, confidence, iterations))


def checked_points(points: npt.ArrayLike, name: str) -> Array:
    """Points as an array ``[K, 2]``, or ``ValueError``."""
    array = np.ascontiguousarray(points, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != 2:
        raise ValueError(f"{name} must have shape [K, 2], got {list(array.shape)}")
    return array


def checked_intrinsics(K: npt.ArrayLike, name: str) -> Array:
    """Intrinsics as an array ``[3, 3]``, or ``ValueError``."""
    array = np.asarray(K, np.float64)
    if array.shape != (3, 3) or not np.isfinite(array).all() or np.linalg.det(array) == 0:
        raise ValueError(f"{name} must be an invertible matrix [3, 3], got {array.tolist()}")
    return array


def rays(
    points: Array,  # [K, 2] pixels
    intrinsics: Array,  # [3, 3]
) -> Array:
    """Points ``[K, 2]`` in units of the focal length, from the optical axis."""
    homogeneous = np.column_stack([points, np.ones(len(points))]) @ np.linalg.inv(intrinsics).T
    return np.ascontiguousarray(homogeneous[:, :2] / homogeneous[:, 2:])


def _estimate(
    solvers: Mapping[str, _Solver],
    points1: npt.ArrayLike,  # [K, 2]
    points2: npt.ArrayLike,  # [K, 2]
    method: str,
    minimum: int,
    options: _Options,
) -> RobustModel | None:
    """Check the arguments, leave out what isn't finite, and solve."""
    xy1, xy2 = checked_points(points1, "points1"), checked_points(points2, "points2")
    if xy1.shape != xy2.shape:
        raise ValueError(f"points2 must have the shape of points1 {list(xy1.shape)}, got {list(xy2.shape)}")
    if not options.threshold > 0:
        raise ValueError(f"threshold must be a positive number of pixels, got {options.threshold}")
    check_method(method)
    finite = np.asarray(np.isfinite(np.hstack([xy1, xy2])).all(axis=1))
    if finite.sum() < minimum:
        return None
    try:
        matrix, mask = solvers[method](xy1[finite], xy2[finite], options)
    except (cv2.error, np.linalg.LinAlgError):  # points that determine nothing
        return None
    if matrix is None or mask is None:
        return None
    matrix = np.asarray(matrix, np.float64)
    if matrix.shape != (3, 3) or not np.isfinite(matrix).all() or not matrix.any():
        return None
    inliers = np.zeros(len(finite), dtype=np.bool_)
    inliers[finite] = np.asarray(mask).ravel() != 0
    return RobustModel(matrix, inliers)


def _package(method: str) -> ModuleType:
    package = _PACKAGES[method]
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ValueError(f"method {method} needs the package {package}: pip install {package} ({error})") from error


# ------------------------------------------------------------------------------------------------------------ OpenCV
# The results depend on the arguments only: the random numbers of USAC are its own and start alike in each call.
def _magsac_homography(xy1: Array, xy2: Array, options: _Options) -> _Found:
    return cv2.findHomography(
        xy1, xy2, cv2.USAC_MAGSAC, options.threshold, maxIters=options.iterations, confidence=options.confidence
    )


def _magsac_fundamental(xy1: Array, xy2: Array, options: _Options) -> _Found:
    return cv2.findFundamentalMat(xy1, xy2, cv2.USAC_MAGSAC, options.threshold, options.confidence, options.iterations)


def _magsac_essential(xy1: Array, xy2: Array, focal: float, options: _Options) -> _Found:
    return cv2.findEssentialMat(
        xy1,
        xy2,
        np.diag([focal, focal, 1.0]),
        cv2.USAC_MAGSAC,
        options.confidence,
        options.threshold,
        options.iterations,
    )


# ---------------------------------------------------------------------------------------------------------- DEGENSAC
def _degensac_homography(xy1: Array, xy2: Array, options: _Options) -> _Found:
    return _package("degensac").findHomography(xy1, xy2, options.threshold, options.confidence, options.iterations)


def _degensac_fundamental(xy1: Array, xy2: Array, options: _Options) -> _Found:
    return _package("degensac").findFundamentalMatrix(
        xy1, xy2, options.threshold, options.confidence, options.iterations, enable_degeneracy_check=True
    )


# ----------------------------------------------------------------------------------------------------------- PoseLib
def _poselib_homography(xy1: Array, xy2: Array, options: _Options) -> _Found:
    H, info = _package("poselib").estimate_homography(xy1, xy2, _poselib_options(options), {})
    return H, info["inliers"]


def _poselib_fundamental(xy1: Array, xy2: Array, options: _Options) -> _Found:
    F, info = _package("poselib").estimate_fundamental(xy1, xy2, _poselib_options(options), {})
    return F, info["inliers"]


def _poselib_essential(xy1: Array, xy2: Array, focal: float, options: _Options) -> _Found:
    # Points are those of cameras with this focal length and the principal point (0, 0); a size isn't used.
    camera = {"model": "SIMPLE_PINHOLE", "width": 1, "height": 1, "params": [focal, 0.0, 0.0]}
    pose, info = _package("poselib").estimate_relative_pose(xy1, xy2, camera, camera, _poselib_options(options), {})
    x, y, z = np.asarray(pose.t, np.float64).ravel()
    return np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ np.asarray(pose.R, np.float64), info["inliers"]


def _poselib_options(options: _Options) -> dict[str, float]:
    return {
        "max_epipolar_error": options.threshold,
        "max_reproj_error": options.threshold,  # of homographies
        "success_prob": options.confidence,
        "max_iterations": options.iterations,
        "seed": 0,
    }
