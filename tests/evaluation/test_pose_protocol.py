"""disk_ops.evaluation.pose_protocol: posed pairs from all kinds of files, and errors that are known."""

from __future__ import annotations

import json
import math
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
from oracle import blind, nothing, oracle, write_numbered
from posing import rotation

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.features import Matcher
from disk_ops.evaluation.pose_protocol import PoseProtocol
from disk_ops.evaluation.pose_tables import bin_name, pose_tables, score
from disk_ops.evaluation.posed import Selection, find_pairs, read_pair_list
from disk_ops.evaluation.posed.views import unturning

SIZE = (640, 480)
K = np.array([[500.0, 0, 322.5], [0, 510, 235.25], [0, 0, 1]])
RNG = np.random.default_rng(3)
POINTS = np.column_stack([RNG.uniform(-3, 3, 300), RNG.uniform(-2, 2, 300), RNG.uniform(6, 14, 300)])
EVERYTHING = Selection(limit=None)


def camera(index: int) -> tuple[np.ndarray, np.ndarray]:
    """R and t of a camera, 10 degrees from the next."""
    R = rotation([0, 1, 0], 10.0 * index)
    return R, np.array([-0.8 * index, 0.1 * index, 0.2 * index])


def project(index: int, size: tuple[int, int], turns: int = 0) -> np.ndarray:
    """The points [N, 2] in the image of a camera in any size, turned by quarters."""
    R, t = camera(index)
    pixels = (POINTS @ R.T + t) @ K.T
    pixels = pixels[:, :2] / pixels[:, 2:]
    upright = size if turns % 2 == 0 else size[::-1]
    pixels = (pixels + 0.5) * (upright[0] / SIZE[0], upright[1] / SIZE[1]) - 0.5
    for _ in range(turns):  # as numpy.rot90: the last column becomes the first row
        pixels = np.column_stack([pixels[:, 1], upright[0] - 1 - pixels[:, 0]])
        upright = upright[::-1]
    return pixels


def write_images(folder: Path, count: int, names: str = "{}.png") -> None:
    for index in range(count):
        write_numbered(folder / names.format(index), index, SIZE)


def write_cameras(folder: Path, count: int = 3, size: tuple[int, int] = SIZE, **more) -> None:
    """A folder with cameras.json and images/."""
    write_images(folder / "images", count)
    cameras = {}
    for index in range(count):
        R, t = camera(index)
        cameras[f"{index}.png"] = {"R": R.tolist(), "t": t.tolist(), "K": K.tolist()}
        cameras[f"{index}.png"] |= {"width": size[0], "height": size[1]}
    (folder / "cameras.json").write_text(json.dumps({"cameras": cameras, **more}))


def list_line(first: str, second: str, indices=(0, 1), turns=(0, 0)) -> str:
    (R1, t1), (R2, t2) = camera(indices[0]), camera(indices[1])
    T = np.eye(4)
    T[:3, :3] = R2 @ R1.T
    T[:3, 3] = t2 - T[:3, :3] @ t1
    numbers = " ".join(repr(float(value)) for value in (*K.ravel(), *K.ravel(), *T.ravel()))
    return f"{first} {second} {turns[0]} {turns[1]} {numbers}"


def evaluate(protocol: PoseProtocol, method, n: int = 1000) -> list[dict]:
    common = {"method": method.name, "n": n, "ratio": None}
    return [
        {**common, "item": item.name, **record}
        for item in protocol.items()
        for record in protocol.evaluate(item, method, n, Matcher())
    ]


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


class TestPairList:
    @pytest.mark.parametrize("turns", [(0, 0), (1, 0), (0, 3), (2, 1)])
    @pytest.mark.parametrize("max_size", [None, 320])
    def test_turned_images_have_the_same_pose(self, tmp_path, turns, max_size):
        write_images(tmp_path, 2)
        (tmp_path / "pairs.txt").write_text(list_line("0.png", "1.png", turns=turns))
        seen = []

        def turned(index, size):
            seen.append(size)
            return project(index, size, turns[index])

        (record,) = evaluate(PoseProtocol(tmp_path / "pairs.txt", max_size=max_size), oracle(turned))
        assert record["error"] < 0.02 and record["inliers"] >= 298
        upright = SIZE if max_size is None else (320, 240)
        assert seen == [upright if turn % 2 == 0 else upright[::-1] for turn in turns]

    def test_comments_repetitions_quotes_and_other_folders(self, tmp_path):
        write_images(tmp_path / "photos" / "my scene", 2)
        write_images(tmp_path / "photos" / "b", 2)
        quoted = list_line('"my scene/0.png"', '"my scene/1.png"')
        lines = [
            "# pairs",
            "",
            quoted,
            quoted,
            list_line("b/0.png", "b/1.png"),
            list_line("b/0.png", "b/1.png", (0, 2)),
        ]
        (tmp_path / "pairs.txt").write_text("\n".join(lines) + "\n")
        pairs = read_pair_list(tmp_path / "pairs.txt", tmp_path / "photos")
        assert [pair.name for pair in pairs] == [
            "my scene/0.png my scene/1.png",
            "b/0.png b/1.png",
            "b/0.png b/1.png (6)",
        ]
        assert [pair.scene for pair in pairs] == ["my scene", "b", "b"]
        assert pairs[0].files[0] == tmp_path / "photos" / "my scene" / "0.png" and pairs[0].files[0].is_file()

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("a.png b.png", "pairs.txt:2: 38 fields are needed .*, got only two images, without ground truth"),
            ("a.png b.png 0 0 1 2 3", "pairs.txt:2: 38 fields are needed .*, got 7"),
            (list_line("a", "b", turns=(0, 4)), "pairs.txt:2: turns must be 0, 1, 2 or 3, got 0 4"),
            (list_line("a", "b").replace("500.0", "x", 1), "pairs.txt:2: could not convert"),
            (list_line("a", "b").replace("500.0", "nan", 1), "pairs.txt:2: first image: K, R or t has numbers that"),
            (list_line("a", "b").replace("500.0", "-500.0"), "pairs.txt:2: first image: K must be"),
        ],
    )
    def test_wrong_lines_are_named(self, tmp_path, line, message):
        (tmp_path / "pairs.txt").write_text(f"# a comment\n{line}\n")
        with pytest.raises(EvaluationError, match=message):
            read_pair_list(tmp_path / "pairs.txt")

    def test_lists_that_cannot_be_used(self, tmp_path):
        (tmp_path / "pairs.txt").write_text("# nothing\n")
        with pytest.raises(EvaluationError, match="holds no pair"):
            read_pair_list(tmp_path / "pairs.txt")
        (tmp_path / "pairs.txt").write_bytes(b"\xff\xfe\x00\xd8")
        with pytest.raises(EvaluationError, match="can't be read as a list"):
            read_pair_list(tmp_path / "pairs.txt")
        with pytest.raises(EvaluationError, match="none: no such folder of images"):
            (tmp_path / "pairs.txt").write_text(list_line("0.png", "1.png"))
            read_pair_list(tmp_path / "pairs.txt", tmp_path / "none")

    def test_a_missing_image_is_named(self, tmp_path):
        (tmp_path / "pairs.txt").write_text(list_line("0.png", "1.png"))
        with pytest.raises(EvaluationError, match=r"0.png: no such file"):
            evaluate(PoseProtocol(tmp_path / "pairs.txt"), oracle(project))


class TestScenes:
    def test_scenes_below_a_folder(self, tmp_path):
        write_cameras(tmp_path / "scene10", 2)
        write_cameras(tmp_path / "more" / "scene9", 3)
        pairs, notes = find_pairs(tmp_path)
        assert [pair.scene for pair in pairs] == ["more/scene9"] * 3 + ["scene10"]
        assert len({pair.name for pair in pairs}) == 4 and not notes

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", "can't be read"),
            ("[]", "must have an object 'cameras'"),
            ('{"cameras": {"0.png": {}}}', "must have R, t, K"),
        ],
    )
    def test_wrong_cameras_are_named(self, tmp_path, content, message):
        (tmp_path / "cameras.json").write_text(content)
        with pytest.raises(EvaluationError, match=f"cameras.json.*{message}"):
            find_pairs(tmp_path)

    def test_folders_without_scenes(self, tmp_path):
        with pytest.raises(EvaluationError, match=r"no images with known poses; looked for cameras.json"):
            find_pairs(tmp_path)
        with pytest.raises(EvaluationError, match="nowhere: no such file or folder"):
            find_pairs(tmp_path / "nowhere")
        write_cameras(tmp_path, 1)
        with pytest.raises(EvaluationError, match="two images with known poses are needed, got 1"):
            find_pairs(tmp_path)
        with pytest.raises(EvaluationError, match="can be given with a list of pairs only"):
            find_pairs(tmp_path, images=tmp_path)

    def test_missing_images_are_noted(self, tmp_path):
        write_cameras(tmp_path, 3)
        (tmp_path / "images" / "1.png").unlink()
        pairs, notes = find_pairs(tmp_path)
        assert len(pairs) == 1 and "1 images not found" in notes[0]

    def test_depth_maps_give_covisibility(self, tmp_path):
        write_cameras(tmp_path, 2)
        for index in range(2):
            (tmp_path / "depth").mkdir(exist_ok=True)
            np.save(tmp_path / "depth" / f"{index}.npy", np.full((48, 64), 10.0, np.float32))
        pairs, _ = find_pairs(tmp_path, Selection(min_covisibility=0.0))
        assert len(pairs) == 1 and 0.3 < pairs[0].covisibility < 1
        assert [path.name for path in pairs[0].files] == ["0.png", "1.png", "cameras.json", "0.npy", "1.npy"]

    def test_colmap_models_give_poses_covisibility_and_undistorted_images(self, tmp_path):
        pytest.importorskip("pycolmap")
        write_colmap(tmp_path, "SIMPLE_RADIAL", [500, 320, 240, -0.15])
        pairs, notes = find_pairs(tmp_path, Selection(min_covisibility=0.0))
        assert len(pairs) == 3 and not notes
        assert pairs[0].covisibility == pytest.approx(100 / 150)  # 0-149 and 50-199
        assert pairs[1].covisibility == pytest.approx(50 / 150)
        R, t = pairs[0].pose
        np.testing.assert_allclose(R, camera(1)[0] @ camera(0)[0].T, atol=1e-9)
        np.testing.assert_allclose(t, camera(1)[1] - R @ camera(0)[1], atol=1e-9)
        view = pairs[0].views[0].load(400)
        assert max(view.image.shape) == 400 and view.mask is not None
        # A point of the scene lies where K says, in the undistorted image.
        dots = dots_of(view.image)
        X = (POINTS[:5] @ camera(0)[0].T + camera(0)[1]) @ view.K.T
        for x, y in X[:, :2] / X[:, 2:]:
            assert np.abs(dots - (x, y)).max(1).min() < 0.35

    def test_a_broken_model_is_named(self, tmp_path):
        pytest.importorskip("pycolmap")
        for part in ("cameras", "images", "points3D"):
            (tmp_path / f"{part}.bin").write_bytes(b"\x01")
        with pytest.raises(EvaluationError, match="can't be read"):
            find_pairs(tmp_path)


class TestImc:
    def write(self, folder: Path, count: int = 3) -> None:
        write_images(folder / "images", count, "im-{}.png")
        (folder / "calibration").mkdir()
        for index in range(count):
            R, t = camera(index)
            with h5py.File(folder / "calibration" / f"calibration_im-{index}.h5", "w") as file:
                file["K"], file["R"], file["T"] = K, R, t[None]

    def write_lists(self, folder: Path) -> None:
        (folder / "new-vis-pairs").mkdir()
        for threshold, keys in {"0.0": ["im-0-im-1", "im-2-im-0", "im-1-im-9"], "0.3": ["im-0-im-1"]}.items():
            np.save(folder / "new-vis-pairs" / f"keys-th-{threshold}.npy", np.array(keys))
        np.save(folder / "new-vis-pairs" / "keys-th-0.8.npy", np.array([]))

    def test_calibrations(self, tmp_path):
        self.write(tmp_path)
        protocol = PoseProtocol(tmp_path)
        records = evaluate(protocol, oracle(project))
        assert len(records) == 3 and max(record["error"] for record in records) < 0.02
        files = [path.name for path in protocol.items()[1].files]
        assert files == ["im-0.png", "im-2.png", "calibration_im-0.h5", "calibration_im-2.h5"]

    def test_lists_give_covisibility_and_choose_pairs(self, tmp_path):
        self.write(tmp_path)
        self.write_lists(tmp_path)
        (pair,) = find_pairs(tmp_path)[0]
        assert pair.covisibility == 0.3 and pair.name == f"{tmp_path.name}: im-0.png im-1.png"
        pairs, _ = find_pairs(tmp_path, Selection(min_covisibility=0.0))
        assert [pair.covisibility for pair in pairs] == [0.3, 0.0]

    def test_lists_beside_cameras_json(self, tmp_path):
        write_cameras(tmp_path, 2)
        (tmp_path / "new-vis-pairs").mkdir()
        np.save(tmp_path / "new-vis-pairs" / "keys-th-0.5.npy", np.array(["0-1"]))
        (pair,) = find_pairs(tmp_path)[0]
        assert pair.covisibility == 0.5

    def test_wrong_files_are_named(self, tmp_path):
        self.write(tmp_path)
        self.write_lists(tmp_path)
        np.save(tmp_path / "new-vis-pairs" / "keys-th-0.4.npy", np.zeros(3))
        with pytest.raises(EvaluationError, match=r"keys-th-0.4.npy must hold names of pairs as texts, got float64"):
            find_pairs(tmp_path)
        (tmp_path / "new-vis-pairs" / "keys-th-0.4.npy").write_bytes(b"broken")
        with pytest.raises(EvaluationError, match=r"keys-th-0.4.npy can't be read"):
            find_pairs(tmp_path)
        (tmp_path / "calibration" / "calibration_im-1.h5").write_bytes(b"broken")
        with pytest.raises(EvaluationError, match=r"calibration_im-1.h5 can't be read"):
            find_pairs(tmp_path)

    def test_real_scene(self, shared_data):
        pairs, notes = find_pairs(shared_data / "pose" / "imc_reichstag")
        assert not notes and 30 < len(pairs) <= 45
        assert {pair.covisibility for pair in pairs} <= {0.1, 0.2, 0.3, 0.4}


class TestSelection:
    PAIRS = np.array([(i, j) for i in range(20) for j in range(i + 1, 20)])

    def test_draws_are_equal_sorted_and_differ_between_scenes(self):
        selection = Selection(limit=30)
        chosen = selection.choose("a", self.PAIRS, None)
        np.testing.assert_array_equal(chosen, selection.choose("a", self.PAIRS, None))
        assert len(set(chosen.tolist())) == 30 and sorted(chosen.tolist()) == chosen.tolist()
        assert chosen.tolist() != selection.choose("b", self.PAIRS, None).tolist()
        assert chosen.tolist() != Selection(limit=30, seed=1).choose("a", self.PAIRS, None).tolist()

    def test_covisibility_at_the_edge_counts(self):
        shared = np.linspace(0, 1, len(self.PAIRS))
        shared[7] = np.nextafter(0.1, 0)
        chosen = Selection(limit=None).choose("a", self.PAIRS, shared)
        assert 7 in chosen and all(shared[chosen] > 0.0999)
        assert len(Selection(limit=None).choose("a", self.PAIRS, None)) == len(self.PAIRS)

    def test_nothing_to_choose_from(self):
        assert len(Selection().choose("a", np.zeros((0, 2), int), None)) == 0

    def test_wrong_settings_are_named(self):
        with pytest.raises(ValueError, match="limit must be a positive number of pairs, got 0"):
            Selection(limit=0)
        with pytest.raises(ValueError, match="min_covisibility must be from 0 to 1, got 2"):
            Selection(min_covisibility=2)


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
        assert [row[2] for row in table.rows] == [1, 1] and "1 pairs, which some method failed on" in table.note

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


def write_colmap(folder: Path, model: str, params: list[float]) -> None:
    """Three images with dots at 3D points; image i sees the points from 50 i to 50 i + 149."""
    import pycolmap

    reconstruction = pycolmap.Reconstruction()
    lens = pycolmap.Camera(model=model, width=SIZE[0], height=SIZE[1], params=params, camera_id=1)
    reconstruction.add_camera_with_trivial_rig(lens)
    tracks: dict[int, list[tuple[int, int]]] = {}
    (folder / "images").mkdir()
    for index in range(3):
        R, t = camera(index)
        pixels = np.asarray(lens.img_from_cam(POINTS @ R.T + t))
        picture = np.full(SIZE[::-1], 40, np.uint8)
        for x, y in pixels[:5] - 0.5 if math.isfinite(pixels.sum()) else ():
            cv2.circle(picture, (round(x * 16), round(y * 16)), 48, 255, cv2.FILLED, cv2.LINE_AA, 4)
        cv2.imwrite(str(folder / "images" / f"{index}.png"), picture)
        seen = range(50 * index, 50 * index + 150)
        for position, point in enumerate(seen):
            tracks.setdefault(point, []).append((index + 1, position))
        image = pycolmap.Image(name=f"{index}.png", keypoints=pixels[list(seen)], camera_id=1, image_id=index + 1)
        reconstruction.add_image_with_trivial_frame(image, pycolmap.Rigid3d(pycolmap.Rotation3d(R), t))
    for point, elements in tracks.items():
        reconstruction.add_point3D(POINTS[point], pycolmap.Track([pycolmap.TrackElement(*each) for each in elements]))
    (folder / "sparse").mkdir()
    reconstruction.write_binary(str(folder / "sparse"))


def dots_of(image) -> np.ndarray:
    """Centres [N, 2] of bright dots."""
    grey = image.mean(0).numpy()
    _, labels = cv2.connectedComponents((grey > 0.4).astype(np.uint8))
    weights = np.clip(grey - 0.2, 0, None)
    centres = []
    for label in range(1, labels.max() + 1):
        y, x = np.nonzero(labels == label)
        centres.append([np.average(x, weights=weights[y, x]), np.average(y, weights=weights[y, x])])
    return np.array(centres).reshape(-1, 2)
