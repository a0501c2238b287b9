"""Pictures of keypoints and matches.

The photograph is shown paler than it is, so that the drawing stands out; points get a dark rim, so that they are
legible on any ground. All functions take and return RGB uint8 arrays [H, W, 3]; points are xy with pixel centres at
integers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]  # [H, W, 3] RGB
Points = npt.NDArray[np.float32]  # [N, 2] xy
Colors = npt.NDArray[np.uint8]  # [N, 3] RGB

_SUPERSAMPLING = 2  # everything is drawn this much larger and then averaged, for smooth lines and rims
_SHIFT = 4  # fractional bits of coordinates given to OpenCV
_FARTHEST = 1 << 28  # OpenCV refuses fixed-point coordinates beyond 32 bits
_GAP = 12  # pixels between two photographs
_RIM: tuple[int, int, int] = (24, 24, 32)

# Stops of the colour ramps, from low to high. Many hues tell places apart: violet, blue, teal, green, yellow, orange.
# Two hues of rising lightness show an order: indigo, blue, pale gold, orange.
_PLACES = np.array(
    [(122, 60, 200), (58, 110, 230), (20, 170, 200), (60, 190, 90), (240, 205, 40), (250, 125, 30)], dtype=np.float64
)
_ORDER = np.array([(70, 60, 140), (60, 120, 205), (150, 190, 225), (255, 225, 130), (255, 140, 25)], dtype=np.float64)

# What the truth says. Errors of correct matches run from green to yellow.
_RIGHT = np.array([(40, 180, 90), (240, 205, 40)], dtype=np.float64)
_WRONG: tuple[int, int, int] = (225, 60, 50)
_BLUE: tuple[int, int, int] = (58, 110, 230)


def to_picture(pixels: npt.NDArray[Any]) -> Picture:
    """An image as decoded ([H, W] or [H, W, 3]; 8-bit, 16-bit or float) as 8-bit RGB."""
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[:, :, None], 3, axis=2)
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels, dtype=np.uint8)
    top = np.iinfo(pixels.dtype).max if np.issubdtype(pixels.dtype, np.integer) else 1.0
    return np.asarray(np.rint(pixels.astype(np.float32) * (255.0 / top)), dtype=np.uint8)


def rank_colors(scores: npt.NDArray[np.floating]) -> Colors:
    """Colours by the rank of the score: the best is orange, the worst indigo."""
    return _interpolate(_ORDER, _ranks(scores))


def height_colors(points: Points) -> Colors:
    """Colours by vertical position (violet at the bottom), so that one can follow where lines cross."""
    return _interpolate(_PLACES, 1.0 - _ranks(points[:, 1]))


def landmark_colors(is_landmark: npt.NDArray[np.bool_]) -> Colors:
    """Colours of keypoints: blue for those that became landmarks, red for the rest, as in the paper."""
    return np.where(is_landmark[:, None], _BLUE, _WRONG).astype(np.uint8)


def error_colors(errors: npt.NDArray[np.floating], limit: float) -> Colors:
    """Colours of matches, as in the paper: green to yellow for errors from 0 to ``limit``, red above, blue for NaN."""
    colors = _interpolate(_RIGHT, np.clip(np.nan_to_num(errors, posinf=limit) / limit, 0.0, 1.0))
    colors[errors > limit] = _WRONG
    colors[np.isnan(errors)] = _BLUE
    return colors


def _ranks(values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Ranks of the values, from 0 for the lowest to 1 for the highest."""
    ranks = np.empty(len(values))
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return ranks / max(1, len(values) - 1)


def _interpolate(stops: npt.NDArray[np.float64], position: npt.NDArray[np.float64]) -> Colors:
    position = position * (len(stops) - 1)
    low = np.minimum(position.astype(np.int64), len(stops) - 2)
    part = (position - low)[:, None]
    return np.asarray(np.rint(stops[low] * (1 - part) + stops[low + 1] * part), dtype=np.uint8)


def draw_keypoints(
    image: Picture,
    keypoints: Points,
    scores: npt.NDArray[np.floating],  # [N]
    max_width: int = 1600,
    colors: Colors | None = None,
) -> Picture:
    """Draw keypoints on an image, in the colours given or by the rank of their scores; the best ones lie on top."""
    factor = min(1.0, max_width / image.shape[1])
    canvas = paler(resize_picture(image, factor))
    if colors is None:
        colors = rank_colors(scores)
    order = np.argsort(scores, kind="stable")
    radius = float(np.clip(canvas.shape[1] / 420, 1.8, 3.0))
    large = enlarge(canvas)
    draw_points(large, scale_points(keypoints[order], factor), colors[order], radius)
    return reduce_to(large, canvas)


def draw_matches(
    image0: Picture,
    image1: Picture,
    points0: Points,  # [K, 2]
    points1: Points,  # [K, 2] the partners of points0
    max_width: int = 1600,
    max_lines: int = 150,
    colors: Colors | None = None,  # [K, 3]
) -> Picture:
    """Draw two images side by side, matching points in the same colour and joined by lines.

    Args:
        image0: left image.
        image1: right image; both are scaled to the same height.
        points0: matched points of the left image.
        points1: their partners in the right image.
        max_width: width of the picture at most.
        max_lines: of more matches, as many are joined by lines, spread over the left image; all are drawn as points.
        colors: of the matches; by default by their height in the left image.
    """
    height, factors = _common_height(image0, image1, max_width)
    left, right = (
        paler(resize_picture(image, factor, height)) for image, factor in zip((image0, image1), factors, strict=True)
    )
    gap = np.full((height, _GAP, 3), 255, dtype=np.uint8)
    canvas = np.concatenate([left, gap, right], axis=1)
    offset = np.array([left.shape[1] + _GAP, 0], dtype=np.float32)
    on0 = scale_points(points0, factors[0])
    on1 = scale_points(points1, factors[1]) + offset
    if colors is None:
        colors = height_colors(points0)
    large = enlarge(canvas)
    draw_lines(large, on0, on1, colors, choose_spread(on0, max_lines))
    radius = float(np.clip(canvas.shape[1] / 680, 1.8, 2.6))
    draw_points(large, np.concatenate([on0, on1]), np.concatenate([colors, colors]), radius)
    return reduce_to(large, canvas)


def save_picture(path: Path, picture: Picture) -> None:
    """Write a picture; the file type follows from the name.

    Raises:
        OSError: when the type is unknown, or the file can't be written.
    """
    try:
        done, data = cv2.imencode(path.suffix or ".png", np.ascontiguousarray(picture[:, :, ::-1]))
    except cv2.error:
        done = False
    if not done:
        raise OSError(f"pictures of type {path.suffix!r} can't be written; use .png or .jpg")
    path.write_bytes(data.tobytes())


def paler(image: Picture) -> Picture:
    """The image with less colour and contrast."""
    grey = image @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    mixed = 0.45 * image.astype(np.float32) + 0.55 * grey[:, :, None]
    return np.asarray(np.rint(50 + 0.72 * mixed), dtype=np.uint8)


def resize_picture(image: Picture, factor: float, height: int | None = None) -> Picture:
    """The image scaled by a factor, or to the factor's width and a given height."""
    rows, columns = image.shape[:2]
    size = (max(1, round(columns * factor)), height or max(1, round(rows * factor)))
    if size == (columns, rows):
        return image
    smaller = size[0] <= columns and size[1] <= rows
    return np.asarray(
        cv2.resize(image, size, interpolation=cv2.INTER_AREA if smaller else cv2.INTER_CUBIC), dtype=np.uint8
    )


def _common_height(image0: Picture, image1: Picture, max_width: int) -> tuple[int, tuple[float, float]]:
    """Height of the picture and the factors of both images: the higher image's height, if that isn't too wide."""
    height = max(image0.shape[0], image1.shape[0])
    width = sum(image.shape[1] * height / image.shape[0] for image in (image0, image1)) + _GAP
    height = max(1, int(height * min(1.0, (max_width - _GAP) / (width - _GAP))))
    return height, (height / image0.shape[0], height / image1.shape[0])


def scale_points(points: Points, factor: float) -> Points:
    """Points of an image in one that is scaled by a factor."""
    return np.asarray((points.reshape(-1, 2) + 0.5) * factor - 0.5, dtype=np.float32)


def choose_spread(points: Points, count: int) -> npt.NDArray[np.int64]:
    """Indices of at most ``count`` points, chosen so that every part of the image keeps some of its points.

    Points are taken in turns from the cells of a grid.
    """
    if len(points) <= count:
        return np.arange(len(points))
    cells = np.floor(points / max(1.0, float(np.ptp(points, axis=0).max()) / 16)).astype(np.int64)
    turn = np.zeros(len(points), dtype=np.int64)
    seen: dict[tuple[int, int], int] = {}
    for index, (x, y) in enumerate(cells.tolist()):
        turn[index] = seen[x, y] = seen.get((x, y), 0) + 1
    return np.sort(np.argsort(turn, kind="stable")[:count])


def enlarge(canvas: Picture) -> Picture:
    """What is drawn on: the canvas at the scale of :func:`draw_points` and :func:`draw_lines`."""
    return np.ascontiguousarray(canvas.repeat(_SUPERSAMPLING, axis=0).repeat(_SUPERSAMPLING, axis=1))


def reduce_to(large: Picture, canvas: Picture) -> Picture:
    """The drawing at the size of its canvas again, averaged."""
    size = (canvas.shape[1], canvas.shape[0])
    return np.asarray(cv2.resize(large, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def _fixed(points: Points) -> npt.NDArray[np.int64]:
    """Points on the enlarged canvas in OpenCV's fixed-point coordinates."""
    fixed = np.rint(((points + 0.5) * _SUPERSAMPLING - 0.5) * (1 << _SHIFT))
    return np.clip(fixed, -_FARTHEST, _FARTHEST).astype(np.int64)


def draw_points(large: Picture, points: Points, colors: Colors, radius: float) -> None:
    """Draw points with dark rims on an enlarged canvas."""
    fixed = _fixed(points).tolist()
    size = round(radius * _SUPERSAMPLING * (1 << _SHIFT))
    border = round(0.9 * _SUPERSAMPLING * (1 << _SHIFT))
    for (x, y), color in zip(fixed, colors.tolist(), strict=True):
        cv2.circle(large, (x, y), size + border, _RIM, cv2.FILLED, cv2.LINE_AA, _SHIFT)
        cv2.circle(large, (x, y), size, color, cv2.FILLED, cv2.LINE_AA, _SHIFT)


def draw_lines(large: Picture, on0: Points, on1: Points, colors: Colors, chosen: npt.NDArray[np.int64]) -> None:
    """Half-transparent lines, so that what lies below a bundle of them can still be seen."""
    layer = large.copy()
    starts, ends = _fixed(on0), _fixed(on1)
    for index in chosen.tolist():
        color = colors[index].tolist()
        cv2.line(layer, starts[index].tolist(), ends[index].tolist(), color, _SUPERSAMPLING, cv2.LINE_AA, _SHIFT)
    cv2.addWeighted(layer, 0.65, large, 0.35, 0.0, dst=large)
