"""Scenes in folders, and the pairs of images that are made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.posed.imc import has_lists, image_folder, is_imc, listed_covisibility, read_calibrations
from disk_ops.evaluation.posed.pair_list import read_pair_list
from disk_ops.evaluation.posed.selection import Selection
from disk_ops.evaluation.posed.views import PosedPair, View
from disk_ops.io.inputs import natural_key
from disk_ops.scenes.cameras_json import measured_overlaps, read_cameras
from disk_ops.scenes.colmap import read_scene
from disk_ops.scenes.colmap_files import find_model, scene_root
from disk_ops.scenes.covisibility import covisibility
from disk_ops.scenes.errors import DataError

_DEPTH = 2  # folders below the one that is given
_LOOKED_FOR = (
    "looked for cameras.json, for COLMAP models (cameras, images and points3D, .bin or .txt, there or in sparse/), and "
    "for the Image Matching Challenge's calibration/calibration_*.h5, there and up to two folders below"
)


class _Scene(NamedTuple):
    """What is known of a scene."""

    views: Sequence[View]
    pairs: npt.NDArray[np.int64]  # [P, 2] that can be used
    covisibility: npt.NDArray[np.float64] | None  # [P]
    truth: tuple[Path, ...]  # files that all pairs depend on
    root: Path  # names of images are relative to it
    notes: Sequence[str]
    own: Sequence[Path] = ()  # a calibration or depth map of each view, which only its pairs depend on


def find_pairs(
    path: Path, selection: Selection | None = None, images: Path | None = None
) -> tuple[list[PosedPair], list[str]]:
    """Pairs of images with known relative pose, and notes on what is left out.

    Args:
        path: a list in SuperGlue's format, or a folder: a scene, or scenes up to two folders below.
        selection: which pairs of a scene are used; a list is used whole.
        images: folder of the images of a list, see :func:`read_pair_list`.

    Raises:
        EvaluationError: there is nothing, or a file of a scene can't be used.
    """
    if path.name == "cameras.json" and path.is_file():
        raise EvaluationError(f"{path} is not a list of pairs: give the folder of the scene, {path.parent}")
    if path.is_file():
        return read_pair_list(path, images), []
    if not path.is_dir():
        raise EvaluationError(f"{path}: no such file or folder")
    if images is not None:
        raise EvaluationError(
            f"a folder of images ({images}) can be given with a list of pairs only; {path} is a folder"
        )
    found = list(_walk(path, path, _DEPTH))
    if not found:
        raise EvaluationError(f"{path}: no images with known poses; {_LOOKED_FOR}")
    pairs, notes = [], []
    for name, folder in found:
        try:
            scene = _read(name, folder)
        except DataError as error:
            raise EvaluationError(str(error)) from error
        chosen = _chosen(name, scene, selection or Selection())
        notes += [f"scene {name}: {note}" for note in scene.notes]
        if not chosen:
            notes.append(f"scene {name}: {_why_nothing(scene)}")
        pairs += chosen
    if not pairs:
        raise EvaluationError(f"{path}: no pair of images can be used: {'; '.join(notes[:3])}")
    return pairs, notes


def _walk(folder: Path, root: Path, depth: int) -> Iterator[tuple[str, Path]]:
    """Name and folder of each scene, in natural order."""
    name = folder.relative_to(root).as_posix() if folder != root else folder.resolve().name
    if (folder / "cameras.json").is_file() or is_imc(folder) or find_model(folder) is not None:
        yield name, folder
    elif depth > 0:
        try:
            below = [entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
        except OSError as error:
            raise EvaluationError(f"{folder} can't be read: {error.strerror or error}") from error
        for entry in sorted(below, key=lambda entry: natural_key(entry.name)):
            yield from _walk(entry, root, depth - 1)


def _read(name: str, folder: Path) -> _Scene:
    if (folder / "cameras.json").is_file():
        return _read_json(folder)
    if is_imc(folder):
        views, calibrations, notes = read_calibrations(folder)
        scene = _Scene(views, _all_pairs(len(views)), None, (), image_folder(folder), notes, calibrations)
        return _with_lists(folder, scene)
    return _read_colmap(folder)


def _read_json(folder: Path) -> _Scene:
    cameras, notes = read_cameras(folder)
    views = [
        View(file, K, R, t, (int(size[0]), int(size[1])) if size.all() else None)
        for file, K, R, t, size in zip(cameras.files, cameras.K, cameras.R, cameras.t, cameras.sizes, strict=True)
    ]
    root = folder / "images" if (folder / "images").is_dir() else folder
    scene = _Scene(views, _all_pairs(len(views)), None, (folder / "cameras.json",), root, notes)
    if has_lists(folder):
        return _with_lists(folder, scene)
    if cameras.depth:
        overlap, broken = measured_overlaps(cameras)
        shared = overlap[scene.pairs[:, 0], scene.pairs[:, 1]]
        return scene._replace(covisibility=shared, notes=[*notes, *broken], own=cameras.depth)
    return scene


def _with_lists(folder: Path, scene: _Scene) -> _Scene:
    """The scene with the covisibility of its lists, if there are any."""
    if not has_lists(folder):
        return scene
    pairs, shared = listed_covisibility(folder, [view.path.stem for view in scene.views])
    lists = tuple(sorted((folder / "new-vis-pairs").glob("*.npy")))
    return scene._replace(pairs=pairs, covisibility=shared, truth=(*scene.truth, *lists))


def _read_colmap(folder: Path) -> _Scene:
    place = find_model(folder)
    assert place is not None
    model, note = read_scene(place)
    views = []
    for index, image in enumerate(model.names):
        lens = model.lenses[model.lens[index]]
        views.append(
            View(model.images / image, lens.K, model.R[index], model.t[index], size=lens.pinhole_size, lens=lens)
        )
    pairs, shared = covisibility(model.seen)
    files = tuple(sorted(file for part in ("cameras", "images", "points3D") for file in place.glob(f"{part}.*")))
    root = model.images if model.images.is_dir() else scene_root(place)
    return _Scene(views, pairs.astype(np.int64), shared, files, root, [note] if note else [])


def _chosen(name: str, scene: _Scene, selection: Selection) -> list[PosedPair]:
    result = []
    for number in selection.choose(name, scene.pairs, scene.covisibility):
        first, second = (scene.views[index] for index in scene.pairs[number])
        shared = None if scene.covisibility is None else float(scene.covisibility[number])
        label = " ".join(view.path.relative_to(scene.root).as_posix() for view in (first, second))
        own = [scene.own[index] for index in scene.pairs[number]] if scene.own else []
        result.append(PosedPair(f"{name}: {label}", name, (first, second), (*scene.truth, *own), shared))
    return result


def _all_pairs(count: int) -> npt.NDArray[np.int64]:
    return np.stack(np.triu_indices(count, 1), axis=1).astype(np.int64)


def _why_nothing(scene: _Scene) -> str:
    if len(scene.views) < 2:
        return f"two images with known poses are needed, got {len(scene.views)}"
    return "no two images have enough in common"
