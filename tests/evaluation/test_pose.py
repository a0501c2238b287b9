"""disk_ops.evaluation.pose: relative poses of synthetic cameras, and errors that are known."""

from __future__ import annotations

import json
import math

import cv2
import numpy as np
import pytest
import torch
from posing import K1, K2, rotation, two_views

from disk_ops.evaluation.features import RootSift, mutual_matches
from disk_ops.evaluation.pose import (
    PoseError,
    RelativePose,
    angle_between,
    estimate_relative_pose,
    mean_average_accuracy,
    pose_error,
    relative_pose,
    rotation_angle,
)
from disk_ops.io.images import read_image, to_rgb_float

R_TRUE, T_TRUE = rotation([0.2, 1, 0.1], 12), np.array([1.0, 0.1, 0.3])


class TestEstimate:
    @pytest.mark.parametrize(
        ("count", "noise", "outliers", "degrees"),
        [(200, 0.0, 0.0, 0.01), (300, 0.0, 0.4, 2.0), (500, 0.3, 0.3, 2.0), (10, 0.0, 0.0, 0.01)],
    )
    def test_finds_the_pose(self, count, noise, outliers, degrees):
        points1, points2 = two_views(count, R_TRUE, T_TRUE, noise, outliers)
        estimate = estimate_relative_pose(points1, points2, K1, K2)
        assert pose_error(estimate, R_TRUE, T_TRUE).largest < degrees
        assert abs(np.linalg.norm(estimate.t) - 1) < 1e-9
        assert 0.8 * (1 - outliers) < estimate.inliers.mean() < (1 - outliers) + 0.1
        assert np.dot(estimate.t, T_TRUE) > 0  # the direction, not its opposite

    def test_points_far_away_against_the_baseline_do_not_turn_the_pose_around(self):
        t = T_TRUE * 0.02  # all points are farther away than 50 baselines
        points1, points2 = two_views(400, R_TRUE, t, noise=0.05)
        error = pose_error(estimate_relative_pose(points1, points2, K1, K2), R_TRUE, t)
        assert error.rotation < 0.5

    @pytest.mark.parametrize("count", [0, 3, 9])
    def test_too_few_matches_give_no_pose(self, count):
        points1, points2 = two_views(count, R_TRUE, T_TRUE)
        estimate = estimate_relative_pose(points1, points2, K1, K2)
        assert estimate is None
        assert pose_error(estimate, R_TRUE, T_TRUE) == PoseError(math.inf, math.inf)

    def test_matches_that_are_not_finite_are_outliers(self):
        points1, points2 = two_views(40, R_TRUE, T_TRUE)
        points1[3], points2[7, 1] = np.nan, np.inf
        estimate = estimate_relative_pose(points1, points2, K1, K2)
        assert np.flatnonzero(~estimate.inliers).tolist() == [3, 7]
        assert pose_error(estimate, R_TRUE, T_TRUE).largest < 0.01
        points1[:31] = np.nan  # 9 are left
        assert estimate_relative_pose(points1, points2, K1, K2) is None

    @pytest.mark.parametrize(
        "points",
        [np.zeros((20, 2)), np.column_stack([np.arange(20.0)] * 2), np.full((20, 2), 1e30), np.eye(20)[:, :2]],
        ids=["one point", "a line", "huge", "three points"],
    )
    def test_degenerate_matches_do_not_crash(self, points):
        estimate = estimate_relative_pose(points, points, K1, K2)
        assert estimate is None or np.isfinite(estimate.R).all()

    def test_equal_images_have_no_rotation(self):
        points, _ = two_views(50, R_TRUE, T_TRUE)
        estimate = estimate_relative_pose(points, points, K1, K1)
        assert estimate is None or pose_error(estimate, np.eye(3), np.zeros(3)).largest < 0.1

    def test_random_matches_are_no_pose_or_a_wrong_one(self):
        rng = np.random.default_rng(0)
        points1, points2 = rng.uniform(0, 600, (2, 100, 2))
        assert pose_error(estimate_relative_pose(points1, points2, K1, K2), R_TRUE, T_TRUE).largest > 5

    def test_runs_are_equal_whatever_opencv_drew_before(self):
        points1, points2 = two_views(300, R_TRUE, T_TRUE, noise=0.5, outliers=0.6)
        results = []
        for seed in (1, 2):
            cv2.setRNGSeed(seed)
            results.append(estimate_relative_pose(points1, points2, K1, K2))
        for one, other in zip(*results, strict=True):
            np.testing.assert_array_equal(one, other)

    def test_float32_matches(self):
        points1, points2 = (points.astype(np.float32) for points in two_views(100, R_TRUE, T_TRUE))
        assert pose_error(estimate_relative_pose(points1, points2, K1, K2), R_TRUE, T_TRUE).largest < 0.1

    def test_wrong_arguments_are_named(self):
        good = np.zeros((12, 2))
        with pytest.raises(ValueError, match=r"points1 must have shape \[K, 2\], got \[12, 3\]"):
            estimate_relative_pose(np.zeros((12, 3)), good, K1, K2)
        with pytest.raises(ValueError, match=r"points2 must have the shape of points1 \[12, 2\], got \[11, 2\]"):
            estimate_relative_pose(good, good[1:], K1, K2)
        with pytest.raises(ValueError, match="K2 must be an invertible matrix"):
            estimate_relative_pose(good, good, K1, np.zeros((3, 3)))

    def test_real_images(self, shared_data):
        """Neighbouring images of the fountain, with laser-based ground truth."""
        folder = shared_data / "pose" / "strecha" / "fountain-P11"
        cameras = json.loads((folder / "cameras.json").read_text())["cameras"]
        names = sorted(cameras)[4:6]
        found = [RootSift(2048)(torch.from_numpy(to_rgb_float(read_image(_image(folder, name))))) for name in names]
        matches = mutual_matches(*found)
        first, second = (cameras[name] for name in names)
        estimate = estimate_relative_pose(
            found[0].keypoints[matches[:, 0]], found[1].keypoints[matches[:, 1]], first["K"], second["K"]
        )
        R, t = relative_pose(first["R"], first["t"], second["R"], second["t"])
        assert rotation_angle(R) > 5  # so that no motion at all would not do
        assert pose_error(estimate, R, t).largest < 2


def _image(folder, name):
    return next(path for path in folder.rglob(name) if path.is_file())


class TestError:
    def test_a_perfect_pose_has_none(self):
        assert pose_error(RelativePose(R_TRUE, T_TRUE, np.ones(0, bool)), R_TRUE, T_TRUE).largest < 1e-6

    @pytest.mark.parametrize("degrees", [1e-6, 0.3, 10.0, 90.0, 179.0, 180.0])
    def test_a_rotation_by_an_angle_gives_that_angle(self, degrees):
        turned = rotation([0.3, -0.2, 0.9], degrees) @ R_TRUE
        error = pose_error(RelativePose(turned, T_TRUE, np.ones(0, bool)), R_TRUE, T_TRUE)
        assert error.rotation == pytest.approx(degrees, rel=1e-6, abs=1e-7)
        assert error.largest == error.rotation

    @pytest.mark.parametrize(("degrees", "expected"), [(10.0, 10.0), (90.0, 90.0), (170.0, 10.0), (180.0, 0.0)])
    def test_directions_of_translation_count_up_to_sign(self, degrees, expected):
        turned = rotation(np.cross(T_TRUE, [0, 0, 1]), degrees) @ T_TRUE
        error = pose_error(RelativePose(R_TRUE, turned, np.ones(0, bool)), R_TRUE, 7 * T_TRUE)
        assert error.translation == pytest.approx(expected, abs=1e-5)
        assert error.rotation < 1e-6

    def test_rotation_alone_counts_where_nothing_moved(self):
        error = pose_error(RelativePose(rotation([0, 1, 0], 3), T_TRUE, np.ones(0, bool)), np.eye(3), np.zeros(3))
        assert error.largest == pytest.approx(3)

    def test_what_is_not_finite_is_infinitely_wrong(self):
        assert rotation_angle(np.full((3, 3), np.nan)) == math.inf
        assert angle_between([np.nan, 0, 1], [0, 0, 1]) == math.inf
        assert angle_between([0, 0, 0], [0, 0, 1]) == math.inf

    def test_relative_pose_takes_points_from_camera_1_to_camera_2(self):
        R1, t1, R2, t2 = rotation([1, 0, 0], 20), np.array([1.0, 2, 3]), rotation([0, 1, 1], 35), np.array([0.5, -1, 2])
        R, t = relative_pose(R1, t1, R2, t2)
        X = np.array([0.3, -0.7, 5.0])
        np.testing.assert_allclose(R @ (R1 @ X + t1) + t, R2 @ X + t2)


class TestMeanAverageAccuracy:
    def test_a_case_counted_by_hand(self):
        # below 1: 1 of 4; below 2 and 3: 2; below 4 to 9: 2; below 10: 3
        assert mean_average_accuracy([0.5, 1.5, 9.5, math.inf]) == pytest.approx((1 + 8 * 2 + 3) / 4 / 10)

    def test_bounds(self):
        assert mean_average_accuracy([0.0, 0.0]) == 1.0
        assert mean_average_accuracy([math.nan, math.inf, 10.0]) == 0.0
        assert mean_average_accuracy([4.0], limit=5) == pytest.approx(1 / 5)

    def test_no_errors_are_an_error(self):
        with pytest.raises(ValueError, match="at least one error"):
            mean_average_accuracy([])
        with pytest.raises(ValueError, match="limit must be a positive"):
            mean_average_accuracy([1.0], limit=0)
