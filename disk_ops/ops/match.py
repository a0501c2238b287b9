r"""Match probabilities of two sets of descriptors and the expected reward, without the N×M matrix where possible.

With :math:`d_{ij} = \|a_i - b_j\|` and the inverse temperature :math:`\theta`, :math:`A = -\theta d` and

.. math:: P_{ij} = \mathrm{softmax}_j(A_{ij}) \cdot \mathrm{softmax}_i(A_{ij})

is the probability that row i chooses column j and column j chooses row i (DISK, section 3). For rewards
:math:`r_{ij}`, :math:`R_i = \sum_j P_{ij} r_{ij}` and :math:`C_j = \sum_i P_{ij} r_{ij}`, and the gradient is exact:

.. math:: \frac{\partial}{\partial A_{ij}} \sum P r = 2 P_{ij} r_{ij} - p^{row}_{ij} R_i - p^{col}_{ij} C_j
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from disk_ops.ops._arguments import check_number, check_positive, check_tensor
from disk_ops.ops._derivatives import refuse_tangents
from disk_ops.ops._descriptors import check_descriptors, check_valid
from disk_ops.ops._dtypes import at_least_float32
from disk_ops.ops._match_autograd import MutualLogSoftmax


@dataclass(frozen=True)
class MatchGeometry:
    """What decides whether a match is right, evaluated pair by pair inside the kernel.

    A match of keypoint i and keypoint j earns ``lambda_tp`` if it is correct, ``lambda_fp`` if not, 0 if that can't be
    told. With ``warped1`` and ``warped2`` it is correct if both reprojections lie nearer than ``epsilon`` pixels to the
    other keypoint; otherwise, if both keypoints lie nearer than ``epsilon`` to the epipolar line of the other. With
    both kinds of geometry, ``rule="paper"`` gives 0 to a pair without depth at one end (NaN) that is consistent with
    the epipolar geometry, and ``rule="official"``, as the released code does, to every incorrect pair that is.

    Attributes:
        keypoints1, keypoints2: ``[N, 2]`` and ``[M, 2]`` (or batched) pixels in xy order.
        warped1: ``keypoints1`` reprojected into image 2, NaN where unknown.
        warped2: ``keypoints2`` reprojected into image 1, NaN where unknown.
        fundamental: ``[3, 3]`` (or batched), :math:`x_2^T F x_1 = 0`.
        epsilon: pixels.
        lambda_tp, lambda_fp: rewards of a correct and of an incorrect match.
        rule: what epipolar consistency excuses.

    Raises:
        ValueError, TypeError: an argument has a wrong type or value, or none of the geometries is given.

    Example:
        >>> keypoints = torch.tensor([[1.0, 2.0], [8.0, 9.0]])
        >>> geometry = MatchGeometry(keypoints, keypoints, warped1=keypoints, warped2=keypoints)
        >>> expected_reward(torch.eye(2), torch.eye(2), 1e3, geometry).reward1
        tensor([1., 1.])
    """

    keypoints1: Tensor  # [N, 2] or [B, N, 2]
    keypoints2: Tensor  # [M, 2] or [B, M, 2]
    warped1: Tensor | None = None  # [N, 2] or [B, N, 2]
    warped2: Tensor | None = None  # [M, 2] or [B, M, 2]
    fundamental: Tensor | None = None  # [3, 3] or [B, 3, 3]
    epsilon: float = 1.5
    lambda_tp: float = 1.0
    lambda_fp: float = -0.25
    rule: Literal["paper", "official"] = "paper"

    def __post_init__(self) -> None:
        """Check what doesn't depend on the descriptors."""
        if self.rule not in ("paper", "official"):
            raise ValueError(f"rule must be 'paper' or 'official', got {self.rule!r}")
        for name in ("keypoints1", "keypoints2"):
            check_tensor(name, getattr(self, name))
        for name in ("warped1", "warped2", "fundamental"):
            if getattr(self, name) is not None:
                check_tensor(name, getattr(self, name))
        for name in ("epsilon", "lambda_tp", "lambda_fp"):
            check_number(name, getattr(self, name))
        if not self.epsilon > 0:
            raise ValueError(f"epsilon must be a positive number of pixels, got {self.epsilon}")
        if (self.warped1 is None) != (self.warped2 is None):
            raise ValueError("warped1 and warped2 must be given together")
        if self.warped1 is None and self.fundamental is None:
            raise ValueError("either warped1 and warped2 or fundamental must be given")


class ExpectedReward(NamedTuple):
    """The result of :func:`expected_reward`; without a batch dimension where the descriptors have none."""

    reward1: Tensor  # [B, N] expected reward of each row: R_i
    reward2: Tensor  # [B, M] expected reward of each column: C_j
    matches: Tensor  # [B] expected number of matches: the sum of P
    count1: Tensor  # [B] int64 number of valid rows
    count2: Tensor  # [B] int64 number of valid columns


def distance_matrix(
    desc1: Tensor,  # [N, D] or [B, N, D]
    desc2: Tensor,  # [M, D] or [B, M, D]
) -> Tensor:
    r"""L2 distances between all pairs of descriptors, accurate near zero.

    Computed blockwise from products; pairs so near that a product would lose digits are computed from differences. The
    gradient at distance 0, which has no direction, is 0. Differentiable twice. Where a squared norm overflows, equal
    descriptors are at distance 0 and others at inf.

    Args:
        desc1: descriptors of shape :math:`(N, D)` or :math:`(B, N, D)`, float16, bfloat16, float32 or float64.
        desc2: descriptors of shape :math:`(M, D)` or :math:`(B, M, D)`, of the same dtype, device and rank.

    Returns:
        Distances :math:`(N, M)` or :math:`(B, N, M)`, float32 (float64 for float64 input).

    Raises:
        ValueError, TypeError: an argument has a wrong shape, dtype or value; the message names it.

    Example:
        >>> distance_matrix(torch.eye(2), torch.eye(2))[0, 0]
        tensor(0.)
    """
    check_descriptors(desc1, desc2)
    refuse_tangents("distance_matrix", desc1, desc2)
    if desc1.ndim == 2:
        return torch.ops.disk_ops.distance_matrix(desc1[None], desc2[None])[0]
    return torch.ops.disk_ops.distance_matrix(desc1, desc2)


def match_statistics(
    desc1: Tensor,  # [N, D] or [B, N, D]
    desc2: Tensor,  # [M, D] or [B, M, D]
    inverse_temperature: Tensor | float,
    valid1: Tensor | None = None,  # [N] or [B, N] bool
    valid2: Tensor | None = None,  # [M] or [B, M] bool
) -> tuple[Tensor, Tensor]:
    r"""Log-sum-exps of :math:`-\theta d_{ij}` over rows and columns, in one pass with :math:`O(N + M)` memory.

    Differentiable once in descriptors and temperature.

    Args:
        desc1: descriptors of shape :math:`(N, D)` or :math:`(B, N, D)`, float16, bfloat16, float32 or float64.
        desc2: descriptors of shape :math:`(M, D)` or :math:`(B, M, D)`, of the same dtype, device and rank.
        inverse_temperature: :math:`\theta`, a number above 0 or a tensor of one element, whose value isn't looked at
            (that would wait for a GPU): NaN and infinity give NaN, and below 0 far descriptors match.
        valid1: bool, rows that are no padding.
        valid2: the same for ``desc2``.

    Returns:
        :math:`(N)` and :math:`(M)` (or batched), float32 (float64 for float64 input); -inf where nothing is valid.

    Raises:
        ValueError, TypeError: an argument has a wrong shape, dtype or value; the message names it.

    Example:
        >>> row, column = match_statistics(torch.eye(2), torch.eye(2), 1e3)
        >>> row
        tensor([0., 0.])
    """
    check_descriptors(desc1, desc2)
    refuse_tangents("match_statistics", desc1, desc2, inverse_temperature)
    batched, theta = desc1.ndim == 3, _temperature(inverse_temperature, desc1)
    arguments = [_batch(tensor, batched) for tensor in (desc1, desc2)]
    row, column = torch.ops.disk_ops.match_statistics(
        *arguments, theta, _valid(valid1, desc1, "valid1"), _valid(valid2, desc2, "valid2")
    )
    return (row, column) if batched else (row[0], column[0])


def mutual_softmax(
    desc1: Tensor,  # [N, D] or [B, N, D]
    desc2: Tensor,  # [M, D] or [B, M, D]
    inverse_temperature: Tensor | float,
    valid1: Tensor | None = None,  # [N] or [B, N] bool
    valid2: Tensor | None = None,  # [M] or [B, M] bool
    return_log: bool = False,
) -> Tensor:
    r"""Probability of every match, :math:`P_{ij} = \mathrm{softmax}_j(A_{ij}) \cdot \mathrm{softmax}_i(A_{ij})`.

    Differentiable once in descriptors and temperature; only the result is kept for that, distances are computed again.

    Args:
        desc1: descriptors of shape :math:`(N, D)` or :math:`(B, N, D)`.
        desc2: descriptors of shape :math:`(M, D)` or :math:`(B, M, D)`, of the same dtype, device and rank.
        inverse_temperature: :math:`\theta`, a number above 0 or a tensor of one element, whose value isn't looked at
            (that would wait for a GPU): NaN and infinity give NaN, and below 0 far descriptors match.
        valid1: rows that are no padding; others have probability 0.
        valid2: the same for ``desc2``.
        return_log: return :math:`\log P` instead (-inf where there is no match).

    Returns:
        :math:`(N, M)` or :math:`(B, N, M)`, float32 (float64 for float64 input).

    Raises:
        ValueError, TypeError: an argument has a wrong shape, dtype or value; the message names it.

    Example:
        >>> mutual_softmax(torch.eye(2), torch.eye(2), 1e3)
        tensor([[1., 0.],
                [0., 1.]])
    """
    check_descriptors(desc1, desc2)
    refuse_tangents("mutual_softmax", desc1, desc2, inverse_temperature)
    batched, theta = desc1.ndim == 3, _temperature(inverse_temperature, desc1)
    log = MutualLogSoftmax.apply(
        _batch(desc1, batched),
        _batch(desc2, batched),
        theta,
        _valid(valid1, desc1, "valid1"),
        _valid(valid2, desc2, "valid2"),
    )
    result = log if return_log else log.exp()
    return result if batched else result[0]


def expected_reward(
    desc1: Tensor,  # [N, D] or [B, N, D]
    desc2: Tensor,  # [M, D] or [B, M, D]
    inverse_temperature: Tensor | float,
    reward: Tensor | MatchGeometry,  # [N, M] or [B, N, M], or geometry
    valid1: Tensor | None = None,  # [N] or [B, N] bool
    valid2: Tensor | None = None,  # [M] or [B, M] bool
) -> ExpectedReward:
    r"""Expected reward of every keypoint under the match probabilities, and its exact gradient, in linear memory.

    :math:`R_i = \sum_j P_{ij} r_{ij}`, :math:`C_j = \sum_i P_{ij} r_{ij}`; both sum to the expected reward of the pair.
    Forward and backward recompute distances block by block: beyond inputs and gradients they need :math:`O(N + M)`
    memory. Differentiable once in descriptors, temperature and a dense reward.

    Args:
        desc1: descriptors of shape :math:`(N, D)` or :math:`(B, N, D)`.
        desc2: descriptors of shape :math:`(M, D)` or :math:`(B, M, D)`, of the same dtype, device and rank.
        inverse_temperature: :math:`\theta`, a number above 0 or a tensor of one element, whose value isn't looked at
            (that would wait for a GPU): NaN and infinity give NaN, and below 0 far descriptors match.
        reward: the reward of every match, or a :class:`MatchGeometry` that the kernel evaluates pair by pair.
        valid1: rows that are no padding.
        valid2: the same for ``desc2``.

    Returns:
        :class:`ExpectedReward` in float32 (float64 for float64 input).

    Raises:
        ValueError, TypeError: an argument has a wrong shape, dtype or value; the message names it.

    Example:
        >>> expected_reward(torch.eye(3), torch.eye(3), 1e3, torch.ones(3, 3)).reward1
        tensor([1., 1., 1.])
    """
    check_descriptors(desc1, desc2)
    refuse_tangents("expected_reward", desc1, desc2, inverse_temperature, reward)
    batched, theta = desc1.ndim == 3, _temperature(inverse_temperature, desc1)
    keep1, keep2 = _valid(valid1, desc1, "valid1"), _valid(valid2, desc2, "valid2")
    pair = (_batch(desc1, batched), _batch(desc2, batched), theta, keep1, keep2)
    with torch.no_grad():
        statistics = torch.ops.disk_ops.match_statistics(*pair)
    rule = _reward_arguments(reward, desc1, desc2, theta.dtype)
    reward1, reward2, probability = torch.ops.disk_ops._match_sums(*pair, *statistics, *rule, None, None, None)
    result = ExpectedReward(reward1, reward2, probability.sum(-1), _count(keep1, pair[0]), _count(keep2, pair[1]))
    return result if batched else ExpectedReward(*(field[0] for field in result))


def _temperature(inverse_temperature: Tensor | float, desc: Tensor) -> Tensor:
    dtype = at_least_float32(desc.dtype)
    if not isinstance(inverse_temperature, Tensor):
        check_positive("inverse_temperature", inverse_temperature, dtype)
        return torch.full((), float(inverse_temperature), dtype=dtype, device=desc.device)
    if inverse_temperature.numel() != 1:
        raise ValueError(
            f"inverse_temperature must be a number or a tensor of one element, got {list(inverse_temperature.shape)}"
        )
    if inverse_temperature.is_complex():
        raise TypeError(f"inverse_temperature must be real, got {inverse_temperature.dtype}")
    return inverse_temperature.reshape(()).to(desc.device, dtype)


def _batch(tensor: Tensor, batched: bool) -> Tensor:
    return tensor if batched else tensor[None]


def _valid(valid: Tensor | None, desc: Tensor, name: str) -> Tensor | None:
    check_valid(name, valid, desc)
    return None if valid is None else _batch(valid, desc.ndim == 3)


def _count(valid: Tensor | None, desc: Tensor) -> Tensor:
    if valid is not None:
        return valid.sum(1)
    return torch.full((desc.shape[0],), desc.shape[1], dtype=torch.int64, device=desc.device)


def _reward_arguments(
    reward: Tensor | MatchGeometry, desc1: Tensor, desc2: Tensor, dtype: torch.dtype
) -> tuple[Any, ...]:
    """The arguments of ``_match_sums`` that define r_ij, checked against the descriptors."""
    batch, rows, columns = desc1.shape[:-2], desc1.shape[-2], desc2.shape[-2]

    def checked(tensor: Tensor | None, name: str, shape: tuple[int, ...]) -> Tensor | None:
        if tensor is None:
            return None
        if tuple(tensor.shape) != (*batch, *shape):
            raise ValueError(f"{name} must have shape {[*batch, *shape]}, got {list(tensor.shape)}")
        if tensor.is_complex():
            raise TypeError(f"{name} must be real, got {tensor.dtype}")
        if tensor.device != desc1.device:
            raise ValueError(f"{name} must be on the device of desc1 ({desc1.device}), got {tensor.device}")
        return _batch(tensor.to(dtype), desc1.ndim == 3)

    if isinstance(reward, Tensor):
        dense = checked(reward, "reward", (rows, columns))
        return dense, None, None, None, None, None, 1.0, 1.0, 0.0, False
    if not isinstance(reward, MatchGeometry):
        raise TypeError(f"reward must be a tensor or a MatchGeometry, got {type(reward).__name__}")
    return (
        None,
        checked(reward.keypoints1, "keypoints1", (rows, 2)),
        checked(reward.keypoints2, "keypoints2", (columns, 2)),
        checked(reward.warped1, "warped1", (rows, 2)),
        checked(reward.warped2, "warped2", (columns, 2)),
        checked(reward.fundamental, "fundamental", (3, 3)),
        float(reward.epsilon),
        float(reward.lambda_tp),
        float(reward.lambda_fp),
        reward.rule == "official",
    )
