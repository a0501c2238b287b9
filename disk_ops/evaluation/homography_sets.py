"""Images with known homographies, in the layouts in which they are published: Oxford affine, HPatches, EVD, homogr.

====================  ==================================================  ==========================================
layout                images                                              homography
====================  ==================================================  ==========================================
Oxford affine         ``img1.*``, ``img2.*``, ...                         ``H1to2p``, ...: image 1 to the other
HPatches              ``1.*``, ``2.*``, ...                               ``H_1_2``, ...: image 1 to the other
EVD                   ``1/NAME.*``, ``2/NAME.*``                          ``h/NAME.txt``: image 1 to image 2
homogr                ``NAMEA.*``, ``NAMEB.*``                            ``NAME_H.txt``: A to B, or ``NAME_vpts.mat``
====================  ==================================================  ==========================================

A text file holds the nine numbers of the matrix. A ``_vpts.mat`` holds ``validation.model`` and the annotated points
``validation.pts`` [6, N] (A above B, homogeneous), which decide between which of the images the matrix leads; pixels
are taken as they are in the file. Reading it needs scipy.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.io.images import IMAGE_EXTENSIONS, ImageError, Pixels, read_image
from disk_ops.io.inputs import natural_key

Matrix = npt.NDArray[np.float64]

_SERIES = (  # homography file, image file
    (re.compile(r"H1to(\d+)p"), "img{}"),  # Oxford
    (re.compile(r"H_1_(\d+)"), "{}"),  # HPatches
)
_PAIR = re.compile(r"(.+)(_H\.txt|_vpts\.mat)")  # homogr
_LOOKED_FOR = (
    "folders with H1to2p and img1.* (Oxford), H_1_2 and 1.* (HPatches), 1/NAME.*, 2/NAME.* and h/NAME.txt (EVD), or "
    "NAMEA.*, NAMEB.* and NAME_vpts.mat or NAME_H.txt (homogr)"
)


class SetError(EvaluationError):
    """A homography set, or a file of it, that can't be used."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, str(reason)

    def __reduce__(self) -> tuple[type, tuple[Path, str]]:
        return type(self), (self.path, self.reason)


@dataclass(frozen=True)
class HomographySet:
    """A reference image and others, with the homography from the reference to each: files, not yet read."""

    name: str  # path below the folder that was searched
    images: tuple[Path, ...]  # the reference first
    homographies: tuple[Path, ...]  # one less

    @property
    def collection(self) -> str:
        """What the set belongs to: the folder that holds it, or itself."""
        return self.name.rpartition("/")[0] or self.name

    def read_pixels(self, index: int) -> Pixels:
        """Decode an image, ``[H, W]`` or ``[H, W, 3]``."""
        try:
            return read_image(self.images[index])
        except ImageError as error:
            raise SetError(self.images[index], error) from error

    def read_homography(self, index: int) -> Matrix:
        """The homography ``[3, 3]`` from the reference to an image, in pixels of the files."""
        if index == 0:
            return np.eye(3)
        path = self.homographies[index - 1]
        try:
            numbers = _read_mat(path) if path.suffix == ".mat" else np.array(path.read_text().split(), dtype=np.float64)
        except (OSError, ValueError) as error:
            raise SetError(path, f"can't be read as numbers: {error}") from error
        if numbers.size != 9 or not np.isfinite(numbers).all() or np.linalg.det(numbers.reshape(3, 3)) == 0:
            raise SetError(path, "must hold the 9 numbers of an invertible 3x3 matrix")
        return numbers.reshape(3, 3)


def find_homography_sets(folder: str | Path, report: Callable[[SetError], None] | None = None) -> list[HomographySet]:
    """Find homography sets in a folder, which may be one itself, or hold them at any depth; in natural order.

    Args:
        folder: is searched, with links that it holds.
        report: is told about a set that lacks an image, and the others are found; by default it is raised.

    Raises:
        SetError: there is none, or one lacks an image.
    """
    root = Path(folder)
    if not root.is_dir():
        raise SetError(root, "no such folder")
    broken: list[SetError] = []
    sets = list(_sets_below(root, root, set(), broken))
    if broken and (report is None or not sets):
        raise broken[0]
    for error in broken:
        if report is not None:
            report(error)
    if not sets:
        raise SetError(root, f"no homography set: looked for {_LOOKED_FOR}")
    return sets


def _sets_below(folder: Path, root: Path, visited: set[Path], broken: list[SetError]) -> Iterator[HomographySet]:
    if folder.resolve() in visited:  # links may lead in circles
        return
    visited.add(folder.resolve())
    try:
        entries = sorted(folder.iterdir(), key=lambda path: natural_key(path.name))
    except OSError as error:
        broken.append(SetError(folder, error.strerror or error))
        return
    name = folder.relative_to(root).as_posix() if folder != root else root.resolve().name
    for layout in (_series, _extreme_views, _pairs):
        candidates = layout(folder, name, entries)
        if candidates:
            yield from _usable(candidates, broken)
            return
    for path in entries:
        if path.is_dir() and not path.name.startswith("."):
            yield from _sets_below(path, root, visited, broken)


_Candidate = Callable[[], HomographySet]
"""Gives a set, or raises ``SetError`` where it lacks a file."""


def _usable(candidates: Sequence[_Candidate], broken: list[SetError]) -> Iterator[HomographySet]:
    for candidate in candidates:
        try:
            yield candidate()
        except SetError as error:
            broken.append(error)


def _series(folder: Path, name: str, entries: Sequence[Path]) -> list[_Candidate]:
    """Oxford affine or HPatches: the folder is one set."""
    for pattern, image_name in _SERIES:
        numbered = [(match[1], path) for path in entries if (match := pattern.fullmatch(path.name))]
        if not numbered:
            continue
        stems = [image_name.format(number) for number in ("1", *dict(numbered))]
        return [partial(_series_of, folder, name, entries, stems, tuple(path for _, path in numbered))]
    return []


def _series_of(
    folder: Path, name: str, entries: Sequence[Path], stems: Sequence[str], matrices: tuple[Path, ...]
) -> HomographySet:
    return HomographySet(name, tuple(_image(folder, entries, stem) for stem in stems), matrices)


def _extreme_views(folder: Path, name: str, entries: Sequence[Path]) -> list[_Candidate]:
    """EVD: each file in h is a set."""
    folders = {path.name: path for path in entries if path.name in ("1", "2", "h") and path.is_dir()}
    if len(folders) < 3:
        return []
    files = {key: sorted(path.iterdir(), key=lambda file: natural_key(file.name)) for key, path in folders.items()}

    def pair(matrix: Path) -> HomographySet:
        images = tuple(_image(folders[key], files[key], matrix.stem) for key in ("1", "2"))
        return HomographySet(f"{name}/{matrix.stem}", images, (matrix,))

    return [partial(pair, path) for path in files["h"] if path.suffix == ".txt"]


def _pairs(folder: Path, name: str, entries: Sequence[Path]) -> list[_Candidate]:
    """The layout of homogr: each pair of images A and B is a set. A text file goes before a ``.mat``."""
    found = [(match[1], path) for path in entries if (match := _PAIR.fullmatch(path.name))]
    matrices = dict(sorted(found, key=lambda entry: entry[1].suffix != ".mat"))
    if any(path.suffix == ".mat" for path in matrices.values()) and importlib.util.find_spec("scipy") is None:
        error = SetError(folder, "its homographies are .mat files; reading them needs scipy: pip install scipy")
        return [partial(_raise, error)]

    def pair(stem: str, matrix: Path) -> HomographySet:
        images = tuple(_image(folder, entries, f"{stem}{letter}") for letter in "AB")
        return HomographySet(f"{name}/{stem}", images, (matrix,))

    stems = sorted(matrices, key=natural_key)
    return [partial(pair, stem, matrices[stem]) for stem in stems]


def _raise(error: SetError) -> HomographySet:
    raise error


def _image(folder: Path, entries: Sequence[Path], stem: str) -> Path:
    for path in entries:
        if path.stem == stem and path.suffix.lower() in IMAGE_EXTENSIONS:
            return path
    raise SetError(folder, f"has a homography for the image {stem}.*, but not the image")


def _read_mat(path: Path) -> Matrix:
    """The homography ``[3, 3]`` from A to B of a ``_vpts.mat``."""
    from scipy.io import loadmat

    try:
        validation = loadmat(path)["validation"][0, 0]
        matrix, points = np.asarray(validation["model"], np.float64), np.asarray(validation["pts"], np.float64)
    except OSError:
        raise
    except Exception as error:  # scipy's reader fails in many ways
        raise ValueError(f"no validation.model and validation.pts ({type(error).__name__}: {error})") from error
    if matrix.shape != (3, 3) or points.ndim != 2 or points.shape[0] != 6 or not np.isfinite(matrix).all():
        raise ValueError(f"model must be 3x3 and pts 6xN, got {matrix.shape} and {points.shape}")
    if np.linalg.det(matrix) == 0:
        return matrix  # is refused as any other
    forward, backward = _residual(matrix, points[:3], points[3:]), _residual(matrix, points[3:], points[:3])
    return matrix if forward <= backward else np.asarray(np.linalg.inv(matrix), np.float64)


def _residual(
    matrix: Matrix,  # [3, 3]
    points1: Matrix,  # [3, N] homogeneous
    points2: Matrix,  # [3, N]
) -> float:
    """The median distance of the points of one image, mapped to the other, from their partners."""
    with np.errstate(divide="ignore", invalid="ignore"):
        mapped = matrix @ points1
        distances = np.linalg.norm(mapped[:2] / mapped[2] - points2[:2] / points2[2], axis=0)
    return float(np.median(np.nan_to_num(distances, nan=np.inf))) if distances.size else np.inf
