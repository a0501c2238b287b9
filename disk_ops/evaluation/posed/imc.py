"""Scenes of the Image Matching Challenge: calibration files and lists of covisible pairs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.posed.views import View
from disk_ops.io.images import IMAGE_EXTENSIONS
from disk_ops.scenes.cameras import check_camera
from disk_ops.scenes.depth_maps import list_files

_CALIBRATION = re.compile(r"calibration_(.+)\.h5")
_LIST = re.compile(r"keys-th-(\d+(?:\.\d+)?)\.npy")
_PLACES = ("images", "set_100/images", "")


def is_imc(folder: Path) -> bool:
    """Whether a folder holds ``calibration/calibration_<image>.h5``."""
    return next((folder / "calibration").glob("calibration_*.h5"), None) is not None


def image_folder(folder: Path) -> Path:
    """Where the images of a scene lie."""
    return next(folder / place for place in _PLACES if (folder / place).is_dir())


def read_calibrations(folder: Path) -> tuple[list[View], list[Path], list[str]]:
    """The images of a scene that have a calibration, by name, the file of each, and notes on images that are missing.

    Raises:
        EvaluationError: a calibration can't be used.
    """
    images = image_folder(folder)
    by_stem = {
        str(Path(name).with_suffix("")): images / name
        for name in sorted(list_files(images))
        if Path(name).suffix.lower() in IMAGE_EXTENSIONS
    }
    views: list[View] = []
    files: list[Path] = []
    missing = 0
    for file in sorted((folder / "calibration").iterdir()):
        match = _CALIBRATION.fullmatch(file.name)
        if match is None:
            continue
        if match[1] in by_stem:
            views.append(View(by_stem[match[1]], *_read_calibration(file)))
            files.append(file)
        else:
            missing += 1
    return views, files, [f"{missing} images not found in {images}"] if missing else []


def _read_calibration(file: Path) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """K for integer pixel centres (files have the first pixel's corner at 0), R and t."""
    try:
        with h5py.File(file, "r") as content:
            K, R, t = (np.asarray(content[key], np.float64) for key in ("K", "R", "T"))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise EvaluationError(f"{file} can't be read as a calibration with K, R and T: {error}") from error
    t = t.reshape(-1)
    wrong = check_camera(K, R, t)
    if wrong is not None:
        raise EvaluationError(f"{file}: {wrong}")
    K[:2, 2] -= 0.5
    return K, R, t


def has_lists(folder: Path) -> bool:
    """Whether a folder holds ``new-vis-pairs/keys-th-*.npy``."""
    return next((folder / "new-vis-pairs").glob("keys-th-*.npy"), None) is not None


def listed_covisibility(folder: Path, names: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Pairs ``[P, 2]`` of images, and the largest threshold ``[P]`` in whose list each is.

    Args:
        folder: of the scene.
        names: of its images, without extensions; pairs of others are left out.

    Raises:
        EvaluationError: a list can't be used.
    """
    numbers = {name: number for number, name in enumerate(names)}
    found: dict[tuple[int, int], float] = {}
    for file in sorted((folder / "new-vis-pairs").iterdir()):
        match = _LIST.fullmatch(file.name)
        if match is None:
            continue
        for key in _read_list(file):
            pair = _split(key, numbers)
            if pair is not None:
                found[pair] = max(found.get(pair, 0.0), float(match[1]))
    pairs = sorted(found)
    return np.array(pairs, np.int64).reshape(-1, 2), np.array([found[pair] for pair in pairs])


def _read_list(file: Path) -> list[str]:
    try:
        keys = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise EvaluationError(f"{file} can't be read as a list of pairs: {error}") from error
    if not keys.size:
        return []
    if keys.dtype.kind != "U":
        raise EvaluationError(f"{file} must hold names of pairs as texts, got {keys.dtype}")
    return [str(key) for key in keys.ravel()]


def _split(key: str, numbers: dict[str, int]) -> tuple[int, int] | None:
    """The two images of ``first-second``, lower number first; names may hold hyphens."""
    for match in re.finditer("-", key):
        first, second = numbers.get(key[: match.start()]), numbers.get(key[match.end() :])
        if first is not None and second is not None and first != second:
            return (first, second) if first < second else (second, first)
    return None
