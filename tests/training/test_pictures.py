"""Pictures of a training: the rewards they show are those of the loss, in the right places and colours."""

from __future__ import annotations

import runpy
import sys
from itertools import product
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from disk_ops import DISKDetector
from disk_ops.features import DISKFeatures
from disk_ops.ops import MatchGeometry, expected_reward
from disk_ops.training import DepthReward, EpipolarReward, HomographyReward, View
from disk_ops.training.data.sample import Sample
from disk_ops.training.logs import TrainingLog
from disk_ops.training.pictures import (
    RIGHT,
    UNKNOWN,
    WRONG,
    heatmap_picture,
    match_rewards,
    matches_picture,
    training_pictures,
)


def two_views(generator: torch.Generator) -> tuple[View, View]:
    """Cameras side by side, whose depth is known in part."""
    K = torch.tensor([[60.0, 0, 32], [0, 60, 24], [0, 0, 1]])
    depth = 4 + torch.rand(48, 64, generator=generator)
    depth[torch.rand(48, 64, generator=generator) < 0.3] = 0
    return (
        View(K, torch.eye(3), torch.zeros(3), depth),
        View(K, torch.eye(3), torch.tensor([-0.2, 0.0, 0.05]), depth.flip(1)),
    )


def geometry(kind: str) -> MatchGeometry:
    generator = torch.Generator().manual_seed(3)
    first = (torch.rand(60, 2, generator=generator) * torch.tensor([64, 48])).round()
    second = first[:50] + torch.tensor([-3.0, 0.0]) + torch.randn(50, 2, generator=generator).round()
    if kind == "homography":
        return HomographyReward()(first, second, torch.tensor([[1.0, 0.01, -3], [0, 1, 0], [1e-5, 0, 1]]))
    views = two_views(generator)
    if kind == "epipolar":
        return EpipolarReward()(first, second, *views)
    return DepthReward(rule=kind)(first, second, *views)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["homography", "epipolar", "paper", "official"])
def test_rewards_of_matches_are_those_of_the_loss(kind: str) -> None:
    rule = geometry(kind)
    pairs = torch.tensor(list(product(range(60), range(50))))
    rewards = match_rewards(rule, pairs)
    expected = {"homography": {1.0, -0.25}, "epipolar": {1.0, -0.25}}.get(kind, {1.0, 0.0, -0.25})
    assert set(rewards.tolist()) == expected
    # Descriptors that make the wanted match certain give its reward alone.
    for i, j in pairs[torch.randperm(len(pairs))[:40]].tolist() + pairs[rewards >= 0][:40].tolist():
        valid1, valid2 = torch.arange(60) == i, torch.arange(50) == j
        alone = expected_reward(torch.zeros(60, 4), torch.zeros(50, 4), 1.0, rule, valid1, valid2)
        assert float(alone.reward1.sum()) == pytest.approx(float(rewards[i * 50 + j]))


def test_no_matches_have_no_rewards() -> None:
    assert match_rewards(geometry("paper"), torch.empty(0, 2, dtype=torch.int64)).shape == (0,)


def grey_sample(height: int = 400, width: int = 500) -> Sample:
    images = torch.full((2, 3, height, width), 128, dtype=torch.uint8)
    return Sample("grey", images, torch.ones(2, 1, height, width, dtype=torch.bool))


def features_at(points: list[list[float]]) -> DISKFeatures:
    return DISKFeatures(torch.tensor(points).reshape(-1, 2), torch.zeros(len(points), 4), torch.zeros(len(points)))


def near(pixel: np.ndarray, color: tuple[int, int, int]) -> bool:
    return bool(np.abs(pixel.astype(int) - color).max() < 8)


def test_matches_are_coloured_by_reward() -> None:
    first = features_at([[50, 50], [9, 9], [50, 150], [50, 250]])
    second = features_at([[400, 250], [400, 50], [400, 150]])
    idxs = torch.tensor([[0, 1], [2, 2], [3, 0]])
    picture = matches_picture(grey_sample(), (0, 1), first, second, idxs, torch.tensor([0.7, -0.1, 0.0]))
    assert picture.dtype == np.uint8 and picture.shape == (400 + 24, 500 + 12 + 500, 3)
    for y, color in ((50, RIGHT), (150, WRONG), (250, UNKNOWN)):
        assert near(picture[y, 50], color) and near(picture[y, 512 + 400], color)
        line = picture[y, 300].astype(int)
        assert line.argmax() == np.argmax(color) and np.ptp(line) > 40
    assert np.ptp(picture[9, 9].astype(int)) == 0  # a feature without a match is not drawn


def test_right_matches_lie_on_top() -> None:
    point = features_at([[50, 50]] * 3)
    for order in ([1.0, -1.0, 0.0], [0.0, -1.0, 1.0], [-1.0, 1.0, 0.0]):
        idxs = torch.arange(3).repeat(2, 1).T
        picture = matches_picture(grey_sample(), (0, 1), point, point, idxs, torch.tensor(order))
        assert near(picture[50, 50], RIGHT)


def test_the_pair_is_the_one_that_was_asked_for() -> None:
    sample = grey_sample()
    images = torch.cat([sample.images, torch.full_like(sample.images[:1], 250)])
    none = (features_at([]), features_at([]), torch.empty(0, 2, dtype=torch.int64), torch.empty(0))
    picture = matches_picture(sample._replace(images=images), (2, 0), *none)
    assert picture[10, 10, 0] > picture[10, 600, 0] + 50
    with pytest.raises(ValueError, match="rewards must be of the 0 matches, got 2"):
        matches_picture(sample, (0, 1), *none[:3], torch.zeros(2))


@pytest.mark.parametrize(("size", "shown"), [((32, 48), (64, 96)), ((450, 600), (450, 600)), ((800, 1600), (400, 800))])
def test_small_images_are_enlarged_and_large_ones_reduced(size: tuple[int, int], shown: tuple[int, int]) -> None:
    x, y = size[1] // 2, size[0] // 4
    point, idxs = features_at([[x, y]]), torch.tensor([[0, 0]])
    picture = matches_picture(grey_sample(*size), (0, 1), point, point, idxs, torch.ones(1))
    assert picture.shape == (shown[0] + 24, 2 * shown[1] + 12, 3)
    factor = shown[0] / size[0]
    assert near(picture[round(y * factor), round(x * factor)], RIGHT)


def test_a_heatmap_is_bright_where_keypoints_are_likely() -> None:
    heatmap = torch.full((1, 30, 40), -200.0)
    heatmap[0, 10, 20], heatmap[0, 10, 30], heatmap[0, 20, 20] = 200.0, 0.0, torch.nan
    image = torch.randint(0, 255, (3, 30, 40), dtype=torch.uint8)
    picture = heatmap_picture(image, heatmap)
    assert picture.dtype == np.uint8 and picture.shape == (30, 40 + 12 + 40, 3)
    np.testing.assert_array_equal(picture[:, :40], image.permute(1, 2, 0))
    right = picture[:, 52:].astype(int).sum(2)
    assert right[10, 20] > right[10, 30] > right[20, 20]
    assert right[10, 20] > 500 and np.delete(right.ravel(), [10 * 40 + 20, 10 * 40 + 30]).max() < 3 * 0.36 * 255


def warped(photo: Path) -> Sample:
    """A photograph and itself, turned and shrunk."""
    image = cv2.resize(cv2.imread(str(photo)), (256, 192), interpolation=cv2.INTER_AREA)[:, :, ::-1]
    H = np.array([[0.9, -0.15, 24], [0.15, 0.9, -8], [0, 0, 1]])
    other = cv2.warpPerspective(image, H, (256, 192))
    mask = cv2.warpPerspective(np.ones((192, 256), np.uint8), H, (256, 192)) > 0
    images = torch.from_numpy(np.stack([image, other])).permute(0, 3, 1, 2)
    masks = torch.from_numpy(np.stack([np.ones_like(mask), mask]))[:, None]
    return Sample("warped", images, masks, homographies=torch.from_numpy(np.stack([np.eye(3), H])))


def pair_reward(sample: Sample, lambda_fp: float = -0.25):
    assert sample.homographies is not None
    rule, homographies = HomographyReward(lambda_fp=lambda_fp), sample.homographies

    def reward(i: int, j: int, features):
        between = homographies[j] @ torch.linalg.inv(homographies[i])
        return rule(features[i].keypoints, features[j].keypoints, between)

    return reward


def colours_of_points(picture: np.ndarray) -> dict[str, int]:
    colors = {"right": RIGHT, "wrong": WRONG, "unknown": UNKNOWN}
    return {name: int((np.abs(picture.astype(int) - color).max(2) < 8).sum()) for name, color in colors.items()}


def test_a_trained_network_makes_right_matches(repository: Path) -> None:
    sample = warped(repository / "disk_ops" / "demo" / "berlin_1.jpg")
    detector = DISKDetector.from_pretrained()
    pictures = training_pictures(detector, sample, pair_reward(sample), 1200)
    assert set(pictures) == {"heatmap", "matches/0-1"}
    counts = colours_of_points(pictures["matches/0-1"][:-24])
    assert counts["right"] > 3 * counts["wrong"] > 0 == counts["unknown"]
    # Without a penalty, as at the start of a training, wrong matches are no less wrong.
    again = training_pictures(detector, sample, pair_reward(sample, lambda_fp=0.0), 1200)
    np.testing.assert_array_equal(again["matches/0-1"], pictures["matches/0-1"])


def test_nothing_changes_but_all_pairs_are_shown() -> None:
    detector = DISKDetector(desc_dim=16).train()
    before = {name: value.clone() for name, value in detector.state_dict().items()}
    images = torch.randint(0, 255, (3, 3, 48, 64), dtype=torch.uint8)
    mask = torch.ones(3, 1, 48, 64, dtype=torch.bool)
    mask[2] = False  # no features
    sample = Sample("noise", images, mask, homographies=torch.eye(3, dtype=torch.float64).repeat(3, 1, 1))
    state = torch.get_rng_state()
    pictures = training_pictures(detector, sample, pair_reward(sample), 0, n=20)
    assert sorted(pictures) == ["heatmap", "matches/0-1", "matches/0-2", "matches/1-2"]
    assert sum(colours_of_points(pictures["matches/0-2"][:-24]).values()) == 0
    assert torch.equal(state, torch.get_rng_state()) and detector.training
    assert all(torch.equal(value, before[name]) for name, value in detector.state_dict().items())
    assert all(parameter.grad is None for parameter in detector.parameters())


def test_a_learning_curve(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    for run in ("a", "b"):
        with TrainingLog(tmp_path / run, 100, 0, quiet=True, tensorboard=False, every=1) as log:
            log.validation(0, {"score": 0.1})
            for step in range(1, 101):
                log.step(step, {"reward": float(step)} if step % 7 else {})
            log.validation(100, {"score": 0.6})
    output = tmp_path / "curve.png"
    runs = [str(tmp_path / "a"), str(tmp_path / "b")]
    arguments = ["learning_curve.py", *runs, "--output", str(output), "--baseline", "0.485", "RootSIFT"]
    program = repository / "python" / "benchmarks" / "learning_curve.py"
    monkeypatch.setattr(sys, "argv", arguments)
    curve = runpy.run_path(str(program), run_name="__main__")["read_curve"](tmp_path / "a" / "history.csv", "reward")
    assert curve[1] == [step for step in range(1, 101) if step % 7]
    assert cv2.imread(str(output)).shape[1] > 800
    monkeypatch.setattr(sys, "argv", ["learning_curve.py", str(tmp_path / "none")])
    with pytest.raises(SystemExit, match=r"none.validation\.csv: No such file"):
        runpy.run_path(str(program), run_name="__main__")
