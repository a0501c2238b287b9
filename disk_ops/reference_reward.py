r"""Pure-PyTorch twins of the ops on pairs of descriptors: distances, match statistics, expected reward.

These materialise every N×M matrix, as the released code does: they are the formulas to read and to test against.

With :math:`d_{ij} = \|a_i - b_j\|`, :math:`A = -\theta d`, row and column log-sum-exps :math:`r_i, c_j`:
:math:`p^{row} = e^{A - r}`, :math:`p^{col} = e^{A - c}`, :math:`P = p^{row} p^{col}` (paper, section 3).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class RewardRule(NamedTuple):
    """The arguments that define r_ij: a dense matrix, or geometry from which it is computed."""

    reward: Tensor | None  # [B, N, M]
    keypoints1: Tensor | None  # [B, N, 2] xy in image 1
    keypoints2: Tensor | None  # [B, M, 2] xy in image 2
    warped1: Tensor | None  # [B, N, 2] keypoints1 seen in image 2, NaN where unknown
    warped2: Tensor | None  # [B, M, 2] keypoints2 seen in image 1, NaN where unknown
    fundamental: Tensor | None  # [B, 3, 3], x2^T F x1 = 0
    epsilon: float
    lambda_tp: float
    lambda_fp: float
    official: bool


def distance_matrix(
    desc1: Tensor,  # [B, N, D]
    desc2: Tensor,  # [B, M, D]
) -> Tensor:
    """L2 distances ``[B, N, M]`` from differences, exact near zero; float32 at least."""
    return torch.cdist(_precise(desc1), _precise(desc2), compute_mode="donot_use_mm_for_euclid_dist")


def match_statistics(
    desc1: Tensor,  # [B, N, D]
    desc2: Tensor,  # [B, M, D]
    inverse_temperature: Tensor,  # []
    valid1: Tensor | None,  # [B, N] bool
    valid2: Tensor | None,  # [B, M] bool
) -> tuple[Tensor, Tensor]:
    """Log-sum-exps of A over rows ``[B, N]`` and columns ``[B, M]``; -inf where there is nothing to sum."""
    logits = _logits(distance_matrix(desc1, desc2), inverse_temperature, valid1, valid2)
    return logits.logsumexp(2), logits.logsumexp(1)


def _match_sums(
    desc1: Tensor,  # [B, N, D]
    desc2: Tensor,  # [B, M, D]
    inverse_temperature: Tensor,  # []
    valid1: Tensor | None,  # [B, N] bool
    valid2: Tensor | None,  # [B, M] bool
    logsumexp1: Tensor,  # [B, N]
    logsumexp2: Tensor,  # [B, M]
    reward: Tensor | None,
    keypoints1: Tensor | None,
    keypoints2: Tensor | None,
    warped1: Tensor | None,
    warped2: Tensor | None,
    fundamental: Tensor | None,
    epsilon: float,
    lambda_tp: float,
    lambda_fp: float,
    official: bool,
    weight1: Tensor | None,  # [B, N]
    weight2: Tensor | None,  # [B, M]
    weight0: Tensor | None,  # [B, N]
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of P w over rows ``[B, N]`` and columns ``[B, M]``, and of P over rows ``[B, N]``.

    w_ij = (weight1_i + weight2_j) r_ij + weight0_i, where a missing weight is 0; without any weight, w = r.
    """
    rule = RewardRule(
        reward, keypoints1, keypoints2, warped1, warped2, fundamental, epsilon, lambda_tp, lambda_fp, official
    )
    logits = _logits(distance_matrix(desc1, desc2), inverse_temperature, valid1, valid2)
    probability = _exp(logits, logsumexp1[..., None]) * _exp(logits, logsumexp2[:, None])
    weighted = probability * _weights(rewards_of_pairs(rule, logits), weight1, weight2, weight0, default=True)
    return weighted.sum(2), weighted.sum(1), probability.sum(2)


def _match_backward(
    desc1: Tensor,  # [B, N, D]
    desc2: Tensor,  # [B, M, D]
    inverse_temperature: Tensor,  # []
    valid1: Tensor | None,  # [B, N] bool
    valid2: Tensor | None,  # [B, M] bool
    logsumexp1: Tensor,  # [B, N]
    logsumexp2: Tensor,  # [B, M]
    reward: Tensor | None,
    keypoints1: Tensor | None,
    keypoints2: Tensor | None,
    warped1: Tensor | None,
    warped2: Tensor | None,
    fundamental: Tensor | None,
    epsilon: float,
    lambda_tp: float,
    lambda_fp: float,
    official: bool,
    weight1: Tensor | None,  # [B, N]
    weight2: Tensor | None,  # [B, M]
    weight0: Tensor | None,  # [B, N]
    sum1: Tensor,  # [B, N]
    sum2: Tensor,  # [B, M]
    reward_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients to desc1, desc2, inverse_temperature ``[B]`` and, if asked for, reward (else an empty tensor).

    dA_ij = 2 P_ij w_ij - p^row_ij sum1_i - p^col_ij sum2_j with w as in ``_match_sums``; without any weight, w = 0.
    """
    rule = RewardRule(
        reward, keypoints1, keypoints2, warped1, warped2, fundamental, epsilon, lambda_tp, lambda_fp, official
    )
    distance = distance_matrix(desc1, desc2)
    logits = _logits(distance, inverse_temperature, valid1, valid2)
    row, column = _exp(logits, logsumexp1[..., None]), _exp(logits, logsumexp2[:, None])
    probability = row * column
    no_weights = weight1 is None and weight2 is None and weight0 is None
    rewards = torch.zeros_like(logits) if no_weights else rewards_of_pairs(rule, logits)
    weights = _weights(rewards, weight1, weight2, weight0, default=False)
    grad_logits = 2 * probability * weights - row * sum1[..., None] - column * sum2[:, None]
    grad_theta = -(grad_logits * distance).sum((1, 2))
    pull = torch.where(distance > 0, -inverse_temperature * grad_logits / distance, 0)  # 0 where there is no direction
    a, b = _precise(desc1), _precise(desc2)
    grad1 = a * pull.sum(2)[..., None] - pull @ b
    grad2 = b * pull.sum(1)[..., None] - pull.mT @ a
    grad_reward = probability * _weights(torch.ones_like(logits), weight1, weight2, None, default=False)
    return (
        grad1.to(desc1.dtype).contiguous(),
        grad2.to(desc2.dtype).contiguous(),
        grad_theta,
        grad_reward if reward_gradient else grad_reward.new_empty(0),
    )


def _precise(
    desc: Tensor,  # [B, N, D]
) -> Tensor:
    return desc.float() if desc.dtype in (torch.float16, torch.bfloat16) else desc


def _logits(
    distance: Tensor,  # [B, N, M]
    inverse_temperature: Tensor,
    valid1: Tensor | None,
    valid2: Tensor | None,
) -> Tensor:
    logits = -inverse_temperature.to(distance.dtype) * distance
    if valid1 is not None:
        logits = logits.masked_fill(~valid1[..., None], -math.inf)
    return logits if valid2 is None else logits.masked_fill(~valid2[:, None], -math.inf)


def _exp(logits: Tensor, logsumexp: Tensor) -> Tensor:
    """exp(logits - logsumexp), 0 where a row or column is empty."""
    return torch.where(logits == -math.inf, 0, (logits - logsumexp).exp())


def _weights(
    rewards: Tensor,  # [B, N, M]
    weight1: Tensor | None,
    weight2: Tensor | None,
    weight0: Tensor | None,
    default: bool,
) -> Tensor:
    if weight1 is None and weight2 is None and weight0 is None:
        return rewards if default else torch.zeros_like(rewards)
    factor = torch.zeros_like(rewards)
    if weight1 is not None:
        factor = factor + weight1[..., None]
    if weight2 is not None:
        factor = factor + weight2[:, None]
    weighted = factor * rewards
    return weighted if weight0 is None else weighted + weight0[..., None]


def rewards_of_pairs(
    rule: RewardRule,
    logits: Tensor,  # [B, N, M], for the dtype
) -> Tensor:
    """r_ij ``[B, N, M]``: as given, or by the rules of the paper (section 3, rewards) and of the released code."""
    if rule.reward is not None:
        return rule.reward.to(logits.dtype).masked_fill(logits == -math.inf, 0)  # what is masked may be NaN
    assert rule.keypoints1 is not None and rule.keypoints2 is not None
    keypoints1, keypoints2 = rule.keypoints1.to(logits.dtype), rule.keypoints2.to(logits.dtype)
    correct = torch.zeros_like(logits, dtype=torch.bool)
    harmless = torch.zeros_like(correct)
    consistent = torch.zeros_like(correct)
    if rule.fundamental is not None:
        fundamental = rule.fundamental.to(logits.dtype)
        consistent = _near_lines(keypoints1, keypoints2, fundamental, rule.epsilon)
        consistent &= _near_lines(keypoints2, keypoints1, fundamental.mT, rule.epsilon).mT
        correct = consistent
    if rule.warped1 is not None:
        assert rule.warped2 is not None
        warped1, warped2 = rule.warped1.to(logits.dtype), rule.warped2.to(logits.dtype)
        correct = _near_points(warped1, keypoints2, rule.epsilon) & _near_points(warped2, keypoints1, rule.epsilon).mT
        unknown = warped1.isnan().any(-1)[..., None] | warped2.isnan().any(-1)[:, None]
        harmless = consistent if rule.official else consistent & unknown
    value = torch.where(harmless, 0.0, torch.full_like(logits, rule.lambda_fp))
    return torch.where(correct, rule.lambda_tp, value)


def _near_points(
    points: Tensor,  # [B, N, 2]
    others: Tensor,  # [B, M, 2]
    epsilon: float,
) -> Tensor:
    """Whether points are nearer than epsilon ``[B, N, M]``; never for NaN."""
    return (points[:, :, None] - others[:, None]).square().sum(-1) < epsilon**2


def _near_lines(
    points: Tensor,  # [B, N, 2] whose lines in the other image
    others: Tensor,  # [B, M, 2] are compared with these points
    fundamental: Tensor,  # [B, 3, 3]
    epsilon: float,
) -> Tensor:
    """Whether points lie nearer than epsilon to the epipolar lines of others ``[B, N, M]``; never for no line."""
    lines = torch.cat([points, torch.ones_like(points[..., :1])], -1) @ fundamental.mT  # [B, N, 3]
    offset = lines[:, :, None, :2].mul(others[:, None]).sum(-1) + lines[:, :, None, 2]
    return offset.square() < epsilon**2 * lines[:, :, None, :2].square().sum(-1)
