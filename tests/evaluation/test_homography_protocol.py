"""disk_ops.evaluation.homography_protocol: measures of matches with known errors, and tables of them."""

from __future__ import annotations

import math
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.features import Features, Matcher, RootSift
from disk_ops.evaluation.homography import corner_error, evaluate_set, repeatability
from disk_ops.evaluation.homography_protocol import (
    EXCLUDED_SCENES,
    HomographyProtocol,
    kind_of,
    without_excluded,
)
from disk_ops.evaluation.homography_sets import HomographySet, SetError, find_homography_sets
from disk_ops.evaluation.methods import Method, parse_method
from disk_ops.evaluation.runs import run

SHIFTED = np.array([[1.0, 0, 10], [0, 1, 5], [0, 0, 1]])
TILTED = np.array([[0.9, 0.1, 5.0], [-0.2, 1.1, 3.0], [1e-4, 2e-4, 1.0]])


def write_pair(folder: Path, homography: np.ndarray, size: tuple[int, int] = (64, 48)) -> Path:
    """A set of two images that tell which one they are: black and white."""
    folder.mkdir(parents=True)
    for number, value in ((1, 0), (2, 255)):
        cv2.imwrite(str(folder / f"{number}.ppm"), np.full((size[1], size[0], 3), value, np.uint8))
    np.savetxt(folder / "H_1_2", homography)
    return folder


def known(points1: np.ndarray, points2: np.ndarray) -> Method:
    """A method that finds given points in the black and the white image; equal rows match."""

    def extract(image: torch.Tensor, n: int) -> Features:
        points = torch.as_tensor(points1 if image.mean() < 0.5 else points2, dtype=torch.float32)[:n]
        return Features(points, torch.eye(len(points), 64), torch.arange(len(points), 0, -1).float())

    return Method("known", "known", extract)


def measure(folder: Path, method: Method, n: int = 64, **options) -> dict:
    protocol = HomographyProtocol(find_homography_sets(folder), **options)
    (record,) = protocol.evaluate(protocol.items()[0], method, n, Matcher())
    return record


class TestRepeatability:
    def test_by_hand(self) -> None:
        # 20x20 pixels; image 2 shows what is 10 to the left and 5 up. Of image 1, (1, 1) and (9, 9) are in both:
        # (1, 1) goes to (11, 6), 2 from a keypoint; (9, 9) to (19, 14), 4 from one. (15, 1) leaves the image.
        first = torch.tensor([[1.0, 1.0], [9.0, 9.0], [15.0, 1.0]])
        # Of image 2, (13, 6) comes from (3, 1), 2 from a keypoint; (19, 18) from (9, 13), 4 from one; not (2, 2).
        second = torch.tensor([[13.0, 6.0], [19.0, 18.0], [2.0, 2.0]])
        assert repeatability(first, second, SHIFTED, (20, 20), (20, 20)) == 2 / 4
        assert repeatability(first, second, SHIFTED, (20, 20), (20, 20), threshold=4) == 1
        assert repeatability(first, second, SHIFTED, (20, 20), (20, 20), threshold=1.9) == 0
        backward = np.linalg.inv(SHIFTED)
        assert repeatability(second, first, backward, (20, 20), (20, 20)) == 2 / 4, "symmetric"

    def test_the_common_area_ends_half_a_pixel_beyond_the_outer_centres(self) -> None:
        points = torch.tensor([[-0.5, -0.5], [9.5, 7.5], [9.6, 2.0], [2.0, -0.6]])
        none = torch.empty(0, 2)
        assert repeatability(points, none, np.eye(3), (10, 8), (10, 8)) == 0
        assert repeatability(points[2:], none, np.eye(3), (10, 8), (10, 8)) is None
        assert repeatability(none, none, np.eye(3), (10, 8), (10, 8)) is None

    def test_many_points(self) -> None:
        points = torch.from_numpy(np.random.default_rng(0).uniform(0, 500, (3000, 2)))
        assert repeatability(points, points + 2.9, np.eye(3), (504, 504), (504, 504), threshold=5) == 1
        size = (10_000, 10_000)
        grid = torch.cartesian_prod(torch.arange(50.0), torch.arange(50.0)) * 20
        assert repeatability(grid, grid + torch.tensor([3.0, 0.0]), np.eye(3), size, size) == 1
        assert repeatability(grid, grid + torch.tensor([3.001, 0.0]), np.eye(3), size, size) == 0


class TestCornerError:
    def test_a_shift_is_its_length(self) -> None:
        estimate = SHIFTED + np.array([[0, 0, 3], [0, 0, -4], [0, 0, 0]])
        assert corner_error(estimate, SHIFTED, (64, 48)) == pytest.approx(5)
        assert corner_error(7 * estimate, -2 * SHIFTED, (64, 48)) == pytest.approx(5), "a homography has no scale"
        assert corner_error(SHIFTED, SHIFTED, (64, 48)) == 0

    def test_a_zoom_by_hand(self) -> None:
        # (0, 0) stays; (10, 0) and (0, 20) move by themselves; (10, 20) by its length.
        expected = (0 + 10 + 20 + math.hypot(10, 20)) / 4
        assert corner_error(np.diag([2.0, 2.0, 1.0]), np.eye(3), (11, 21)) == pytest.approx(expected)

    def test_without_an_estimate_it_is_infinite(self) -> None:
        assert corner_error(None, np.eye(3), (9, 9)) == math.inf
        assert corner_error(np.ones((3, 3)), np.eye(3), (9, 9)) == math.inf
        beyond = np.array([[1.0, 0, 0], [0, 1, 0], [-0.5, 0, 1]])
        assert corner_error(beyond, np.eye(3), (9, 9)) == math.inf


class TestMeasures:
    @pytest.fixture
    def points(self) -> np.ndarray:
        """40 points [40, 2] of the left half of a 64x48 image."""
        return np.random.default_rng(1).uniform((1, 1), (45, 40), (40, 2))

    @staticmethod
    def moved(points: np.ndarray, homography: np.ndarray) -> np.ndarray:
        return cv2.perspectiveTransform(points[None], homography)[0]

    def test_perfect_matches(self, tmp_path, points) -> None:
        write_pair(tmp_path / "v_wall", TILTED)
        record = measure(tmp_path, known(points, self.moved(points, TILTED)))
        assert (record["image"], record["kind"], record["collection"]) == ("2.ppm", "viewpoint", "v_wall")
        assert record["features"] == [40, 40] and record["matches"] == 40 == record["inliers"]
        assert record["accuracy"] == [1.0] * 10 and record["auc5"] == 1
        assert record["repeatability"] == 1
        assert record["corner_error"] < 1e-3

    def test_known_errors(self, tmp_path, points) -> None:
        write_pair(tmp_path / "wall", SHIFTED)
        away = np.zeros((40, 2))
        away[:10, 0], away[10:16, 1], away[16:20, 0] = 0.5, 2.5, 100  # of 40: 20 without error, 10, 6 and 4 with these
        record = measure(tmp_path, known(points, self.moved(points, SHIFTED) + away))
        assert record["accuracy"] == pytest.approx([30 / 40, 30 / 40] + [36 / 40] * 8)
        assert record["auc5"] == pytest.approx((2 * 30 + 3 * 36) / 40 / 5)
        assert record["corner_error"] < 1 and record["kind"] is None

    def test_a_shifted_estimate_has_the_shift_as_corner_error(self, tmp_path, points) -> None:
        write_pair(tmp_path / "wall", SHIFTED)
        record = measure(tmp_path, known(points, self.moved(points, SHIFTED) + np.array([0, 2])))
        assert record["corner_error"] == pytest.approx(2, abs=1e-3) and record["inliers"] == 40
        assert record["accuracy"][:3] == [0, record["accuracy"][1], 1]

    @pytest.mark.parametrize("n", [1, 3])
    def test_few_matches_have_no_homography(self, tmp_path, points, n) -> None:
        write_pair(tmp_path / "wall", SHIFTED)
        record = measure(tmp_path, known(points, self.moved(points, SHIFTED)), n)
        assert record["matches"] == n and record["corner_error"] is None and record["inliers"] == 0
        assert record["accuracy"][0] == 1

    def test_no_keypoints_at_all(self, tmp_path) -> None:
        write_pair(tmp_path / "wall", SHIFTED)
        record = measure(tmp_path, known(np.empty((0, 2)), np.empty((0, 2))))
        assert record["matches"] == 0 and record["accuracy"] == [0.0] * 10
        assert record["repeatability"] is None and record["corner_error"] is None

    def test_pixels_are_those_of_the_resized_images(self, tmp_path, points) -> None:
        write_pair(tmp_path / "wall", SHIFTED)
        # At half the size the shift is (5, 2.5).
        half = points / 2
        record = measure(tmp_path, known(half, half + np.array([5, 2.5 + 1.5])), max_size=32)
        assert record["accuracy"][:2] == [0, 1] and record["corner_error"] == pytest.approx(1.5, abs=1e-3)

    def test_an_unknown_estimator_is_refused(self) -> None:
        with pytest.raises(ValueError, match="method must be one of magsac"):
            HomographyProtocol([], ransac="guess")


def record(item: str, method: str = "a", auc: float = 0.5, error: float | None = 1.0, **more) -> dict:
    return {
        "method": method,
        "n": 8,
        "ratio": None,
        "item": item,
        "collection": item.rpartition("/")[0] or item,
        "kind": kind_of(item),
        "image": "2.ppm",
        "features": [8, 8],
        "matches": 4,
        "accuracy": [auc] * 10,
        "auc5": auc,
        "repeatability": 0.5,
        "inliers": 4,
        "corner_error": error,
        **more,
    }


class TestTables:
    protocol = HomographyProtocol([])

    def test_means_over_pairs_by_hand(self) -> None:
        records = [
            record("v_x", auc=0.2, error=0.5, matches=10),
            record("v_x", auc=0.4, error=None, matches=20, image="3.ppm", repeatability=None),
            record("i_y", auc=0.9, error=4.0, matches=30, repeatability=0.8),
        ]
        overall, change, by_set = self.protocol.tables(records)
        assert overall.columns == (
            *("method", "n", "pairs", "AUC 5", "MMA 1", "MMA 3", "MMA 5", "MMA 10", "matches", "repeat"),
            *("H 1", "H 3", "H 5"),
        )
        assert overall.rows == [("a", 8, 3, *[pytest.approx(0.5)] * 5, 20, pytest.approx(0.65), 1 / 3, 1 / 3, 2 / 3)]
        assert [row[0] for row in change.rows] == ["viewpoint", "illumination"]
        assert change.rows[0][3:5] == (2, pytest.approx(0.3)) and change.rows[1][3:5] == (1, 0.9)
        assert [row[0] for row in by_set.rows] == ["v_x", "i_y"]

    def test_collections_are_shown_where_there_are_several(self) -> None:
        titles = [table.title for table in self.protocol.tables([record("affine/a"), record("affine/b")])]
        assert titles == ["All pairs", "By set"]
        tables = self.protocol.tables([record("affine/a", auc=0.2), record("affine/b", auc=0.4), record("other/c")])
        assert [table.title for table in tables] == ["All pairs", "By collection", "By set"]
        assert [(row[0], row[4]) for row in tables[1].rows] == [("affine", pytest.approx(0.3)), ("other", 0.5)]

    def test_methods_are_compared_on_the_pairs_that_all_have(self) -> None:
        records = [record("x", "a", 0.2), record("y", "a", 0.8), record("x", "b", 0.3)]
        overall = self.protocol.tables(records)[0]
        assert [(row[0], row[2], row[3]) for row in overall.rows] == [("a", 1, 0.2), ("b", 1, 0.3)]
        assert overall.note.endswith("Left out for all methods, as one failed on them: 1 of the sets.")

    def test_nothing_gives_empty_tables(self) -> None:
        assert [table.rows for table in self.protocol.tables([])] == [[]]

    def test_plots(self) -> None:
        curves, bars = self.protocol.plots([record("v_x", auc=0.2), record("v_x", auc=0.4), record("d/i_y", auc=0.9)])
        assert curves.series == {"a": (list(range(1, 11)), [pytest.approx(0.5)] * 10)}
        assert bars.series == {"a": (["v_x", "i_y"], [pytest.approx(0.3), 0.9])}

    def test_the_score_falls_with_lost_homographies(self) -> None:
        score = self.protocol.score
        assert score([record("x", error=0.0)]) == 1 and score([record("x", error=None)]) == 0
        assert score([record("x", error=1.0), record("x", error=7.0)]) == pytest.approx(0.4)


class TestExcludedScenes:
    def test_there_are_eight(self) -> None:
        assert len(EXCLUDED_SCENES) == 8 and sum(name.startswith("i_") for name in EXCLUDED_SCENES) == 5

    def test_they_are_left_out_by_name(self) -> None:
        sets = [HomographySet(name, (), ()) for name in ("i_dc", "v_wall", "hpatches/v_talent")]
        kept, excluded = without_excluded(sets)
        assert [entry.name for entry in kept] == ["v_wall"]
        assert [entry.name for entry in excluded] == ["i_dc", "hpatches/v_talent"]
        with pytest.raises(EvaluationError, match=r"all sets are among .* \(i_dc\): use --all-scenes"):
            without_excluded(sets[:1])


class TestLayouts:
    """EVD and homogr; Oxford affine and HPatches are in test_homography.py."""

    @staticmethod
    def image(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), np.zeros((8, 9, 3), np.uint8))

    def test_evd(self, tmp_path) -> None:
        for name in ("adam", "cafe10", "cafe9"):
            self.image(tmp_path / "EVD" / "1" / f"{name}.png")
            self.image(tmp_path / "EVD" / "2" / f"{name}.png")
            (tmp_path / "EVD" / "h").mkdir(exist_ok=True)
            np.savetxt(tmp_path / "EVD" / "h" / f"{name}.txt", TILTED)
        sets = find_homography_sets(tmp_path)
        assert [entry.name for entry in sets] == ["EVD/adam", "EVD/cafe9", "EVD/cafe10"]
        assert sets[0].collection == "EVD"
        assert [path.relative_to(tmp_path / "EVD").as_posix() for path in sets[0].images] == [
            "1/adam.png",
            "2/adam.png",
        ]
        np.testing.assert_allclose(sets[0].read_homography(1), TILTED)

    def test_homogr_with_text_files(self, tmp_path) -> None:
        for name in ("BostonA.jpg", "BostonB.jpg", "adamA.png", "adamB.png"):
            self.image(tmp_path / "homogr" / name)
        for name in ("Boston", "adam"):
            np.savetxt(tmp_path / "homogr" / f"{name}_H.txt", SHIFTED)
        sets = find_homography_sets(tmp_path / "homogr")
        assert [entry.name for entry in sets] == ["homogr/Boston", "homogr/adam"]
        assert [path.name for path in sets[1].images] == ["adamA.png", "adamB.png"]
        np.testing.assert_allclose(sets[1].read_homography(1), SHIFTED)

    @pytest.mark.parametrize("turned", [False, True])
    def test_homogr_as_published(self, tmp_path, turned) -> None:
        scipy_io = pytest.importorskip("scipy.io", reason="scipy is not installed")
        for letter in "AB":
            self.image(tmp_path / f"adam{letter}.png")
        points = np.random.default_rng(0).uniform(0, 50, (6, 2))
        ones = np.ones((1, 6))
        moved = cv2.perspectiveTransform(points[None], TILTED)[0]
        pts = np.concatenate([points.T, ones, moved.T, ones])
        model = np.linalg.inv(TILTED) if turned else TILTED
        validation = {"type": "H", "pts": pts, "model": model}
        scipy_io.savemat(tmp_path / "adam_vpts.mat", {"validation": validation})
        (found,) = find_homography_sets(tmp_path)
        homography = found.read_homography(1)
        np.testing.assert_allclose(homography / homography[2, 2], TILTED, atol=1e-9)
        (tmp_path / "adam_vpts.mat").write_bytes(b"no matrix")
        with pytest.raises(SetError, match=r"adam_vpts\.mat: can't be read"):
            found.read_homography(1)

    def test_mat_files_without_scipy(self, tmp_path, monkeypatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        for letter in "AB":
            self.image(tmp_path / f"adam{letter}.png")
        (tmp_path / "adam_vpts.mat").write_bytes(b"")
        with pytest.raises(SetError, match="reading them needs scipy: pip install scipy"):
            find_homography_sets(tmp_path)

    def test_an_incomplete_set_is_reported_and_the_others_found(self, tmp_path) -> None:
        write_pair(tmp_path / "good", SHIFTED)
        (write_pair(tmp_path / "bad", SHIFTED) / "2.ppm").unlink()
        self.image(tmp_path / "pairs" / "adamA.png")
        np.savetxt(tmp_path / "pairs" / "adam_H.txt", SHIFTED)
        told: list[str] = []
        sets = find_homography_sets(tmp_path, lambda error: told.append(str(error)))
        assert [entry.name for entry in sets] == ["good"]
        assert len(told) == 2 and "bad: has a homography for the image 2.*, but not the image" in told[0]
        assert "adamB.*" in told[1]


def test_sift_on_a_photograph(shared_data, tmp_path) -> None:
    """Leuven changes in light only: nearly all homographies are found, the more so the less it changes."""
    (leuven,) = find_homography_sets(shared_data / "homography" / "oxford_affine" / "leuven")
    protocol = HomographyProtocol([leuven], max_size=320)
    records = run(protocol, [parse_method("rootsift").load()], [500], tmp_path)
    assert [record["image"] for record in records] == [f"img{number}.png" for number in range(2, 7)]
    assert all(record["corner_error"] < 3 for record in records)
    assert all(0.4 < record["repeatability"] < 1 for record in records)
    expected = evaluate_set(leuven, RootSift(500), 320)  # what validation during training measures
    assert [record["auc5"] for record in records] == pytest.approx([pair.auc5 for pair in expected])
    assert [record["matches"] for record in records] == [pair.matches for pair in expected]
    pictures = list(protocol.pictures(records, [parse_method("rootsift").load()]))
    assert len(pictures) == 1 and pictures[0][1].shape[2] == 3
    assert pictures[0][0].startswith("leuven, img4.png: rootsift, at most 500 keypoints, ")
    again = run(protocol, [parse_method("rootsift").load()], [500], tmp_path / "again")
    assert again == records
