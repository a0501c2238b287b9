"""disk_ops.training.validation: what it measures, and that it leaves everything as it was."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import pytest
import torch

from disk_ops import DISKDetector, DISKFeatures
from disk_ops.evaluation.homography_sets import find_homography_sets
from disk_ops.scenes.errors import DataError, SampleError
from disk_ops.training import View
from disk_ops.training.data.sample import Sample
from disk_ops.training.validation import SourceSamples, Validator

SIZE = 64


class Told(torch.nn.Module):
    """A detector that is told what to find: the value of the first pixel is the number of the image."""

    def __init__(self, *features: tuple[torch.Tensor, torch.Tensor]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.features, self.calls = features, []

    def forward(self, images, n=None, window_size=5, score_threshold=0.0, mask=None):
        assert score_threshold == 0
        number = round(images[0, 0, 0, 0].item() * 255)
        self.calls.append((number, n, window_size, mask, self.training, torch.is_grad_enabled()))
        keypoints, descriptors = self.features[number]
        return [DISKFeatures(keypoints, descriptors, torch.zeros(len(keypoints)))]


def images(*numbers: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (len(numbers), 1, SIZE, SIZE)
    values = torch.tensor(numbers, dtype=torch.uint8).view(-1, 1, 1, 1)
    return values.expand(-1, 3, SIZE, SIZE), torch.ones(shape, dtype=torch.bool)


def homography_sample(*numbers: int, homographies: torch.Tensor | None = None) -> Sample:
    if homographies is None:
        homographies = torch.eye(3, dtype=torch.float64).expand(len(numbers), 3, 3)
    return Sample("planes", *images(*numbers), homographies=homographies)


@pytest.fixture
def points() -> torch.Tensor:
    return torch.rand(20, 2) * SIZE


def numbered(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Points whose descriptors tell which is which."""
    return points, torch.eye(len(points), 32)


class TestHomographies:
    def test_all_pairs_of_a_sample_count_and_each_image_is_extracted_once(self, points):
        shift = torch.tensor([[1.0, 0, 4], [0, 1, -2], [0, 0, 1]], dtype=torch.float64)
        move = torch.tensor([4.0, -2.0])
        # From a common plane, which is no image: right for images 0 and 1, 2.5 px off for image 2.
        homographies = torch.stack([shift, shift @ shift, shift])
        detector = Told(numbered(points), numbered(points + move), numbered(points + torch.tensor([2.5, 0.0])))
        metrics = Validator([homography_sample(0, 1, 2, homographies=homographies)])(detector)
        assert [call[0] for call in detector.calls] == [0, 1, 2]
        assert metrics["auc5"] == pytest.approx((1 + 3 / 5 + 3 / 5) / 3)
        assert metrics["score"] == metrics["fscore5"] == pytest.approx(metrics["auc5"])  # all 20 are matched
        assert metrics == {**metrics, "pairs": 3.0, "matches": 20.0, "keypoints": 20.0}
        assert "mAA10" not in metrics

    def test_settings_and_masks_reach_the_detector(self, points):
        detector = Told(numbered(points), numbered(points))
        sample = homography_sample(0, 1)
        sample.mask[1, :, 10:] = False
        Validator([sample], n=77, window_size=9)(detector)
        (_, n, window, mask, training, gradients), second = detector.calls
        assert (n, window, training, gradients) == (77, 9, False, False)
        assert mask.shape == (1, 1, SIZE, SIZE) and mask.all()
        assert torch.equal(second[3][0], sample.mask[1])

    def test_keypoints_come_from_the_mask(self):
        detector = DISKDetector.from_pretrained()
        picture = torch.randint(0, 256, (1, 3, SIZE, SIZE), dtype=torch.uint8).expand(2, -1, -1, -1)
        mask = torch.ones(2, 1, SIZE, SIZE, dtype=torch.bool)
        homographies = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
        whole = Validator([Sample("same", picture, mask, homographies=homographies)])(detector)
        assert whole["auc5"] == 1.0 and whole["matches"] == whole["keypoints"] > 20
        mask[:, :, :, SIZE // 2 :] = False
        half = Validator([Sample("same", picture, mask, homographies=homographies)])(detector)
        assert half["auc5"] == 1.0 and 0 < half["keypoints"] < 0.7 * whole["keypoints"]
        nothing = Validator([Sample("same", picture, mask & False, homographies=homographies)])(detector)
        none = dict.fromkeys(("score", "fscore5", "auc5", "matches", "keypoints"), 0.0)
        assert nothing == {**none, "pairs": 1.0}

    def test_the_score_falls_with_lost_matches(self, points):
        """Of 20 keypoints 5 are matched, all correctly: their share is 1, but what is found is a fifth of it."""
        keypoints, descriptors = numbered(points)
        other = torch.cat([descriptors[:5], -descriptors[5:6].expand(15, -1)])
        metrics = Validator([homography_sample(0, 1)])(Told((keypoints, descriptors), (keypoints, other)))
        found = metrics["matches"]
        assert 5 <= found < 20
        assert metrics["fscore5"] == pytest.approx(2 * found * metrics["auc5"] / (found + 20))
        assert metrics["score"] == metrics["fscore5"] < metrics["auc5"]

    def test_features_with_nan_count_as_wrong(self, points):
        keypoints, descriptors = numbered(points)
        broken = torch.full_like(points, torch.nan)
        detector = Told((keypoints, descriptors), (keypoints, descriptors * torch.nan), (broken, descriptors))
        validate = Validator([homography_sample(0, 1), homography_sample(0, 2)])
        metrics = validate(detector)
        assert (metrics["score"], metrics["matches"]) == (0.0, 10.0)

    def test_a_network_that_gives_nan_scores_0(self):
        detector = DISKDetector()
        with torch.no_grad():
            next(detector.parameters()).fill_(torch.nan)
        assert Validator([homography_sample(0, 1)])(detector)["score"] == 0.0


class TestViews:
    def sample_and_points(self, count: int) -> tuple[Sample, list[torch.Tensor]]:
        generator = torch.Generator().manual_seed(0)
        world = torch.rand(count, 3, generator=generator, dtype=torch.float64) * 4 - 2
        views, pixels = [], []
        for angle, t in ((0.0, [0.0, 0, 6]), (0.3, [1.0, 0.2, 6]), (-0.2, [-0.7, 0.1, 6])):
            R = torch.from_numpy(cv2.Rodrigues(np.array([0.1 * angle, angle, 0.0]))[0])
            K = torch.tensor([[300.0, 0, 32], [0, 310, 30], [0, 0, 1]], dtype=torch.float64)
            view = View(K, R, torch.tensor(t, dtype=torch.float64))
            projected = (world @ R.mT + view.t) @ K.mT
            pixels.append((projected[:, :2] / projected[:, 2:]).float())
            views.append(view)
        return Sample("posed", *images(0, 1, 2), views=tuple(views)), pixels

    def test_right_matches_give_the_pose(self):
        sample, points = self.sample_and_points(30)
        metrics = Validator([sample])(Told(*map(numbered, points)))
        assert metrics["mAA10"] == metrics["score"] == 1.0
        assert metrics["pairs"] == 3.0 and "auc5" not in metrics

    def test_wrong_matches_do_not(self):
        sample, points = self.sample_and_points(30)
        shuffled = [each[torch.randperm(30)] for each in points]
        assert Validator([sample])(Told(*map(numbered, shuffled)))["mAA10"] < 0.5

    @pytest.mark.parametrize("count", [0, 1, 9])
    def test_too_few_matches_score_0(self, count):
        sample, points = self.sample_and_points(count)
        metrics = Validator([sample])(Told(*map(numbered, points)))
        assert (metrics["mAA10"], metrics["matches"]) == (0.0, count)

    def test_the_score_is_the_mean_of_both_kinds(self):
        sample, points = self.sample_and_points(30)
        metrics = Validator([sample, homography_sample(0, 1)])(Told(*map(numbered, points)))
        assert metrics["mAA10"] == 1.0 and metrics["fscore5"] < 0.5
        assert metrics["score"] == pytest.approx((1 + metrics["fscore5"]) / 2)


class TestWithoutTraces:
    def test_modes_weights_and_random_numbers_stay(self):
        detector = DISKDetector().train()
        detector.unet.path_down.eval()  # a part that is kept fixed
        modes = [module.training for module in detector.modules()]
        weights = [parameter.clone() for parameter in detector.parameters()]
        states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        validate = Validator([homography_sample(0, 1)])
        first, second = validate(detector), validate(detector)
        assert first == second
        assert modes == [module.training for module in detector.modules()]
        assert all(torch.equal(old, new) for old, new in zip(weights, detector.parameters(), strict=True))
        assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())

    def test_training_goes_on_afterwards(self):
        detector = DISKDetector().train()
        Validator([homography_sample(0, 1)])(detector)
        heatmap, _ = detector.heatmap_and_dense_descriptors(torch.rand(1, 3, SIZE, SIZE))
        heatmap.sum().backward()
        assert next(detector.parameters()).grad is not None

    def test_the_mode_comes_back_after_an_error(self):
        detector = DISKDetector().train()
        with pytest.raises(DataError):
            Validator([])(detector)
        assert detector.training

    def test_progress(self, points):
        done = []
        Validator([homography_sample(0, 1)] * 3)(
            Told(numbered(points), numbered(points)), lambda *now: done.append(now)
        )
        assert done == [(1, 3), (2, 3), (3, 3)]


class Numbers(NamedTuple):
    """A source whose samples hold their item and a random number; some items are broken."""

    count: int
    broken: tuple[int, ...] = ()
    name: str = "numbers"

    def order(self, epoch: int, seed: int) -> np.ndarray:
        return np.random.default_rng((seed, epoch)).permutation(self.count)

    def load(self, item: int, rng: np.random.Generator) -> Sample:
        if item in self.broken:
            raise SampleError(f"{item}.jpg", "is truncated")
        return Sample(f"{item} {rng.random()}", *images(0, 1), homographies=torch.eye(3).expand(2, 3, 3))


def source_samples(sources, number, **options) -> SourceSamples:
    return SourceSamples(sources if isinstance(sources, list) else [sources], number, **options)


class TestSourceSamples:
    def test_the_same_samples_each_time(self):
        samples = source_samples(Numbers(10), 4, seed=3)
        names = [sample.name for sample in samples]
        assert len(samples) == len(names) == len(set(names)) == 4
        assert names == [sample.name for sample in samples]
        assert names == [sample.name for sample in source_samples(Numbers(10), 4, seed=3)]
        assert names != [sample.name for sample in source_samples(Numbers(10), 4, seed=4)]
        first = Numbers(10).order(0, 3)[0]
        assert names[0] == Numbers(10).load(first, np.random.default_rng((3, 0))).name

    def test_at_most_one_pass(self):
        samples = source_samples(Numbers(3), 50)
        assert len(samples) == len(list(samples)) == 3

    def test_several_sources(self):
        samples = source_samples([Numbers(2), Numbers(9)], 3)
        assert len(samples) == len(list(samples)) == 5

    def test_what_is_broken_is_reported_once_and_replaced(self):
        source = Numbers(6, broken=(0, 1, 2))
        messages = []
        samples = source_samples(source, 3, report=messages.append)
        for _ in range(3):
            assert sorted(sample.name[0] for sample in samples) == ["3", "4", "5"]
        assert len(messages) == len(set(messages)) <= 3
        assert all("jpg: is truncated" in message for message in messages)

    def test_nothing_usable(self, points):
        samples = source_samples(Numbers(2, broken=(0, 1)), 2)
        with pytest.raises(DataError, match="no pair of images"), pytest.warns(UserWarning, match="is truncated"):
            Validator(samples)(Told(numbered(points)))

    def test_a_number_of_samples_is_positive(self):
        with pytest.raises(ValueError, match="number must be a positive"):
            source_samples(Numbers(2), 0)
        with pytest.raises(ValueError, match="n must be a positive"):
            Validator([], n=0)


class TestSets:
    def write(self, folder: Path, homography: str = "1 0 0 0 1 0 0 0 1") -> None:
        folder.mkdir()
        for number in (1, 2, 3):
            cv2.imwrite(str(folder / f"{number}.png"), np.full((SIZE, SIZE, 3), number - 1, np.uint8))
        for number in (2, 3):
            (folder / f"H_1_{number}").write_text(homography)

    def test_sets_count_as_pairs_with_homographies(self, tmp_path, points):
        self.write(tmp_path / "v_wall")
        moved = points + torch.tensor([2.5, 0.0])
        detector = Told(numbered(points), numbered(points), numbered(moved))
        metrics = Validator(sets=find_homography_sets(tmp_path))(detector)
        assert [call[0] for call in detector.calls] == [0, 1, 2]
        assert metrics["score"] == metrics["fscore5"] == pytest.approx((1 + 3 / 5) / 2)
        assert (metrics["pairs"], metrics["keypoints"]) == (2.0, 20.0)

    def test_a_broken_set_is_reported_once_and_skipped(self, tmp_path, points):
        self.write(tmp_path / "v_good")
        self.write(tmp_path / "v_bad", "no homography")
        messages, done = [], []
        validate = Validator(sets=find_homography_sets(tmp_path), report=messages.append)
        for _ in range(2):
            metrics = validate(Told(*[numbered(points)] * 3), lambda *now: done.append(now))
            assert metrics["score"] == 1.0
        assert len(messages) == 1 and "v_bad" in messages[0]
        assert done == [(1, 2), (2, 2)] * 2
