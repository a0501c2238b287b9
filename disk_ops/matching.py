"""Matchers of descriptors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from disk_ops.ops import distance_matrix, mutual_softmax, nearest_neighbors
from disk_ops.ops._arguments import check_number, check_positive, check_tensor


class PaddedMatches(NamedTuple):
    """Matches of a batch in fixed shapes."""

    idxs: Tensor  # [B, N] int64: the row of desc2 that matches each row of desc1, or -1
    dists: Tensor  # [B, N] distances, inf where there is no match


class MutualNearestNeighbor(nn.Module):
    r"""Match descriptors that are each other's nearest neighbour, optionally after Lowe's ratio test.

    Args:
        ratio: keep a match only if its distance is at most ``ratio`` times that of the second-best neighbour, in both
            directions; ``None``: no test. Where there is no second neighbour the test passes; where both neighbours are
            at distance 0 it fails.

    Raises:
        ValueError, TypeError: ``ratio`` is no number in (0, 1], or descriptors don't go together; the message names the
            argument.

    Example:
        >>> matcher = MutualNearestNeighbor()
        >>> dists, idxs = matcher(torch.eye(3), torch.eye(3)[[2, 0]])
        >>> idxs.tolist()
        [[0, 1], [2, 0]]
    """

    def __init__(self, ratio: float | None = None) -> None:
        super().__init__()
        if ratio is not None:
            check_number("ratio", ratio)
            if not 0 < ratio <= 1:
                raise ValueError(f"ratio must lie in (0, 1] or be None, got {ratio}")
        self.ratio = ratio

    def forward(
        self,
        desc1: Tensor,  # [N, D]
        desc2: Tensor,  # [M, D]
    ) -> tuple[Tensor, Tensor]:
        """Match two sets of descriptors, in the form of kornia's matchers.

        Returns:
            distances :math:`(K, 1)` in float32 (float64 for float64 input), and pairs of rows :math:`(K, 2)` int64,
            ascending in the first.
        """
        check_tensor("desc1", desc1)
        if desc1.ndim != 2:
            raise ValueError(f"desc1 must have shape [N, D], got {list(desc1.shape)}; match_padded takes batches")
        idxs, dists = self._match(desc1, desc2, None, None)
        rows = (idxs >= 0).nonzero()[:, 0]
        return dists[rows, None], torch.stack([rows, idxs[rows]], dim=1)

    def match_padded(
        self,
        desc1: Tensor,  # [B, N, D]
        desc2: Tensor,  # [B, M, D]
        valid1: Tensor | None = None,  # [B, N] bool
        valid2: Tensor | None = None,  # [B, M] bool
    ) -> PaddedMatches:
        """Match batches of padded descriptors; padding (where valid is False) matches nothing.

        Returns:
            :class:`PaddedMatches`: for each row of ``desc1`` its match in ``desc2`` or -1, and the distance.
        """
        check_tensor("desc1", desc1)
        if desc1.ndim != 3:
            raise ValueError(f"desc1 must have shape [B, N, D], got {list(desc1.shape)}")
        return self._match(desc1, desc2, valid1, valid2)

    def _match(self, desc1: Tensor, desc2: Tensor, valid1: Tensor | None, valid2: Tensor | None) -> PaddedMatches:
        distances1, indices1, distances2, indices2 = nearest_neighbors(desc1, desc2, valid1, valid2)
        forward, backward = indices1[..., 0], indices2[..., 0]
        matched = forward >= 0
        if backward.shape[-1]:
            own = torch.arange(forward.shape[-1], device=forward.device)
            matched = matched & (backward.gather(-1, forward.clamp(min=0)) == own)
        if self.ratio is not None:
            matched = matched & _passes(distances1, self.ratio)
            if backward.shape[-1]:
                matched = matched & _passes(distances2, self.ratio).gather(-1, forward.clamp(min=0))
        return PaddedMatches(torch.where(matched, forward, -1), torch.where(matched, distances1[..., 0], torch.inf))

    def extra_repr(self) -> str:
        """Show the ratio."""
        return f"ratio={self.ratio}"


class MatchDistribution(NamedTuple):
    r"""The distribution of matches between two sets of descriptors (DISK, section 3).

    Each row of ``desc1`` chooses a row of ``desc2`` with probability :math:`\mathrm{softmax}_j(-\theta d_{ij})`, each
    row of ``desc2`` one of ``desc1`` likewise; those that choose each other match.
    """

    desc1: Tensor  # [N, D]
    desc2: Tensor  # [M, D]
    inverse_temperature: Tensor  # []

    def probabilities(self) -> Tensor:
        """Probability of each match, ``[N, M]``; differentiable."""
        return mutual_softmax(self.desc1, self.desc2, self.inverse_temperature)

    def log_probabilities(self) -> Tensor:
        """Logarithm of :meth:`probabilities`, ``[N, M]``; differentiable."""
        return mutual_softmax(self.desc1, self.desc2, self.inverse_temperature, return_log=True)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw matches: pairs of rows ``[K, 2]`` int64, ascending in the first."""
        if 0 in (len(self.desc1), len(self.desc2)):
            return torch.empty(0, 2, dtype=torch.int64, device=self.desc1.device)
        with torch.no_grad():
            logits = -self.inverse_temperature * distance_matrix(self.desc1, self.desc2)
            forward = logits.softmax(1).multinomial(1, generator=generator)[:, 0]
            backward = logits.mT.softmax(1).multinomial(1, generator=generator)[:, 0]
        return _mutual_pairs(forward, backward)

    def mle(self) -> Tensor:
        """The most probable choices: pairs of mutual nearest neighbours ``[K, 2]`` int64, ascending in the first."""
        _, indices1, _, indices2 = nearest_neighbors(self.desc1, self.desc2)
        return _mutual_pairs(indices1[:, 0], indices2[:, 0])


def _mutual_pairs(
    forward: Tensor,  # [N] int64 rows of desc2, or -1
    backward: Tensor,  # [M] int64 rows of desc1, or -1
) -> Tensor:
    if not len(backward):
        return torch.empty(0, 2, dtype=torch.int64, device=forward.device)
    own = torch.arange(len(forward), device=forward.device)
    mutual = (forward >= 0) & (backward[forward.clamp(min=0)] == own)
    return torch.stack([own[mutual], forward[mutual]], dim=1)


class MutualSoftmaxMatcher(nn.Module):
    """The differentiable matcher of DISK's training.

    Args:
        inverse_temperature: how sharply the nearest descriptors are preferred; above 0 and finite.
        learnable: make it a parameter. Nothing keeps that above 0.

    Raises:
        ValueError, TypeError: ``inverse_temperature`` is no such number, or descriptors don't go together; the message
            names the argument.

    Example:
        >>> matcher = MutualSoftmaxMatcher(100.0)
        >>> matcher(torch.eye(3), torch.eye(3)[[2, 0]]).mle().tolist()
        [[0, 1], [2, 0]]
    """

    inverse_temperature: Tensor

    def __init__(self, inverse_temperature: float = 50.0, learnable: bool = False) -> None:
        super().__init__()
        check_positive("inverse_temperature", inverse_temperature)
        value = torch.tensor(float(inverse_temperature))
        if learnable:
            self.inverse_temperature = nn.Parameter(value)
        else:
            self.register_buffer("inverse_temperature", value)

    def forward(
        self,
        desc1: Tensor,  # [N, D]
        desc2: Tensor,  # [M, D]
    ) -> MatchDistribution:
        """Return the distribution of matches."""
        check_tensor("desc1", desc1)
        if desc1.ndim != 2:
            raise ValueError(f"desc1 must have shape [N, D], got {list(desc1.shape)}")
        return MatchDistribution(desc1, desc2, self.inverse_temperature)


def _passes(
    distances: Tensor,  # [..., 2] best and second best
    ratio: float,
) -> Tensor:
    # Two neighbours at distance 0 are as ambiguous as can be, whatever 0 <= ratio * 0 says.
    return (distances[..., 0] <= ratio * distances[..., 1]) & (distances[..., 1] > 0)
