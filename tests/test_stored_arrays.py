"""HDF5 files that are damaged, or hold something else than features and matches: an error that names the place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from disk_ops.io.hdf5 import (
    StorageError,
    open_h5,
    read_features,
    read_keypoints,
    read_matches,
    stored_descriptors,
    stored_settings,
    stored_shards,
    stored_sources,
)

GOOD = {
    "keypoints": np.float32([[1, 2], [3, 4], [5, 6]]),
    "descriptors": np.ones((4, 3), np.float32),
    "scores": np.ones(3, np.float32),
    "image_size": np.array([9, 8]),
}


def file_of(path: Path, arrays: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        group = file.create_group("sub/a.jpg")
        for key, value in arrays.items():
            group.create_group(key) if value is None else group.create_dataset(key, data=value)
    return path


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("descriptors", np.array([[b"x"] * 3] * 4), r"descriptors in .*f\.h5: numbers are needed, got the type"),
        ("descriptors", np.ones((4, 3), complex), "numbers are needed"),
        ("descriptors", None, "an array is needed, got a group"),
        ("descriptors", np.ones(3), r"\[D, N\] is expected, got \(3,\)"),
        ("descriptors", np.ones((4, 2)), "don't fit together"),
        ("descriptors", np.full((4, 3), np.nan), "holds NaN, infinity"),
        ("keypoints", np.full((3, 2), np.nan), "keypoints in .*: holds NaN, infinity"),
        ("keypoints", np.full((3, 2), np.inf), "holds NaN, infinity"),
        ("keypoints", np.full((3, 2), 1e300), "holds NaN, infinity or numbers beyond float32"),
        ("keypoints", np.full((3, 2), 1e30), "coordinates of at most 16777216 are expected, got 1e"),
        ("keypoints", np.ones((3, 3)), r"\[N, 2\] is expected, got \(3, 3\)"),
        ("keypoints", 7, r"\[N, 2\] is expected, got \(\)"),
        ("image_size", np.array([9]), r"image_size in .*: \[2\] is expected, got \(1,\)"),
        ("image_size", np.array([9.0, np.nan]), "image_size in .*: holds NaN"),
        ("image_size", np.array([0, 8]), "no width and height in pixels"),
        ("image_size", "9x8", "numbers are needed"),
        ("scores", np.ones(2), "don't fit together"),
        ("scores", np.ones((3, 1)), r"scores in .*: \[N\] is expected"),
    ],
)
def test_features_that_are_none(tmp_path: Path, key: str, value: Any, reason: str) -> None:
    path = file_of(tmp_path / "f.h5", {**GOOD, key: value})
    with open_h5(path) as file, pytest.raises(StorageError, match=rf"^sub/a\.jpg: .*{reason}"):
        read_features(file, "sub/a.jpg")
    if key in ("keypoints", "image_size"):
        with open_h5(path) as file, pytest.raises(StorageError, match=reason):
            read_keypoints(file, "sub/a.jpg")


def test_features_of_other_number_types(tmp_path: Path) -> None:
    arrays = {**GOOD, "keypoints": GOOD["keypoints"].astype(np.int32), "descriptors": np.ones((4, 3), np.uint8)}
    arrays["scores"] = np.float64([np.nan, -np.inf, 1])  # nothing depends on them but colours
    with open_h5(file_of(tmp_path / "f.h5", arrays)) as file:
        found = read_features(file, "sub/a.jpg")
    assert found.keypoints.dtype == found.descriptors.dtype == found.scores.dtype == np.float32
    np.testing.assert_array_equal(found.keypoints, GOOD["keypoints"])
    assert found.image_size == (9, 8) and found.descriptors.shape == (3, 4)


def test_a_damaged_array_is_named(tmp_path: Path) -> None:
    path = tmp_path / "f.h5"
    with h5py.File(path, "w") as file:
        group = file.create_group("a.jpg")
        group["keypoints"] = GOOD["keypoints"]
        noise = np.random.default_rng(0).normal(size=(128, 3)).astype(np.float32)
        data = group.create_dataset("descriptors", data=noise, chunks=(128, 3), fletcher32=True)
        place = data.id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[place + 5] ^= 0xFF
    path.write_bytes(content)
    with open_h5(path) as file, pytest.raises(StorageError, match=r"a\.jpg: descriptors .* the file is damaged"):
        read_features(file, "a.jpg")


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda group: group.create_dataset("b", data=np.ones((2, 3))), r"\[K, 2\] is expected"),
        (lambda group: group.create_dataset("b", data=[[0, -1]]), "indices of 0 and more are expected, got -1"),
        (lambda group: group.create_dataset("b", data=np.array([[b"x", b"y"]])), "numbers are needed"),
        (lambda group: group.create_group("b"), "matches0: an array is needed, got nothing"),
        (lambda group: group.create_dataset("b/matches0", data=[[1, 2]]), r"matches0: \[N\] is expected"),
        (lambda group: group.create_dataset("b/matches0", data=[np.nan]), "matches0: holds NaN"),
    ],
)
def test_matches_that_are_none(tmp_path: Path, write: Callable[[h5py.Group], object], reason: str) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        write(file.create_group("a"))
    with (
        open_h5(tmp_path / "m.h5") as file,
        pytest.raises(StorageError, match=rf"a - b in .*m\.h5: .*{reason}|{reason}"),
    ):
        read_matches(file, "a", "b")


def test_matches_with_as_many_scores(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file["a/b/matches0"] = [1, -1, 0]
        file["a/c/matches0"], file["a/c/matching_scores0"] = [1, -1, 0], [0.5, 0.5]
        file["a/d"] = np.zeros(0)
    with open_h5(tmp_path / "m.h5") as file:
        pairs, scores = read_matches(file, "a", "b")  # without any: all alike
        assert pairs.tolist() == [[0, 1], [2, 0]] and scores.tolist() == [1, 1]
        assert read_matches(file, "a", "d")[0].shape == (0, 2)
        assert stored_descriptors(file) == {"a/b": None, "a/c": None, "a/d": None}
        with pytest.raises(StorageError, match=r"matching_scores0: \[3\] is expected, got \(2,\)"):
            read_matches(file, "a", "c")


@pytest.mark.parametrize("value", ["{", "[1]", 7, "null"])
def test_damaged_settings_are_named(tmp_path: Path, value: Any) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.attrs["disk_ops_settings"] = value
        file.create_dataset("a.jpg/keypoints", data=GOOD["keypoints"])
        file["a.jpg"].attrs["disk_ops_source_bytes"] = "many"
    with open_h5(tmp_path / "f.h5") as file:
        with pytest.raises(StorageError, match=r"f\.h5: its attribute disk_ops_settings is damaged"):
            stored_settings(file)
        assert stored_sources(file) == {"a.jpg": None} and stored_shards(file) == []
