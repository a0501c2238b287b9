"""Random changes of an image that leave every pixel in its place: light, colour, blur, noise, compression."""

from __future__ import annotations

import dataclasses
import math
from statistics import NormalDist

import cv2
import numpy as np
import numpy.typing as npt

from disk_ops.training.settings import setting

# Values of a normal distribution, all equally likely. To look them up is much faster than to draw exact ones.
_NORMAL = np.array([NormalDist().inv_cdf((i + 0.5) / 256) for i in range(256)], np.float32)

Image = npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True)
class PhotometricConfig:
    """Degradations as (probability, largest strength); each view is degraded independently."""

    photometric: float = setting(1.0, "factor of the strengths of all degradations that follow; 0: none")
    brightness: tuple[float, float] = setting((0.8, 0.15), "probability, largest change as part of the full range")
    contrast: tuple[float, float] = setting((0.8, 0.3), "probability, largest change of the factor's logarithm")
    gamma: tuple[float, float] = setting((0.5, 0.35), "probability, largest change of the exponent's logarithm")
    white_balance: tuple[float, float] = setting(
        (0.5, 0.1), "probability, largest change of a channel's gain (logarithm)"
    )
    saturation: tuple[float, float] = setting((0.5, 0.6), "probability, largest relative change")
    hue: tuple[float, float] = setting((0.3, 10.0), "probability, largest rotation in degrees")
    grey: float = setting(0.1, "probability of an image without colour")
    shading: tuple[float, float] = setting(
        (0.4, 0.5), "probability, largest darkening by smooth shadows, gradients, vignettes"
    )
    blur: tuple[float, float] = setting(
        (0.25, 1.5), "probability, largest standard deviation of a Gaussian blur in pixels"
    )
    motion: tuple[float, float] = setting((0.15, 5.0), "probability, largest length of a motion blur in pixels")
    resample: tuple[float, float] = setting(
        (0.15, 1.0), "probability, largest reduction before enlarging again: factor - 1"
    )
    noise: tuple[float, float] = setting(
        (0.4, 0.05), "probability, largest standard deviation as part of the full range"
    )
    jpeg: tuple[float, float] = setting((0.3, 65.0), "probability, how far below 95 the JPEG quality may be")

    def __post_init__(self) -> None:
        if not self.photometric >= 0:
            raise ValueError(f"photometric must be at least 0, got {self.photometric}")
        if not 0 <= self.grey <= 1:
            raise ValueError(f"grey must be from 0 to 1, got {self.grey}")
        for field in dataclasses.fields(PhotometricConfig):
            value = getattr(self, field.name)
            if isinstance(value, tuple) and not (0 <= value[0] <= 1 and value[1] >= 0):
                raise ValueError(f"{field.name} must be a probability and a strength of at least 0, got {value}")


def degrade(
    image: Image,  # [H, W, 3]
    config: PhotometricConfig,
    rng: np.random.Generator,
) -> Image:
    """Return the image as another camera, in another light, might have seen it ``[H, W, 3]``."""
    if config.photometric == 0:
        return image
    dice = _Dice(config.photometric, rng)
    for change in (_soften, _shade, _recolour, _retouch, _add_noise, _compress):
        image = change(image, config, dice)
    return image


class _Dice:
    """Draws whether and how strongly."""

    def __init__(self, factor: float, rng: np.random.Generator) -> None:
        self.factor, self.rng = factor, rng

    def happens(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def amount(self, setting: tuple[float, float]) -> float:
        """From 0 to the strength; 0 if it doesn't happen."""
        probability, strength = setting
        return self.rng.random() * strength * self.factor if self.happens(probability) else 0.0

    def change(self, setting: tuple[float, float]) -> float:
        """From -strength to strength."""
        return self.amount(setting) * (1 if self.rng.random() < 0.5 else -1)


def _soften(image: Image, config: PhotometricConfig, dice: _Dice) -> Image:
    """Blur as of a lens out of focus, a moving camera, and too few pixels."""
    if (sigma := dice.amount(config.blur)) > 0.2:
        image = gaussian_blur(image, sigma)
    if (length := dice.amount(config.motion)) > 1:
        image = motion_blur(image, length, dice.rng.uniform(0, math.pi))
    if (factor := 1 + dice.amount(config.resample)) > 1.05:
        image = resample(image, factor)
    return image


def gaussian_blur(image: Image, sigma: float) -> Image:
    """Blur an image ``[H, W, 3]``; ``sigma`` in pixels."""
    return np.asarray(cv2.GaussianBlur(image, (0, 0), sigma, borderType=cv2.BORDER_REFLECT_101))


def motion_blur(image: Image, length: float, angle: float) -> Image:
    """Blur an image ``[H, W, 3]`` along a line of ``length`` pixels, to both sides equally."""
    radius = math.ceil(length / 2) + 1
    kernel = np.zeros((2 * radius + 1, 2 * radius + 1))
    along = np.linspace(-length / 2, length / 2, 8 * radius + 1)
    x, y = along * math.cos(angle) + radius, along * math.sin(angle) + radius
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    for column, row in ((0, 0), (0, 1), (1, 0), (1, 1)):
        weight = (1 - np.abs(x - left - column)) * (1 - np.abs(y - top - row))
        np.add.at(kernel, (top + row, left + column), weight)
    return np.asarray(cv2.filter2D(image, -1, kernel / kernel.sum(), borderType=cv2.BORDER_REFLECT_101))


def resample(image: Image, factor: float) -> Image:
    """Reduce an image ``[H, W, 3]`` by ``factor`` and enlarge it again."""
    height, width = image.shape[:2]
    small = (max(1, round(width / factor)), max(1, round(height / factor)))
    reduced = cv2.resize(image, small, interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.resize(reduced, (width, height), interpolation=cv2.INTER_LINEAR))


def _shade(image: Image, config: PhotometricConfig, dice: _Dice) -> Image:
    strength = min(dice.amount(config.shading), 0.9)
    if strength == 0:
        return image
    height, width = image.shape[:2]
    rng, (y, x) = dice.rng, np.mgrid[-1:1:9j, -1:1:9j].astype(np.float32)
    kind = rng.integers(3)
    if kind == 0:  # light from one side
        angle = rng.uniform(0, 2 * math.pi)
        field = (math.cos(angle) * x + math.sin(angle) * y) / 2 + 0.5
    elif kind == 1:  # vignette
        field = (x - rng.uniform(-0.3, 0.3)) ** 2 + (y - rng.uniform(-0.3, 0.3)) ** 2
    else:  # soft shadows
        field = cv2.resize(rng.random((4, 4), np.float32), (9, 9), interpolation=cv2.INTER_CUBIC)
    field = 1 - strength * np.clip(field, 0, 1)
    gain = cv2.resize(field, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.asarray(cv2.multiply(image, cv2.merge([gain] * 3), dtype=cv2.CV_8U))


def _recolour(image: Image, config: PhotometricConfig, dice: _Dice) -> Image:
    """Saturation and hue, as one linear map of the colours."""
    saturation = max(0.0, 1 + dice.change(config.saturation))
    angle = math.radians(dice.change(config.hue))
    if dice.happens(config.grey):
        saturation = 0.0
    if saturation == 1 and angle == 0:
        return image
    luma = np.tile([0.299, 0.587, 0.114], (3, 1))
    return np.asarray(cv2.transform(image, luma + saturation * (np.eye(3) - luma) @ _turn_hue(angle)))


def _turn_hue(angle: float) -> npt.NDArray[np.float64]:
    """Rotation ``[3, 3]`` of RGB around the grey axis."""
    cosine, sine = math.cos(angle), math.sin(angle) / math.sqrt(3)
    cross = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])
    return np.asarray(cosine * np.eye(3) + sine * cross + (1 - cosine) / 3)


def _retouch(image: Image, config: PhotometricConfig, dice: _Dice) -> Image:
    """White balance, gamma, contrast and brightness, as one table for each channel."""
    gains = np.exp([[dice.change((1.0, config.white_balance[1]))] for _ in range(3)])
    if not dice.happens(config.white_balance[0]):
        gains = np.ones((3, 1))
    exponent = math.exp(dice.change(config.gamma))
    contrast = math.exp(dice.change(config.contrast))
    brightness = dice.change(config.brightness)
    values = np.clip(np.linspace(0, 1, 256) * gains, 0, 1) ** exponent
    values = np.clip((values - 0.5) * contrast + 0.5 + brightness, 0, 1)
    table = np.rint(values * 255).astype(np.uint8).T[None]  # [1, 256, 3]
    return np.asarray(cv2.LUT(image, np.ascontiguousarray(table)))


def _add_noise(image: Image, config: PhotometricConfig, dice: _Dice) -> Image:
    """Noise of the sensor, and of light itself, which grows with the root of the brightness."""
    strength = dice.amount(config.noise) * 255
    if strength == 0:
        return image
    shot = dice.rng.random()  # how much of the variance at full brightness is of light
    levels = np.sqrt((1 - shot) + shot * np.linspace(0, 1, 256)) * strength
    deviation = cv2.LUT(image, levels.astype(np.float32))
    noise = cv2.LUT(dice.rng.integers(0, 256, image.shape, np.uint8), _NORMAL)
    return np.asarray(cv2.add(image, noise * deviation, dtype=cv2.CV_8U))


def _compress(image: Image, config: PhotometricConfig, dice: _Dice) -> Image:
    drop = dice.amount(config.jpeg)
    return jpeg(image, max(5, round(95 - drop))) if drop > 0 else image


def jpeg(image: Image, quality: int) -> Image:
    """Compress an image ``[H, W, 3]`` and decompress it."""
    done, data = cv2.imencode(".jpg", image[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    assert done
    return np.ascontiguousarray(cv2.imdecode(data, cv2.IMREAD_COLOR)[:, :, ::-1])
