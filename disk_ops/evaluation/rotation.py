"""The rotation protocol: how far an image may be turned in its plane until it isn't matched any more.

An image is matched to one that is turned around its centre, counterclockwise, by 0 to 180 degrees: either the same
image, or, of homography sets, another one of the set. The frame of the turned image holds all of it; keypoints outside
the image don't count. Measured is the share of matches within 3 pixels of where the known map takes them (0 where there
is no match), in pixels of the images that features come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.features import Matcher
from disk_ops.evaluation.homography import View, matching_accuracy, read_views, reprojection_errors
from disk_ops.evaluation.homography_sets import HomographySet, SetError, find_homography_sets
from disk_ops.evaluation.masking import within
from disk_ops.evaluation.methods import Method
from disk_ops.evaluation.pictures import picture_matches, picture_of, pictured, spread
from disk_ops.evaluation.protocol import (
    Cell,
    Item,
    Picture,
    Plot,
    Protocol,
    Record,
    Table,
    by_method,
    comparable,
    labelled,
    left_out,
    mean,
)
from disk_ops.io.images import Size
from disk_ops.io.inputs import InputError, list_images
from disk_ops.warp import warp

CORRECT = 3.0
"""Pixels up to which a match counts as correct."""
STEP = 15
"""Degrees between the angles."""

_HALF = 0.5  # share of correct matches down to which tables call images matched
_SHOWN = 7  # angles in tables, at most
_PICTURED = (0, 45, 90)  # degrees
Matrix = npt.NDArray[np.float64]


class Turned(NamedTuple):
    """An image that was turned."""

    image: Tensor  # [3, h, w]
    mask: npt.NDArray[np.bool_]  # [h, w] pixels that show some of it
    homography: Matrix  # [3, 3] from the image's pixels


def turn(
    image: Tensor,  # [3, H, W] float32
    degrees: float,
) -> Turned:
    """Turn an image counterclockwise around its centre, into a frame that holds all of it.

    Multiples of 90 degrees move whole pixels; at other angles values are interpolated bilinearly.
    """
    size = (image.shape[2], image.shape[1])
    homography, frame = turning(size, degrees)
    if degrees % 90 == 0:
        quarters = round(degrees / 90) % 4
        return Turned(torch.rot90(image, quarters, (1, 2)).contiguous(), np.ones(frame[::-1], np.bool_), homography)
    view, mask = warp(np.ascontiguousarray(image.permute(1, 2, 0).numpy()), homography, frame)
    return Turned(torch.from_numpy(view).permute(2, 0, 1).contiguous(), mask, homography)


def turning(size: Size, degrees: float) -> tuple[Matrix, Size]:
    """The map ``[3, 3]`` of pixels that turns an image counterclockwise, and the size of a frame that holds all of it.

    Pixel centres are integers; the centre of the image comes to that of the frame.
    """
    angle = math.radians(degrees)
    cosine, sine = (round(value, 15) for value in (math.cos(angle), math.sin(angle)))  # 0 at right angles
    width, height = size
    frame = (
        math.ceil(width * abs(cosine) + height * abs(sine) - 1e-6),
        math.ceil(width * abs(sine) + height * abs(cosine) - 1e-6),
    )
    rotation = np.array([[cosine, sine], [-sine, cosine]])  # y points down
    matrix = np.eye(3)
    matrix[:2, :2] = rotation
    matrix[:2, 2] = (np.array(frame) - 1) / 2 - rotation @ ((np.array(size) - 1) / 2)
    return matrix, frame


class RotationProtocol(Protocol):
    """Match images to turned ones.

    Args:
        path: a folder with homography sets, at any depth: the reference image of a set is matched to each of the
            others, turned; or a folder of images, searched recursively: each is matched to itself, turned.
        step: degrees between the angles, from 0 to 180.
        max_size: images whose longest edge is longer are scaled down to it, before they are turned; None: never.
        report: is told about a set that lacks an image, and the others are used; by default it is raised.

    Raises:
        EvaluationError: there are no images, or a set lacks an image.
        ValueError: a wrong step.
    """

    name = "rotation"

    def __init__(
        self,
        path: str | Path,
        step: float = STEP,
        max_size: int | None = 1024,
        report: Callable[[SetError], None] | None = None,
    ) -> None:
        if not 0 < step <= 180:
            raise ValueError(f"step must be above 0 and at most 180 degrees, got {step}")
        self.angles = tuple(float(index * step) for index in range(int(180 / step + 1e-9) + 1))
        self.max_size = max_size
        self.with_homographies, self.sets = _find(Path(path), report)
        self.settings: dict[str, Any] = {"angles": list(self.angles), "max_size": max_size, "correct": CORRECT}

    def items(self) -> list[Item]:
        """The pairs of images, or the images."""
        return [Item(name, (*entry.images, *entry.homographies)) for name, entry in self.sets.items()]

    def evaluate(self, item: Item, method: Method, n: int, matcher: Matcher) -> list[Record]:
        """A record for each angle."""
        first, second = self._views(item.name)
        reference = within(method.extract(first.image, n), None)
        records: list[Record] = []
        for angle in self.angles:
            turned = turn(second.image, angle)
            features = within(method.extract(turned.image, n), turned.mask)
            errors = reprojection_errors(
                reference, features, matcher(reference, features), turned.homography @ second.homography
            )
            records.append(
                {
                    "angle": angle,
                    "features": [len(reference.keypoints), len(features.keypoints)],
                    "matches": len(errors),
                    "correct": int((errors <= CORRECT).sum()),
                    "share": matching_accuracy(errors, (CORRECT,))[0],
                }
            )
        return records

    def tables(self, records: Sequence[Record]) -> list[Table]:
        """The mean share of correct matches at some of the angles, and over all."""
        compared, lost = comparable(records)
        angles = sorted({record["angle"] for record in compared})
        shown = angles[:: max(1, math.ceil((len(angles) - 1) / (_SHOWN - 1)))]
        columns = ("method", "n", "items", "mean", *(f"{angle:g}°" for angle in shown), "half up to °", "matches at 0°")
        rows: list[tuple[Cell, ...]] = []
        for method, n, group in by_method(compared):
            shares = _shares(group)
            upright = mean(record["matches"] for record in group if record["angle"] == 0)
            items = len({record["item"] for record in group})
            rows.append(
                (method, n, items, mean(shares.values()), *(shares[angle] for angle in shown), _reach(shares), upright)
            )
        what = "another image of its set" if self.with_homographies else "itself"
        note = (
            f"Share of correct matches (within {CORRECT:g} pixels) of each image with {what}, turned in its plane; "
            "means over the items. Half up to: the largest angle up to which at least half of the matches are correct."
        )
        note += left_out(lost, "items")
        best = dict.fromkeys(("mean", *columns[4:-1]), "max")
        return [Table("Rotation", columns, rows, note, best)]  # type: ignore[arg-type]

    def plots(self, records: Sequence[Record]) -> list[Plot]:
        """The mean share of correct matches against the angle: a line for each method and number of keypoints."""
        compared, _ = comparable(records)
        series: dict[str, tuple[list[Any], list[float]]] = {}
        for label, group in labelled(compared):
            shares = _shares(group)
            series[label] = (list(shares), list(shares.values()))
        return [Plot("Correct matches under rotation", "angle (°)", "share of correct matches", "lines", series)]

    def score(self, records: Sequence[Record]) -> float:
        """The mean over items and angles of the F-score of correct matches, which falls with wrong and with lost ones.

        Their share alone would be best with the strictest threshold. What could be found are the features of the image
        that has fewer.
        """
        return (
            mean(2 * record["correct"] / max(1, record["matches"] + min(record["features"])) for record in records)
            or 0.0
        )

    def pictures(self, records: Sequence[Record], methods: Sequence[Method]) -> Iterator[tuple[str, Picture]]:
        """Matches of the first item at up to three angles by each method; correct ones are green."""
        there = [record for record in records if record["item"] in self.sets]
        for item in spread(there, 1):
            for method, group in pictured(there, item, methods):
                yield from (self._picture(record, method) for record in group if record["angle"] in _PICTURED)

    def _picture(self, record: Record, method: Method) -> tuple[str, Picture]:
        first, second = self._views(record["item"])
        turned = turn(second.image, record["angle"])
        reference = within(method.extract(first.image, record["n"]), None)
        features = within(method.extract(turned.image, record["n"]), turned.mask)
        matches = Matcher(record["ratio"])(reference, features)
        errors = reprojection_errors(reference, features, matches, turned.homography @ second.homography)
        picture, counts = picture_matches(
            picture_of(first.image),
            picture_of(torch.where(torch.from_numpy(turned.mask), turned.image, torch.ones(()))),
            reference.keypoints[matches[:, 0]].float().numpy(),
            features.keypoints[matches[:, 1]].float().numpy(),
            errors.numpy(),
        )
        turned_by = f"{record['item']} turned by {record['angle']:g}°"
        return f"{turned_by}: {method.name}, at most {record['n']:,} keypoints, {counts}", picture

    def _views(self, name: str) -> tuple[View, View]:
        """The image, and the one that is turned."""
        views = list(read_views(self.sets[name], self.max_size))
        return views[0], views[-1]


def _find(path: Path, report: Callable[[SetError], None] | None) -> tuple[bool, dict[str, HomographySet]]:
    """Whether there are homography sets, and each pair of images, or image, by name, as a set of its own."""
    if not path.is_dir():
        raise EvaluationError(f"{path}: no such folder")
    try:
        found = find_homography_sets(path, report)
    except SetError as error:
        if error.path != path:  # a set that isn't complete, rather than none
            raise
        found = []
    if found:
        return True, {
            f"{entry.name} {image.name}": HomographySet(entry.name, (entry.images[0], image), (homography,))
            for entry in found
            for image, homography in zip(entry.images[1:], entry.homographies, strict=True)
        }
    try:
        images = list_images([path]).images
    except InputError as error:
        raise EvaluationError(str(error)) from error
    return False, {image.name: HomographySet(image.name, (image.path,), ()) for image in images}


def _shares(records: Sequence[Record]) -> dict[float, float]:
    """The mean share of correct matches at each angle."""
    at: dict[float, list[float]] = {}
    for record in records:
        at.setdefault(record["angle"], []).append(record["share"])
    return {angle: float(np.mean(at[angle])) for angle in sorted(at)}


def _reach(shares: dict[float, float]) -> float | int | None:
    """The largest angle up to which all shares are at least a half; None if not even the first one is."""
    reached: float | None = None
    for angle, value in shares.items():
        if value < _HALF:
            break
        reached = angle
    return int(reached) if reached is not None and reached.is_integer() else reached
