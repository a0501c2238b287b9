"""disk-ops show --model: what the model says of keypoints and matches, in colours and numbers."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
import sfm_scene

from disk_ops.cli import main

pytest.importorskip("pycolmap")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images/, features.h5, matches.h5 and the model of these, sparse/0."""
    folder = tmp_path_factory.mktemp("scene")
    made = sfm_scene.make_scene(4, points=150)
    sfm_scene.write_images(made, folder / "images")
    sfm_scene.write_features(made, folder / "features.h5")
    sfm_scene.write_matches(made, folder / "matches.h5")
    stored = ["--features", folder / "features.h5", "--matches", folder / "matches.h5"]
    camera = ["--camera-model", "PINHOLE", "--camera-params", sfm_scene.PARAMS]
    arguments = ["reconstruct", folder / "images", "-o", folder / "out", *stored, *camera, "--quiet"]
    assert main([str(argument) for argument in arguments]) == 0
    (folder / "out" / "sparse").rename(folder / "sparse")
    return folder


def show(scene: Path, output: Path, *arguments: str | Path, model: str = "sparse/0") -> int:
    stored = ["--features", scene / "features.h5", "--model", scene / model]
    return main(["show", *map(str, (*arguments, *stored, "-o", output))])


def coloured(picture: np.ndarray) -> dict[str, int]:
    """Pixels of a picture (BGR) in each of the figure's colours."""
    blue, green, red = np.moveaxis(picture.astype(int), 2, 0)
    return {
        "blue": int((blue > red + 100).sum()),
        "green": int((green > np.maximum(red, blue) + 60).sum()),
        "red": int((red > green + 100).sum()),
    }


def test_landmarks_are_blue(scene: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(scene, tmp_path / "one.png", scene / "images" / "1.png") == 0
    told = capsys.readouterr()
    count = int(told.out.split(" of which became landmarks (blue)")[0].split()[-1])
    assert count > 120 and "note" not in told.err
    found = coloured(cv2.imread(str(tmp_path / "one.png")))
    assert found["blue"] > 1000 and found["green"] == 0 and found["red"] < found["blue"] / 10


def test_matches_are_green_where_right(scene: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = [scene / "images" / "0.png", scene / "images" / "1.png"]
    assert show(scene, tmp_path / "two.png", *images, "--matches", scene / "matches.h5") == 0
    assert " within 5 pixels (green to yellow), 0 wrong (red), " in capsys.readouterr().out
    found = coloured(cv2.imread(str(tmp_path / "two.png")))
    assert found["green"] > 1000 and found["red"] == 0


def test_wrong_matches_are_red(scene: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(scene / "matches.h5", tmp_path / "wrong.h5")
    with h5py.File(tmp_path / "wrong.h5", "r+") as file:
        stored = file["0.png/1.png/matches0"]
        stored[...] = np.where(stored[:] >= 0, np.roll(stored[:], 1), -1)
    images = [scene / "images" / "0.png", scene / "images" / "1.png"]
    assert show(scene, tmp_path / "two.png", *images, "--matches", tmp_path / "wrong.h5", model="sparse") == 0
    told = capsys.readouterr().out
    assert int(told.split(" wrong (red)")[0].split()[-1]) > 100
    found = coloured(cv2.imread(str(tmp_path / "two.png")))
    assert found["red"] > 1000 and found["red"] > 10 * found["green"]


def test_other_features_than_the_models_are_told(
    scene: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "images" / "1.png"
    path.parent.mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (480, 640, 3), dtype=np.uint8)
    cv2.imwrite(str(path), noise)
    arguments = ["show", str(path), "--model", str(scene / "sparse" / "0"), "-o", str(tmp_path / "out.png")]
    assert main([*arguments, "--n", "40"]) == 0
    assert "1.png: the model was made of other features: it has " in capsys.readouterr().err


def test_what_is_impossible(
    scene: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    image, out = scene / "images" / "1.png", tmp_path / "out.png"
    for name, size in (("9.png", (480, 640)), ("1.png", (48, 64))):
        cv2.imwrite(str(tmp_path / name), np.zeros((*size, 3), np.uint8))
    for path, model, reason in (
        (image, "images", "images holds no COLMAP model"),
        (tmp_path / "9.png", "sparse/0", "no camera of this image in"),
        (tmp_path / "1.png", "sparse/0", "has 64x48 pixels, but in"),
    ):
        assert show(scene, out, path, model=model) == 2
        told = capsys.readouterr().err
        assert reason in told and told.count("\n") == 1
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    assert show(scene, out, image) == 2
    assert "needs pycolmap: pip install" in capsys.readouterr().err
    assert not out.exists()
