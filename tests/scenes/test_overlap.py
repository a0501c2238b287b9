"""disk_ops.scenes.overlap: which posed images show the same."""

from __future__ import annotations

import cv2
import numpy as np
import posed_scene
import pytest

from disk_ops.scenes.overlap import coarse_depth, overlaps_by_depth, pairs_by_direction, pairs_by_overlap


def views(shifts: list[float], size=(160, 120), away=0.0):
    """Cameras that look at the plane z = 0 straight ahead, 2 units away, each moved sideways; focal length 160."""
    K = np.array([[160.0, 0, 79.5], [0, 160, 59.5], [0, 0, 1]])
    t = np.array([[-shift, 0, 2.0] for shift in shifts]) - away  # R is the identity
    depth = np.full((len(shifts), *coarse_depth(np.zeros(size[::-1])).shape), 2, np.float32)
    R = np.tile(np.eye(3), (len(shifts), 1, 1))
    return [depth, np.tile(K, (len(shifts), 1, 1)), R, t, np.tile(size, (len(shifts), 1))]


class TestByDepth:
    @pytest.mark.parametrize("away", [0.0, np.array([4e6, -3e5, 100])])
    def test_is_the_part_that_both_show(self, away):
        shifts = [0, 0.5, 1, 3]  # 2 units of the plane are as wide as an image
        expected = np.maximum(1 - np.abs(np.subtract.outer(shifts, shifts)) / 2, 0)
        assert np.abs(overlaps_by_depth(*views(shifts, away=away)) - expected).max() < 0.07

    def test_what_lies_behind_something_is_not_seen(self):
        arguments = views([0, 0.5])
        arguments[0][1, :, :] = 1.0  # a wall before the second camera: neither sees what the other does
        assert overlaps_by_depth(*arguments)[0, 1] == 0

    def test_points_of_unknown_depth_do_not_count(self):
        arguments = views([0, 0.5])
        arguments[0][0, :, :32] = np.nan  # its right half lies in the second image completely
        assert overlaps_by_depth(*arguments)[0, 1] == 1

    def test_what_would_lie_at_unknown_depth_is_not_seen(self):
        arguments = views([0, 0])
        arguments[0][1, :12] = np.nan
        assert overlaps_by_depth(*arguments)[0, 1] == 1  # of the second image, all that is known
        arguments[0][0, 36:] = np.nan
        assert abs(overlaps_by_depth(*arguments)[0, 1] - 2 / 3) < 0.07
        arguments[0][0] = np.nan
        assert overlaps_by_depth(*arguments)[0, 1] == 0

    def test_behind_the_camera_is_not_seen(self):
        arguments = views([0, 0])
        arguments[2][1] = np.diag([-1.0, 1, -1])
        arguments[3][1] = [0, 0, -4]
        assert overlaps_by_depth(*arguments)[0, 1] == 0

    def test_turned_cameras_of_other_sizes(self):
        cameras = [posed_scene.pinhole((160, 120), 0), posed_scene.pinhole((320, 240), 2)]
        full = [posed_scene.render(posed_scene.rays_of(camera), camera.R, camera.t)[1] for camera in cameras]
        stacked = [np.array([getattr(camera, name) for camera in cameras]) for name in ("K", "R", "t", "size")]
        depth = np.array([coarse_depth(values) for values in full], np.float32)
        part = []
        for camera, other, values in ((cameras[0], cameras[1], full[0]), (cameras[1], cameras[0], full[1])):
            points = (posed_scene.rays_of(camera) * values[:, :, None]).reshape(-1, 3) - camera.t
            pixels = posed_scene.project(points @ camera.R, other.K, other.R, other.t)
            part.append(((pixels >= 0) & (pixels < other.size)).all(1).mean())
        assert 0.3 < max(part) < 0.97
        assert abs(overlaps_by_depth(depth, *stacked)[0, 1] - max(part)) < 0.05

    def test_the_coarse_map_has_the_depth_of_pixels(self):
        depth = np.arange(96 * 128, dtype=np.float32).reshape(96, 128)
        assert np.array_equal(coarse_depth(depth), depth[1::2, 1::2])
        assert np.isnan(coarse_depth(np.full((1, 1), np.nan))).all()


def test_pairs_in_the_range_are_taken():
    overlap = np.array([[1, 0.5, 0.9], [0.5, 1, 0], [0.9, 0, 1]])
    assert pairs_by_overlap(overlap, 0.5, 0.8).tolist() == [[0, 1]]
    assert pairs_by_overlap(overlap, 0.0, 1.0).tolist() == [[0, 1], [0, 2]]


class TestByDirection:
    def test_the_angle_is_that_of_the_optical_axes(self):
        turns = [[0, 0, 0], [0, 0.5, 0], [0, 0, 1.5], [0.6, 0, 0]]  # the third one is turned in the image plane
        R = np.array([cv2.Rodrigues(np.array(turn, float))[0] for turn in turns])
        t = -R @ np.array([1.0, 2, 3])[:, None] * np.arange(1, 5)[:, None, None]
        t = t[:, :, 0]
        assert pairs_by_direction(R, t, 30, 0).tolist() == [[0, 1], [0, 2], [1, 2]]
        assert pairs_by_direction(R, t, 0, 0).tolist() == [[0, 2]]
        assert len(pairs_by_direction(R, t, 180, 0)) == 6

    def test_cameras_in_one_place_are_no_pair(self):
        """There is no epipolar geometry between them."""
        R = np.array([cv2.Rodrigues(np.array([0, 0.1 * index, 0]))[0] for index in range(4)])
        centres = np.array([[3.0, 0, 1], [3, 0, 1], [4, 0, 1], [3, 0, 1]])
        t = -(R @ centres[:, :, None])[:, :, 0]
        assert pairs_by_direction(R, t, 30, 0).tolist() == [[0, 2], [1, 2], [2, 3]]
        assert len(pairs_by_direction(R, np.zeros((4, 3)), 180, 0)) == 0

    def test_the_distance_is_that_of_the_cameras(self):
        R = np.array([np.eye(3), cv2.Rodrigues(np.array([0, 0, 1.0]))[0], np.eye(3)])
        centres = np.array([[0, 0, 0], [1, 0, 0], [5, 0, 0.0]])
        t = -(R @ centres[:, :, None])[:, :, 0]
        assert pairs_by_direction(R, t, 30, 4.5).tolist() == [[0, 1], [1, 2]]
