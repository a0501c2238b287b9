"""Which derivatives the ops have, and errors where one is asked for that they don't.

Left alone, PyTorch takes a missing derivative for zero: a second one of an op registered without it, and a forward-mode
one of every custom op.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

Gradients = tuple[Tensor | None, ...]


def no_second_derivative(name: str) -> Callable[..., Any]:
    """A backward for the gradient of `name`, where that gradient is an op of its own."""

    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError(f"{name} can be differentiated once: its gradient has no gradient")

    return backward


def differentiable_once(name: str) -> Callable[[Callable[..., Gradients]], Callable[..., Gradients]]:
    """Mark the backward of an autograd.Function, so that what it gives raises where it is differentiated.

    `torch.autograd.function.once_differentiable` cuts the graph instead: `torch.autograd.grad` then finds nothing. The
    backward gets the saved tensors as an argument, as checkpointing computes them again and gives them only once.
    """

    def decorate(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
        @functools.wraps(backward)
        def wrapped(ctx: Any, *grads: Tensor) -> Gradients:
            saved = ctx.saved_tensors
            with torch.no_grad():
                results = backward(ctx, saved, *grads)
            if torch.compiler.is_compiling() or not torch.is_grad_enabled():
                return results
            return _Last.apply(name, len(results), *results, *grads, *saved)

        return wrapped

    return decorate


class _Last(torch.autograd.Function):
    """Gradients as they are, with all that they were computed from as inputs."""

    @staticmethod
    def forward(ctx: Any, name: str, count: int, *tensors: Tensor | None) -> Gradients:
        ctx.name = name
        return tuple(None if tensor is None else tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        return no_second_derivative(ctx.name)(ctx)


def has_tangent(*tensors: Tensor | None) -> bool:
    """Whether a derivative is being carried forward with one of these."""
    if torch.compiler.is_compiling():
        return False
    return any(tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def refuse_tangents(name: str, *tensors: Any) -> None:
    """Raise where a derivative is to be carried forward through an op: they have those of backward only."""
    if has_tangent(*(tensor for tensor in tensors if isinstance(tensor, Tensor))):
        raise RuntimeError(f"{name} has no forward-mode derivative: differentiate it backward")
