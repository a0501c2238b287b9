"""Rewards of a sample's pairs, by what is known of it."""

from __future__ import annotations

import pytest
import torch

from disk_ops.ops import expected_reward
from disk_ops.training.config import RewardConfig
from disk_ops.training.data.sample import Sample
from disk_ops.training.rewards import View
from disk_ops.training.supervision import PairRewards

POINTS = torch.tensor([[3.0, 4.0], [10.0, 11.0]])


def make_sample(**geometry):
    return Sample("s", torch.zeros(2, 3, 16, 16, dtype=torch.uint8), torch.ones(2, 1, 16, 16).bool(), **geometry)


def make_view(x: float, depth: float | None = None) -> View:
    K = torch.tensor([[20.0, 0, 8], [0, 20, 8], [0, 0, 1]], dtype=torch.float64)
    known = None if depth is None else torch.full((16, 16), depth)
    return View(K, torch.eye(3, dtype=torch.float64), torch.tensor([x, 0.0, 0.0], dtype=torch.float64), known)


def test_homographies_are_chained_through_the_common_plane():
    shift = torch.eye(3, dtype=torch.float64).repeat(2, 1, 1)
    shift[0, 0, 2], shift[1, 0, 2] = 5.0, 7.0
    geometry = PairRewards(RewardConfig(), make_sample(homographies=shift))(0, 1, POINTS, POINTS)
    torch.testing.assert_close(geometry.warped1, POINTS.double() + torch.tensor([2.0, 0.0]))
    torch.testing.assert_close(geometry.warped2, POINTS.double() - torch.tensor([2.0, 0.0]))


def test_depth_is_used_where_it_is_known():
    sample = make_sample(views=(make_view(0.0, 10.0), make_view(1.0)))
    geometry = PairRewards(RewardConfig(), sample)(0, 1, POINTS, POINTS)
    torch.testing.assert_close(geometry.warped1, POINTS.double() + torch.tensor([2.0, 0.0]))  # f * baseline / depth
    assert geometry.warped2.isnan().all()


@pytest.mark.parametrize(
    ("views", "supervision"),
    [((make_view(0.0), make_view(1.0)), "depth"), ((make_view(0.0, 10.0), make_view(1.0, 10.0)), "epipolar")],
)
def test_epipolar_geometry_otherwise(views, supervision):
    geometry = PairRewards(RewardConfig(supervision=supervision), make_sample(views=views))(0, 1, POINTS, POINTS)
    assert geometry.warped1 is None and geometry.fundamental is not None


def test_settings_reach_the_geometry():
    config = RewardConfig(epsilon=3.0, lambda_tp=2.0, lambda_fp=-0.5, rule="official")
    views = (make_view(0.0, 10.0), make_view(1.0, 10.0))
    geometry = PairRewards(config, make_sample(views=views), ramp=0.5)(0, 1, POINTS, POINTS)
    assert (geometry.epsilon, geometry.lambda_tp, geometry.lambda_fp) == (3.0, 2.0, -0.25)
    assert geometry.rule == "official"


@pytest.mark.parametrize("ramp", [0.0, 1.0])
def test_correct_matches_follow_from_the_reward(ramp):
    rewards = PairRewards(RewardConfig(), make_sample(homographies=torch.eye(3).double().repeat(2, 1, 1)), ramp=ramp)
    moved = POINTS + torch.tensor([[0.0, 0.0], [4.0, 0.0]])  # one right, one wrong
    expected = expected_reward(torch.eye(2), torch.eye(2), 100.0, rewards(0, 1, POINTS, moved))
    assert rewards.correct(float(expected.reward1.sum()), float(expected.matches)) == pytest.approx(1.0, abs=1e-4)


def test_correct_matches_are_unknown_where_depth_is():
    views = (make_view(0.0, 10.0), make_view(1.0, 10.0))
    assert PairRewards(RewardConfig(), make_sample(views=views)).correct(1.0, 2.0) is None
