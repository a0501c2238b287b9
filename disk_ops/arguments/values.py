"""Values of arguments, checked."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def positive(text: str) -> int:
    """A positive integer."""
    return int(_checked(int, text, lambda value: value >= 1, "a positive integer"))


def odd(text: str) -> int:
    """An odd positive integer."""
    return int(_checked(int, text, lambda value: value >= 1 and value % 2 == 1, "an odd positive integer"))


def number(text: str) -> float:
    """A number, possibly infinite."""
    return _checked(float, text, lambda value: True, "a number")


def positive_number(text: str) -> float:
    """A finite number above 0."""
    return _checked(float, text, lambda value: 0 < value < math.inf, "a number above 0")


def numbers(text: str) -> tuple[float, ...]:
    """Finite numbers, separated by commas."""
    return tuple(
        _checked(float, part, math.isfinite, "a list of numbers such as 1000,640,480") for part in text.split(",")
    )


def ratio(text: str) -> float:
    """A number above 0 and at most 1."""
    return _checked(float, text, lambda value: 0 < value <= 1, "a number above 0 and at most 1")


def share(text: str) -> float:
    """A number from 0 to 1."""
    return _checked(float, text, lambda value: 0 <= value <= 1, "a number from 0 to 1")


def turn_step(text: str) -> float:
    """An angle above 0 and at most 180 degrees."""
    return _checked(float, text, lambda value: 0 < value <= 180, "an angle above 0 and at most 180 degrees")


def ratio_or_word(text: str) -> float | str | None:
    """A number above 0 and at most 1; ``auto``; None for ``none``."""
    if text in ("none", "auto"):
        return None if text == "none" else text
    return _checked(float, text, lambda value: 0 < value <= 1, "none, auto, or a number above 0 and at most 1")


def count_or_all(text: str) -> int | str:
    """A positive integer, or ``all``."""
    return "all" if text == "all" else int(_checked(int, text, lambda value: value >= 1, "a positive integer or 'all'"))


def image_size(text: str) -> tuple[int, int] | None:
    """Width and height; None for ``any``."""
    if text == "any":
        return None
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal() and int(width) and int(height)):
        raise argparse.ArgumentTypeError(f"a width and a height such as 1024x768 are needed, or any, got {text!r}")
    return int(width), int(height)


def size_limit(text: str) -> int | None:
    """A positive integer; None for 0."""
    return int(_checked(int, text, lambda value: value >= 0, "a positive integer, or 0 for no limit,")) or None


def _checked(convert: Callable[[str], float], text: str, fits: Callable[[float], bool], what: str) -> float:
    try:
        value = convert(text)
    except ValueError:
        value = math.nan
    if math.isnan(value) or not fits(value):
        raise argparse.ArgumentTypeError(f"{what} is needed, got {text!r}")
    return value
