"""The homography protocol: matching accuracy, repeatability and estimated homographies on HPatches and the like.

Of each pair of images, the reference of a set and another:

- ``accuracy``: share of matches whose reprojection error is at most 1, 2, ... 10 px; its mean over pairs is the MMA,
  and ``auc5`` the mean over 1 to 5 px, the paper's AUC(5 px);
- ``matches``, and ``features`` of both images;
- ``repeatability``: see :func:`disk_ops.evaluation.homography.repeatability`, 3 px;
- ``corner_error`` of the homography estimated from the matches, None without an estimate: see
  :func:`disk_ops.evaluation.homography.corner_error`. Shown is the share of pairs up to 1, 3 and 5 px; without an
  estimate a pair counts as wrong.
- ``inliers`` of that estimate.

All pixels are those of the images that features come from. Every pair counts alike. A set with a file that can't be
used fails as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.features import Features, Matcher
from disk_ops.evaluation.homography import (
    THRESHOLDS,
    View,
    corner_error,
    matching_accuracy,
    read_views,
    repeatability,
    reprojection_errors,
)
from disk_ops.evaluation.homography_sets import HomographySet
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
    finite,
    labelled,
    left_out,
    mean,
    share,
    size_limit_text,
)
from disk_ops.evaluation.robust import THRESHOLD, check_method, estimate_homography, estimator_versions

EXCLUDED_SCENES = frozenset(
    (
        *("i_contruction", "i_crownnight", "i_dc", "i_pencils", "i_whitebuilding"),
        *("v_artisans", "v_astronautis", "v_talent"),
    )
)
"""Scenes of HPatches (with the data's spelling) that the paper leaves out, as D2-Net does: they hold images above
1600x1200, which not all methods can do. 108 of 116 remain."""

REPEATABILITY_THRESHOLD = 3.0
CORNER_THRESHOLDS = (1, 3, 5)
SCORE_LIMIT = 5.0
_SHOWN = (1, 3, 5, 10)  # thresholds of the MMA in tables

_COLUMNS = (
    *("method", "n", "pairs", "AUC 5"),
    *(f"MMA {threshold}" for threshold in _SHOWN),
    *("matches", "repeat"),
    *(f"H {threshold}" for threshold in CORNER_THRESHOLDS),
)
_BEST: dict[str, Literal["max", "min"]] = dict.fromkeys(
    [name for name in _COLUMNS if name.startswith(("AUC", "MMA", "repeat", "H "))], "max"
)
_NOTE = (
    "MMA: mean share of matches within that many pixels; AUC 5: its mean over 1 to 5 pixels. Repeat: repeatability of "
    "keypoints within 3 pixels. H: share of pairs whose estimated homography takes the corners to within so many "
    "pixels of their true places, on average."
)


def scene(name: str) -> str:
    """The last part of a set's name."""
    return name.rpartition("/")[2]


def kind_of(name: str) -> str | None:
    """Whether a set, by its name in HPatches, is of ``viewpoint`` or ``illumination`` changes; None for others."""
    return {"v_": "viewpoint", "i_": "illumination"}.get(scene(name)[:2])


class HomographyProtocol(Protocol):
    """Match the reference image of each set to each of the others.

    Args:
        sets: what to measure on; each is an item.
        max_size: images whose longest edge is longer are downscaled to it; None: never.
        ransac: the estimator of homographies, see :mod:`disk_ops.evaluation.robust`.
        threshold: of the estimator, in pixels.

    Raises:
        ValueError: there is no such estimator, or it isn't installed.
    """

    name = "homography"

    def __init__(
        self,
        sets: Sequence[HomographySet],
        max_size: int | None = 1024,
        ransac: str = "magsac",
        threshold: float = THRESHOLD,
    ) -> None:
        check_method(ransac)
        self.sets = {entry.name: entry for entry in sets}
        self.max_size, self.ransac, self.threshold = max_size, ransac, threshold
        self.settings = {
            "max_size": max_size,
            "ransac": ransac,
            "threshold": threshold,
            **estimator_versions(ransac),
        }

    def items(self) -> list[Item]:
        """One for each set."""
        return [Item(name, (*entry.images, *entry.homographies)) for name, entry in self.sets.items()]

    def evaluate(self, item: Item, method: Method, n: int, matcher: Matcher) -> list[Record]:
        """A record for each image but the reference, whose features are made once."""
        entry = self.sets[item.name]
        views = read_views(entry, self.max_size)
        reference = next(views)
        features = method.extract(reference.image, n)
        return [
            {
                "collection": entry.collection,
                "kind": kind_of(entry.name),
                "image": view.name,
                **self._measure(reference, view, features, method.extract(view.image, n), matcher),
            }
            for view in views
        ]

    def _measure(
        self, reference: View, view: View, features1: Features, features2: Features, matcher: Matcher
    ) -> dict[str, Any]:
        matches = matcher(features1, features2)
        accuracy = matching_accuracy(reprojection_errors(features1, features2, matches, view.homography))
        found = estimate_homography(
            features1.keypoints[matches[:, 0]].numpy(),
            features2.keypoints[matches[:, 1]].numpy(),
            self.ransac,
            self.threshold,
        )
        return {
            "features": [len(features1.keypoints), len(features2.keypoints)],
            "matches": len(matches),
            "accuracy": list(accuracy),
            "auc5": float(np.mean(accuracy[:5])),
            "repeatability": repeatability(
                features1.keypoints,
                features2.keypoints,
                view.homography,
                reference.size,
                view.size,
                REPEATABILITY_THRESHOLD,
            ),
            "inliers": 0 if found is None else int(found.inliers.sum()),
            "corner_error": finite(
                corner_error(None if found is None else found.matrix, view.homography, reference.size)
            ),
        }

    def score(self, records: Sequence[Record]) -> float:
        """The area under the curve of corner errors up to 5 px, 0 to 1: unlike the MMA it falls with lost matches."""
        errors = [record["corner_error"] for record in records]
        return float(np.mean([0.0 if error is None else max(0.0, 1 - error / SCORE_LIMIT) for error in errors]))

    def tables(self, records: Sequence[Record]) -> list[Table]:
        """Means over all pairs, over those of one kind of change, over collections, and over sets."""
        compared, lost = comparable(records)
        size = size_limit_text(self.max_size)
        how = f"Errors in pixels of {size}; homographies by {self.ransac} with {self.threshold:g} pixels."
        note = f"{how} {_NOTE}{left_out(lost, 'sets')}"
        tables = [Table("All pairs", _COLUMNS, _rows(compared), note, _BEST)]
        parts: tuple[tuple[str, Callable[[Record], str | None]], ...] = (
            ("change", lambda record: record["kind"]),
            ("collection", lambda record: record["collection"]),
            ("set", lambda record: record["item"]),
        )
        for part, key in parts:
            names = dict.fromkeys(name for record in compared if (name := key(record)) is not None)
            if part == "collection" and (len(names) < 2 or set(names) == {record["item"] for record in compared}):
                continue
            rows = [
                (name, *row) for name in names for row in _rows([record for record in compared if key(record) == name])
            ]
            if rows:
                tables.append(Table(f"By {part}", (part, *_COLUMNS), rows))
        return tables

    def plots(self, records: Sequence[Record]) -> list[Plot]:
        """The MMA against the threshold, and the AUC of each set."""
        compared, _ = comparable(records)
        curves = {
            label: (list(THRESHOLDS), np.mean([record["accuracy"] for record in group], axis=0).tolist())
            for label, group in labelled(compared)
        }
        bars: dict[str, tuple[list[Any], list[float]]] = {}
        items = {record["item"] for record in compared}
        short = scene if len({scene(item) for item in items}) == len(items) else str
        for label, group in labelled(compared):
            values: dict[str, list[float]] = {}
            for record in group:
                values.setdefault(short(record["item"]), []).append(record["auc5"])
            bars[label] = (list(values), [float(np.mean(each)) for each in values.values()])
        return [
            Plot("Mean matching accuracy", "threshold (px)", "MMA", "lines", curves),
            Plot("AUC 5 px of each set", "", "AUC 5 px", "bars", bars),
        ]

    def pictures(self, records: Sequence[Record], methods: Sequence[Method]) -> Iterator[tuple[str, Picture]]:
        """The middle image of up to three sets, with the matches of each method at its largest number of keypoints."""
        for item in spread(records):
            for method, group in pictured(records, item, methods):
                yield self._picture(group[len(group) // 2], method)

    def _picture(self, record: Record, method: Method) -> tuple[str, Picture]:
        views = read_views(self.sets[record["item"]], self.max_size)
        reference = next(views)
        view = next(view for view in views if view.name == record["image"])
        features1, features2 = (method.extract(each.image, record["n"]) for each in (reference, view))
        matches = Matcher(record["ratio"])(features1, features2)
        errors = reprojection_errors(features1, features2, matches, view.homography)
        picture, counts = picture_matches(
            picture_of(reference.image),
            picture_of(view.image),
            features1.keypoints[matches[:, 0]].float().numpy(),
            features2.keypoints[matches[:, 1]].float().numpy(),
            errors.numpy(),
        )
        return f"{record['item']}, {view.name}: {method.name}, at most {record['n']:,} keypoints, {counts}", picture


def without_excluded(sets: Sequence[HomographySet]) -> tuple[list[HomographySet], list[HomographySet]]:
    """Divide sets into those that the paper uses and those of ``EXCLUDED_SCENES``.

    Raises:
        EvaluationError: none remains.
    """
    kept = [entry for entry in sets if scene(entry.name) not in EXCLUDED_SCENES]
    if sets and not kept:
        names = ", ".join(entry.name for entry in sets)
        raise EvaluationError(f"all sets are among those that the paper leaves out ({names}): use --all-scenes")
    return kept, [entry for entry in sets if scene(entry.name) in EXCLUDED_SCENES]


def _rows(records: Sequence[Record]) -> list[tuple[Cell, ...]]:
    return [_row(method, n, group) for method, n, group in by_method(records)]


def _row(method: str, n: int, records: Sequence[Mapping[str, Any]]) -> tuple[Cell, ...]:
    errors = [record["corner_error"] for record in records]
    return (
        method,
        n,
        len(records),
        mean(record["auc5"] for record in records),
        *(mean(record["accuracy"][THRESHOLDS.index(threshold)] for record in records) for threshold in _SHOWN),
        mean(record["matches"] for record in records),
        mean(record["repeatability"] for record in records),
        *(share(errors, threshold) for threshold in CORNER_THRESHOLDS),
    )
