"""Degradations change how an image looks and leave its pixels where they are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from disk_ops.training.data.photometric import (
    PhotometricConfig,
    degrade,
    gaussian_blur,
    jpeg,
    motion_blur,
    resample,
)

RANGES = [field.name for field in dataclasses.fields(PhotometricConfig) if isinstance(field.default, tuple)]
NONE: dict[str, Any] = {"grey": 0.0, **{name: (0.0, 0.0) for name in RANGES}}
STRENGTHS = {field.name: field.default[1] for field in dataclasses.fields(PhotometricConfig) if field.name in RANGES}


def texture(width: int = 64, height: int = 48) -> np.ndarray:
    """A colourful image with detail [H, W, 3]."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / a + y / b + c) for a, b, c in ((3, 7, 0), (-5, 2, 1), (11, 4, 2))]
    image = 128 + 60 * np.stack(waves, -1) + rng.normal(0, 10, (height, width, 3))
    return np.clip(image, 0, 255).astype(np.uint8)


def blob(x: float = 40.3, y: float = 29.6) -> np.ndarray:
    """A bright spot on black [64, 80, 3]."""
    rows, columns = np.mgrid[:64, :80]
    spot = 220 * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * 3.0**2))
    return np.repeat(np.rint(spot)[..., None], 3, -1).astype(np.uint8)


def centroid(image: np.ndarray) -> np.ndarray:
    """xy of the centre of an image's brightness; what is faint (noise of compression) is left out."""
    weights = image.astype(float).mean(-1)
    weights = np.where(weights > 8, weights, 0)
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]]
    return np.array([(weights * columns).sum(), (weights * rows).sum()]) / weights.sum()


def change(image: np.ndarray, config: PhotometricConfig, seeds: int = 40) -> float:
    """Mean change of a pixel's value over many draws."""
    draws = [degrade(image, config, np.random.default_rng(seed)).astype(int) for seed in range(seeds)]
    return float(np.mean([np.abs(draw - image).mean() for draw in draws]))


@pytest.mark.parametrize("name", RANGES)
def test_each_degradation_alone_acts_as_often_as_it_should(name: str) -> None:
    image = texture()

    def share(probability: float) -> float:
        config = PhotometricConfig(**{**NONE, name: (probability, STRENGTHS[name])})
        results = [degrade(image, config, np.random.default_rng(seed)) for seed in range(100)]
        return float(np.mean([not np.array_equal(result, image) for result in results]))

    assert share(0.0) == 0
    assert share(1.0) > 0.7  # the weakest amounts may round to nothing
    assert 0.3 < share(0.5) / share(1.0) < 0.7


@pytest.mark.parametrize("name", RANGES)
def test_strength_of_each(name: str) -> None:
    strong = PhotometricConfig(**{**NONE, name: (1.0, STRENGTHS[name])})
    weak = dataclasses.replace(strong, photometric=0.4)
    as_weak = PhotometricConfig(**{**NONE, name: (1.0, STRENGTHS[name] * 0.4)})
    assert change(texture(), weak) < change(texture(), strong)
    assert change(texture(), weak) == pytest.approx(change(texture(), as_weak), rel=1e-6)
    assert change(texture(), PhotometricConfig(**{**NONE, name: (1.0, 0.0)})) == 0


def test_zero_is_none() -> None:
    image = texture()
    np.testing.assert_array_equal(degrade(image, PhotometricConfig(photometric=0.0), np.random.default_rng(0)), image)


def test_default_keeps_most_images_recognisable() -> None:
    """Correlation of structure with the original stays high: strong enough to matter, not to destroy."""
    image, correlations = texture(128, 128), []
    for seed in range(200):
        result = degrade(image, PhotometricConfig(), np.random.default_rng(seed))
        assert result.shape == image.shape
        assert result.dtype == np.uint8
        correlations.append(np.corrcoef(result.mean(-1).ravel(), image.mean(-1).ravel())[0, 1])
    assert np.median(correlations) > 0.8
    assert np.mean(np.array(correlations) < 0.95) > 0.1


def test_is_a_function_of_the_generator_and_leaves_the_image() -> None:
    image = texture()
    image.setflags(write=False)
    config = PhotometricConfig(**{name: (1.0, strength) for name, strength in STRENGTHS.items()})
    first, second, other = (degrade(image, config, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)
    np.testing.assert_array_equal(image, texture())


MOVERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "blur": lambda image: gaussian_blur(image, 1.5),
    "strong blur": lambda image: gaussian_blur(image, 4.0),
    **{
        f"motion {length} {angle}": lambda image, length=length, angle=angle: motion_blur(
            image, length, math.radians(angle)
        )
        for length in (1.5, 5.0, 8.2)
        for angle in (0, 30, 90, 135, 170)
    },
    **{f"resample {factor}": lambda image, factor=factor: resample(image, factor) for factor in (1.2, 1.5, 2.0, 2.3)},
    "jpeg 90": lambda image: jpeg(image, 90),
}


@pytest.mark.parametrize("name", MOVERS)
@pytest.mark.parametrize("spot", [(40.3, 29.6), (33.0, 35.0), (41.5, 28.25)], ids=str)
def test_nothing_moves(name: str, spot: tuple[float, float]) -> None:
    np.testing.assert_allclose(centroid(MOVERS[name](blob(*spot))), centroid(blob(*spot)), atol=0.05)


@pytest.mark.parametrize("name", ["blur", "motion", "resample", "jpeg", "noise"])
def test_nothing_moves_at_random(name: str) -> None:
    config = PhotometricConfig(**{**NONE, name: (1.0, STRENGTHS[name])})
    image = blob()
    moved = [centroid(degrade(image, config, np.random.default_rng(seed))) - centroid(image) for seed in range(100)]
    # Errors of noise and compression, which have no direction, are as large as this.
    single, mean = {"noise": (2.0, 0.4), "jpeg": (0.15, 0.04)}.get(name, (0.05, 0.02))
    assert np.abs(moved).max() < single
    assert np.abs(np.mean(moved, 0)).max() < mean


@pytest.mark.parametrize("length", [1.5, 4.0, 7.3])
def test_motion_blur_is_as_long_as_asked(length: float) -> None:
    point = np.zeros((41, 41, 3), np.uint8)
    point[20, 20] = 255
    along = motion_blur(point, length, 0.0)[:, :, 0].astype(float)
    weights = along.sum(0) / along.sum()
    deviation = math.sqrt((weights * (np.arange(41) - 20) ** 2).sum())
    assert deviation == pytest.approx(math.sqrt(length**2 / 12 + 1 / 6), rel=0.1)  # a line, and pixels
    assert along.sum(1)[[17, 23]].sum() == 0


@pytest.mark.parametrize("mover", [lambda image: gaussian_blur(image, 1.5), lambda image: motion_blur(image, 5, 0.3)])
def test_blur_keeps_a_constant_to_the_edges(mover: Callable[[np.ndarray], np.ndarray]) -> None:
    flat = np.full((30, 20, 3), 90, np.uint8)
    np.testing.assert_array_equal(mover(flat), flat)


def test_grey_has_no_colour_and_keeps_luma() -> None:
    result = degrade(texture(), PhotometricConfig(**{**NONE, "grey": 1.0}), np.random.default_rng(0))
    assert (result == result[:, :, :1]).all()
    np.testing.assert_allclose(result[:, :, 0], texture() @ [0.299, 0.587, 0.114], atol=1)


@pytest.mark.parametrize("name", ["hue", "saturation"])
def test_colour_changes_leave_grey_as_it_is(name: str) -> None:
    image = np.repeat(texture()[:, :, :1], 3, -1)
    config = PhotometricConfig(**{**NONE, name: (1.0, STRENGTHS[name])})
    for seed in range(20):
        np.testing.assert_allclose(degrade(image, config, np.random.default_rng(seed)).astype(int), image, atol=1)


def test_hue_turns_red_to_green() -> None:
    red = np.full((4, 4, 3), (200, 50, 50), np.uint8)
    config = PhotometricConfig(**{**NONE, "hue": (1.0, 120.0)})
    results = np.stack([degrade(red, config, np.random.default_rng(seed))[0, 0] for seed in range(200)]).astype(int)
    assert (results[:, 1] > results[:, [0, 2]].max(1) + 50).any()  # at +120 degrees
    assert (results[:, 2] > results[:, :2].max(1) + 50).any()
    np.testing.assert_allclose(results @ [0.299, 0.587, 0.114], red[0, 0] @ [0.299, 0.587, 0.114], atol=25)


def test_brightness_of_noise_is_that_of_the_image() -> None:
    flat = np.full((64, 64, 3), 128, np.uint8)
    config = PhotometricConfig(**{**NONE, "noise": (1.0, 0.05)})
    results = np.stack([degrade(flat, config, np.random.default_rng(seed)) for seed in range(30)]).astype(float)
    assert results.mean() == pytest.approx(128, abs=0.3)
    deviations = results.std((1, 2, 3))
    assert 0.05 * 255 * 0.75 < deviations.max() <= 0.05 * 255 * 1.05


def test_shading_is_smooth_and_only_darkens() -> None:
    flat = np.full((96, 128, 3), 200, np.uint8)
    config = PhotometricConfig(**{**NONE, "shading": (1.0, 0.5)})
    for seed in range(60):
        result = degrade(flat, config, np.random.default_rng(seed)).astype(int)
        assert result.max() <= 205
        assert result.min() >= 90
        assert max(np.abs(np.diff(result, axis=axis)).max() for axis in (0, 1)) <= 8


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (200, 2)])
def test_tiny_images(size: tuple[int, int]) -> None:
    image = np.full((*size, 3), 100, np.uint8)
    for seed in range(40):
        assert degrade(image, PhotometricConfig(photometric=2.0), np.random.default_rng(seed)).shape == image.shape


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"photometric": -1.0}, "photometric must be at least 0, got -1"),
        ({"grey": 1.1}, "grey must be from 0 to 1, got 1.1"),
        ({"blur": (1.5, 1.0)}, "blur must be a probability and a strength of at least 0, got"),
        ({"jpeg": (0.5, -1.0)}, "jpeg must be a probability and a strength of at least 0, got"),
    ],
)
def test_refuses_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PhotometricConfig(**settings)
