"""disk_ops.evaluation.rotation: images that are turned exactly, and what a perfect and a blind method get."""

from __future__ import annotations

import math
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from oracle import blind, nothing
from torch import Tensor

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.features import Features, Matcher
from disk_ops.evaluation.methods import Method
from disk_ops.evaluation.rotation import RotationProtocol, turn, turning

SIZE = (200, 150)
COUNT = 24


def dots(size: tuple[int, int] = SIZE, shift: tuple[float, float] = (0, 0)) -> np.ndarray:
    """An image [H, W, 3] of Gaussian dots, each of a colour of its own, on a dark ground."""
    x, y = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
    picture = np.zeros((size[1], size[0], 3))
    for index in range(COUNT):
        column, row = index % 6, index // 6
        cx, cy = (column + 0.5 + 0.1 * row) * size[0] / 7 + shift[0], (row + 0.6) * size[1] / 4.5 + shift[1]
        bump = np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * 2.5**2))
        angle, height = 0.5 * math.pi * (index % 6) / 5, 0.5 * math.pi * (index // 6 + 0.3) / 4
        colour = (math.cos(angle) * math.cos(height), math.sin(angle) * math.cos(height), math.sin(height))
        picture += 255 * bump[:, :, None] * np.array(colour)
    return np.rint(picture).clip(0, 255).astype(np.uint8)


def find_dots(image: Tensor, n: int) -> Features:
    """The dots of an image and their colours, however they are turned: a perfect method."""
    picture = image.permute(1, 2, 0).numpy()
    _, labels = cv2.connectedComponents((picture.max(2) > 0.15).astype(np.uint8))
    points, colours = [], []
    for label in range(1, labels.max() + 1):
        y, x = np.nonzero(labels == label)
        weights = picture[y, x].max(1) - 0.15  # 0 at the edge, which is cut off differently at each angle
        points.append([np.average(x, weights=weights), np.average(y, weights=weights)])
        colour = np.average(picture[y, x], axis=0, weights=weights)
        colours.append(colour / np.linalg.norm(colour))
    return Features(torch.tensor(points).float().reshape(-1, 2), torch.tensor(np.array(colours)).float().reshape(-1, 3))


PERFECT = Method("perfect", "perfect", find_dots)


def write(path: Path, picture: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), picture[:, :, ::-1])


def evaluate(protocol: RotationProtocol, method: Method, n: int = 100) -> list[dict]:
    common = {"method": method.name, "n": n, "ratio": None}
    return [
        {**common, "item": item.name, **record}
        for item in protocol.items()
        for record in protocol.evaluate(item, method, n, Matcher())
    ]


class TestTurn:
    @pytest.mark.parametrize("degrees", [0, 90, 180, 270])
    def test_right_angles_move_whole_pixels(self, degrees):
        image = torch.rand(3, 15, 20)
        turned = turn(image, degrees)
        torch.testing.assert_close(turned.image, torch.rot90(image, degrees // 90, (1, 2)), rtol=0, atol=0)
        assert turned.mask.all() and turned.mask.shape == turned.image.shape[1:]
        y, x = np.mgrid[:15, :20].reshape(2, -1)
        there = np.column_stack([x, y, np.ones(x.size)]) @ turned.homography.T
        np.testing.assert_allclose(there, np.rint(there), atol=1e-9)
        column, row = np.rint(there[:, :2]).astype(int).T
        np.testing.assert_array_equal(turned.image[0].numpy()[row, column], image[0].numpy().ravel())

    @pytest.mark.parametrize("degrees", [1, 15, 30, 45, 77.5, 135, 179])
    def test_dots_come_where_the_map_says(self, degrees):
        image = torch.from_numpy(dots()).permute(2, 0, 1).float() / 255
        turned = turn(image, degrees)
        before, after = find_dots(image, 100).keypoints.numpy(), find_dots(turned.image, 100).keypoints.numpy()
        expected = before @ turned.homography[:2, :2].T + turned.homography[:2, 2]
        assert len(after) == COUNT
        distance = np.linalg.norm(expected[:, None] - after, axis=2).min(1)
        assert distance.max() < 0.05

    def test_it_is_counterclockwise(self):
        matrix, _ = turning((101, 101), 90)
        np.testing.assert_allclose(matrix @ [100, 50, 1], [50, 0, 1], atol=1e-9)  # from the right to the top
        matrix, _ = turning((101, 101), 45)
        moved = matrix @ [100, 50, 1]
        assert moved[1] < matrix.dot([50, 50, 1])[1]

    @pytest.mark.parametrize("degrees", [0, 10, 45, 90, 123.4, 180])
    def test_the_frame_holds_everything_and_not_much_more(self, degrees):
        matrix, frame = turning((40, 30), degrees)
        corners = np.array([[-0.5, -0.5, 1], [39.5, -0.5, 1], [-0.5, 29.5, 1], [39.5, 29.5, 1]]) @ matrix.T
        assert (corners[:, :2] >= -0.5 - 1e-6).all() and (corners[:, :2] <= np.array(frame) - 0.5 + 1e-6).all()
        assert (np.ptp(corners[:, :2], axis=0) > np.array(frame) - 1).all()

    def test_what_the_image_does_not_show_is_masked(self):
        turned = turn(torch.ones(3, 30, 40), 45)
        assert 0.35 < turned.mask.mean() < 0.65 and not turned.mask[0, 0]


class TestMeasure:
    def test_a_perfect_method_gets_1_at_each_angle(self, tmp_path):
        write(tmp_path / "a.png", dots())
        protocol = RotationProtocol(tmp_path, step=22.5)
        records = evaluate(protocol, PERFECT)
        assert [record["angle"] for record in records] == [22.5 * index for index in range(9)]
        assert [record["share"] for record in records] == [1.0] * 9
        assert all(record["matches"] == record["correct"] == COUNT for record in records)
        assert protocol.score(records) == 1.0
        few = {"features": [100, 80], "matches": 5, "correct": 5}
        most = {"features": [100, 80], "matches": 60, "correct": 40}
        assert protocol.score([few]) == pytest.approx(2 * 5 / 85)
        assert protocol.score([most]) == pytest.approx(2 * 40 / 140), "more than that of few matches, all correct"
        assert protocol.score([{"features": [0, 0], "matches": 0, "correct": 0}]) == protocol.score([]) == 0

    def test_a_blind_method_gets_about_0(self, tmp_path):
        write(tmp_path / "a.png", dots())
        records = evaluate(RotationProtocol(tmp_path, step=45), blind())
        assert all(record["matches"] > 20 and record["share"] < 0.1 for record in records)

    def test_without_matches_it_is_0(self, tmp_path):
        write(tmp_path / "a.png", dots())
        records = evaluate(RotationProtocol(tmp_path, step=90), nothing())
        assert [(record["matches"], record["share"]) for record in records] == [(0, 0.0)] * 3

    @pytest.mark.parametrize("max_size", [None, 150])
    def test_homography_sets(self, tmp_path, max_size):
        """The second image is the first one shifted by 6 and 4 pixels."""
        folder = tmp_path / "sets" / "v_one"
        write(folder / "1.png", dots())
        write(folder / "2.png", dots(shift=(6, 4)))
        write(folder / "3.png", dots())
        (folder / "H_1_2").write_text("1 0 6\n0 1 4\n0 0 1")
        (folder / "H_1_3").write_text("1 0 0\n0 1 0\n0 0 1")
        protocol = RotationProtocol(tmp_path / "sets", step=60, max_size=max_size)
        assert [item.name for item in protocol.items()] == ["v_one 2.png", "v_one 3.png"]
        assert [path.name for path in protocol.items()[0].files] == ["1.png", "2.png", "H_1_2"]
        assert all(record["share"] == 1.0 for record in evaluate(protocol, PERFECT))

    def test_errors_count_from_3_pixels_on(self, tmp_path):
        folder = tmp_path / "v_one"
        write(folder / "1.png", dots())
        write(folder / "2.png", dots(shift=(4, 0)))
        for shift, share in ((1.2, 1.0), (0.8, 0.0)):  # the truth is wrong by 2.8, and by 3.2 pixels
            (folder / "H_1_2").write_text(f"1 0 {shift} 0 1 0 0 0 1")
            assert [r["share"] for r in evaluate(RotationProtocol(tmp_path, step=90), PERFECT)] == [share] * 3

    def test_keypoints_outside_the_image_do_not_count(self, tmp_path):
        write(tmp_path / "a.png", dots())
        corner = Features(torch.tensor([[1.0, 1.0], [float("nan"), 5.0], [75.0, 75.0]]), torch.eye(3), torch.ones(3))
        method = Method("corner", "corner", lambda image, n: corner)
        records = evaluate(RotationProtocol(tmp_path, step=45), method)
        assert [record["features"] for record in records] == [[2, 2], [2, 1], [2, 2], [2, 1], [2, 2]]

    def test_images_are_scaled_before_they_are_turned(self, tmp_path):
        write(tmp_path / "a.png", dots((400, 300)))
        sizes = []

        def spy(image: Tensor, n: int) -> Features:
            sizes.append(tuple(image.shape[1:]))
            return find_dots(image, n)

        evaluate(RotationProtocol(tmp_path, step=90, max_size=200), Method("spy", "spy", spy))
        assert sizes == [(150, 200), (150, 200), (200, 150), (150, 200)]


class TestFolders:
    def test_wrong_folders_are_named(self, tmp_path):
        with pytest.raises(EvaluationError, match="nowhere: no such folder"):
            RotationProtocol(tmp_path / "nowhere")
        with pytest.raises(EvaluationError, match=r"no images found in"):
            RotationProtocol(tmp_path)

    def test_a_broken_image_is_named(self, tmp_path):
        (tmp_path / "a.png").write_bytes(b"broken")
        protocol = RotationProtocol(tmp_path)
        with pytest.raises(EvaluationError, match=r"a.png: is not an image"):
            evaluate(protocol, PERFECT)

    def test_a_set_that_lacks_an_image(self, tmp_path):
        write(tmp_path / "v_one" / "1.png", dots())
        (tmp_path / "v_one" / "H_1_2").write_text("1 0 0 0 1 0 0 0 1")
        with pytest.raises(EvaluationError, match=r"homography for the image 2\.\*, but not the image"):
            RotationProtocol(tmp_path)

    @pytest.mark.parametrize("step", [0, -5, 181, float("nan")])
    def test_wrong_steps_are_named(self, tmp_path, step):
        with pytest.raises(ValueError, match="step must be above 0 and at most 180 degrees"):
            RotationProtocol(tmp_path, step=step)

    @pytest.mark.parametrize(("step", "count"), [(180, 2), (15, 13), (0.1, 1801), (70, 3), (60 / 7, 22)])
    def test_angles(self, tmp_path, step, count):
        write(tmp_path / "a.png", dots())
        angles = RotationProtocol(tmp_path, step=step).angles
        assert len(angles) == count and angles[0] == 0 and angles[-1] <= 180 + 1e-9


class TestReport:
    def test_tables_and_plot(self, tmp_path):
        write(tmp_path / "a.png", dots())
        write(tmp_path / "b.png", dots(shift=(3, 3)))
        protocol = RotationProtocol(tmp_path, step=45)
        records = [*evaluate(protocol, PERFECT), *evaluate(protocol, blind())]
        (table,) = protocol.tables(records)
        assert table.columns[:6] == ("method", "n", "items", "mean", "0°", "45°")
        row = dict(zip(table.columns, table.rows[0], strict=True))
        assert row["mean"] == 1.0 and row["half up to °"] == 180 and row["items"] == 2 and row["matches at 0°"] == COUNT
        assert dict(zip(table.columns, table.rows[1], strict=True))["half up to °"] is None
        (plot,) = protocol.plots(records)
        assert plot.kind == "lines" and plot.series["perfect"] == ([0, 45, 90, 135, 180], [1.0] * 5)

    def test_half_up_to_ends_where_less_than_half_is_correct(self, tmp_path):
        write(tmp_path / "a.png", dots())
        common = {"method": "a", "n": 1, "item": "a.png", "matches": 10, "correct": 0}
        shares = {0: 1.0, 45: 0.5, 90: 0.4, 135: 0.9, 180: 0.9}
        records = [{**common, "angle": float(angle), "share": share} for angle, share in shares.items()]
        (table,) = RotationProtocol(tmp_path, step=45).tables(records)
        assert table.rows[0][table.columns.index("half up to °")] == 45

    def test_pictures(self, tmp_path):
        write(tmp_path / "a.png", dots())
        protocol = RotationProtocol(tmp_path, step=45)
        pictures = list(protocol.pictures(evaluate(protocol, PERFECT), [PERFECT]))
        assert len(pictures) == 3 and "a.png turned by 45°: perfect" in pictures[1][0]
        assert "24 of 24 matches within 3 px" in pictures[1][0]
        assert not list(protocol.pictures([], [PERFECT]))
