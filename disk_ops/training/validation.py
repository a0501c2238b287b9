"""Validation: how well the detector matches held-out images. Its score picks the best checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from disk_ops.detector import DISKDetector
from disk_ops.evaluation.features import DetectorExtractor, Features, evaluation_mode, mutual_matches
from disk_ops.evaluation.homography import PairAccuracy, evaluate_set, pair_accuracy
from disk_ops.evaluation.homography_sets import HomographySet, SetError
from disk_ops.evaluation.pose import estimate_relative_pose, mean_average_accuracy, pose_error, relative_pose
from disk_ops.multiscale import MultiscaleDetector
from disk_ops.scenes.errors import DataError, SampleError
from disk_ops.training.data.sample import Sample, Source
from disk_ops.training.rewards import View

Report = Callable[[str], None]
Progress = Callable[[int, int], None]


class Samples(Protocol):
    """Samples that can be gone through several times, such as a list of them or :class:`SourceSamples`."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sample]: ...


class SourceSamples:
    """The first samples of each of some sources: the same at each pass, and loaded when they are needed.

    A sample with a file that can't be used is reported once and replaced by a further one, as long as there is one.

    Args:
        sources: of held-out data, one or several.
        number: how many samples of each source, at most one pass over it.
        seed: chooses the samples and all that is random in them.
        report: gets a message about each file that can't be used; by default it is warned about.
    """

    def __init__(
        self, sources: Source | Sequence[Source], number: int, seed: int = 0, report: Report = warnings.warn
    ) -> None:
        if number < 1:
            raise ValueError(f"number must be a positive number of samples, got {number}")
        self.sources = tuple(sources) if isinstance(sources, Sequence) else (sources,)
        self.number, self.seed, self.report = number, seed, report
        self._orders = [source.order(0, seed) for source in self.sources]
        self._broken: set[tuple[int, int]] = set()

    def __len__(self) -> int:
        return sum(min(self.number, len(order)) for order in self._orders)

    def __iter__(self) -> Iterator[Sample]:
        for which in range(len(self.sources)):
            yield from islice(self._usable(which), self.number)

    def check(self) -> None:
        """Load a sample of each source, before hours of work are spent; raises `DataError` where none can be used."""
        for which, source in enumerate(self.sources):
            if next(self._usable(which), None) is None:
                raise DataError(
                    f"{source.name}: no sample for validation can be used; "
                    'use = "train" leaves a source out of validation, validation.every=0 all'
                )

    def _usable(self, which: int) -> Iterator[Sample]:
        for index, item in enumerate(self._orders[which]):
            if (which, index) in self._broken:
                continue
            try:
                yield self.sources[which].load(int(item), np.random.default_rng((self.seed, index)))
            except SampleError as error:
                self._broken.add((which, index))
                self.report(f"validation skips {error}")


@dataclass
class _Tally:
    """What was measured so far."""

    planar: list[PairAccuracy] = field(default_factory=list)  # pairs with a homography
    degrees: list[float] = field(default_factory=list)  # per pair of posed images
    matches: list[int] = field(default_factory=list)  # per pair
    keypoints: list[int] = field(default_factory=list)  # per image

    def metrics(self) -> dict[str, float]:
        if not self.matches:
            raise DataError("validation has no pair of images that can be used")
        scores, shares = {}, {}
        if self.planar:
            scores["fscore5"] = float(np.mean([pair.fscore5 for pair in self.planar]))
            shares["auc5"] = float(np.mean([pair.auc5 for pair in self.planar]))
        if self.degrees:
            scores["mAA10"] = mean_average_accuracy(self.degrees, 10)
        return {
            "score": float(np.mean(list(scores.values()))),
            **scores,
            **shares,
            "matches": float(np.mean(self.matches)),
            "keypoints": float(np.mean(self.keypoints)),
            "pairs": float(len(self.matches)),
        }


class Validator:
    """Match held-out images by mutual nearest neighbours and compare with what is known of their geometry.

    Images with homographies give ``fscore5``, the F-score of correct matches, and ``auc5``, their share of all matches,
    both averaged over 1 to 5 pixels and pairs; posed images give ``mAA10``, the share of relative poses (fundamental
    matrix by MAGSAC) within 1 to 10 degrees, averaged over these. All pairs of a sample count. Nothing is drawn at
    random, and the same weights give the same result.

    Args:
        samples: held-out samples, gone through at each call: a list, or :class:`SourceSamples`.
        sets: homography sets, see :func:`disk_ops.evaluation.find_homography_sets`.
        n: keypoints per image, the best ones.
        window_size: of the non-maximum suppression.
        max_size: longest edge of the images of ``sets``.
        threshold: of MAGSAC, in pixels.
        report: gets a message about each set that can't be used; by default it is warned about.
    """

    def __init__(
        self,
        samples: Samples = (),
        sets: Sequence[HomographySet] = (),
        n: int = 2048,
        window_size: int = 5,
        max_size: int = 1024,
        threshold: float = 0.75,
        report: Report = warnings.warn,
    ) -> None:
        if n < 1:
            raise ValueError(f"n must be a positive number of keypoints, got {n}")
        self.samples = samples
        self.sets = tuple(sets)
        self.n, self.window_size, self.max_size, self.threshold = n, window_size, max_size, threshold
        self.report = report
        self._broken: set[HomographySet] = set()

    def __len__(self) -> int:
        return len(self.samples) + len(self.sets)

    def __call__(
        self, detector: DISKDetector | MultiscaleDetector, progress: Progress | None = None
    ) -> dict[str, float]:
        """Measure a detector, which comes back in the mode that it was in.

        Args:
            detector: any, at one scale or several; it works in evaluation mode meanwhile.
            progress: is called with the number of samples and sets done, and that of all.

        Returns:
            ``score`` (higher is better): the mean of those of ``fscore5`` and ``mAA10`` that there are; these, and
            ``auc5``, which alone would be best for a detector that finds a single match; the mean numbers of
            ``matches`` per pair and of ``keypoints`` per image; the number of ``pairs``.

        Raises:
            DataError: there is no pair of images to match.
        """
        tally = _Tally()
        with evaluation_mode(detector):
            extractor = DetectorExtractor(detector, self.n, self.window_size)
            for done, _ in enumerate(self._measure(extractor, tally), 1):
                if progress is not None:
                    progress(done, len(self))
        return tally.metrics()

    def _measure(self, extractor: DetectorExtractor, tally: _Tally) -> Iterator[None]:
        for sample in self.samples:
            self._measure_sample(sample, extractor, tally)
            yield
        for homography_set in self.sets:
            self._measure_set(homography_set, extractor, tally)
            yield

    def _measure_sample(self, sample: Sample, extractor: DetectorExtractor, tally: _Tally) -> None:
        features = [
            extractor(image.float() / 255, mask) for image, mask in zip(sample.images, sample.mask, strict=True)
        ]
        tally.keypoints += [len(each.keypoints) for each in features]
        for i, j in combinations(range(len(features)), 2):
            if sample.homographies is not None:
                pair = pair_accuracy(features[i], features[j], _between(sample.homographies, i, j))
                tally.planar.append(pair)
                tally.matches.append(pair.matches)
            elif sample.views is not None:
                matches = mutual_matches(features[i], features[j])
                error = _pose_error(features[i], features[j], matches, sample.views[i], sample.views[j], self.threshold)
                tally.degrees.append(error)
                tally.matches.append(len(matches))

    def _measure_set(self, homography_set: HomographySet, extractor: DetectorExtractor, tally: _Tally) -> None:
        if homography_set in self._broken:
            return
        try:
            pairs = evaluate_set(homography_set, extractor, self.max_size)
        except SetError as error:
            self._broken.add(homography_set)
            self.report(f"validation skips the set {homography_set.name}: {error}")
            return
        tally.planar += pairs
        tally.matches += [pair.matches for pair in pairs]
        tally.keypoints += [pairs[0].features[0], *(pair.features[1] for pair in pairs)]


def _between(
    homographies: Tensor,  # [T, 3, 3] from a common plane
    i: int,
    j: int,
) -> Tensor:
    """The homography ``[3, 3]`` from image i to image j."""
    return homographies[j].double().cpu() @ torch.linalg.inv(homographies[i].double().cpu())


def _pose_error(
    features1: Features,
    features2: Features,
    matches: Tensor,  # [K, 2] int64
    view1: View,
    view2: View,
    threshold: float,
) -> float:
    """The larger of the rotation and translation error, in degrees."""
    K1, K2, R1, R2, t1, t2 = (
        value.double().cpu().numpy() for value in (view1.K, view2.K, view1.R, view2.R, view1.t, view2.t)
    )
    points1 = features1.keypoints[matches[:, 0]].numpy()
    points2 = features2.keypoints[matches[:, 1]].numpy()
    estimate = estimate_relative_pose(points1, points2, K1, K2, threshold)
    return pose_error(estimate, *relative_pose(R1, t1, R2, t2)).largest
