"""disk_ops.training.data.homographies: views of a photograph differ as the settings say, and overlap."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from disk_ops.training.data.homographies import WarpConfig, random_homographies, smallest_overlap
from disk_ops.training.rewards import HomographyReward
from disk_ops.warp import sources, warp

PIXELS = 1e-3
SHIFT = np.array([[1.0, 0, 3], [0, 1, -2], [0, 0, 1]])
STILL: dict[str, Any] = {"scale": (1.0, 1.0), "rotation": 0.0, "perspective": 0.0, "shift": 0.0}


def test_overlap_of_known_views() -> None:
    photo, frame, eye = (400, 300), (200, 100), np.eye(3)
    shifts = [np.array([[1.0, 0, -x], [0, 1, 0], [0, 0, 1]]) for x in (0, 100, 250)]
    assert smallest_overlap(np.stack([eye, eye]), photo, frame) == 1
    assert smallest_overlap(np.stack([eye]), photo, frame) == 1
    assert smallest_overlap(np.stack([eye, shifts[1]]), photo, frame) == pytest.approx(0.5, abs=0.05)
    assert smallest_overlap(np.stack([eye, shifts[2]]), photo, frame) == 0
    assert smallest_overlap(np.stack([eye, eye, shifts[1]]), photo, frame) == pytest.approx(0.5, abs=0.05)
    # A detail: all of it is in the other view, of which it is a quarter.
    assert smallest_overlap(np.stack([eye, np.diag([2, 2, 1.0])]), photo, frame) == pytest.approx(0.5, abs=0.05)


def test_overlap_is_relative_to_what_a_small_photo_can_fill() -> None:
    assert smallest_overlap(np.stack([np.eye(3)] * 2), (50, 50), (200, 200)) == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize("photo", [(640, 427), (300, 900), (40, 40)])
@pytest.mark.parametrize("views", [2, 3])
def test_all_pairs_overlap(photo: tuple[int, int], views: int) -> None:
    config, frame = WarpConfig(min_overlap=0.4, shift=0.5), (256, 192)
    for seed in range(60):
        homographies = random_homographies(photo, frame, views, config, np.random.default_rng(seed))
        assert homographies.shape == (views, 3, 3)
        assert smallest_overlap(homographies, photo, frame) >= 0.4


def test_is_a_function_of_the_generator() -> None:
    first, second, other = (
        random_homographies((640, 480), (256, 256), 3, WarpConfig(), np.random.default_rng(seed)) for seed in (5, 5, 6)
    )
    np.testing.assert_array_equal(first, second)
    assert not np.allclose(first, other)


def draw(views: int = 1, **settings: Any) -> np.ndarray:
    """Many homographies [N, 3, 3]."""
    config = WarpConfig(**{**STILL, "min_overlap": 0.0, **settings})
    return np.concatenate(
        [random_homographies((640, 480), (200, 100), views, config, np.random.default_rng(seed)) for seed in range(300)]
    )


def test_nothing_random_leaves_crops_within_the_photo() -> None:
    homographies = draw()
    np.testing.assert_allclose(homographies[:, :2, :2], np.broadcast_to(np.eye(2), (300, 2, 2)), atol=1e-12)
    left, top = -homographies[:, 0, 2], -homographies[:, 1, 2]
    assert (left > -1).all() and (left + 199 < 640).all() and left.std() > 50
    assert (top > -1).all() and (top + 99 < 480).all() and top.std() > 50


def test_scale_is_log_uniform_in_its_range() -> None:
    logs = np.log(draw(scale=(0.5, 2.0))[:, 0, 0])
    assert math.log(0.5) <= logs.min() < math.log(0.52)
    assert math.log(1.92) < logs.max() <= math.log(2.0)
    assert abs(logs.mean()) < 0.1


def test_views_are_of_all_of_the_photo() -> None:
    """As far as a view of medium scale, here 256 pixels of the photo, stays inside."""
    config = WarpConfig(**{**STILL, "scale": (0.5, 2.0), "min_overlap": 0.0})
    homographies = np.concatenate(
        [random_homographies((640, 480), (256, 256), 1, config, np.random.default_rng(seed)) for seed in range(300)]
    )
    centres = (np.linalg.inv(homographies) @ [127.5, 127.5, 1])[:, :2]
    low, high = np.array([128, 128]), np.array([639, 479]) - 128
    assert (centres >= low - 1e-6).all() and (centres <= high + 1e-6).all()
    assert (centres.min(0) < low + 10).all() and (centres.max(0) > high - 10).all()


def test_rotation_has_its_standard_deviation() -> None:
    homographies = draw(rotation=20.0)
    angles = np.degrees(np.arctan2(homographies[:, 1, 0], homographies[:, 0, 0]))
    assert abs(angles.mean()) < 4
    assert 17 < angles.std() < 23


def test_full_rotation_covers_the_circle() -> None:
    homographies = draw(full_rotation=1.0)
    angles = np.degrees(np.arctan2(homographies[:, 1, 0], homographies[:, 0, 0]))
    counts, _ = np.histogram(angles, bins=8, range=(-180, 180))
    assert counts.min() > 15
    turned = draw(full_rotation=0.25)
    assert 0.15 < (np.abs(turned[:, 1, 0]) > 1e-9).mean() < 0.35


def test_perspective_tilts_up_to_its_angle() -> None:
    homographies = draw(perspective=40.0)
    centres = np.linalg.inv(homographies) @ [99.5, 49.5, 1]  # the point around which the photo is tilted
    z = 1 / centres[:, 2]
    foreshortening = np.linalg.det(homographies) / z**3
    assert math.cos(math.radians(40)) - 1e-9 <= foreshortening.min() < math.cos(math.radians(36))
    assert foreshortening.max() <= 1 + 1e-9
    assert (np.abs(homographies[:, 2, :2]).sum(1) > 0).all()


def test_shift_moves_the_common_point() -> None:
    homographies = draw(views=2, shift=0.1).reshape(-1, 2, 3, 3)
    moved = homographies[:, 1, :2, 2] - homographies[:, 0, :2, 2]
    assert (np.abs(moved) <= [40, 20]).all()
    assert (np.abs(moved).max(0) > [25, 12]).all()


def test_determinants_are_positive_as_the_reward_expects() -> None:
    config = WarpConfig(full_rotation=0.5, perspective=60.0)
    reward = HomographyReward()
    for seed in range(50):
        first, second = random_homographies((640, 480), (256, 256), 2, config, np.random.default_rng(seed))
        assert np.linalg.det(first) > 0
        assert np.linalg.det(second) > 0
        mask = warp(np.zeros((480, 640, 1), np.float32), first, (256, 256))[1]
        points = torch.from_numpy(np.argwhere(mask)[::50, ::-1].copy()).double()
        photo = torch.from_numpy(np.stack(sources(first, (256, 256))[:2], -1)[mask][::50])
        warped = reward(points, points, torch.from_numpy(second @ np.linalg.inv(first))).warped1
        both = second @ np.concatenate([photo, np.ones((len(photo), 1))], 1).T
        front = both[2] > 0
        np.testing.assert_allclose(warped[front], (both[:2] / both[2]).T[front], rtol=1e-6, atol=1e-6)
        assert torch.isinf(warped[~front]).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": (0.0, 1.0)}, "scale must be positive and in increasing order, got"),
        ({"scale": (2.0, 1.0)}, "scale must be positive and in increasing order, got"),
        ({"scale": (float("nan"), 1.0)}, "scale must be"),
        ({"rotation": -1.0}, "rotation must be from 0 to 360 degrees, got -1"),
        ({"perspective": 80.0}, "perspective must be from 0 to 75 degrees, got 80"),
        ({"full_rotation": 1.5}, "full_rotation must be from 0 to 1, got 1.5"),
        ({"shift": -0.1}, "shift must be from 0 to 1, got -0.1"),
        ({"flip": 2.0}, "flip must be from 0 to 1, got 2"),
        ({"min_overlap": float("nan")}, "min_overlap must be from 0 to 1, got nan"),
    ],
)
def test_refuses_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WarpConfig(**settings)
