"""Gradients and fake kernels of the ops in ``match.py``; each backward computes distances again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from disk_ops.ops._derivatives import Gradients, differentiable_once, no_second_derivative
from disk_ops.ops._dtypes import at_least_float32


class MutualLogSoftmax(torch.autograd.Function):
    """log P with a backward that computes distances again instead of keeping them."""

    @staticmethod
    def forward(
        ctx: Any,
        desc1: Tensor,  # [B, N, D]
        desc2: Tensor,  # [B, M, D]
        theta: Tensor,  # []
        valid1: Tensor | None,  # [B, N]
        valid2: Tensor | None,  # [B, M]
    ) -> Tensor:
        row, column = torch.ops.disk_ops.match_statistics(desc1, desc2, theta, valid1, valid2)
        ctx.save_for_backward(desc1, desc2, theta, valid1, valid2, row, column)
        log = torch.ops.disk_ops.distance_matrix(desc1, desc2).mul_(-2 * theta)
        log.sub_(row[..., None]).sub_(column[:, None])
        return _hide_(log, valid1, valid2, -torch.inf)

    @staticmethod
    @differentiable_once("mutual_softmax")
    def backward(ctx: Any, saved: tuple[Any, ...], grad: Tensor) -> Gradients:
        desc1, desc2, theta, valid1, valid2, row, column = saved
        distance = torch.ops.disk_ops.distance_matrix(desc1, desc2)
        grad = _hide_(grad.clone(), valid1, valid2, 0.0)
        logits = -theta * distance
        grad_logits = 2 * grad
        grad_logits -= _hide_((logits - row[..., None]).exp_(), valid1, valid2, 0.0) * grad.sum(2, keepdim=True)
        grad_logits -= _hide_((logits - column[:, None]).exp_(), valid1, valid2, 0.0) * grad.sum(1, keepdim=True)
        grad1, grad2 = _distance_matrix_gradient(-theta * grad_logits, desc1, desc2, distance)
        return grad1, grad2, -(grad_logits * distance).sum(), None, None


def _hide_(matrix: Tensor, valid1: Tensor | None, valid2: Tensor | None, value: float) -> Tensor:
    if valid1 is not None:
        matrix.masked_fill_(~valid1[..., None], value)
    return matrix if valid2 is None else matrix.masked_fill_(~valid2[:, None], value)


def _distance_matrix_gradient(
    grad: Tensor,  # [B, N, M]
    desc1: Tensor,  # [B, N, D]
    desc2: Tensor,  # [B, M, D]
    distance: Tensor,  # [B, N, M]
) -> tuple[Tensor, Tensor]:
    pull = torch.where(distance > 0, grad / torch.where(distance > 0, distance, 1), 0)
    # Of near pairs a pull - b pull is a small difference of large numbers, which float64 has digits for.
    precise = torch.float64 if grad.device.type in ("cpu", "cuda") else grad.dtype
    pull, a, b = pull.to(precise), desc1.to(precise), desc2.to(precise)
    grad1 = a * pull.sum(2)[..., None] - pull @ b
    grad2 = b * pull.sum(1)[..., None] - pull.mT @ a
    return grad1.to(desc1.dtype), grad2.to(desc2.dtype)


# ------------------------------------------------------------------------- fake kernels and autograd of the native ops


def _fake_distance_matrix(desc1: Tensor, desc2: Tensor) -> Tensor:
    dtype = at_least_float32(desc1.dtype)
    return desc1.new_empty((desc1.shape[0], desc1.shape[1], desc2.shape[1]), dtype=dtype)


def _fake_match_statistics(
    desc1: Tensor, desc2: Tensor, theta: Tensor, valid1: Tensor | None, valid2: Tensor | None
) -> tuple[Tensor, Tensor]:
    dtype = at_least_float32(desc1.dtype)
    return desc1.new_empty(desc1.shape[:2], dtype=dtype), desc2.new_empty(desc2.shape[:2], dtype=dtype)


def _fake_match_sums(desc1: Tensor, desc2: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    row, column = _fake_match_statistics(desc1, desc2, *rest[:3])
    return row, column, torch.empty_like(row)


def _fake_match_backward(desc1: Tensor, desc2: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    matrix = _fake_distance_matrix(desc1, desc2)
    theta = matrix.new_empty(desc1.shape[0])
    return (
        desc1.new_empty(desc1.shape),
        desc2.new_empty(desc2.shape),
        theta,
        matrix if rest[-1] else matrix.new_empty(0),
    )


def _setup_distance_matrix(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs, output)


def _backward_distance_matrix(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    return _distance_matrix_gradient(grad, *ctx.saved_tensors)


def _setup_match_statistics(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward_match_statistics(ctx: Any, grad1: Tensor, grad2: Tensor) -> tuple[Any, ...]:
    no_reward = (None, None, None, None, None, None, 1.0, 1.0, 0.0, False)
    no_weights = (None, None, None)
    desc1, desc2, theta, _ = torch.ops.disk_ops._match_backward(
        *ctx.saved_tensors, *no_reward, *no_weights, -grad1, -grad2, False
    )
    return desc1, desc2, theta.sum(), None, None


_TENSORS = 13  # of _match_sums, up to the fundamental matrix
_ARGUMENTS = 20


def _setup_match_sums(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:_TENSORS], *output[:2])
    ctx.parameters = inputs[_TENSORS : _ARGUMENTS - 3]
    ctx.has_weights = any(weight is not None for weight in inputs[-3:])


def _backward_match_sums(
    ctx: Any, grad1: Tensor | None, grad2: Tensor | None, grad_probability: Tensor | None
) -> tuple[Any, ...]:
    if ctx.has_weights:
        raise RuntimeError("expected_reward can be differentiated once: its gradient has no gradient")
    nothing = (None,) * _ARGUMENTS
    if grad1 is None and grad2 is None and grad_probability is None:
        return nothing
    *tensors, reward1, reward2 = ctx.saved_tensors
    arguments = (*tensors, *ctx.parameters)
    is_one_number = grad1 is not None and not any(grad1.stride())
    grad1, grad2, grad_probability = (
        None if grad is None else grad.contiguous() for grad in (grad1, grad2, grad_probability)
    )
    if grad1 is not None and is_one_number and grad2 is None and grad_probability is None:
        # The gradient of reward1.sum() is one number: the sums are at hand.
        sum1, sum2 = grad1 * reward1, grad1.flatten()[:1] * reward2 if grad1.numel() else torch.zeros_like(reward2)
    else:
        sum1, sum2, _ = torch.ops.disk_ops._match_sums(*arguments, grad1, grad2, grad_probability)
    wants_reward = bool(ctx.needs_input_grad[7])
    desc1, desc2, theta, reward = torch.ops.disk_ops._match_backward(
        *arguments, grad1, grad2, grad_probability, sum1, sum2, wants_reward
    )
    grads: list[Any] = list(nothing)
    grads[:3] = desc1, desc2, theta.sum()
    grads[7] = reward if wants_reward else None
    return tuple(grads)


torch.library.register_fake("disk_ops::distance_matrix", _fake_distance_matrix)
torch.library.register_fake("disk_ops::match_statistics", _fake_match_statistics)
torch.library.register_fake("disk_ops::_match_sums", _fake_match_sums)
torch.library.register_fake("disk_ops::_match_backward", _fake_match_backward)
torch.library.register_autograd(
    "disk_ops::distance_matrix", _backward_distance_matrix, setup_context=_setup_distance_matrix
)
torch.library.register_autograd(
    "disk_ops::match_statistics", _backward_match_statistics, setup_context=_setup_match_statistics
)
torch.library.register_autograd(
    "disk_ops::_match_backward", no_second_derivative("expected_reward or match_statistics")
)
torch.library.register_autograd("disk_ops::_match_sums", _backward_match_sums, setup_context=_setup_match_sums)
