"""disk_ops.evaluation.pose_protocol: errors that are known, tables by hand, and images in any size and position."""

from __future__ import annotations

import json

import numpy as np
import pytest
from known_cameras import K, evaluate, project, write_cameras
from oracle import blind, nothing, oracle
from posing import rotation

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.pose_protocol import PoseProtocol
from disk_ops.evaluation.pose_tables import bin_name, pose_tables, score
from disk_ops.evaluation.posed import Selection
from disk_ops.evaluation.posed.views import unturning

EVERYTHING = Selection(limit=None)


class TestErrors:
    @pytest.mark.parametrize("geometry", ["fundamental", "essential"])
    @pytest.mark.parametrize("max_size", [None, 320])
    def test_a_perfect_method_has_none(self, tmp_path, geometry, max_size):
        write_cameras(tmp_path)
        protocol = PoseProtocol(tmp_path, geometry, max_size=max_size, selection=EVERYTHING)
        records = evaluate(protocol, oracle(project))
        assert [record["item"] for record in records] == [
            f"{tmp_path.name}: 0.png 1.png",
            f"{tmp_path.name}: 0.png 2.png",
            f"{tmp_path.name}: 1.png 2.png",
        ]
        for record in records:
            assert record["error"] < 0.02 and record["matches"] == 300 and record["inliers"] >= 298
            assert record["features"] == [300, 300] and record["covisibility"] is None
        assert protocol.score(records) == 1.0

    def test_a_rotation_of_10_degrees_is_an_error_of_10_degrees(self, tmp_path):
        write_cameras(tmp_path, 2)
        content = json.loads((tmp_path / "cameras.json").read_text())
        wrong = rotation([0, 1, 0], 10) @ np.array(content["cameras"]["1.png"]["R"])
        content["cameras"]["1.png"]["R"] = wrong.tolist()
        content["cameras"]["1.png"]["t"] = (
            rotation([0, 1, 0], 10) @ np.array(content["cameras"]["1.png"]["t"])
        ).tolist()
        (tmp_path / "cameras.json").write_text(json.dumps(content))
        (record,) = evaluate(PoseProtocol(tmp_path), oracle(project))
        assert record["rotation_error"] == pytest.approx(10, abs=0.02)
        assert record["error"] >= record["rotation_error"]

    @pytest.mark.parametrize("method", [nothing(), oracle(lambda index, size: project(index, size)[:4])])
    def test_few_or_no_matches_are_no_pose(self, tmp_path, method):
        write_cameras(tmp_path, 2)
        protocol = PoseProtocol(tmp_path)
        (record,) = evaluate(protocol, method)
        assert record["error"] is None and record["inliers"] == 0
        assert protocol.score([record]) == 0.0
        assert protocol.tables([record])[0].rows[0][-1] == 1

    def test_random_features_are_wrong(self, tmp_path):
        write_cameras(tmp_path)
        assert score(evaluate(PoseProtocol(tmp_path), blind())) < 0.2

    def test_features_that_are_not_finite_are_left_out(self, tmp_path):
        def with_nan(index, size):
            points = project(index, size)
            points[:5] = np.nan
            return points

        write_cameras(tmp_path, 2)
        (record,) = evaluate(PoseProtocol(tmp_path), oracle(with_nan))
        assert record["features"] == [295, 295] and record["error"] < 0.1

    def test_intrinsics_of_another_size_of_the_same_image(self, tmp_path):
        write_cameras(tmp_path, 2, size=(1280, 960))  # K below is for this size
        content = json.loads((tmp_path / "cameras.json").read_text())
        for entry in content["cameras"].values():
            entry["K"] = (np.array([[2, 0, 0.5], [0, 2, 0.5], [0, 0, 1]]) @ K).tolist()
        (tmp_path / "cameras.json").write_text(json.dumps(content))
        (record,) = evaluate(PoseProtocol(tmp_path), oracle(project))
        assert record["error"] < 0.02

    def test_repeated_runs_are_equal(self, tmp_path):
        write_cameras(tmp_path)
        noisy = [oracle(lambda i, size: project(i, size) + np.random.default_rng(i).normal(0, 1, (300, 2)))] * 2
        first, second = (evaluate(PoseProtocol(tmp_path), method) for method in noisy)
        assert first == second and first[0]["error"] > 0


class TestImages:
    def test_a_broken_image_is_named(self, tmp_path):
        write_cameras(tmp_path, 2)
        (tmp_path / "images" / "1.png").write_bytes(b"no image")
        protocol = PoseProtocol(tmp_path)
        with pytest.raises(EvaluationError, match=r"1.png: is not an image"):
            evaluate(protocol, oracle(project))

    def test_an_image_of_another_shape_than_its_camera(self, tmp_path):
        write_cameras(tmp_path, 2, size=(640, 640))
        with pytest.raises(EvaluationError, match=r"0.png: is 640x480, but its camera is for 640x640"):
            evaluate(PoseProtocol(tmp_path), oracle(project))

    def test_images_are_read_in_a_limited_size(self, tmp_path):
        sizes = []

        def spy(index, size):
            sizes.append(size)
            return project(index, size)

        write_cameras(tmp_path, 2)
        evaluate(PoseProtocol(tmp_path, max_size=200), oracle(spy))
        assert sizes == [(200, 150), (200, 150)]

    def test_an_image_of_several_pairs_is_extracted_once(self, tmp_path):
        calls = []

        def spy(index, size):
            calls.append(index)
            return project(index, size)

        write_cameras(tmp_path, 4)
        evaluate(PoseProtocol(tmp_path), oracle(spy))
        assert sorted(calls) == [0, 1, 2, 3]

    @pytest.mark.parametrize("turns", range(-1, 5))
    def test_turned_pixels_are_turned_back(self, turns):
        image = np.arange(12).reshape(3, 4)
        turned = np.rot90(image, turns)
        y, x = np.mgrid[: turned.shape[0], : turned.shape[1]]
        back = np.stack([x.ravel(), y.ravel(), np.ones(12)], 1) @ unturning((4, 3), turns).T
        np.testing.assert_array_equal(image[back[:, 1].astype(int), back[:, 0].astype(int)], turned.ravel())


def record(error: float | None, method: str = "a", item: str = "", covisibility: float | None = None, **more) -> dict:
    errors = {"rotation_error": error, "translation_error": error, "error": error}
    counts = {"features": [5, 5], "matches": 4, "inliers": 2, "scene": "s", "covisibility": covisibility}
    return {"method": method, "n": 8, "ratio": None, "item": item or str(error), **counts, **errors, **more}


class TestTables:
    def test_by_hand(self):
        """Errors 0.5, 4.2, 12 and no pose: below 1, 2, 3, 4 degrees is 1 of 4, from 5 to 12 it is 2, from 13 on 3."""
        records = [record(0.5), record(4.2), record(12.0), record(None)]
        (table,) = pose_tables(records, "")
        row = dict(zip(table.columns, table.rows[0], strict=True))
        assert row["mAA(5°)"] == pytest.approx((4 * 1 / 4 + 2 / 4) / 5)
        assert row["mAA(10°)"] == pytest.approx((4 * 1 / 4 + 6 * 2 / 4) / 10) == score(records)
        assert row["mAA(20°)"] == pytest.approx((4 * 1 / 4 + 8 * 2 / 4 + 8 * 3 / 4) / 20)
        assert (row["pairs"], row["no pose"], row["matches"], row["inliers"]) == (4, 1, 4, 2)
        assert row["R median °"] == 4.2

    def test_a_median_without_pose_is_missing(self):
        (table,) = pose_tables([record(None), record(None, item="b"), record(1.0)], "")
        assert table.rows[0][table.columns.index("t median °")] is None

    def test_pairs_that_a_method_failed_on_are_left_out_for_all(self):
        records = [record(0.5, "a", "x"), record(20.0, "a", "y"), record(0.5, "b", "x")]
        (table,) = pose_tables(records, "")
        assert [row[2] for row in table.rows] == [1, 1]
        assert table.note.endswith("Left out for all methods, as one failed on them: 1 of the pairs.")

    @pytest.mark.parametrize(
        ("covisibility", "name"),
        [(0.0, "0.0–0.1"), (0.1, "0.1–0.2"), (0.3, "0.3–0.4"), (0.7, "0.7–0.8"), (0.999, "0.9–1.0"), (1.0, "0.9–1.0")],
    )
    def test_bins(self, covisibility, name):
        assert bin_name(record(1.0, covisibility=covisibility)) == name

    def test_bins_and_scenes_have_tables_of_their_own(self):
        records = [
            record(0.5, method, item, covisibility, scene=scene)
            for method in ("a", "b")
            for item, covisibility, scene in (("x", 0.35, "s"), ("y", 0.12, "t"), ("z", 0.38, "s"))
        ]
        _, scenes, bins = pose_tables(records, "")
        assert bins.columns == ("covisibility", "pairs", "a", "b")
        assert [row[:2] for row in bins.rows] == [("0.1–0.2", 1), ("0.3–0.4", 2)]
        assert [row[:2] for row in scenes.rows] == [("s", 2), ("t", 1)]


class TestReport:
    def test_tables_plots_and_pictures_of_a_run(self, tmp_path):
        write_cameras(tmp_path)
        protocol = PoseProtocol(tmp_path)
        method = oracle(project)
        records = evaluate(protocol, method)
        assert "500, so many drawn at random" in protocol.tables(records)[0].note
        assert protocol.plots(records)[0].series["oracle"][1] == [1.0] * 20
        pictures = list(protocol.pictures(records, [method]))
        assert len(pictures) == 3 and "300 of 300 matches within 3 px" in pictures[0][0]
        assert pictures[0][1].dtype == np.uint8 and pictures[0][1].ndim == 3
        assert not list(protocol.pictures(records, [blind()])) and not list(protocol.pictures([], [method]))

    def test_a_picture_without_matches(self, tmp_path):
        write_cameras(tmp_path, 2)
        protocol = PoseProtocol(tmp_path)
        (picture,) = protocol.pictures(evaluate(protocol, nothing()), [nothing()])
        assert "no pose, 0 of 0 matches" in picture[0]

    def test_wrong_options_are_named(self, tmp_path):
        with pytest.raises(ValueError, match="geometry must be fundamental or essential, got 'affine'"):
            PoseProtocol(tmp_path, "affine")
        with pytest.raises(ValueError, match="no essential matrix"):
            PoseProtocol(tmp_path, "essential", ransac="degensac")
