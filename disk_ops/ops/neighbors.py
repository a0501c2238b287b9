"""Nearest neighbours between two sets of descriptors, both ways, without the distance matrix."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from disk_ops.ops._derivatives import refuse_tangents
from disk_ops.ops._descriptors import check_descriptors, check_valid


class NearestNeighbors(NamedTuple):
    """The result of :func:`nearest_neighbors`; without a batch dimension where the descriptors have none."""

    distances1: Tensor  # [B, N, 2] from each row of desc1 to its best and second-best row of desc2
    indices1: Tensor  # [B, N, 2] int64 rows of desc2
    distances2: Tensor  # [B, M, 2] from each row of desc2 to its best and second-best row of desc1
    indices2: Tensor  # [B, M, 2] int64 rows of desc1


def nearest_neighbors(
    desc1: Tensor,  # [N, D] or [B, N, D]
    desc2: Tensor,  # [M, D] or [B, M, D]
    valid1: Tensor | None = None,  # [N] or [B, N] bool
    valid2: Tensor | None = None,  # [M] or [B, M] bool
) -> NearestNeighbors:
    r"""Find the two nearest neighbours (L2) of every descriptor in the other set.

    One pass over blocks of products, with :math:`O(N + M)` memory: the :math:`N \times M` matrix never exists. A pair
    is ranked by :math:`(\|a_i\|^2 + \|b_j\|^2)/2 - a_i \cdot b_j` in float32 (float64 for float64 input), the same
    number in both directions, so that mutual neighbours are consistent; ties go to the lowest index, and equal
    descriptors tie exactly. The distances of the pairs found are then computed from differences, which is accurate
    near zero. The result depends neither on the number of threads nor on the run. Not differentiable.

    Args:
        desc1: descriptors of shape :math:`(N, D)` or :math:`(B, N, D)`, float16, bfloat16, float32 or float64.
        desc2: descriptors of shape :math:`(M, D)` or :math:`(B, M, D)`, of the same dtype, device and rank.
        valid1: bool of shape :math:`(N)` or :math:`(B, N)`: rows where it is False (padding) have no neighbours and
            are nobody's neighbour. Rows that hold NaN are treated alike.
        valid2: the same for ``desc2``.

    Returns:
        :class:`NearestNeighbors`. Distances are float32 (float64 for float64 input). A neighbour that doesn't exist,
        because the other set has fewer than two valid rows, has distance inf and index -1; so have rows whose squared
        norm overflows.

    Raises:
        ValueError, TypeError: an argument has a wrong shape or dtype; the message names it.

    Example:
        >>> desc1 = torch.eye(3)
        >>> desc2 = torch.eye(3)[[2, 0]]
        >>> nearest_neighbors(desc1, desc2).indices1[:, 0].tolist()
        [1, 0, 0]
    """
    check_descriptors(desc1, desc2)
    check_valid("valid1", valid1, desc1)
    check_valid("valid2", valid2, desc2)
    refuse_tangents("nearest_neighbors", desc1, desc2)
    if desc1.ndim == 3:
        return NearestNeighbors(*torch.ops.disk_ops.nearest_neighbors(desc1, desc2, valid1, valid2))
    batched = torch.ops.disk_ops.nearest_neighbors(
        desc1[None],
        desc2[None],
        None if valid1 is None else valid1[None],
        None if valid2 is None else valid2[None],
    )
    return NearestNeighbors(*(result[0] for result in batched))


def _fake(
    desc1: Tensor, desc2: Tensor, valid1: Tensor | None, valid2: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    distance = torch.float64 if desc1.dtype == torch.float64 else torch.float32
    shape1, shape2 = (*desc1.shape[:2], 2), (*desc2.shape[:2], 2)
    return (
        desc1.new_empty(shape1, dtype=distance),
        desc1.new_empty(shape1, dtype=torch.int64),
        desc2.new_empty(shape2, dtype=distance),
        desc2.new_empty(shape2, dtype=torch.int64),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    # Distances to a changing choice of neighbours are no loss to train on: say so instead of giving zero gradients.
    ctx.mark_non_differentiable(*output)


def _backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None, None]:
    return None, None, None, None


torch.library.register_fake("disk_ops::nearest_neighbors", _fake)
torch.library.register_autograd("disk_ops::nearest_neighbors", _backward, setup_context=_setup_context)
