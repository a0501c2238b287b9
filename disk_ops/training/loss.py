"""The policy-gradient loss of DISK over the images of a scene."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor, nn

from disk_ops.features import SampledFeatures
from disk_ops.ops import MatchGeometry, expected_reward

PairReward = Tensor | MatchGeometry
Rewards = Mapping[tuple[int, int], PairReward] | Callable[[int, int], PairReward]


class LossStatistics(NamedTuple):
    """What a training log shows; no gradient passes through them."""

    loss: Tensor  # []
    reward: Tensor  # [] expected reward, summed over pairs
    matches: Tensor  # [] expected number of matches, summed over pairs
    keypoints: Tensor  # [] number of keypoints of all images
    pairs: int


class PolicyGradientLoss(nn.Module):
    r"""Loss whose gradient is that of the expected reward (DISK, section 3, eq. 1), for any number of images.

    For each pair of images, with match probabilities P from the descriptors, rewards r, and the log-probabilities of
    the keypoints,

    .. math:: -\sum_{ij} P_{ij} r_{ij} - \sum_i \bar R_i \log p_i - \sum_j \bar C_j \log p_j
              - \lambda_{kp} \Big(\sum_i \log p_i + \sum_j \log p_j\Big)

    where :math:`R_i = \sum_j P_{ij} r_{ij}`, :math:`C_j = \sum_i P_{ij} r_{ij}` and the bar stops gradients.
    Matches are summed over instead of sampled; only keypoints are. As in the paper, a keypoint is credited for its own
    matches alone, not for what its presence does to the probabilities of others. Nothing of size N×M is kept, in the
    forward or the backward pass, so all pairs of a scene can share one graph.

    Args:
        lambda_kp: reward of a keypoint, negative to discourage those that can't be matched.
        penalize: ``"pair"`` counts it for each pair that an image is part of, as the released code does; ``"image"``
            once for each image.

    Example:
        >>> desc, logp = torch.eye(4), torch.full((4,), -1.0, requires_grad=True)
        >>> features = [SampledFeatures(torch.zeros(4, 2), desc, logp) for _ in range(2)]
        >>> loss, statistics = PolicyGradientLoss()(features, {(0, 1): torch.eye(4)}, 50.0)
        >>> loss.backward()
        >>> round(float(statistics.reward), 3)
        4.0
    """

    def __init__(self, lambda_kp: float = -0.001, penalize: str = "pair") -> None:
        super().__init__()
        if penalize not in ("pair", "image"):
            raise ValueError(f"penalize must be 'pair' or 'image', got {penalize!r}")
        self.lambda_kp, self.penalize = lambda_kp, penalize

    def forward(
        self,
        features: Sequence[SampledFeatures],
        rewards: Rewards,
        inverse_temperature: Tensor | float,
    ) -> tuple[Tensor, LossStatistics]:
        """Return the loss and statistics.

        Args:
            features: keypoints, descriptors and log-probabilities of the images of a scene; images without keypoints
                are legal.
            rewards: for each pair of images (i, j), i < j, the reward of every match as a matrix or a
                :class:`disk_ops.ops.MatchGeometry`: a mapping, whose pairs are those that count, or a function, which
                is asked for all pairs.
            inverse_temperature: of the match probabilities.
        """
        pairs = list(rewards) if isinstance(rewards, Mapping) else list(combinations(range(len(features)), 2))
        if not features:
            raise ValueError("features must hold at least one image, got none")
        for pair in pairs:
            if not all(0 <= image < len(features) for image in pair) or pair[0] == pair[1]:
                raise ValueError(f"rewards must be of pairs of the {len(features)} images, counted from 0, got {pair}")
        zero = features[0].logp.sum() * 0 + features[0].descriptors.sum() * 0  # a loss even where there are no pairs
        loss, reward, matches = zero, zero.detach(), zero.detach()
        for i, j in pairs:
            rule = rewards[i, j] if isinstance(rewards, Mapping) else rewards(i, j)
            first, second = features[i], features[j]
            expected = expected_reward(first.descriptors, second.descriptors, inverse_temperature, rule)
            total = expected.reward1.sum()
            loss = loss - total
            loss = loss - expected.reward1.detach() @ first.logp.to(total.dtype)
            loss = loss - expected.reward2.detach() @ second.logp.to(total.dtype)
            if self.penalize == "pair":
                loss = loss - self.lambda_kp * (first.logp.sum() + second.logp.sum())
            reward, matches = reward + total.detach(), matches + expected.matches.detach()
        if self.penalize == "image":
            loss = loss - self.lambda_kp * sum(image.logp.sum() for image in features)
        keypoints = torch.tensor(sum(image.n for image in features), device=loss.device)
        return loss, LossStatistics(loss.detach(), reward, matches, keypoints, len(pairs))

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"lambda_kp={self.lambda_kp}, penalize={self.penalize!r}"
