"""Values of arguments, checked. What no machine could do is refused here, where the option is known."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from disk_ops.multiscale import LARGEST_SCALE, SCALES, check_scales

_MOST = 2**31 - 1  # what ops, OpenCV and COLMAP count with
_MOST_WORKERS = 1024
_WIDEST_WINDOW = 65535  # the time hardly grows with it
_LONGEST_EDGE = 32768  # of images that an exported model is made for


def positive(text: str) -> int:
    """A positive integer."""
    return _integer(text, "a positive integer")


def workers(text: str) -> int:
    """A number of threads."""
    return _integer(text, "a positive integer", high=_MOST_WORKERS)


def odd(text: str, high: int = _WIDEST_WINDOW) -> int:
    """An odd positive integer, the width of a window."""
    return _integer(text, "an odd positive integer", high=high, fits=lambda value: value % 2 == 1)


def exported_window(text: str) -> int:
    """The width of a window whose pixels ONNX's operators visit one by one."""
    return odd(text, 1023)


def exported_rows(text: str) -> int:
    """A number of rows that an exported model has in any case: a hundred thousand take a gigabyte."""
    return _integer(text, "a positive integer", high=100_000)


def number(text: str) -> float:
    """A number, possibly infinite."""
    return _number(text, lambda value: True, "a number")


def positive_number(text: str) -> float:
    """A finite number above 0."""
    return _number(text, lambda value: 0 < value < math.inf, "a number above 0")


def positive_or_infinite(text: str) -> float:
    """A number above 0, possibly infinite."""
    return _number(text, lambda value: value > 0, "a number above 0 (or inf)")


def numbers(text: str) -> tuple[float, ...]:
    """Finite numbers, separated by commas."""
    return tuple(_number(part, math.isfinite, "a list of numbers such as 1000,640,480") for part in text.split(","))


def scales(text: str) -> tuple[float, ...]:
    """Different numbers above 0, separated by commas."""
    example = ",".join(f"{scale:g}" for scale in SCALES)
    wanted = f"a list of numbers above 0, at most {LARGEST_SCALE:g}, such as {example}"
    chosen = [_number(part, lambda value: 0 < value <= LARGEST_SCALE, wanted) for part in text.split(",")]
    try:
        return tuple(sorted(check_scales(chosen), reverse=True))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def ratio(text: str) -> float:
    """A number above 0 and at most 1."""
    return _number(text, lambda value: 0 < value <= 1, "a number above 0 and at most 1")


def share(text: str) -> float:
    """A number from 0 to 1."""
    return _number(text, lambda value: 0 <= value <= 1, "a number from 0 to 1")


def turn_step(text: str) -> float:
    """An angle above 0 and at most 180 degrees."""
    return _number(text, lambda value: 0 < value <= 180, "an angle above 0 and at most 180 degrees")


def ratio_or_word(text: str) -> float | str | None:
    """A number above 0 and at most 1; ``auto``; None for ``none``."""
    if text in ("none", "auto"):
        return None if text == "none" else text
    return _number(text, lambda value: 0 < value <= 1, "none, auto, or a number above 0 and at most 1")


def count_or_all(text: str) -> int | str:
    """A positive integer, or ``all``."""
    return "all" if text == "all" else _integer(text, "a positive integer or 'all'")


def image_size(text: str) -> tuple[int, int] | None:
    """Width and height; None for ``any``."""
    if text == "any":
        return None
    width, height = (_as_integer(edge) for edge in (text.partition("x")[0], text.partition("x")[2]))
    if min(width, height) < 1:
        reason = "a width and a height such as 1024x768 are needed, or any"
    elif max(width, height) > _LONGEST_EDGE:
        reason = f"a width and a height of at most {_LONGEST_EDGE} are needed, or any"
    else:
        return int(width), int(height)
    raise argparse.ArgumentTypeError(f"{reason}, got {_shortened(text)!r}")


def size_limit(text: str) -> int | None:
    """A positive integer; None for 0."""
    return _integer(text, "a positive integer, or 0 for no limit,", low=0) or None


def _integer(
    text: str, what: str, low: int = 1, high: int = _MOST, fits: Callable[[int], bool] = lambda value: True
) -> int:
    value = _as_integer(text)
    if value > high:
        raise argparse.ArgumentTypeError(f"{what} is needed, at most {high}, got {_shortened(text)!r}")
    if value < low or not fits(int(value)):
        raise argparse.ArgumentTypeError(f"{what} is needed, got {_shortened(text)!r}")
    return int(value)


def _as_integer(text: str) -> float:
    """The integer; infinite if it has too many digits to be read, minus infinite if it is none."""
    try:
        return int(text)
    except ValueError:
        return math.inf if text.isdecimal() else -math.inf


def _number(text: str, fits: Callable[[float], bool], what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value) or not fits(value):
        raise argparse.ArgumentTypeError(f"{what} is needed, got {_shortened(text)!r}")
    return value


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
