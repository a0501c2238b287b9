"""disk-ops reconstruct: a whole run, results, resuming after an interruption in each stage, and what can't be done.

Features and matches of most tests are those of a synthetic scene, put in the place of what is extracted and matched.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import sfm_scene
from sfm_scene import SyntheticScene
from stored import save

from disk_ops.cli import main
from disk_ops.programs import extract as extract_program
from disk_ops.programs import match as match_program
from disk_ops.sfm import database as database_module
from disk_ops.sfm import reconstruction as reconstruction_module

pycolmap = pytest.importorskip("pycolmap")

CAMERA = ["--camera-model", "PINHOLE", "--camera-params", sfm_scene.PARAMS, "--fix-cameras"]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SyntheticScene:
    """Six images in the folder ``my photos``; extracting and matching them writes what is known of them."""
    monkeypatch.chdir(tmp_path)
    scene = sfm_scene.make_scene(6, points=150, names="küste/bild {}.png")
    sfm_scene.write_images(scene, Path("my photos"))

    def extract(arguments: argparse.Namespace) -> int:
        assert arguments.images == [Path("my photos")] and arguments.resume and arguments.layout == "hloc"
        if not arguments.output.exists():
            sfm_scene.write_features(scene, arguments.output)
        return 0

    def match(arguments: argparse.Namespace) -> int:
        if not arguments.output.exists():
            sfm_scene.write_matches(scene, arguments.output)
        return 0

    monkeypatch.setattr(extract_program, "run", extract)
    monkeypatch.setattr(match_program, "run", match)
    return scene


def reconstruct(*options: str) -> int:
    return main(["reconstruct", "my photos", "-o", "out", *CAMERA, *options])


def summary() -> dict[str, Any]:
    return json.loads(Path("out/summary.json").read_text())


def test_results(scene: SyntheticScene, capsys: pytest.CaptureFixture[str]) -> None:
    assert reconstruct() == 0
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "database.db",
        "features.h5",
        "matches.h5",
        "sparse",
        "summary.json",
    ]
    assert sorted(path.name for path in Path("out/sparse").iterdir()) == ["0"]
    assert {"cameras.bin", "images.bin", "points3D.bin", "points3D.ply"} <= {
        p.name for p in Path("out/sparse/0").iterdir()
    }
    model = pycolmap.Reconstruction("out/sparse/0")
    assert {image.name for image in model.images.values()} == set(scene.names) and model.num_points3D() > 140
    color = next(iter(model.points3D.values())).color.tolist()
    assert 40 <= color[0] <= 46 and color[0] == color[1] == color[2]  # of the pictures
    (figures,) = summary()["models"]
    assert summary()["images"] == figures["registered"] == 6 and figures["landmarks"] == model.num_points3D()
    assert figures["reprojection_error"] < 1e-3 and 4 < figures["track_length"] <= 6
    told = capsys.readouterr().out.splitlines()
    assert [line for line in told if line.startswith("[")] == [
        "[1/4] features",
        "[2/4] matches",
        "[3/4] verification",
        "[4/4] mapping",
    ]
    assert told[-1].startswith("out/sparse/0: 6 of 6 images, ") and "track length" in told[-1]


def test_the_same_command_again(scene: SyntheticScene, capsys: pytest.CaptureFixture[str]) -> None:
    assert reconstruct() == 0

    def times() -> dict[Path, int]:  # COLMAP writes to a database that it only reads
        return {path: path.stat().st_mtime_ns for path in Path("out").rglob("*.*") if path.suffix != ".db"}

    before = times()
    assert reconstruct() == 2
    assert "out holds features.h5 already: use --resume to go on" in capsys.readouterr().err
    assert reconstruct("--resume") == 0
    assert capsys.readouterr().out.count("done before") == 2
    assert times() == before


def test_other_options_redo_what_depends_on_them(scene: SyntheticScene, capsys: pytest.CaptureFixture[str]) -> None:
    assert reconstruct() == 0
    capsys.readouterr()
    assert main(["reconstruct", "my photos", "-o", "out", *CAMERA[:-1], "--resume"]) == 0  # cameras are refined
    assert capsys.readouterr().out.count("done before") == 1
    assert reconstruct("--resume", "--max-error", "2") == 0
    assert capsys.readouterr().out.count("done before") == 0


def test_overwrite_begins_afresh_and_keeps_other_files(scene: SyntheticScene) -> None:
    assert reconstruct() == 0
    Path("out/notes.txt").write_text("mine")
    Path("out/sparse/7").mkdir()
    before = Path("out/features.h5").stat().st_mtime_ns
    assert reconstruct("--overwrite") == 0
    assert Path("out/features.h5").stat().st_mtime_ns > before and Path("out/notes.txt").read_text() == "mine"
    assert sorted(path.name for path in Path("out/sparse").iterdir()) == ["0"]


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        ("empty", (), "no images found"),
        ("my photos", ("--weights", "nowhere.pth"), "'nowhere.pth' is neither a bundled name"),
        ("my photos", ("--device", "xpu"), "xpu"),
        ("my photos", ("--mask-dir", "nowhere"), "--mask-dir nowhere is not a folder"),
        ("my photos", ("--device", "meta"), "--device meta can't be used"),
        ("my photos", ("--pairs", "gone.txt"), "--pairs gone.txt: No such file"),
        ("my photos", ("--pair-pattern", "x/*"), "--pair-pattern 'x/*': matches none of 6 images"),
        ("my photos", ("--features", "f.h5", "--device", "meta"), "--device meta can't be used"),
        ("my photos", ("--features", "f.h5", "--pair-pattern", "re:("), "is not a regular expression"),
        ("my photos", ("--features", "f.h5", "--n", "9"), "--n does nothing with --features"),
        ("my photos", ("--features", "f.h5", "--mask-dir", "m"), "--mask-dir does nothing with --features"),
        ("my photos", ("--features", "f.h5", "--matches", "m.h5", "--ratio", "1"), "--ratio does nothing with --match"),
        ("my photos", ("--features", "f.h5", "--matches", "m.h5", "--device", "cpu"), "--device does nothing with --f"),
    ],
)
def test_overwrite_that_can_not_begin_loses_nothing(
    scene: SyntheticScene, images: str, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reconstruct() == 0
    Path("empty").mkdir()
    sfm_scene.write_features(scene, Path("f.h5"))
    sfm_scene.write_matches(scene, Path("m.h5"))
    before = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")}
    assert main(["reconstruct", images, "-o", "out", *CAMERA, "--overwrite", *options]) == 2
    assert message in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")} == before
    assert main(["reconstruct", images, "-o", "other", *CAMERA, *options]) == 2 and not Path("other").exists()


@pytest.mark.parametrize("stage", ["features", "matches", "verification", "mapping", "writing"])
def test_an_interruption_in_each_stage(
    scene: SyntheticScene, stage: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place, name = {
        "features": (extract_program, "run"),
        "matches": (match_program, "run"),
        "verification": (database_module, "verify_matches"),
        "mapping": (pycolmap, "incremental_mapping"),
        "writing": (reconstruction_module, "write_models"),
    }[stage]

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(place, name, interrupt)
        assert reconstruct() == 130
    assert not Path("out/sparse").exists() and not Path("out/summary.json").exists()
    if stage not in ("features", "matches"):
        assert "run the same command with --resume to go on" in capsys.readouterr().err
    assert reconstruct("--resume") == 0
    assert summary()["models"][0]["registered"] == 6
    assert not list(Path("out").glob("*.part*"))


def test_repeated_runs_are_equal(scene: SyntheticScene) -> None:
    arguments = ["--camera-model", "SIMPLE_RADIAL", "--single-camera"]
    figures = []
    for folder in ("one", "two"):
        assert main(["reconstruct", "my photos", "-o", folder, *arguments]) == 0
        figures.append([json.loads(Path(folder, "summary.json").read_text())["models"]])
        figures[-1].append([Path(folder, "sparse/0", name).read_bytes() for name in ("cameras.bin", "points3D.bin")])
    assert figures[0] == figures[1]


def test_nothing_registers(
    scene: SyntheticScene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    del scene.names[3:]
    generator = np.random.default_rng(0)
    for name in scene.names:
        scene.keypoints[name] = generator.permutation(scene.keypoints[name])
    assert reconstruct("--max-error", "0.5") == 1
    assert "nothing could be reconstructed: no two images have enough matches that agree" in capsys.readouterr().out
    assert summary()["models"] == [] and Path("out/database.db").exists()


def test_files_that_are_given(scene: SyntheticScene, capsys: pytest.CaptureFixture[str]) -> None:
    features = sfm_scene.write_features(scene, Path("f.h5"))
    matches = sfm_scene.write_matches(scene, Path("m.h5"))
    assert reconstruct("--matches", str(matches)) == 2
    assert "--matches needs the --features that were matched" in capsys.readouterr().err
    assert reconstruct("--features", "gone.h5") == 2
    assert "gone.h5: no such file" in capsys.readouterr().err and not Path("out").exists()
    assert reconstruct("--features", str(features), "--matches", str(matches)) == 0
    assert not Path("out/features.h5").exists() and not Path("out/matches.h5").exists()
    assert summary()["models"][0]["registered"] == 6
    assert reconstruct("--features", str(features), "--resume") == 0  # matched again, into the folder
    assert Path("out/matches.h5").exists()


def test_given_files_are_not_removed(scene: SyntheticScene) -> None:
    assert reconstruct() == 0
    before = Path("out/features.h5").read_bytes()
    assert reconstruct("--features", "out/features.h5", "--overwrite") == 0
    assert Path("out/features.h5").read_bytes() == before and summary()["models"][0]["registered"] == 6


def test_overwrite_removes_shards_of_earlier_results(scene: SyntheticScene) -> None:
    assert reconstruct() == 0
    shards = Path("out/features.h5.shards")
    shards.mkdir()
    (shards / "00000-of-00002.h5").write_bytes(b"old")
    assert reconstruct("--overwrite") == 0 and not shards.exists()


@pytest.mark.parametrize("name", ["database.db", "sparse"])
def test_a_project_of_colmap_is_not_replaced(
    scene: SyntheticScene, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Path("out") / name
    place.parent.mkdir()
    if name == "sparse":
        place.mkdir()
    else:
        pycolmap.Database.open(place).close()
    for option in ((), ("--resume",)):
        assert reconstruct(*option) == 2
        assert f"out{' holds ' if not option else '/'}{name}" in capsys.readouterr().err
        assert [path.name for path in Path("out").iterdir()] == [name]
    assert reconstruct("--overwrite") == 0


def test_a_missing_image(scene: SyntheticScene, capsys: pytest.CaptureFixture[str]) -> None:
    (Path("my photos") / scene.names[2]).unlink()
    assert reconstruct() == 1
    told = capsys.readouterr()
    assert f"failed: {scene.names[2]}: no such file" in told.err and "out/sparse/0: 5 of 5 images" in told.out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["gone", "-o", "out"], "gone is not a folder"),
        (["my photos", "-o", "file"], "the folder file can't be made"),
        (["my photos", "-o", "out", "--camera-model", "X"], "camera model 'X' is not one of COLMAP's"),
        (["my photos", "-o", "out", "--camera-params", "1"], "SIMPLE_RADIAL has the 4 parameters f, cx, cy, k, got 1"),
        (["my photos", "-o", "out", "--loop-closure", "3"], "--loop-closure needs --sequential K"),
    ],
)
def test_what_is_impossible_is_said_before_any_work(
    scene: SyntheticScene, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").write_text("mine")
    assert main(["reconstruct", *arguments]) == 2
    told = capsys.readouterr().err
    assert reason in told and told.count("\n") == 1 and told.startswith("disk-ops reconstruct: error: ")
    assert not Path("out").exists() and Path("file").read_text() == "mine"


def test_several_processes(
    scene: SyntheticScene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    assert reconstruct() == 2 and not Path("out").exists()
    assert "reconstruct is the work of one process" in capsys.readouterr().err


def test_without_pycolmap(
    scene: SyntheticScene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    assert reconstruct() == 2 and not Path("out").exists()
    assert "need pycolmap: pip install 'pycolmap>=3.13'" in capsys.readouterr().err


def test_unrelated_photographs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The real programs: pictures of random rectangles, which no camera can see."""
    for seed in range(3):
        save(tmp_path / "photos" / f"{seed}.png", seed, 120, 160)
    arguments = ["reconstruct", str(tmp_path / "photos"), "-o", str(tmp_path / "out"), "--n", "200", "--quiet"]
    assert main(arguments) == 1
    assert "nothing could be reconstructed" in capsys.readouterr().out
    assert main([*arguments, "--n", "100", "--resume"]) == 2
    assert "was made with other settings (n was 200 and is 100 now)" in capsys.readouterr().err


def test_a_changed_photograph_is_matched_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(2):
        save(tmp_path / "photos" / f"{seed}.png", seed, 90, 120)
    out = tmp_path / "photos" / "out"  # results inside the folder of images don't matter
    arguments = ["reconstruct", str(tmp_path / "photos"), "-o", str(out), "--n", "100", "--quiet"]
    assert main(arguments) == 1
    save(tmp_path / "photos" / "2.png", 2, 90, 120)  # a new one: the matches of the others are kept
    capsys.readouterr()
    assert main([*arguments, "--resume"]) == 1
    told = capsys.readouterr()
    assert "matches.h5: 2 pairs" in told.out and "1 done before" in told.out and told.err == ""
    save(tmp_path / "photos" / "1.png", 3, 90, 120)
    assert main([*arguments, "--resume"]) == 1
    told = capsys.readouterr()
    assert "2 pairs matched again: the features changed since" in told.err
    assert "matches.h5: 2 pairs" in told.out and "1 done before" in told.out
    with h5py.File(out / "matches.h5", "r+") as file:  # of an earlier version, which didn't tell of which features
        for pair in (file[first][second] for first in file for second in file[first]):
            del pair.attrs["disk_ops_features"]
    save(tmp_path / "photos" / "1.png", 4, 90, 120)
    assert main([*arguments, "--resume"]) == 1
    told = capsys.readouterr()
    assert "images changed since they were matched" in told.err and "matches.h5: 3 pairs" in told.out


def test_a_folder_with_one_photograph_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "photos" / "a.png")
    arguments = ["reconstruct", str(tmp_path / "photos"), "-o", str(tmp_path / "out")]
    assert main(arguments) == 2
    assert "photos holds 1 image; two are needed" in capsys.readouterr().err and not (tmp_path / "out").exists()
    (tmp_path / "photos" / "b.png").write_text("no image")
    assert main(arguments) == 2
    assert "holds the features of 1 image; two are needed" in capsys.readouterr().err
    (tmp_path / "photos" / "a.png").write_text("no image")
    shutil.rmtree(tmp_path / "out")
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert "failed: a.png: " in told and "none of the images in" in told
    (tmp_path / "photos" / "a.png").unlink()
    (tmp_path / "photos" / "b.png").unlink()
    shutil.rmtree(tmp_path / "out")
    assert main(arguments) == 2
    assert "no images found in" in capsys.readouterr().err


@pytest.mark.parametrize("output", [".", "photos"])
def test_results_beside_the_photographs_or_among_them(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As projects of COLMAP have it: the folder of images lies in that of results."""
    for seed in range(2):
        save(tmp_path / "photos" / f"{seed}.png", seed, 90, 120)
    arguments = ["reconstruct", str(tmp_path / "photos"), "-o", str(tmp_path / output), "--n", "100", "--quiet"]
    assert main(arguments) == 1
    assert "features.h5: 2 images" in capsys.readouterr().out
    assert main([*arguments, "--resume"]) == 1
    assert "2 done before" in capsys.readouterr().out


def test_real_photographs(shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for index in (3, 4, 5, 6):
        name = f"{index:04}.jpg"
        (photos / name).symlink_to(shared_data / "pose" / "strecha" / "fountain-P11" / "images" / name)
    arguments = ["--max-size", "640", "--n", "1000", "--sequential", "3", "--single-camera"]
    assert main(["reconstruct", str(photos), "-o", str(tmp_path / "out"), *arguments]) == 0
    (figures,) = json.loads((tmp_path / "out" / "summary.json").read_text())["models"]
    assert figures["registered"] == 4 and figures["landmarks"] > 300 and figures["reprojection_error"] < 1.5
