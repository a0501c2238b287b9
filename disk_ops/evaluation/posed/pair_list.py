"""Lists of pairs with ground truth in SuperGlue's format.

A line holds ``path1 path2 turns1 turns2 K1 K2 T``: the paths of two images; for each how many quarter turns
counterclockwise put it upright (0 to 3); the 9 numbers of each intrinsic matrix, for the image as it is stored; and the
16 numbers of the pose of camera 2 relative to camera 1, ``[R t; 0 1]``; matrices row by row.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.posed.views import PosedPair, View
from disk_ops.scenes.cameras import check_camera

_FIELDS = 2 + 2 + 9 + 9 + 16


def read_pair_list(file: Path, images: Path | None = None) -> list[PosedPair]:
    """Read a list of pairs. Empty lines and those that begin with # are skipped, and lines that occur again.

    Args:
        file: the list.
        images: folder that the paths in it are relative to; by default that of the list.

    Raises:
        EvaluationError: the list can't be used.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EvaluationError(f"{file} can't be read as a list of pairs: {error}") from error
    folder = file.parent if images is None else images
    if not folder.is_dir():
        raise EvaluationError(f"{folder}: no such folder of images")
    pairs: dict[str, PosedPair] = {}
    read: set[tuple[str, ...]] = set()
    for number, line in enumerate(lines, 1):
        fields = tuple(_fields(line, f"{file}:{number}"))
        if fields and fields not in read:
            read.add(fields)
            pair = _pair(fields, f"{file}:{number}", folder, file, taken=pairs)
            pairs[pair.name] = pair
    if not pairs:
        raise EvaluationError(f"{file} holds no pair")
    return list(pairs.values())


def _fields(line: str, place: str) -> list[str]:
    if not line.strip() or line.lstrip().startswith("#"):
        return []
    try:
        fields = shlex.split(line) if '"' in line else line.split()  # names with spaces can be quoted
    except ValueError as error:
        raise EvaluationError(f"{place}: {error}") from error
    if len(fields) != _FIELDS:
        needed = f"{_FIELDS} fields are needed (two images, two numbers of turns, K1, K2, T_1to2)"
        what = "only two images, without ground truth" if len(fields) == 2 else str(len(fields))
        raise EvaluationError(f"{place}: {needed}, got {what}")
    return fields


def _pair(fields: tuple[str, ...], place: str, folder: Path, file: Path, taken: dict[str, PosedPair]) -> PosedPair:
    try:
        numbers = np.array(fields[2:], np.float64)
    except ValueError as error:
        raise EvaluationError(f"{place}: {error}") from error
    turns, (K1, K2), T = numbers[:2], numbers[2:20].reshape(2, 3, 3), numbers[20:].reshape(4, 4)
    if not np.isin(turns, range(4)).all():
        raise EvaluationError(f"{place}: turns must be 0, 1, 2 or 3, got {' '.join(fields[2:4])}")
    for K, label in ((K1, "first"), (K2, "second")):
        wrong = check_camera(K, T[:3, :3], T[:3, 3])
        if wrong is not None:
            raise EvaluationError(f"{place}: {label} image: {wrong}")
    first = View(folder / fields[0], K1, np.eye(3), np.zeros(3), turns=int(turns[0]))
    second = View(folder / fields[1], K2, T[:3, :3], T[:3, 3], turns=int(turns[1]))
    name = f"{fields[0]} {fields[1]}"
    if name in taken:  # the same images with another truth
        name += f" ({place.rpartition(':')[2]})"
    return PosedPair(name, _scene(fields[0], file), (first, second), (file,))


def _scene(path: str, file: Path) -> str:
    """The first folder of a path, as lists name scenes; the list where there is none."""
    parts = Path(path).parts
    return parts[0] if len(parts) > 1 and parts[0] not in ("/", "..", "images") else file.stem
