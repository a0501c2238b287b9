"""Rewards for the pairs of a sample, by what is known of it: homographies, or poses with or without depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from disk_ops.features import DISKFeatures, SampledFeatures
from disk_ops.ops import MatchGeometry
from disk_ops.training.config import RewardConfig
from disk_ops.training.data.sample import Sample
from disk_ops.training.rewards import DepthReward, EpipolarReward, HomographyReward, View


class PairRewards:
    """The rewards of a sample's matches.

    Args:
        config: size of the rewards.
        sample: the images' geometry.
        device: where keypoints are.
        ramp: factor of ``lambda_fp``, which rises in the course of a training.
    """

    def __init__(
        self, config: RewardConfig, sample: Sample, device: torch.device | str = "cpu", ramp: float = 1.0
    ) -> None:
        self._true, self._false = config.lambda_tp, config.lambda_fp * ramp
        self._arguments: dict[str, Any] = {"epsilon": config.epsilon, "lambda_tp": self._true, "lambda_fp": self._false}
        self._rule = config.rule
        self._homographies = None if sample.homographies is None else sample.homographies.to(device)
        self._views = tuple(_to(view, device) for view in sample.views or ())
        self._depth = config.supervision == "depth" and any(view.depth is not None for view in self._views)

    def __call__(
        self,
        i: int,
        j: int,
        keypoints1: Tensor,  # [N, 2]
        keypoints2: Tensor,  # [M, 2]
    ) -> MatchGeometry:
        """Return what decides on the matches of image i and image j."""
        if self._homographies is not None:
            homography = self._homographies[j] @ torch.linalg.inv(self._homographies[i])
            return HomographyReward(**self._arguments)(keypoints1, keypoints2, homography)
        first, second = self._views[i], self._views[j]
        if self._depth:
            reward = DepthReward(rule=self._rule, **self._arguments)
            return reward(keypoints1, keypoints2, _with_depth(first), _with_depth(second))
        return EpipolarReward(**self._arguments)(keypoints1, keypoints2, first, second)

    def of(self, features: Sequence[SampledFeatures] | Sequence[DISKFeatures], i: int, j: int) -> MatchGeometry:
        """Return what decides on the matches of the features of image i and image j."""
        return self(i, j, features[i].keypoints, features[j].keypoints)

    def correct(self, reward: float, matches: float) -> float | None:
        """The expected number of correct matches, from the expected reward; None where some matches are neither."""
        if self._depth and self._false:
            return None
        return (reward - self._false * matches) / (self._true - self._false) if self._true != self._false else None


def _to(view: View, device: torch.device | str) -> View:
    depth = None if view.depth is None else view.depth.to(device)
    return View(view.K.to(device), view.R.to(device), view.t.to(device), depth)


def _with_depth(view: View) -> View:
    """A view whose depth map is missing, among others that have one: unknown everywhere."""
    return view if view.depth is not None else view._replace(depth=torch.full((1, 1), torch.nan, device=view.K.device))
