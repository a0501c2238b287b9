"""The reconstruction protocol on synthetic scenes, scenes in folders, tables, and a real scene."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import sfm_scene
import torch
from sfm_scene import SIZE, K, SyntheticScene

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.features import Features, Matcher
from disk_ops.evaluation.methods import Method
from disk_ops.evaluation.reconstruction_figures import pack_flags, unpack_flags
from disk_ops.evaluation.reconstruction_scenes import find_scenes, read_strecha_camera

pycolmap = pytest.importorskip("pycolmap")

from disk_ops.evaluation.reconstruction import ReconstructionProtocol  # noqa: E402

N = 300


@pytest.fixture
def scene(tmp_path: Path) -> SyntheticScene:
    """Eight images with cameras.json in the folder ``scene``."""
    scene = sfm_scene.make_scene()
    sfm_scene.write_images(scene, tmp_path / "scene" / "images")
    cameras = {
        name: {"K": K.tolist(), "R": scene.R[name].tolist(), "t": scene.t[name].tolist()} for name in scene.names
    }
    (tmp_path / "scene" / "cameras.json").write_text(json.dumps({"cameras": cameras}))
    return scene


def oracle(scene: SyntheticScene, scale: float = 1.0, wrong: bool = False) -> Method:
    """A method that knows each image by its colour, and gives its exact features in the size that it gets."""

    def extract(image: torch.Tensor, n: int) -> Features:
        name = scene.names[round(float(image[0, 0, 0]) * 255) - 40]
        factor = image.shape[2] / SIZE[0]
        keypoints = torch.from_numpy((scene.keypoints[name][:n] + 0.5) * factor - 0.5).float()
        descriptors = scene.descriptors[scene.seen[name]][:n]
        if wrong:
            descriptors = np.random.default_rng(len(name)).normal(size=descriptors.shape)
        return Features(keypoints, torch.from_numpy(descriptors).float(), torch.ones(len(keypoints)))

    return Method("oracle", "1", extract)


def evaluate(protocol: ReconstructionProtocol, method: Method) -> list[dict[str, Any]]:
    """Records with the keys that a run adds."""
    return [
        {"method": method.name, "n": N, "item": item.name, "ratio": None, **record}
        for item in protocol.items()
        for record in protocol.evaluate(item, method, N, Matcher())
    ]


def test_exact_features_give_exact_cameras(scene: SyntheticScene, tmp_path: Path) -> None:
    protocol = ReconstructionProtocol(find_scenes(tmp_path))
    (record,) = evaluate(protocol, oracle(scene))
    assert record["item"] == "scene" and record["images"] == record["registered"] == 8 and record["models"] == 1
    assert record["landmarks"] > 280 and record["reprojection_error"] < 1e-3 and record["verified_pairs"] == 28
    assert record["position_max_relative"] < 1e-5 and record["rotation_max"] < 1e-3
    assert record["position_max"] == pytest.approx(record["position_max_relative"] * record["extent"])
    assert record["position_median"] <= record["position_max"]
    json.dumps(record)


def test_features_of_downscaled_images_are_in_pixels_of_the_files(scene: SyntheticScene, tmp_path: Path) -> None:
    (record,) = evaluate(ReconstructionProtocol(find_scenes(tmp_path), max_size=320), oracle(scene))
    assert record["registered"] == 8 and record["position_max_relative"] < 1e-4


def test_wrong_truth_is_seen(scene: SyntheticScene, tmp_path: Path) -> None:
    path = tmp_path / "scene" / "cameras.json"
    content = json.loads(path.read_text())
    turn = np.diag([-1.0, -1, 1])  # half a turn about the viewing direction
    camera = content["cameras"][scene.names[3]]
    camera["R"], camera["t"] = (turn @ camera["R"]).tolist(), (turn @ camera["t"]).tolist()
    path.write_text(json.dumps(content))
    (record,) = evaluate(ReconstructionProtocol(find_scenes(tmp_path)), oracle(scene))
    assert record["rotation_max"] == pytest.approx(180, abs=0.1) and record["rotation_median"] < 1e-3
    assert record["position_max_relative"] < 1e-5


def test_without_known_intrinsics_focal_lengths_are_found(scene: SyntheticScene, tmp_path: Path) -> None:
    protocol = ReconstructionProtocol(find_scenes(tmp_path), known_intrinsics=False, single_camera=True)
    (record,) = evaluate(protocol, oracle(scene))
    assert record["registered"] == 8 and 1e-9 < record["position_max_relative"] < 1e-3
    assert protocol.settings["known_intrinsics"] is False


def test_without_truth_there_are_no_errors(scene: SyntheticScene, tmp_path: Path) -> None:
    (tmp_path / "scene" / "cameras.json").unlink()
    (record,) = evaluate(ReconstructionProtocol(find_scenes(tmp_path)), oracle(scene))
    assert record["registered"] == 8 and record["position_median"] is None and record["rotation_max"] is None


def test_nothing_registers(scene: SyntheticScene, tmp_path: Path) -> None:
    (entry,) = find_scenes(tmp_path)
    protocol = ReconstructionProtocol([replace(entry, images=entry.images[:3])], max_error=0.5)
    (record,) = evaluate(protocol, oracle(scene, wrong=True))
    assert record["registered"] == record["landmarks"] == record["models"] == 0
    assert record["track_length"] is None and record["position_max"] is None
    (table,) = protocol.tables([record])
    assert table.rows == [("oracle", N, 3, 0, 0, None, None, None, None, None, None)]
    assert protocol.score([record]) == 0


def test_repeated_runs_are_equal(scene: SyntheticScene, tmp_path: Path) -> None:
    protocol = ReconstructionProtocol(find_scenes(tmp_path), known_intrinsics=False)
    assert evaluate(protocol, oracle(scene)) == evaluate(protocol, oracle(scene))


def record_of(item: str, method: str = "disk", **values: Any) -> dict[str, Any]:
    defaults = {
        "images": 10,
        "registered": 9,
        "models": 1,
        "landmarks": 1000,
        "track_length": 4.0,
        "reprojection_error": 0.5,
        "position_median": 0.1,
        "position_max": 0.2,
        "position_median_relative": 0.01,
        "position_max_relative": 0.02,
        "rotation_median": 0.3,
        "rotation_max": 0.4,
        "camera_positions": {},
    }
    return {"method": method, "n": 2048, "item": item, "ratio": None, **defaults, **values}


def test_to_fail_on_a_scene_betters_no_mean(scene: SyntheticScene, tmp_path: Path) -> None:
    """Errors that one method lacks count for no method; what all have still does."""
    protocol = ReconstructionProtocol(find_scenes(tmp_path))
    lacking = {"position_median_relative": None, "rotation_median": None}
    records = [
        *(record_of("a"), record_of("b", position_median_relative=0.5, rotation_median=9.0)),
        *(record_of("a", "sift"), record_of("b", "sift", landmarks=3, **lacking)),
    ]
    overall = protocol.tables(records)[-1]
    column = overall.columns.index
    disk, sift = overall.rows
    for name in ("position %", "rotation"):
        assert disk[column(name)] == sift[column(name)]  # of scene a alone
    assert disk[column("landmarks")] == 1000 and sift[column("landmarks")] == 501.5


def test_tables_and_plots(scene: SyntheticScene, tmp_path: Path) -> None:
    protocol = ReconstructionProtocol(find_scenes(tmp_path))
    records = [
        record_of("a"),
        record_of("a", "sift", landmarks=500),
        record_of("b", registered=10, landmarks=2000, position_median_relative=None, position_max_relative=None),
    ]
    first, second, overall = protocol.tables(records)
    assert (first.title, second.title, overall.title) == ("a", "b", "all scenes")
    assert first.columns[:5] == ("method", "n", "images", "registered", "landmarks")
    assert first.rows[0] == ("disk", 2048, 10, 9, 1000, 4, 0.5, 1.0, 2.0, 0.3, 0.4)
    assert [row[:5] for row in overall.rows] == [("disk", 2048, 10, 9, 1000), ("sift", 2048, 10, 9, 500)]
    assert "Left out for all methods, as one failed on them: 1 of the scenes." in overall.note
    overall = protocol.tables([record for record in records if record["method"] == "disk"])[-1]
    assert overall.rows[0][:5] == ("disk", 2048, 10, 9.5, 1500) and overall.rows[0][7] == 1.0
    assert set(first.best) <= set(first.columns) and all(len(row) == len(first.columns) for row in first.rows)
    plots = {plot.title: plot for plot in protocol.plots(records)}
    assert plots["landmarks"].series == {"disk": (["a", "b"], [1000.0, 2000.0]), "sift": (["a"], [500.0])}
    errors = plots["median position error in % of the scene"]
    assert errors.series["disk"] == (["a"], [1.0])


def test_cameras_are_drawn_beside_the_truth(scene: SyntheticScene, tmp_path: Path) -> None:
    protocol = ReconstructionProtocol(find_scenes(tmp_path))
    (record,) = evaluate(protocol, oracle(scene))
    truth = {name: -scene.R[name].T @ scene.t[name] for name in scene.names}
    for name, position in record["camera_positions"].items():
        np.testing.assert_allclose(position, truth[name], atol=1e-4)
    cameras = protocol.plots([record])[-1]
    assert cameras.kind == "points" and cameras.title == "Cameras of scene"
    assert list(cameras.series) == ["truth", "oracle"]
    drawn, wanted = (np.array(cameras.series[name]) for name in ("oracle", "truth"))
    np.testing.assert_allclose(drawn, wanted, atol=1e-4)
    assert np.ptp(wanted, axis=1)[0] >= np.ptp(wanted, axis=1)[1], "the widest direction lies"


def test_keypoints_that_became_landmarks_are_blue(scene: SyntheticScene, tmp_path: Path) -> None:
    protocol = ReconstructionProtocol(find_scenes(tmp_path))
    (record,) = evaluate(protocol, oracle(scene))
    ((title, picture),) = protocol.pictures([record], [oracle(scene)])
    count = min(N, len(scene.keypoints[scene.names[4]]))
    landmarks = unpack_flags(record["pictured_landmarks"], count).sum()
    assert title == f"scene, {scene.names[4]}: oracle, {landmarks} of {count} keypoints became landmarks (blue)"
    assert 0.9 * count < landmarks <= count
    assert (picture[..., 2] > picture[..., 0] + 60).any(), "blue"
    other = Method("oracle", "2", lambda image, n: Features(torch.zeros(1, 2), torch.zeros(1, 8)))
    assert list(protocol.pictures([record], [other])) == [], "features that are not those of the record"


@pytest.mark.parametrize("count", [0, 1, 8, 13])
def test_packed_flags_are_the_same_unpacked(count: int) -> None:
    flags = np.arange(count) % 3 == 0
    assert unpack_flags(pack_flags(flags), count).tolist() == flags.tolist()


def test_more_images_and_more_observations_score_higher(scene: SyntheticScene, tmp_path: Path) -> None:
    protocol = ReconstructionProtocol(find_scenes(tmp_path))
    low, more_images, more_points = (
        protocol.score([record_of("a", **values)]) for values in ({}, {"registered": 10}, {"landmarks": 1200})
    )
    assert low < more_points < more_images


def test_scenes_in_folders(scene: SyntheticScene, tmp_path: Path) -> None:
    sfm_scene.write_images(sfm_scene.make_scene(3), tmp_path / "more" / "plain")
    sfm_scene.write_images(sfm_scene.make_scene(1), tmp_path / "more" / "single")
    found = find_scenes(tmp_path)
    assert [entry.name for entry in found] == ["more/plain", "scene"]
    assert found[1].images == tuple(scene.names) and set(found[1].cameras) == set(scene.names)
    assert found[1].files[-1] == tmp_path / "scene" / "cameras.json" and len(found[0].files) == 3
    assert [entry.name for entry in find_scenes(tmp_path / "scene")] == ["scene"]
    with pytest.raises(EvaluationError, match="is not a folder"):
        find_scenes(tmp_path / "gone")
    with pytest.raises(EvaluationError, match="no scene; looked for folders with at least 2 images"):
        find_scenes(tmp_path / "more" / "single")


def strecha_camera(scene: SyntheticScene, name: str, factor: int = 2) -> str:
    """A file for an image ``factor`` times as large as the one that is there."""
    twice = np.array([[factor, 0, (factor - 1) / 2], [0, factor, (factor - 1) / 2], [0, 0, 1]]) @ K
    R = scene.R[name]
    rows = [
        *twice.tolist(),
        [0, 0, 0],
        *R.T.tolist(),
        (-R.T @ scene.t[name]).tolist(),
        [SIZE[0] * factor, SIZE[1] * factor],
    ]
    return "\n".join(
        " ".join(repr(float(value)) if i < 8 else str(value) for value in row) for i, row in enumerate(rows)
    )


def test_cameras_of_strecha_are_scaled_to_the_images(scene: SyntheticScene, tmp_path: Path) -> None:
    folder = tmp_path / "scene"
    (folder / "cameras.json").unlink()
    (folder / "gt_dense_cameras").mkdir()
    for name in scene.names:
        (folder / "gt_dense_cameras" / f"{name}.camera").write_text(strecha_camera(scene, name))
    (entry,) = find_scenes(tmp_path)
    assert entry.cameras[scene.names[0]].size == (2 * SIZE[0], 2 * SIZE[1])
    np.testing.assert_allclose(entry.cameras[scene.names[2]].t, scene.t[scene.names[2]], atol=1e-9)
    (record,) = evaluate(ReconstructionProtocol([entry]), oracle(scene))
    assert record["position_max_relative"] < 1e-5 and record["reprojection_error"] < 1e-3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 2 3", "26 numbers, got 3"),
        ("a b", "can't be read as a camera"),
        (" ".join(["1"] * 26), "radial distortion"),
        (" ".join(["1"] * 9 + ["0"] * 3 + ["1"] * 14), r"a\.camera"),
    ],
)
def test_a_camera_file_that_is_none(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "a.camera").write_text(text)
    with pytest.raises(EvaluationError, match=reason):
        read_strecha_camera(tmp_path / "a.camera")


def test_an_image_that_can_not_be_read_fails_the_scene(scene: SyntheticScene, tmp_path: Path) -> None:
    (tmp_path / "scene" / "images" / scene.names[0]).write_text("no image")
    protocol = ReconstructionProtocol(find_scenes(tmp_path))
    with pytest.raises(EvaluationError, match=r"0\.png.*is not an image"):
        protocol.evaluate(protocol.items()[0], oracle(scene), N, Matcher())


def test_images_without_a_camera_are_left_out_where_intrinsics_are_used(scene: SyntheticScene, tmp_path: Path) -> None:
    path = tmp_path / "scene" / "cameras.json"
    content = json.loads(path.read_text())
    del content["cameras"][scene.names[0]]
    path.write_text(json.dumps(content))
    (record,) = evaluate(ReconstructionProtocol(find_scenes(tmp_path)), oracle(scene))
    assert record["images"] == record["registered"] == 7


def test_the_truth_of_strechas_fountain(shared_data: Path) -> None:
    """cameras.json and the original camera files say the same."""
    folder = shared_data / "pose" / "strecha" / "fountain-P11"
    (scene,) = find_scenes(folder)
    assert len(scene.images) == len(scene.cameras) == 11
    original = read_strecha_camera(folder / "gt_dense_cameras" / "0004.jpg.camera")
    camera = scene.cameras["0004.jpg"]
    np.testing.assert_allclose(original.R, camera.R, atol=1e-6)
    np.testing.assert_allclose(original.t, camera.t, atol=1e-5)
    size = cv2.imread(str(folder / "images" / "0004.jpg")).shape[1::-1]
    factor = size[0] / original.size[0]
    np.testing.assert_allclose(original.K[0, 0] * factor, camera.K[0, 0], rtol=1e-6)
