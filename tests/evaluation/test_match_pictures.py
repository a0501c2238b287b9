"""Pictures of reports: which items and records they show, and what they say of matches."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import nothing

from disk_ops.evaluation.pictures import picture_matches, pictured, spread


def record(item: str, method: str = "a", n: int = 8) -> dict:
    return {"item": item, "method": method, "n": n}


@pytest.mark.parametrize(
    ("items", "most", "shown"), [("", 3, ""), ("x", 3, "x"), ("xy", 3, "xy"), ("vwxyz", 3, "vxz"), ("xyz", 1, "x")]
)
def test_items_are_spread_from_the_first_to_the_last(items: str, most: int, shown: str) -> None:
    assert "".join(spread([record(item) for item in items for _ in range(2)], most)) == shown


def test_each_method_that_is_known_at_its_largest_number_of_keypoints() -> None:
    records = [record("x", "a", 8), record("x", "a", 4), record("x", "b", 4), record("x", "c"), record("y", "a", 16)]
    a, b = nothing("a"), nothing("b")
    assert pictured(records, "x", [b, a]) == [(a, [records[0]]), (b, [records[2]])]


def test_matches_are_green_up_to_three_pixels() -> None:
    grey = np.full((40, 60, 3), 128, np.uint8)
    points = np.array([[10, 10], [30, 20], [50, 30]], np.float32)
    picture, told = picture_matches(grey, grey, points, points, np.array([3.0, 3.1, np.nan]), "px of a line")
    assert told == "1 of 3 matches within 3 px of a line"
    green, red = (picture[..., 1] > picture[..., 0] + 40, picture[..., 0] > picture[..., 1] + 40)
    assert green.any() and red.any()


def test_a_picture_without_matches() -> None:
    grey, none = np.full((40, 60, 3), 128, np.uint8), np.zeros((0, 2), np.float32)
    assert picture_matches(grey, grey, none, none, np.zeros(0))[1] == "0 of 0 matches within 3 px"
