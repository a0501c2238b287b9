"""Features and matches in HDF5, in the layouts that hloc, glue-factory and deep-image-matching read.

Features, one group per image (the image's name; its slashes make groups in groups)::

    keypoints    float32 [N, 2]   x, y in pixels of the original image; attribute ``uncertainty`` (pixels)
    descriptors  float32 [D, N]   unit length
    scores       float32 [N]      also linked as ``keypoint_scores``
    image_size   int64   [2]      width, height

The attribute ``disk_ops_source`` of the group tells of which image file and mask, see `disk_ops.io.sources`.

The centre of the first pixel is (0, 0): hloc adds the 0.5 of COLMAP's convention when it imports keypoints.
The layout ``glue-factory`` differs as its reader does: descriptors [N, D], keypoints with the *corner* of the
first pixel at (0, 0), that is 0.5 added.

Matches, one group per pair, ``name0/name1`` with the slashes of the names written as ``-``::

    matches0          int16 (int32 where needed) [N0]   index into image 1's keypoints, -1 for none
    matching_scores0  float16 [N0]                      (1 + cos) / 2 of two unit descriptors, 0 for none

The layout ``deep-image-matching`` has one dataset [K, 2] of keypoint indices at the same place instead. The attribute
``disk_ops_features`` of either tells of which descriptors: a digest of those of each image.

What several processes wrote is an index: a file whose images or pairs are external links to files (shards) in a folder
beside it, see `disk_ops.io.shards`. It is read like any other file.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from disk_ops.io.journal import Arrays, Settings
from disk_ops.io.sources import FileState, Source
from disk_ops.io.stored_arrays import FARTHEST, StorageError, read_array, read_attribute, text_attribute

FEATURE_LAYOUTS = ("hloc", "glue-factory")
MATCH_LAYOUTS = ("hloc", "deep-image-matching")

_SETTINGS = "disk_ops_settings"  # attribute of the file
_SHARDS = "disk_ops_shards"  # attribute of an index: the shards, relative to its folder
_SOURCE_BYTES = "disk_ops_source_bytes"  # attribute of an image's group: all that earlier versions stored, and read
_SOURCE = "disk_ops_source"  # attribute of an image's group
_FEATURES = "disk_ops_features"  # attribute of a pair

Writer = Callable[[h5py.File, str, Arrays], None]


@dataclass(frozen=True)
class Features:
    """Stored features of one image, independent of the layout of the file."""

    keypoints: npt.NDArray[np.float32]  # [N, 2] xy, pixel centres at integers
    descriptors: npt.NDArray[np.float32]  # [N, D]
    scores: npt.NDArray[np.float32]  # [N]
    image_size: tuple[int, int] | None  # (width, height)


def pair_name(name0: str, name1: str) -> str:
    """The group of a pair of images in a match file."""
    return f"{flat_name(name0)}/{flat_name(name1)}"


def flat_name(name: str) -> str:
    """An image's name as written in match files."""
    return name.replace("/", "-")


def feature_writer(layout: str) -> Writer:
    """A function that writes the arrays of one image (keypoints, descriptors [N, D], ...) as a group."""

    def write(file: h5py.File, name: str, arrays: Arrays) -> None:
        if name in file:
            del file[name]
        group = file.create_group(name)
        corner = layout == "glue-factory"
        keypoints = arrays["keypoints"] + np.float32(0.5 if corner else 0.0)
        group.create_dataset("keypoints", data=keypoints).attrs["uncertainty"] = float(arrays["uncertainty"])
        group.create_dataset("descriptors", data=arrays["descriptors"] if corner else arrays["descriptors"].T)
        group["keypoint_scores"] = group.create_dataset("scores", data=arrays["scores"])
        group.create_dataset("image_size", data=arrays["image_size"])
        group.attrs[_SOURCE_BYTES] = int(arrays["source_bytes"])
        if "source" in arrays:
            group.attrs[_SOURCE] = np.bytes_(arrays["source"].item())

    return write


def match_writer(layout: str) -> Writer:
    """A function that writes the arrays of one pair (matches0, matching_scores0) at the pair's name."""

    def write(file: h5py.File, name: str, arrays: Arrays) -> None:
        if name in file:
            del file[name]
        if layout == "deep-image-matching":
            matches0 = arrays["matches0"].astype(np.int64)
            index0 = np.flatnonzero(matches0 >= 0)
            file.create_dataset(name, data=np.stack([index0, matches0[index0]], axis=1))
        else:
            group = file.create_group(name)
            for key in ("matches0", "matching_scores0"):
                group.create_dataset(key, data=arrays[key])
        if "features" in arrays:
            file[name].attrs[_FEATURES] = np.bytes_(arrays["features"].item())

    return write


def write_atomically(
    output: Path, settings: Settings, records: Iterator[tuple[str, Arrays]], write: Writer, *, extend: bool
) -> None:
    """Write an HDF5 file under a temporary name in the same folder and rename it when it is complete.

    Args:
        output: the file to make or replace.
        settings: stored as JSON in an attribute of the file.
        records: what to write, by name.
        write: writes one record.
        extend: start from what the existing file holds.
    """
    temporary = temporary_of(output)
    try:
        if extend:
            shutil.copyfile(output, temporary)
        with h5py.File(temporary, "a" if extend else "w") as file:
            store_settings(file, settings)
            for name, arrays in records:
                write(file, name, arrays)
        os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)


def temporary_of(output: Path) -> Path:
    """The name under which an HDF5 file is written."""
    return output.with_name(output.name + ".tmp")


@contextlib.contextmanager
def open_h5(path: Path, *, shards: bool = True) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading, with an error that names it; of an index, all its shards, too.

    Args:
        path: the file.
        shards: False to open an index whose shards may be missing.

    Raises:
        StorageError: when it, or one of its shards, is missing, a folder, unreadable or not HDF5.
    """
    with _open(path) as file:
        for name in stored_shards(file) if shards else ():
            # HDF5 looks in both folders, which differ where the path of the index is a symbolic link.
            places = [folder / name for folder in (path.parent, path.resolve().parent)]
            found = next((place for place in places if place.exists()), None)
            if found is None:
                raise StorageError(f"{path} is an index of several files, of which {places[0]} is missing")
            _open(found).close()
        yield file


def _open(path: Path) -> h5py.File:
    if not path.exists():
        raise StorageError(f"{path}: no such file")
    if path.is_dir():
        raise StorageError(f"{path} is a folder, an HDF5 file is needed")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        reason = "permission denied" if not os.access(path, os.R_OK) else "not an HDF5 file, or a damaged one"
        raise StorageError(f"{path}: {reason}") from error


def store_settings(file: h5py.File, settings: Settings) -> None:
    """Store what a file was made with (JSON types only)."""
    file.attrs[_SETTINGS] = json.dumps(dict(settings))


def stored_settings(file: h5py.File) -> dict[str, Any] | None:
    """The settings that disk-ops stored, None for a file of another program; raise `StorageError` if damaged."""
    settings: dict[str, Any] | None = read_attribute(file, _SETTINGS, dict)
    return settings


def stored_shards(file: h5py.File) -> list[str]:
    """The files that an index links to, relative to its folder; none for other files."""
    return list(read_attribute(file, _SHARDS, list) or ())


def write_index(
    path: Path,
    settings: Settings,
    shards: Sequence[str],
    links: Iterable[tuple[str, str]],
) -> None:
    """Write an index of shards.

    Args:
        path: the file to write; the names of shards are relative to the folder where it will be read.
        settings: as in the shards.
        shards: the names of the shards.
        links: for each image or pair its name and the name of its shard.
    """
    with h5py.File(path, "w") as file:
        store_settings(file, settings)
        file.attrs[_SHARDS] = json.dumps(list(shards))
        for name, shard in links:
            file[name] = h5py.ExternalLink(shard, f"/{name}")


def linked_names(file: h5py.File) -> dict[str, str]:
    """For each image or pair of an index the name of its shard; nothing for a plain file."""
    names: dict[str, str] = {}

    def visit(group: h5py.Group, prefix: str) -> None:
        for key in group:
            link = group.get(key, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                names[prefix + key] = link.filename
            else:
                visit(group[key], f"{prefix}{key}/")

    if stored_shards(file):
        visit(file, "")
    return names


def image_names(file: h5py.File) -> list[str]:
    """The names of all the images in a feature file, at any depth."""
    if stored_shards(file):
        return list(linked_names(file))  # HDF5 visits nothing behind external links
    names: list[str] = []

    def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Group) and isinstance(item.get("keypoints"), h5py.Dataset):
            names.append(name)

    file.visititems(visit)
    return names


def stored_sources(file: h5py.File) -> dict[str, str | None]:
    """For each image of a feature file the text of its `Source`, None where nothing is known."""
    return {name: _source_of(file[name]) for name in image_names(file)}


def _source_of(group: h5py.Group) -> str | None:
    size = group.attrs.get(_SOURCE_BYTES)
    return text_attribute(group, _SOURCE) or (source_of_size(int(size)) if isinstance(size, np.integer) else None)


def source_of_size(size: int) -> str:
    """The text of a `Source` where only the size of the image file is known, as of earlier versions."""
    return Source(FileState(size), is_mask_known=False).to_text()


def source_of_record(arrays: Arrays) -> str:
    """The text of the `Source` of the features that :func:`feature_writer` takes."""
    return arrays["source"].item().decode() if "source" in arrays else source_of_size(int(arrays["source_bytes"]))


def stored_pairs(file: h5py.File) -> set[str]:
    """The names (``flat0/flat1``) of all the pairs in a match file."""
    return {f"{first}/{second}" for first, group in file.items() if isinstance(group, h5py.Group) for second in group}


def stored_descriptors(file: h5py.File) -> dict[str, str | None]:
    """For each pair of a match file which descriptors were matched, None where nothing is known."""
    return {name: text_attribute(file[name], _FEATURES) for name in stored_pairs(file)}


def record_names(file: h5py.File) -> list[str]:
    """The names of all the images, or pairs, that a plain file of disk-ops holds."""
    settings = stored_settings(file) or {}
    return list(stored_pairs(file)) if settings.get("program") == "disk-ops match" else image_names(file)


def read_features(file: h5py.File, name: str) -> Features:
    """The features of one image, in the convention of this package whatever the file's layout.

    Raises:
        StorageError: when the image is not there, or its arrays are no features, or don't fit together.
    """
    group = _features_of(file, name, "keypoints", "descriptors")
    keypoints, size = read_keypoints(file, name)
    where = f"in {file.filename}"
    descriptors = read_array(group["descriptors"], f"{name}: descriptors {where}", np.float32, ("D", "N"))
    stored = descriptors.shape
    descriptors = descriptors if _corner_is_origin(file) else descriptors.T
    scores = np.ones(len(keypoints), np.float32)
    key = next((key for key in ("scores", "keypoint_scores") if key in group), None)
    if key is not None:
        scores = read_array(group[key], f"{name}: {key} {where}", np.float32, ("N",), finite=False)
    if not len(descriptors) == len(keypoints) == len(scores):
        raise StorageError(
            f"{name}: keypoints {keypoints.shape} and descriptors {stored} {where} "
            f"don't fit together ([N, 2] and [D, N] are expected{f', scores {scores.shape}' if key else ''})"
        )
    return Features(keypoints, np.ascontiguousarray(descriptors), scores, size)


def read_keypoints(file: h5py.File, name: str) -> tuple[npt.NDArray[np.float32], tuple[int, int] | None]:
    """The keypoints [N, 2] of one image, pixel centres at integers, and its (width, height) if it was stored.

    Raises:
        StorageError: when the image is not there, its keypoints are no list of points, or its size is none.
    """
    group = _features_of(file, name, "keypoints")
    where = f"{name}: keypoints in {file.filename}"
    keypoints = read_array(group["keypoints"], where, np.float32, ("N", 2))
    if np.abs(keypoints).max(initial=0.0) > FARTHEST:
        raise StorageError(f"{where}: coordinates of at most {FARTHEST} are expected, got {np.abs(keypoints).max():g}")
    keypoints = keypoints - np.float32(0.5 if _corner_is_origin(file) else 0.0)
    if "image_size" not in group:
        return keypoints, None
    size = read_array(group["image_size"], f"{name}: image_size in {file.filename}", np.float64, (2,))
    if not (size.min() >= 1 and size.max() <= FARTHEST):
        raise StorageError(f"{name}: image_size in {file.filename}: no width and height in pixels: {size.tolist()}")
    return keypoints, (int(size[0]), int(size[1]))


def _features_of(file: h5py.File, name: str, *needed: str) -> h5py.Group:
    group = file.get(name)
    if not isinstance(group, h5py.Group) or not all(key in group for key in needed):
        raise StorageError(f"{name}: no features in {file.filename}")
    return group


def _corner_is_origin(file: h5py.File) -> bool:
    """Whether the file has the layout glue-factory."""
    return bool((stored_settings(file) or {}).get("layout") == "glue-factory")


def read_matches(file: h5py.File, name0: str, name1: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Matches of two images, whichever of them was first when they were stored.

    Returns:
        Indices [K, 2] into the keypoints of the two images, and the scores [K].

    Raises:
        StorageError: when the pair is not there, or its arrays are no matches.
    """
    for first, second, swapped in ((name0, name1, False), (name1, name0, True)):
        item = file.get(pair_name(first, second))
        if item is None:
            continue
        pairs, scores = _matches_of(item, f"{first} - {second} in {file.filename}")
        return (pairs[:, ::-1] if swapped else pairs), scores
    raise StorageError(f"{name0} and {name1}: not a pair in {file.filename}")


def _matches_of(item: h5py.Group | h5py.Dataset, where: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    if isinstance(item, h5py.Dataset):
        if item.size == 0:  # in whatever shape
            return np.zeros((0, 2), np.int64), np.zeros(0, np.float32)
        pairs = read_array(item, where, np.int64, ("K", 2))
        if pairs.min() < 0:
            raise StorageError(f"{where}: indices of 0 and more are expected, got {pairs.min()}")
        return pairs, np.ones(len(pairs), np.float32)
    matches0 = read_array(item.get("matches0"), f"{where}: matches0", np.int64, ("N",))
    index0 = np.flatnonzero(matches0 >= 0)
    pairs = np.stack([index0, matches0[index0]], axis=1)
    if "matching_scores0" not in item:
        return pairs, np.ones(len(pairs), np.float32)
    where = f"{where}: matching_scores0"
    scores = read_array(item["matching_scores0"], where, np.float32, (len(matches0),), finite=False)
    return pairs, scores[index0]
