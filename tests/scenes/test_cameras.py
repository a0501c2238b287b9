"""disk_ops.scenes.cameras: what is refused as a camera, and K of a resized image."""

from __future__ import annotations

import numpy as np
import pytest

from disk_ops.scenes.cameras import check_camera, scaling


class TestCheckCamera:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"K": np.eye(2)}, "must be 3x3"),
            ({"t": np.array([0, np.inf, 0])}, "aren't finite"),
            ({"K": np.diag([-5.0, 5, 1])}, "positive focal lengths"),
            ({"K": np.diag([5.0, 5, 2])}, "upper triangular"),
            ({"R": 2 * np.eye(3)}, "R must be a rotation"),
            ({"R": np.diag([1.0, 1, -1])}, "R must be a rotation"),
        ],
    )
    def test_says_what_is_wrong(self, change, message):
        camera = {"K": np.diag([5.0, 5, 1]), "R": np.eye(3), "t": np.zeros(3)}
        assert check_camera(**camera) is None
        assert message in check_camera(**{**camera, **change})


def test_resizing_keeps_the_corners_of_the_image():
    corners = np.array([[-0.5, -0.5, 1], [639.5, 479.5, 1], [319.5, 239.5, 1]])
    expected = [[-0.5, -0.5, 1], [99.5, 76.5, 1], [49.5, 38.0, 1]]
    np.testing.assert_allclose(corners @ scaling((640, 480), (100, 77)).T, expected, rtol=1e-12)
