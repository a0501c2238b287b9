"""disk-ops export-colmap: what the database holds, cameras, odd inputs, existing databases."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
import sfm_scene
from sfm_scene import SIZE, SyntheticScene

from disk_ops.cli import main
from disk_ops.io.hdf5 import match_writer, pair_name

pycolmap = pytest.importorskip("pycolmap")

NAMES = "küste/my photo {}.png"


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SyntheticScene:
    """Four images with features.h5, matches.h5 and images/ in the current folder."""
    monkeypatch.chdir(tmp_path)
    scene = sfm_scene.make_scene(4, points=80, names=NAMES)
    sfm_scene.write_images(scene, Path("images"))
    sfm_scene.write_features(scene, Path("features.h5"))
    sfm_scene.write_matches(scene, Path("matches.h5"))
    return scene


def export(*options: str) -> int:
    return main(["export-colmap", "features.h5", "matches.h5", "--images", "images", "--database", "d.db", *options])


def contents(path: str = "d.db"):
    database = pycolmap.Database.open(path)
    images = {image.name: image for image in database.read_all_images()}
    cameras = {camera.camera_id: camera for camera in database.read_all_cameras()}
    return database, images, cameras


def test_keypoints_and_matches_in_colmaps_convention(scene: SyntheticScene, capsys: pytest.CaptureFixture[str]) -> None:
    assert export() == 0
    database, images, cameras = contents()
    assert set(images) == set(scene.names) and len(cameras) == 4  # no EXIF: each image has a camera of its own
    assert [images[name].image_id for name in scene.names] == [1, 2, 3, 4]
    for name, image in images.items():
        np.testing.assert_array_equal(database.read_keypoints(image.image_id), scene.keypoints[name] + np.float32(0.5))
        camera = cameras[image.camera_id]
        assert camera.model.name == "SIMPLE_RADIAL" and not camera.has_prior_focal_length
        assert camera.params.tolist() == [1.2 * SIZE[0], SIZE[0] / 2, SIZE[1] / 2, 0]
    one, two = scene.names[0], scene.names[2]
    first, second = images[one].image_id, images[two].image_id
    matches = database.read_matches(first, second)
    assert len(matches) > 50
    np.testing.assert_array_equal(scene.seen[one][matches[:, 0]], scene.seen[two][matches[:, 1]])
    geometry = database.read_two_view_geometry(first, second)
    assert len(geometry.inlier_matches) > 0.95 * len(matches)
    assert geometry.config == int(pycolmap.TwoViewGeometryConfiguration.UNCALIBRATED)
    assert len(database.read_all_rigs()) == 4 and len(database.read_all_frames()) == 4
    told = capsys.readouterr().out
    assert told.startswith("d.db: 4 images, 4 cameras, ") and "of 6 pairs, verified: " in told
    database.close()


def test_given_cameras(scene: SyntheticScene) -> None:
    assert export("--camera-model", "PINHOLE", "--camera-params", sfm_scene.PARAMS) == 0
    database, _, cameras = contents()
    (camera,) = cameras.values()
    assert camera.model.name == "PINHOLE" and camera.has_prior_focal_length
    assert camera.params.tolist() == [700, 700, 320, 240]
    geometry = database.read_two_view_geometry(1, 2)
    assert geometry.config == int(pycolmap.TwoViewGeometryConfiguration.CALIBRATED)
    database.close()


def test_a_single_camera(scene: SyntheticScene, capsys: pytest.CaptureFixture[str]) -> None:
    assert export("--single-camera") == 0
    database, _, cameras = contents()
    assert len(cameras) == 1
    database.close()
    with h5py.File("features.h5", "a") as file:
        file[scene.names[3]]["image_size"][:] = (480, 640)
    assert export("--single-camera", "--overwrite") == 1
    assert f"failed: {scene.names[3]}: has 480x640 pixels, which the single camera" in capsys.readouterr().err


def jpeg_with_exif(path: Path, focal_35mm: int) -> None:
    """A JPEG whose EXIF names a camera and the focal length for 35 mm film."""
    make = b"Pinhole\0"
    entries = [(0x010F, 2, len(make), 38), (0x8769, 4, 1, 46)]  # Make, position of the EXIF directory
    first = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    exif = struct.pack("<H", 1) + struct.pack("<HHIHH", 0xA405, 3, 1, focal_35mm, 0) + struct.pack("<I", 0)
    tiff = b"II*\0" + struct.pack("<I", 8) + first + struct.pack("<I", 0) + make + exif
    segment = b"Exif\0\0" + tiff
    data = cv2.imencode(".jpg", np.full((SIZE[1], SIZE[0], 3), 99, np.uint8))[1].tobytes()
    path.write_bytes(data[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + data[2:])


def test_cameras_from_exif(scene: SyntheticScene) -> None:
    for name, focal in zip(scene.names[:3], (28, 28, 50), strict=True):
        jpeg_with_exif(Path("images") / name, focal)  # COLMAP looks at the content, not at the ending
    assert export() == 0
    database, images, cameras = contents()
    first, second, third, fourth = (cameras[images[name].camera_id] for name in scene.names)
    assert first.camera_id == second.camera_id and len(cameras) == 3
    assert first.has_prior_focal_length and third.has_prior_focal_length and not fourth.has_prior_focal_length
    assert third.focal_length / first.focal_length == pytest.approx(50 / 28)
    database.close()


@pytest.mark.parametrize("option", ["--max-error", "--verify-threads"])
def test_options_of_verification_without_it(
    scene: SyntheticScene, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export("--skip-verification", option, "4") == 2
    assert f"{option} does nothing with --skip-verification" in capsys.readouterr().err


def test_without_verification(scene: SyntheticScene, capsys: pytest.CaptureFixture[str]) -> None:
    assert export("--skip-verification") == 0
    database, _, _ = contents()
    assert database.num_matched_image_pairs() == 6 and not database.exists_two_view_geometry(1, 2)
    assert "verified" not in capsys.readouterr().out
    database.close()


def test_wrong_matches_are_not_verified(scene: SyntheticScene) -> None:
    one, two = scene.names[:2]
    with h5py.File("matches.h5", "a") as file:
        count = len(scene.keypoints[one])
        matches0 = np.random.default_rng(0).permutation(len(scene.keypoints[two]))[:count].astype(np.int16)
        matches0 = np.pad(matches0, (0, count - len(matches0)), constant_values=-1)
        match_writer("hloc")(
            file, pair_name(one, two), {"matches0": matches0, "matching_scores0": np.ones(count, np.float16)}
        )
    assert export("--max-error", "0.5") == 0
    database, _, _ = contents()
    assert len(database.read_matches(1, 2)) > 50 and database.exists_two_view_geometry(1, 2)
    assert len(database.read_two_view_geometry(1, 2).inlier_matches) == 0
    assert sum(count > 0 for count in database.read_two_view_geometry_num_inliers()[1]) == 5
    database.close()


def test_repeated_runs_are_equal(scene: SyntheticScene) -> None:
    found = []
    for threads in ("1", "3"):
        assert export("--overwrite", "--verify-threads", threads) == 0
        database, _, _ = contents()
        found.append(
            [
                (geometry.inlier_matches.tolist(), geometry.F.tolist())
                for geometry in database.read_two_view_geometries()[1]
            ]
        )
        database.close()
    assert found[0] == found[1] and len(found[0]) == 6


def test_an_existing_database_is_kept(scene: SyntheticScene, capsys: pytest.CaptureFixture[str]) -> None:
    Path("d.db").write_bytes(b"precious")
    assert export() == 2
    assert "d.db exists already: use --overwrite to replace it" in capsys.readouterr().err
    assert Path("d.db").read_bytes() == b"precious"
    assert export("--overwrite", "--camera-model", "PINHOL") == 2
    assert "camera model 'PINHOL' is not one of COLMAP's: " in capsys.readouterr().err
    assert Path("d.db").read_bytes() == b"precious"
    assert export("--overwrite") == 0
    with closing(sqlite3.connect("d.db")) as connection:
        assert connection.execute("SELECT count(*) FROM images").fetchone() == (4,)
    assert sorted(path.name for path in Path().iterdir()) == ["d.db", "features.h5", "images", "matches.h5"]


def test_an_interrupted_export_leaves_nothing(scene: SyntheticScene, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("disk_ops.sfm.database.verify_matches", interrupt)
    assert export() == 130
    assert sorted(path.name for path in Path().iterdir()) == ["features.h5", "images", "matches.h5"]


def test_missing_images_are_named_and_the_rest_goes_on(
    scene: SyntheticScene, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path("images") / scene.names[1]).unlink()
    assert export() == 1
    told = capsys.readouterr()
    assert f"failed: {scene.names[1]}: no such file: images/{scene.names[1]}" in told.err
    assert "3 images" in told.out and "of 3 pairs" in told.out and told.out.endswith(", 1 failed\n")


def test_features_of_images_of_another_size(scene: SyntheticScene, capsys: pytest.CaptureFixture[str]) -> None:
    with h5py.File("features.h5", "a") as file:
        file[scene.names[0]]["image_size"][:] = (320, 240)
    assert export() == 1
    reason = "its features are of an image of 320x240 pixels, "
    assert f"failed: {scene.names[0]}: {reason}images/{scene.names[0]} has 640x480" in capsys.readouterr().err


def test_matches_of_other_features(scene: SyntheticScene, capsys: pytest.CaptureFixture[str]) -> None:
    with h5py.File("features.h5", "a") as file:
        keypoints = file[scene.names[2]]["keypoints"][:10]
        del file[scene.names[2]]["keypoints"]
        file[scene.names[2]]["keypoints"] = keypoints
    assert export() == 1
    told = capsys.readouterr().err
    assert told.count("the matches are of other features: there are fewer keypoints") == 3


def test_other_inputs(scene: SyntheticScene, capsys: pytest.CaptureFixture[str]) -> None:
    other = sfm_scene.make_scene(2, points=50, names="other{}.png")
    sfm_scene.write_matches(other, Path("other.h5"))
    Path("empty").mkdir()
    common = ["export-colmap", "features.h5", "--database", "d.db"]
    for arguments, reason in (
        (
            ["matches.h5", "--images", "empty"],
            "none of the 4 images of features.h5 is in empty (looked for empty/küste",
        ),
        (["matches.h5", "--images", "gone"], "gone is not a folder"),
        (["other.h5", "--images", "images"], "other.h5 holds no pair of the images of features.h5"),
        (["gone.h5", "--images", "images"], "gone.h5: no such file"),
        (["matches.h5", "--images", "images", "--camera-params", "1,2"], "has the 4 parameters f, cx, cy, k, got 2"),
    ):
        assert main([*common, *arguments]) == 2
        told = capsys.readouterr().err
        assert reason in told and told.count("\n") == 1, told
    assert not Path("d.db").exists()
    with h5py.File("other.h5") as source, h5py.File("matches.h5", "a") as file:
        source.copy("other0.png", file)
    assert export() == 0  # matches of more images than there are features of
    assert "note: matches.h5 has 1 more pairs, of images that features.h5 doesn't hold" in capsys.readouterr().err


def test_names_that_match_files_confuse(scene: SyntheticScene, capsys: pytest.CaptureFixture[str]) -> None:
    twin = scene.names[0].replace("/", "-")
    with h5py.File("features.h5", "a") as file:
        file.copy(scene.names[0], file, twin)
    (Path("images") / twin).write_bytes((Path("images") / scene.names[0]).read_bytes())
    assert export() == 1
    told = capsys.readouterr()
    assert told.err.count("have the same name in match files; rename one") == 3 and "of 3 pairs" in told.out


@pytest.mark.parametrize(
    ("option", "value"), [("--camera-params", "1,a"), ("--max-error", "0"), ("--max-error", "inf")]
)
def test_wrong_options(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        export(option, value)
    assert stop.value.code == 2 and f"argument {option}: " in capsys.readouterr().err


def test_without_pycolmap(
    scene: SyntheticScene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pycolmap", None)
    assert export() == 2
    assert "need pycolmap: pip install 'pycolmap>=3.13'" in capsys.readouterr().err
