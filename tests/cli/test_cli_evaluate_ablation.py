"""disk-ops evaluate ablation: from the command line to the results; the variants themselves have tests of their own."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from disk_ops.checkpoint import DEFAULT_CHECKPOINT, find_checkpoint
from disk_ops.cli import main

K = [[150.0, 0, 80], [0, 150, 60], [0, 0, 1]]


def picture(shift: int = 0) -> np.ndarray:
    """An image [120, 160, 3] with structure of several sizes, moved to the left."""
    generator = np.random.default_rng(0)
    layers = [cv2.resize(generator.random((120 // s, 180 // s, 3)), (180, 120)) for s in (2, 4, 8)]
    return np.rint(255 * sum(layers) / 3).astype(np.uint8)[:, shift : shift + 160]


@pytest.fixture
def homographies(tmp_path: Path) -> Path:
    for name in ("v_one", "i_two", "v_three"):
        folder = tmp_path / "sets" / name
        folder.mkdir(parents=True)
        cv2.imwrite(str(folder / "1.png"), picture())
        cv2.imwrite(str(folder / "2.png"), picture(6))
        np.savetxt(folder / "H_1_2", np.array([[1, 0, -6], [0, 1, 0], [0, 0, 1]]))
    return tmp_path / "sets"


@pytest.fixture
def poses(tmp_path: Path) -> Path:
    """Two cameras in front of a plane at depth 3: their images differ by a shift."""
    (tmp_path / "scene" / "images").mkdir(parents=True)
    cameras = {}
    for index in range(2):
        cv2.imwrite(str(tmp_path / "scene" / "images" / f"{index}.png"), picture(10 * index))
        cameras[f"{index}.png"] = {"K": K, "R": np.eye(3).tolist(), "t": [-0.2 * index, 0, 0]}
    (tmp_path / "scene" / "cameras.json").write_text(json.dumps({"cameras": cameras}))
    return tmp_path / "scene"


def ablation(measure: str, data: Path, out: Path, *more: str) -> int:
    return main(["evaluate", "ablation", measure, str(data), "-o", str(out), "--quiet", *more])


def results(out: Path) -> dict:
    return json.loads((out / "results.json").read_text(encoding="utf-8"))


def test_homography(homographies, tmp_path, capsys) -> None:
    more = ["--n", "20", "60", "--cells", "8", "4", "--windows", "5"]
    assert ablation("homography", homographies, tmp_path / "out", *more) == 0
    told = capsys.readouterr().out
    assert "Ablation: all pairs" in told and "By set" not in told
    found = results(tmp_path / "out")
    (table,) = found["tables"]
    variants = ["one per cell 8", "one per cell 4", "NMS 5"]
    assert [row[:2] for row in table["rows"]] == [[variant, n] for n in (20, 60) for variant in variants]
    assert all(record["auc5"] > 0.5 and max(record["features"]) <= record["n"] for record in found["records"])
    assert set(found["environment"]["methods"]) == {f"disk, {variant}" for variant in variants}
    assert (tmp_path / "out" / "report.html").read_text(encoding="utf-8").count("data:image/jpeg") == 3


def test_pose_with_the_defaults(poses, tmp_path, capsys) -> None:
    assert ablation("pose", poses, tmp_path / "out", "--n", "100") == 0
    assert "Ablation: relative pose" in capsys.readouterr().out
    (table,) = results(tmp_path / "out")["tables"]
    assert [row[0] for row in table["rows"]] == ["one per cell 8", "NMS 3", "NMS 5", "NMS 7", "NMS 9"]


def test_checkpoints_without_cells_and_a_chosen_ratio(homographies, tmp_path, capsys) -> None:
    weights = find_checkpoint(DEFAULT_CHECKPOINT)
    more = ["--n", "30", "--method", "disk", f"disk:{weights}", "--cells", "--windows", "5", "--ratio", "auto"]
    assert ablation("homography", homographies, tmp_path / "out", *more) == 0
    assert "not in the test" in capsys.readouterr().err
    table, ratios = results(tmp_path / "out")["tables"]
    assert [row[:2] for row in table["rows"]] == [
        ["disk", "NMS 5"],
        [f"disk:{DEFAULT_CHECKPOINT}.safetensors", "NMS 5"],
    ]
    assert table["rows"][0][2:] == table["rows"][1][2:] and len(ratios["rows"]) == 2


def test_what_is_there_of_the_protocol_is_used(homographies, tmp_path, capsys, monkeypatch) -> None:
    common = ["--n", "30", "--method", "disk", "--quiet"]
    assert main(["evaluate", "homography", str(homographies), "-o", str(tmp_path / "out"), *common]) == 0

    from disk_ops.evaluation.homography_protocol import HomographyProtocol

    def never(*arguments: object) -> None:
        raise AssertionError("all is in the cache")

    monkeypatch.setattr(HomographyProtocol, "evaluate", never)
    assert ablation("homography", homographies, tmp_path / "out", "--n", "30", "--cells", "--windows", "5") == 0


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--method", "sift"], "--method sift has no variants"),
        (["--cells", "--windows"], "neither --cells nor --windows"),
        (["--cells", "100"], "--cells must be from 1 to 64 pixels, got 100"),
        (["--method", "disk:gone"], "--method disk:gone: checkpoint 'gone'"),
    ],
)
def test_what_is_impossible_is_said_in_one_line(more, reason, homographies, tmp_path, capsys) -> None:
    assert ablation("homography", homographies, tmp_path / "out", *more) == 2
    told = capsys.readouterr().err
    assert reason in told and told.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", [[], ["rotation", "."], ["homography"], ["homography", ".", "--windows", "4"]])
def test_wrong_usage(arguments, tmp_path) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["evaluate", "ablation", *arguments, "-o", str(tmp_path / "out")])
    assert stopped.value.code == 2
