"""hloc reads our files: its way of reading features, pairs and matches, written down from its published format.

hloc (github.com/cvg/Hierarchical-Localization) opens a group per image in its matchers, a batch dimension is put in
front of each dataset, and descriptors are expected as [B, D, N]. Matches are looked up by both orders of two names.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import sfm_scene
import torch
from sfm_scene import SIZE, SyntheticScene

from disk_ops.cli import main

IMAGES = ("a.png", "sub/b.png", "sub/c 2.png")


@pytest.fixture(scope="module")
def scene() -> SyntheticScene:
    scene = sfm_scene.make_scene(3, points=90)
    rename = dict(zip(scene.names, IMAGES, strict=True))
    for table in (scene.R, scene.t, scene.keypoints, scene.seen):
        for old, new in rename.items():
            table[new] = table.pop(old)
    scene.names = list(IMAGES)
    return scene


@pytest.fixture(scope="module")
def files(scene: SyntheticScene, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """features.h5 and, made of it by disk-ops, matches.h5."""
    folder = tmp_path_factory.mktemp("hloc")
    features = sfm_scene.write_features(scene, folder / "features.h5")
    assert main(["match", str(features), "-o", str(folder / "matches.h5"), "--quiet"]) == 0
    return features, folder / "matches.h5"


def names_in(path: Path) -> set[str]:
    """The images of a file: the parents of its datasets."""
    found = set()
    with h5py.File(path, "r") as file:
        file.visititems(
            lambda _, item: found.add(item.parent.name.strip("/")) if isinstance(item, h5py.Dataset) else None
        )
    return found


def loaded_pair(path: Path, name0: str, name1: str) -> dict[str, torch.Tensor]:
    """What a matcher is given, as its data set and loader make it."""
    data = {}
    with h5py.File(path, "r") as file:
        for number, name in enumerate((name0, name1)):
            group = file[name]
            for key, value in group.items():
                data[f"{key}{number}"] = torch.from_numpy(value.__array__()).float()[None]
            width, height = group["image_size"]
            data[f"image{number}"] = torch.empty(1, 1, int(height), int(width))
    return data


def found_matches(path: Path, name0: str, name1: str) -> tuple[np.ndarray, np.ndarray]:
    first, second = (name.replace("/", "-") for name in (name0, name1))
    with h5py.File(path, "r", libver="latest") as file:
        swapped = f"{first}/{second}" not in file
        group = file[f"{second}/{first}" if swapped else f"{first}/{second}"]
        matches0, scores = group["matches0"].__array__(), group["matching_scores0"].__array__()
    index = np.where(matches0 != -1)[0]
    matches = np.stack([index, matches0[index]], -1)
    return (np.flip(matches, -1) if swapped else matches), scores[index]


def test_features_are_listed_and_loaded(scene: SyntheticScene, files: tuple[Path, Path]) -> None:
    assert names_in(files[0]) == set(IMAGES)
    data = loaded_pair(files[0], *IMAGES[:2])
    n0, n1 = (len(scene.keypoints[name]) for name in IMAGES[:2])
    assert data["keypoints0"].shape == (1, n0, 2) and data["descriptors1"].shape == (1, 128, n1)
    assert data["scores0"].shape == (1, n0) and data["image0"].shape[-2:] == SIZE[::-1]
    similarity = torch.einsum("bdn,bdm->bnm", data["descriptors0"], data["descriptors1"])
    assert similarity.shape == (1, n0, n1)
    best = similarity[0].argmax(1).numpy()
    expected = scene.matches0(*IMAGES[:2])
    np.testing.assert_array_equal(best[expected >= 0], expected[expected >= 0])


def test_keypoints_for_the_database(scene: SyntheticScene, files: tuple[Path, Path]) -> None:
    with h5py.File(files[0], "r") as file:
        dataset = file[IMAGES[1]]["keypoints"]
        keypoints, uncertainty = dataset.__array__(), dataset.attrs.get("uncertainty")
    assert keypoints.dtype == np.float32 and uncertainty == 1.0
    keypoints += 0.5  # as hloc does for COLMAP, so the file must not have it
    np.testing.assert_array_equal(keypoints, scene.keypoints[IMAGES[1]] + np.float32(0.5))


@pytest.mark.parametrize("pair", [(0, 1), (1, 0), (1, 2), (2, 0)])
def test_matches_of_both_orders(scene: SyntheticScene, files: tuple[Path, Path], pair: tuple[int, int]) -> None:
    name0, name1 = (IMAGES[index] for index in pair)
    matches, scores = found_matches(files[1], name0, name1)
    expected = scene.matches0(name0, name1)
    assert len(matches) == (expected >= 0).sum() and scores.dtype == np.float16 and (scores > 0.99).all()
    np.testing.assert_array_equal(expected[matches[:, 0]], matches[:, 1])


def test_matches_have_the_types_that_hloc_writes(files: tuple[Path, Path]) -> None:
    with h5py.File(files[1], "r") as file:
        group = file["a.png/sub-b.png"]
        assert set(group) == {"matches0", "matching_scores0"}
        assert group["matches0"].dtype == np.int16 and group["matching_scores0"].dtype == np.float16
        assert group["matches0"].ndim == group["matching_scores0"].ndim == 1
