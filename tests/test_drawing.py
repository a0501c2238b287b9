"""Pictures: right size, right places, inputs untouched."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from disk_ops import drawing

GREY = np.full((90, 120, 3), 128, np.uint8)


def points(count: int, width: int = 120, height: int = 90) -> np.ndarray:
    return np.random.default_rng(0).uniform((5, 5), (width - 5, height - 5), (count, 2)).astype(np.float32)


def colourful(picture: np.ndarray) -> np.ndarray:
    """Where a picture of a grey image has been drawn on: bool [H, W]."""
    return np.ptp(picture.astype(int), axis=2) > 40


def test_keypoints_are_drawn_where_they_are() -> None:
    places = np.float32([[20, 15], [60, 45], [99.5, 70.5]])
    picture = drawing.draw_keypoints(GREY, places, np.float32([1, 3, 2]))
    assert picture.shape == GREY.shape and picture.dtype == np.uint8
    count, _, _, centers = cv2.connectedComponentsWithStats(colourful(picture).astype(np.uint8))
    assert count - 1 == len(places)
    np.testing.assert_allclose(centers[1:], places, atol=0.6)


def test_the_best_keypoints_are_orange_and_on_top() -> None:
    orange = drawing.rank_colors(np.float32([0.1, 0.9, 0.5]))[1]
    picture = drawing.draw_keypoints(GREY, np.float32([[50, 40]] * 3), np.float32([0.1, 0.9, 0.5]))
    np.testing.assert_allclose(picture[40, 50].astype(int), orange.astype(int), atol=3)


def test_keypoints_in_colours_that_are_given() -> None:
    blue_and_red = drawing.landmark_colors(np.array([True, False]))
    picture = drawing.draw_keypoints(GREY, np.float32([[30, 20], [80, 60]]), np.ones(2), colors=blue_and_red)
    for (x, y), color in zip(((30, 20), (80, 60)), blue_and_red, strict=True):
        np.testing.assert_allclose(picture[y, x].astype(int), color.astype(int), atol=3)
    (red, _, blue), (other_red, _, other_blue) = blue_and_red.astype(int)
    assert blue > red + 100 and other_red > other_blue + 100


def test_errors_run_from_green_to_yellow() -> None:
    errors = np.array([0, 2.5, 5, 5.01, np.inf, np.nan])
    green, between, yellow, wrong, infinite, unknown = drawing.error_colors(errors, 5).astype(int)
    assert green[1] > green[0] + 100 and min(yellow[:2]) > yellow[2] + 100
    np.testing.assert_allclose(between, (green + yellow) / 2, atol=1)
    blue, red = drawing.landmark_colors(np.array([True, False])).astype(int)
    assert (wrong == red).all() and (infinite == red).all() and (unknown == blue).all()
    assert drawing.error_colors(np.empty(0), 5).shape == (0, 3)


def test_matching_points_have_one_colour_and_a_line() -> None:
    left, right = np.float32([[30, 20], [40, 60]]), np.float32([[80, 30], [70, 50]])
    picture = drawing.draw_matches(GREY, GREY, left, right)
    assert picture.shape[0] == 90 and picture.shape[1] == 2 * 120 + 12
    assert (picture[0, 121:131] == 255).all()  # the gap
    offset = np.array([132, 0])
    for (x0, y0), (x1, y1) in zip(left.astype(int), (right + offset).astype(int), strict=True):
        np.testing.assert_allclose(picture[y0, x0].astype(int), picture[y1, x1].astype(int), atol=3)
        middle = (y0 + y1) // 2, (x0 + x1) // 2
        assert colourful(picture)[middle[0] - 1 : middle[0] + 2, middle[1] - 1 : middle[1] + 2].any()
    assert not np.array_equal(picture[20, 30], picture[60, 40])


def test_lines_are_limited_but_points_are_not() -> None:
    many = points(200)
    few = drawing.draw_matches(GREY, GREY, many, many, max_lines=3)
    all_lines = drawing.draw_matches(GREY, GREY, many, many, max_lines=1000)
    assert colourful(few).sum() < colourful(all_lines).sum()
    rows, columns = np.rint(many).astype(int).T[::-1]
    assert colourful(few)[rows, columns].mean() > 0.9


def test_wide_pictures_are_scaled_and_keep_their_aspect() -> None:
    wide = np.full((300, 1000, 3), 128, np.uint8)
    assert drawing.draw_keypoints(wide, points(5), np.ones(5), max_width=500).shape == (150, 500, 3)
    picture = drawing.draw_matches(wide, GREY, points(5), points(5), max_width=600)
    assert 590 <= picture.shape[1] <= 600
    # A small image isn't enlarged for the sake of the width.
    assert drawing.draw_keypoints(GREY, points(5), np.ones(5), max_width=5000).shape == GREY.shape


def test_images_of_different_height_get_the_same() -> None:
    tall = np.full((180, 60, 3), 128, np.uint8)
    picture = drawing.draw_matches(tall, GREY, np.float32([[30, 90]]), np.float32([[60, 45]]))
    assert picture.shape == (180, 60 + 12 + 240, 3)
    assert colourful(picture)[90, 30] and colourful(picture)[90, 72 + 120]


@pytest.mark.parametrize("count", [0, 1])
def test_none_or_one(count: int) -> None:
    few = points(count)
    assert drawing.draw_keypoints(GREY, few, np.ones(count)).shape == GREY.shape
    assert drawing.draw_matches(GREY, GREY, few, few).shape == (90, 252, 3)
    assert drawing.draw_keypoints(GREY[:1, :1], few, np.ones(count)).shape == (1, 1, 3)


def test_inputs_stay_and_results_repeat() -> None:
    image, places, scores = GREY.copy(), points(40), np.linspace(0, 1, 40)
    first = drawing.draw_matches(image, image, places, places[::-1].copy())
    assert np.array_equal(first, drawing.draw_matches(image, image, places, places[::-1].copy()))
    drawing.draw_keypoints(image, places, scores)
    assert np.array_equal(image, GREY) and np.array_equal(places, points(40))


def test_any_decoded_image_becomes_a_picture() -> None:
    values = np.array([[0, 1.0]])
    for dtype, top in ((np.uint8, 255), (np.uint16, 65535), (np.float32, 1)):
        picture = drawing.to_picture((values * top).astype(dtype))
        np.testing.assert_array_equal(picture, [[[0, 0, 0], [255, 255, 255]]])
        assert picture.dtype == np.uint8


def test_points_far_outside_are_not_seen() -> None:
    """Beyond what OpenCV takes: a small image beside a large one is enlarged, and its points with it."""
    small, large = np.zeros((8, 8, 3), np.uint8), np.zeros((800, 800, 3), np.uint8)
    far = np.float32([[2**24, -(2**24)]])
    none = drawing.draw_keypoints(small, far[:0], far[:0, 0])
    np.testing.assert_array_equal(drawing.draw_keypoints(small, far, far[:, 0]), none)
    assert drawing.draw_matches(small, large, far, far, max_width=1612).shape == (800, 1612, 3)


def test_pictures_are_saved_as_rgb(tmp_path: Path) -> None:
    red = np.zeros((4, 5, 3), np.uint8)
    red[..., 0] = 255
    drawing.save_picture(tmp_path / "red.png", red)
    assert cv2.imread(str(tmp_path / "red.png"))[0, 0].tolist() == [0, 0, 255]
    with pytest.raises(OSError, match=r"pictures of type '\.xyz' can't be written"):
        drawing.save_picture(tmp_path / "red.xyz", red)
