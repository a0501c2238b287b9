"""The pose protocol: the relative pose of two images from their matches, against the truth: the paper's stereo task.

Images are matched; RANSAC estimates a fundamental or essential matrix; with the intrinsics it gives a pose, whose error
is the larger of the angle between rotations and that between directions of translation. mAA(10°) is the mean over 1,
2, ... 10 degrees of the share of pairs with an error below; a pair without pose counts as wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch

from disk_ops.evaluation.features import Features, Matcher
from disk_ops.evaluation.masking import within
from disk_ops.evaluation.methods import Method
from disk_ops.evaluation.pictures import picture_matches, picture_of, pictured, spread
from disk_ops.evaluation.pose import Geometry, RelativePose, estimate_relative_pose, pose_error
from disk_ops.evaluation.pose_tables import pose_plots, pose_tables, score
from disk_ops.evaluation.posed.scenes import find_pairs
from disk_ops.evaluation.posed.selection import Selection
from disk_ops.evaluation.posed.views import PosedPair, View
from disk_ops.evaluation.protocol import Item, Picture, Plot, Protocol, Record, Table, finite, size_limit_text
from disk_ops.evaluation.robust import THRESHOLD, check_method, estimator_versions
from disk_ops.io.cache import ImageCache

_MEMORY_MB = 512  # of the features of images that were used last


class _Image(NamedTuple):
    """The features of an image of a pair, and its camera."""

    keypoints: np.ndarray  # [N, 2] pixels of the image that features come from
    in_camera: np.ndarray  # [N, 2] pixels that K is for
    descriptors: np.ndarray  # [N, D]
    K: np.ndarray  # [3, 3]

    @property
    def features(self) -> Features:
        return Features(torch.tensor(self.keypoints), torch.tensor(self.descriptors))


class PoseProtocol(Protocol):
    """Relative poses of pairs of images.

    Args:
        path: see :func:`disk_ops.evaluation.posed.find_pairs`.
        geometry: the matrix that is estimated: ``fundamental``, as in the paper, or ``essential``.
        ransac: the estimator, see :mod:`disk_ops.evaluation.robust`.
        threshold: of the estimator, in pixels of the images that are matched.
        max_size: images whose longest edge is longer are scaled down to it; None: never.
        selection: which pairs of a scene are used.
        images: folder of the images of a list of pairs.

    Raises:
        EvaluationError: there are no pairs.
        ValueError: there is no such estimator, it isn't installed, or it can't estimate that matrix.
    """

    name = "pose"

    def __init__(
        self,
        path: str | Path,
        geometry: Geometry = "fundamental",
        ransac: str = "magsac",
        threshold: float = THRESHOLD,
        max_size: int | None = 1024,
        selection: Selection | None = None,
        images: str | Path | None = None,
    ) -> None:
        if geometry not in get_args(Geometry):
            raise ValueError(f"geometry must be fundamental or essential, got {geometry!r}")
        check_method(ransac, essential=geometry == "essential")
        self.geometry, self.ransac, self.threshold, self.max_size = geometry, ransac, threshold, max_size
        selection = selection or Selection()
        pairs, self.notes = find_pairs(Path(path), selection, None if images is None else Path(images))
        self.pairs = {pair.name: pair for pair in pairs}
        self.chosen = "all pairs of the list" if Path(path).is_file() else str(selection)
        self.settings: dict[str, Any] = {
            "geometry": geometry,
            "ransac": ransac,
            "threshold": threshold,
            "max_size": max_size,
            **estimator_versions(ransac),
        }
        self._memory = ImageCache(_MEMORY_MB)

    def items(self) -> list[Item]:
        """The pairs."""
        return [Item(pair.name, pair.files) for pair in self.pairs.values()]

    def evaluate(self, item: Item, method: Method, n: int, matcher: Matcher) -> list[Record]:
        """One record: counts, errors in degrees (None where no pose was found), and what is known of the pair."""
        pair = self.pairs[item.name]
        first, second = (self._image(view, method, n) for view in pair.views)
        matches = matcher(first.features, second.features).numpy()
        estimate = self._estimate(first, second, matches)
        error = pose_error(estimate, *pair.pose)
        return [
            {
                "scene": pair.scene,
                "covisibility": pair.covisibility,
                "features": [len(first.keypoints), len(second.keypoints)],
                "matches": len(matches),
                "inliers": 0 if estimate is None else int(estimate.inliers.sum()),
                "rotation_error": finite(error.rotation),
                "translation_error": finite(error.translation),
                "error": finite(error.largest),
            }
        ]

    def tables(self, records: Sequence[Record]) -> list[Table]:
        """Over all pairs; by scene if there are several; by covisibility where it is known."""
        size = size_limit_text(self.max_size)
        how = f"Pose from the {self.geometry} matrix by {self.ransac} with {self.threshold:g} pixels, {size}."
        return pose_tables(records, f"{how} Pairs: {self.chosen}.")

    def plots(self, records: Sequence[Record]) -> list[Plot]:
        """Shares of pairs against the error, and mAA by scene and covisibility."""
        return pose_plots(records)

    def score(self, records: Sequence[Record]) -> float:
        """mAA(10°)."""
        return score(records)

    def pictures(self, records: Sequence[Record], methods: Sequence[Method]) -> Iterator[tuple[str, Picture]]:
        """Matches of up to three pairs by each method, correct ones green, at the largest number of keypoints."""
        there = [record for record in records if record["item"] in self.pairs]
        for item in spread(there):
            for method, group in pictured(there, item, methods):
                yield self._picture(group[0], method)

    def _picture(self, record: Record, method: Method) -> tuple[str, Picture]:
        pair = self.pairs[record["item"]]
        first, second = (self._image(view, method, record["n"]) for view in pair.views)
        matches = Matcher(record["ratio"])(first.features, second.features).numpy()
        left, right = (picture_of(view.load(self.max_size).image) for view in pair.views)
        picture, counts = picture_matches(
            left,
            right,
            first.keypoints[matches[:, 0]],
            second.keypoints[matches[:, 1]],
            _epipolar_errors(first, second, matches, pair),
            "px of the true epipolar lines",
        )
        error = "no pose" if record["error"] is None else f"error {record['error']:.2f}°"
        return f"{pair.name}: {method.name}, at most {record['n']:,} keypoints, {error}, {counts}", picture

    def _image(self, view: View, method: Method, n: int) -> _Image:
        def load() -> tuple[np.ndarray, ...]:
            loaded = view.load(self.max_size)
            features = within(method.extract(loaded.image, n), loaded.mask)
            keypoints = features.keypoints.float()
            return keypoints.numpy(), loaded.in_camera(keypoints), features.descriptors.numpy(), loaded.K

        return _Image(*self._memory.get((method.fingerprint, n, view.path, view.turns, view.K.tobytes()), load))

    def _estimate(
        self,
        first: _Image,
        second: _Image,
        matches: np.ndarray,  # [K, 2]
    ) -> RelativePose | None:
        return estimate_relative_pose(
            first.in_camera[matches[:, 0]],
            second.in_camera[matches[:, 1]],
            first.K,
            second.K,
            self.threshold,
            geometry=self.geometry,
            method=self.ransac,
        )


def _epipolar_errors(
    first: _Image,
    second: _Image,
    matches: np.ndarray,  # [K, 2]
    pair: PosedPair,
) -> np.ndarray:
    """The larger distance ``[K]`` of each match from the true epipolar lines in the two images, in pixels."""
    R, t = pair.pose
    skew = np.array([[0, -t[2], t[1]], [t[2], 0, -t[0]], [-t[1], t[0], 0]])
    F = np.linalg.inv(second.K).T @ skew @ R @ np.linalg.inv(first.K)
    x1, x2 = (
        np.column_stack([image.in_camera[matches[:, side]], np.ones(len(matches))])
        for side, image in enumerate((first, second))
    )
    lines2, lines1 = x1 @ F.T, x2 @ F
    algebraic = np.abs((x2 * lines2).sum(1))
    nearer = np.minimum(np.hypot(lines1[:, 0], lines1[:, 1]), np.hypot(lines2[:, 0], lines2[:, 1]))
    return np.asarray(algebraic / np.maximum(nearer, 1e-300))
