"""disk_ops.evaluation.robust: matrices that are known, from matches of which many are wrong, by each estimator."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from posing import K1, K2, rotation, two_views

from disk_ops.evaluation.robust import (
    check_method,
    estimate_essential,
    estimate_fundamental,
    estimate_homography,
    rays,
)

H_TRUE = np.array([[1.1, 0.05, 12.0], [-0.04, 0.95, -7.0], [1e-4, -5e-5, 1.0]])
R_TRUE, T_TRUE = rotation([0.2, 1, 0.1], 12), np.array([1.0, 0.1, 0.3])
SKEW = np.array([[0, -T_TRUE[2], T_TRUE[1]], [T_TRUE[2], 0, -T_TRUE[0]], [-T_TRUE[1], T_TRUE[0], 0]])
E_TRUE = SKEW @ R_TRUE
F_TRUE = np.linalg.inv(K2).T @ E_TRUE @ np.linalg.inv(K1)


def plane(count: int = 200, outliers: float = 0.0):
    """Matches [count, 2] twice under H_TRUE; the first ones are wrong."""
    rng = np.random.default_rng(0)
    points1 = rng.uniform(0, 600, (count, 2))
    mapped = np.column_stack([points1, np.ones(count)]) @ H_TRUE.T
    points2 = mapped[:, :2] / mapped[:, 2:]
    points2[: round(count * outliers)] = rng.uniform(0, 600, (round(count * outliers), 2))
    return points1, points2


def normalized(matrix: np.ndarray) -> np.ndarray:
    matrix = matrix / np.linalg.norm(matrix)
    return matrix * np.sign(matrix.ravel()[np.abs(matrix).argmax()])


class TestMagsac:
    def test_homography(self):
        found = estimate_homography(*plane(outliers=0.4))
        np.testing.assert_allclose(found.matrix / found.matrix[2, 2], H_TRUE, rtol=1e-3, atol=1e-6)
        assert not found.inliers[:80].any() or found.inliers[:80].sum() <= 2
        assert found.inliers[80:].all()

    def test_fundamental(self):
        found = estimate_fundamental(*two_views(300, R_TRUE, T_TRUE, outliers=0.3))
        np.testing.assert_allclose(normalized(found.matrix), normalized(F_TRUE), atol=1e-3)
        assert 0.68 <= found.inliers.mean() <= 0.75

    def test_essential_of_cameras_that_differ(self):
        points1, points2 = two_views(300, R_TRUE, T_TRUE, outliers=0.3)
        found = estimate_essential(points1, points2, K1, K2)
        np.testing.assert_allclose(normalized(found.matrix), normalized(E_TRUE), atol=1e-3)
        assert 0.68 <= found.inliers.mean() <= 0.75
        values = np.linalg.svd(found.matrix, compute_uv=False)
        assert values[2] < 1e-6 * values[0] and abs(values[1] / values[0] - 1) < 1e-4

    def test_the_threshold_is_in_pixels(self):
        points1, points2 = two_views(400, R_TRUE, T_TRUE, noise=0.5)
        shares = [estimate_fundamental(points1, points2, threshold=t).inliers.mean() for t in (0.2, 0.75, 5.0)]
        assert shares == sorted(shares) and shares[0] < 0.6 and shares[2] > 0.95
        essential = [estimate_essential(points1, points2, K1, K2, threshold=t).inliers.mean() for t in (0.2, 0.75, 5.0)]
        np.testing.assert_allclose(essential, shares, atol=0.2)

    def test_runs_are_equal_whatever_opencv_drew_before(self):
        points = plane(300, 0.5)
        results = []
        for seed in (1, 2):
            cv2.setRNGSeed(seed)
            results.append(estimate_homography(*points))
        np.testing.assert_array_equal(results[0].matrix, results[1].matrix)


class TestMatches:
    @pytest.mark.parametrize(
        ("estimate", "enough"),
        [
            (estimate_homography, 4),
            (estimate_fundamental, 8),
            (lambda one, two: estimate_essential(one, two, K1, K2), 5),
        ],
        ids=["homography", "fundamental", "essential"],
    )
    def test_few_matches_give_nothing_and_no_error(self, estimate, enough):
        points1, points2 = two_views(enough + 1, R_TRUE, T_TRUE)
        for count in range(enough):
            assert estimate(points1[:count], points2[:count]) is None
        points1[:2] = np.nan
        assert estimate(points1, points2) is None  # enough - 1 are finite

    def test_what_is_not_finite_is_an_outlier(self):
        points1, points2 = plane(60)
        points1[3], points2[7, 1] = np.nan, np.inf
        found = estimate_homography(points1, points2)
        assert np.flatnonzero(~found.inliers).tolist() == [3, 7]

    @pytest.mark.parametrize(
        "points",
        [np.zeros((20, 2)), np.column_stack([np.arange(20.0)] * 2), np.full((20, 2), 1e30), np.eye(20)[:, :2]],
        ids=["one point", "a line", "huge", "three points"],
    )
    def test_degenerate_matches_do_not_crash(self, points):
        for found in (
            estimate_homography(points, points),
            estimate_fundamental(points, points),
            estimate_essential(points, points, K1, K2),
        ):
            assert found is None or (np.isfinite(found.matrix).all() and found.inliers.shape == (20,))

    def test_no_matches(self):
        assert estimate_homography(np.zeros((0, 2)), np.zeros((0, 2))) is None


class TestArguments:
    def test_wrong_ones_are_named(self):
        good = np.zeros((12, 2))
        with pytest.raises(ValueError, match=r"points1 must have shape \[K, 2\], got \[12, 3\]"):
            estimate_fundamental(np.zeros((12, 3)), good)
        with pytest.raises(ValueError, match=r"points2 must have the shape of points1 \[12, 2\], got \[11, 2\]"):
            estimate_homography(good, good[1:])
        with pytest.raises(ValueError, match="K2 must be an invertible matrix"):
            estimate_essential(good, good, K1, np.zeros((3, 3)))
        with pytest.raises(ValueError, match="method must be one of magsac, degensac, poselib, got 'lmeds'"):
            estimate_homography(good, good, method="lmeds")
        for threshold in (0.0, -1.0, float("nan")):
            with pytest.raises(ValueError, match="threshold must be a positive number"):
                estimate_homography(good, good, threshold=threshold)

    @pytest.mark.parametrize(("method", "package"), [("degensac", "pydegensac"), ("poselib", "poselib")])
    def test_a_missing_package_is_named(self, monkeypatch, method, package):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ValueError, match=f"method {method} needs the package {package}: pip install {package}"):
            estimate_fundamental(np.zeros((12, 2)), np.zeros((12, 2)), method)
        with pytest.raises(ValueError, match=package):
            check_method(method)

    def test_degensac_has_no_essential_matrix(self):
        with pytest.raises(ValueError, match="degensac estimates no essential matrix: use magsac or poselib"):
            estimate_essential(np.zeros((12, 2)), np.zeros((12, 2)), K1, K2, "degensac")
        with pytest.raises(ValueError, match="no essential matrix"):
            check_method("degensac", essential=True)


class Recorder:
    """A function that records its arguments and returns what it is told to."""

    def __init__(self, result) -> None:
        self.result = result
        self.arguments: tuple = ()
        self.options: dict = {}

    def __call__(self, *arguments, **options):
        self.arguments, self.options = arguments, options
        return self.result


class TestOtherEstimators:
    """What the packages are called with, and what becomes of their results, whether they are installed or not."""

    def test_degensac(self, monkeypatch):
        mask = np.arange(30) % 2 == 0
        homography, fundamental = Recorder((H_TRUE, mask)), Recorder((F_TRUE, mask))
        module = SimpleNamespace(findHomography=homography, findFundamentalMatrix=fundamental)
        monkeypatch.setitem(sys.modules, "pydegensac", module)
        points1, points2 = plane(30)
        found = estimate_homography(points1, points2, "degensac", 0.5, 0.99, 123)
        assert homography.arguments[2:] == (0.5, 0.99, 123)
        np.testing.assert_array_equal(homography.arguments[0], points1)
        np.testing.assert_array_equal(homography.arguments[1], points2)
        np.testing.assert_array_equal(found.inliers, mask)
        found = estimate_fundamental(points1, points2, "degensac", 0.5, 0.99, 123)
        assert fundamental.arguments[2:] == (0.5, 0.99, 123)
        assert fundamental.options == {"enable_degeneracy_check": True}
        np.testing.assert_array_equal(found.matrix, F_TRUE)

    def test_poselib(self, monkeypatch):
        mask = [index % 2 == 0 for index in range(30)]
        homography, fundamental = Recorder((H_TRUE, {"inliers": mask})), Recorder((F_TRUE, {"inliers": mask}))
        pose = Recorder((SimpleNamespace(R=R_TRUE, t=T_TRUE), {"inliers": mask}))
        module = SimpleNamespace(
            estimate_homography=homography, estimate_fundamental=fundamental, estimate_relative_pose=pose
        )
        monkeypatch.setitem(sys.modules, "poselib", module)
        points1, points2 = plane(30)
        for recorder, estimate, truth in (
            (homography, estimate_homography, H_TRUE),
            (fundamental, estimate_fundamental, F_TRUE),
        ):
            found = estimate(points1, points2, "poselib", 0.5, 0.99, 123)
            options = recorder.arguments[2]
            assert options["max_epipolar_error"] == options["max_reproj_error"] == 0.5
            assert options["success_prob"] == 0.99 and options["max_iterations"] == 123
            np.testing.assert_array_equal(found.matrix, truth)
            np.testing.assert_array_equal(found.inliers, mask)
        found = estimate_essential(points1, points2, K1, K2, "poselib", 0.5)
        np.testing.assert_allclose(found.matrix, E_TRUE)
        first, second, camera1, camera2, options, _ = pose.arguments
        assert camera1 == camera2 and camera1["params"][1:] == [0.0, 0.0]
        focal = camera1["params"][0]
        assert focal == pytest.approx(np.mean([800, 810, 650, 640]))
        np.testing.assert_allclose(first, rays(points1, K1) * focal)
        np.testing.assert_allclose(second, rays(points2, K2) * focal)
        assert options["max_epipolar_error"] == 0.5

    def test_no_model_of_theirs_is_none(self, monkeypatch):
        nothing = Recorder((np.zeros((3, 3)), np.zeros(30, bool)))
        monkeypatch.setitem(sys.modules, "pydegensac", SimpleNamespace(findHomography=nothing))
        assert estimate_homography(*plane(30), "degensac") is None

    @pytest.mark.parametrize("package", ["pydegensac", "poselib"])
    def test_the_real_packages_where_they_are_installed(self, package):
        pytest.importorskip(package)
        method = package.removeprefix("py")
        found = estimate_homography(*plane(outliers=0.3), method)
        np.testing.assert_allclose(found.matrix / found.matrix[2, 2], H_TRUE, rtol=1e-2, atol=1e-4)
        found = estimate_fundamental(*two_views(300, R_TRUE, T_TRUE, outliers=0.3), method)
        np.testing.assert_allclose(normalized(found.matrix), normalized(F_TRUE), atol=1e-2)
        if method == "poselib":
            found = estimate_essential(*two_views(300, R_TRUE, T_TRUE, outliers=0.3), K1, K2, method)
            np.testing.assert_allclose(normalized(found.matrix), normalized(E_TRUE), atol=1e-2)
