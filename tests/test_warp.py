"""The warp of a photograph and its homography agree to 1e-3 pixels; views overlap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disk_ops.training.data.homographies import WarpConfig, random_homographies
from disk_ops.warp import warp

PIXELS = 1e-3
SHIFT = np.array([[1.0, 0, 3], [0, 1, -2], [0, 0, 1]])
STILL: dict[str, Any] = {"scale": (1.0, 1.0), "rotation": 0.0, "perspective": 0.0, "shift": 0.0}


def coordinates(width: int, height: int) -> np.ndarray:
    """An image [H, W, 2] whose values are its pixels' x and y: bilinear interpolation is exact on it."""
    return np.stack(np.meshgrid(np.arange(width), np.arange(height)), -1).astype(np.float32)


def sources(homography: np.ndarray, width: int, height: int) -> np.ndarray:
    """Where in the photo each pixel of the view is [h, w, 2]; nan behind the camera."""
    pixels = np.concatenate([coordinates(width, height), np.ones((height, width, 1))], -1) @ np.linalg.inv(homography).T
    behind = pixels[..., 2:] * np.linalg.det(homography) <= 0
    return np.where(behind, np.nan, pixels[..., :2] / np.where(behind, 1, pixels[..., 2:]))


def inside(points: np.ndarray, width: int, height: int, margin: float = 0) -> np.ndarray:
    low, high = np.array([margin, margin]), np.array([width - 1 - margin, height - 1 - margin])
    return ((points >= low) & (points <= high)).all(-1)


def scaling(scale: float) -> np.ndarray:
    return np.array([[scale, 0, (scale - 1) / 2], [0, scale, (scale - 1) / 2], [0, 0, 1]])


@pytest.mark.parametrize("scale", [(0.1, 0.3), (0.3, 0.6), (0.55, 1.3), (1.0, 3.0)], ids=str)
@pytest.mark.parametrize(
    ("photo", "frame"), [((97, 64), (48, 64)), ((640, 427), (256, 256)), ((1024, 1023), (768, 1024))]
)
def test_source_of_each_pixel_is_as_the_homography_says(
    photo: tuple[int, int], frame: tuple[int, int], scale: tuple[float, float]
) -> None:
    config = WarpConfig(scale=scale, full_rotation=0.5, perspective=45.0)
    homographies = random_homographies(photo, frame, 4, config, np.random.default_rng(1))
    seen = 0
    for homography in homographies:
        view, mask = warp(coordinates(*photo), homography, frame)
        expected = sources(homography, *frame)
        assert np.abs(view - expected)[mask].max(initial=0) < PIXELS
        assert not (mask & ~inside(expected, *photo)).any()
        seen += np.count_nonzero(mask)
    assert seen > 0


def test_masked_is_only_what_lies_outside() -> None:
    homography = np.array([[1.1, 0.3, 20.0], [-0.2, 1.2, 30.0], [0, 0, 1]])  # enlarges: nothing is smoothed
    _, mask = warp(coordinates(80, 60), homography, (120, 110))
    expected = inside(sources(homography, 120, 110), 80, 60)
    assert 0.2 < expected.mean() < 0.8
    np.testing.assert_array_equal(mask, expected)


@pytest.mark.parametrize("scale", [0.2, 0.4, 0.6, 0.8])
def test_reduced_photo_is_masked_only_near_its_edge(scale: float) -> None:
    homography = scaling(scale)
    homography[:2, 2] += 5
    _, mask = warp(coordinates(200, 160), homography, (200, 160))
    points = sources(homography, 200, 160)
    assert not (inside(points, 200, 160, margin=4 / scale) & ~mask).any()


def test_identity_changes_nothing() -> None:
    photo = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    view, mask = warp(photo, np.eye(3), (70, 50))
    assert view.dtype == np.float32
    np.testing.assert_allclose(view, photo, atol=2e-3)
    assert mask.all()


def test_whole_pixels_are_shifted_exactly() -> None:
    photo = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    view, mask = warp(photo, SHIFT, (70, 50))
    np.testing.assert_allclose(view[:48, 3:], photo[2:, :67], atol=2e-2)
    assert mask[:48, 3:].all()
    assert not mask[48:].any()
    assert not mask[:, :3].any()


def test_quarter_turn() -> None:
    photo = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    view, mask = warp(photo, np.array([[0, -1.0, 49], [1, 0, 0], [0, 0, 1]]), (50, 70))
    np.testing.assert_allclose(view[1:-1, 1:-1], np.rot90(photo, -1)[1:-1, 1:-1], atol=2e-2)
    assert mask[1:-1, 1:-1].all()  # at the edge rounding decides


@pytest.mark.parametrize("factor", [2, 3, 5])
def test_reducing_by_a_whole_number_takes_the_mean_of_blocks(factor: int) -> None:
    photo = np.random.default_rng(0).random((60, 90, 3), np.float32)
    view, _ = warp(photo, scaling(1 / factor), (90 // factor, 60 // factor))
    blocks = photo.reshape(60 // factor, factor, 90 // factor, factor, 3).mean((1, 3))
    np.testing.assert_allclose(view, blocks, atol=1e-4)


@pytest.mark.parametrize("scale", [0.3, 0.5, 0.55, 0.7])
def test_does_not_alias(scale: float) -> None:
    """Stripes that are too fine for the view become grey rather than coarser stripes."""
    photo = np.zeros((200, 200, 1), np.float32)
    photo[:, ::2] = 1
    view, mask = warp(photo, scaling(scale), (50, 50))
    assert mask.any()
    assert view[mask].std() < 0.17  # 0.5 in the photo


@pytest.mark.parametrize("scale", [1.0, 0.7, 0.3])
def test_uint8_and_float_agree(scale: float) -> None:
    photo = np.random.default_rng(0).integers(0, 256, (80, 90, 3), dtype=np.uint8)
    view, mask = warp(photo, scaling(scale) @ SHIFT, (60, 50))
    precise, precise_mask = warp(photo.astype(np.float32), scaling(scale) @ SHIFT, (60, 50))
    np.testing.assert_array_equal(mask, precise_mask)
    np.testing.assert_allclose(view, precise, atol=1.6)  # two roundings to whole numbers


def test_masked_pixels_get_the_nearest_edge() -> None:
    view, mask = warp(np.full((40, 40, 3), 77, np.uint8), SHIFT, (40, 60))
    assert not mask.all()
    np.testing.assert_allclose(view, 77, atol=1e-3)


def test_behind_the_horizon_is_masked() -> None:
    horizon = np.array([[1.0, 0, 0], [0, 1, 0], [0, -0.02, 1]])  # at y = -50 of the view: z grows to the top
    view, mask = warp(coordinates(100, 400), horizon, (100, 100))
    points = sources(horizon, 100, 100)
    np.testing.assert_array_equal(mask, inside(points, 100, 400))
    flipped_over = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0.02, 1]])  # pixels y > 50 look behind
    _, mask = warp(coordinates(100, 400), flipped_over, (100, 100))
    assert mask[:30].any()
    assert not mask[50:].any()
    assert np.isfinite(view).all()


def test_sign_and_scale_of_the_matrix_mean_nothing() -> None:
    photo = coordinates(60, 60)
    view, mask = warp(photo, SHIFT, (50, 50))
    for factor in (-1.0, 1e-3, -1e4):
        other, other_mask = warp(photo, SHIFT * factor, (50, 50))
        np.testing.assert_allclose(other[mask], view[mask], atol=PIXELS)
        np.testing.assert_array_equal(other_mask[1:-1, 4:-1], mask[1:-1, 4:-1])


def test_view_that_shows_nothing() -> None:
    away = np.array([[1.0, 0, 1000], [0, 1, 0], [0, 0, 1]])
    view, mask = warp(coordinates(60, 60), away, (50, 40))
    assert view.shape == (40, 50, 2)
    assert not mask.any()
    assert not view.any()
