"""disk-ops evaluate pose and rotation: files of results, and what is said when something can't be done."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from disk_ops.cli import main

K = [[300.0, 0, 160], [0, 300, 120], [0, 0, 1]]
FEW = ["--n", "300", "--method", "rootsift", "sift"]


def picture(seed: int = 0) -> np.ndarray:
    """An image [240, 320, 3] with structure of several sizes."""
    generator = np.random.default_rng(seed)
    layers = [cv2.resize(generator.random((240 // s, 320 // s, 3)), (320, 240)) for s in (4, 8, 16)]
    return np.rint(255 * sum(layers) / 3).astype(np.uint8)


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """Three cameras in front of a plane at depth 3: images differ by a shift of 0, 10 and 20 pixels."""
    (tmp_path / "scene" / "images").mkdir(parents=True)
    cameras = {}
    for index in range(3):
        moved = cv2.warpAffine(picture(), np.float64([[1, 0, -10 * index], [0, 1, 0]]), (320, 240))
        cv2.imwrite(str(tmp_path / "scene" / "images" / f"{index}.png"), moved)
        cameras[f"{index}.png"] = {"K": K, "R": np.eye(3).tolist(), "t": [-0.1 * index, 0, 0]}
    (tmp_path / "scene" / "cameras.json").write_text(json.dumps({"cameras": cameras}))
    return tmp_path / "scene"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    cv2.imwrite(str(tmp_path / "photos" / "a.png"), picture())
    return tmp_path / "photos"


def results(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


class TestPose:
    def run(self, data: Path, out: Path, *more: str) -> int:
        return main(["evaluate", "pose", str(data), "-o", str(out), *FEW, *more])

    def test_results(self, scene, tmp_path, capsys):
        assert self.run(scene, tmp_path / "out", "--geometry", "essential") == 0
        assert "mAA(10°)" in capsys.readouterr().out
        found = results(tmp_path / "out")
        assert len(found["records"]) == 6
        assert all(record["matches"] > 100 and record["inliers"] > 80 for record in found["records"])
        assert found["environment"]["settings"]["geometry"] == "essential"
        assert "essential matrix" in found["tables"][0]["note"]
        assert (tmp_path / "out" / "report.html").read_text(encoding="utf-8").count("data:image/jpeg") == 6

    def test_a_broken_image_is_named_and_the_rest_goes_on(self, scene, tmp_path, capsys):
        (scene / "images" / "2.png").write_bytes(b"broken")
        assert self.run(scene, tmp_path / "out") == 1
        assert "2.png: is not an image" in capsys.readouterr().err
        assert [record["item"] for record in results(tmp_path / "out")["records"]] == ["scene: 0.png 1.png"] * 2

    def test_only_so_many_pairs(self, scene, tmp_path):
        assert self.run(scene, tmp_path / "out", "--pairs-per-scene", "1") == 0
        assert len(results(tmp_path / "out")["records"]) == 2

    def test_lists_with_images_elsewhere(self, scene, tmp_path):
        pose = np.eye(4)
        pose[0, 3] = -0.1
        numbers = " ".join(str(value) for value in (*np.ravel(K), *np.ravel(K), *pose.ravel()))
        (tmp_path / "pairs.txt").write_text(f"0.png 1.png 0 0 {numbers}\n0.png none.png 0 0 {numbers}\n")
        assert self.run(tmp_path / "pairs.txt", tmp_path / "out", "--images", str(scene / "images")) == 1
        assert {record["item"] for record in results(tmp_path / "out")["records"]} == {"0.png 1.png"}

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (["--ransac", "degensac", "--geometry", "essential"], "degensac estimates no essential matrix"),
            (["--images", "."], "--images is of use with a list of pairs only"),
        ],
    )
    def test_what_is_impossible_is_said_in_one_line(self, scene, tmp_path, capsys, more, message):
        assert self.run(scene, tmp_path / "out", *more) == 2
        told = capsys.readouterr().err
        assert message in told and told.count("\n") == 1

    def test_nothing_to_measure(self, tmp_path, capsys):
        assert self.run(tmp_path, tmp_path / "out") == 2
        assert "no images with known poses" in capsys.readouterr().err


class TestRotation:
    def run(self, data: Path, out: Path, *more: str) -> int:
        return main(["evaluate", "rotation", str(data), "-o", str(out), *FEW, *more])

    def test_results(self, photos, tmp_path, capsys):
        assert self.run(photos, tmp_path / "out", "--step", "90") == 0
        assert "half up to" in capsys.readouterr().out
        records = results(tmp_path / "out")["records"]
        assert [record["angle"] for record in records] == [0, 90, 180] * 2
        assert min(record["share"] for record in records) > 0.9  # SIFT turns with the image

    def test_nothing_to_measure(self, tmp_path, capsys):
        assert self.run(tmp_path / "none", tmp_path / "out") == 2
        assert "none: no such folder" in capsys.readouterr().err

    @pytest.mark.parametrize("step", ["0", "-1", "200", "x"])
    def test_wrong_usage(self, photos, tmp_path, step):
        with pytest.raises(SystemExit) as stopped:
            self.run(photos, tmp_path / "out", "--step", step)
        assert stopped.value.code == 2
