"""Keypoints drawn from a heatmap, one proposal for each cell of a grid: what trains the detector."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from disk_ops.ops._arguments import check_integer
from disk_ops.ops._derivatives import no_second_derivative, refuse_tangents
from disk_ops.ops._heatmap import check_heatmap

MOST_CELL = 64
_MODES = ("sample", "argmax")


class GridSamples(NamedTuple):
    """The result of :func:`sample_grid`: one proposal for each of the h × w cells of each image."""

    keypoints: Tensor  # [B, h, w, 2] int64 xy; the cell's first pixel where there is nothing to propose
    accepted: Tensor  # [B, h, w] bool
    logp: Tensor  # [B, h, w] log-probability of what happened; 0 where there is nothing to propose


def sample_grid(
    heatmap: Tensor,  # [B, 1, H, W]
    cell: int = 8,
    generator: torch.Generator | None = None,
    mask: Tensor | None = None,  # [B, 1, H, W] bool
    mode: Literal["sample", "argmax"] = "sample",
) -> GridSamples:
    r"""Draw at most one keypoint in each ``cell`` × ``cell`` square of a heatmap of logits.

    In each cell one pixel :math:`p` is proposed with probability :math:`\operatorname{softmax}(K)_p` over the cell's
    logits :math:`K`, and accepted with probability :math:`\sigma(K_p)`. ``logp`` is the log-probability of what
    happened: :math:`\log \operatorname{softmax}(K)_p + \log \sigma(K_p)` where accepted,
    :math:`\log \operatorname{softmax}(K)_p + \log \sigma(-K_p)` where rejected. It is differentiable in ``heatmap``
    (once); only accepted cells enter the loss of DISK. Cells at the right and bottom edge may be partial.

    Random numbers come from a counter-based generator (Philox) whose key is drawn from ``generator``: one seed gives
    the same keypoints on the CPU with any number of threads, and on CUDA.

    Args:
        heatmap: logits of shape :math:`(B, 1, H, W)`, float16, bfloat16, float32 or float64. Any value is legal: NaN
            counts as masked, -inf has probability 0, +inf counts as the largest finite number.
        cell: side of a cell in pixels, 1 to 64.
        generator: where the key is drawn from; ``None``: torch's default generator of the CPU. A CUDA generator
            makes the call wait for the device. Not to be given under ``torch.compile``.
        mask: bool of the shape of ``heatmap``. Pixels where it is False are never proposed and have no gradient.
        mode: ``"argmax"`` proposes the cell's highest pixel (the first in raster order of equals) and accepts it if
            its logit is above 0; ``logp`` is then that of this outcome in a draw. No random numbers are used.

    Returns:
        :class:`GridSamples` with :math:`h = \lceil H / cell \rceil`, :math:`w = \lceil W / cell \rceil`: keypoints
        :math:`(B, h, w, 2)` int64 pixels in xy order, accepted :math:`(B, h, w)` bool, logp :math:`(B, h, w)` float32
        (float64 for float64). In a cell without any pixel to propose: its first pixel, False, 0.

    Raises:
        ValueError, TypeError: an argument has a wrong shape, dtype or value; the message names it.

    Example:
        >>> heatmap = torch.full((1, 1, 16, 16), -20.0)
        >>> heatmap[0, 0, 5, 12] = 20.0
        >>> samples = sample_grid(heatmap, cell=8, generator=torch.Generator().manual_seed(0))
        >>> samples.keypoints[samples.accepted].tolist()
        [[12, 5]]
    """
    check_heatmap(heatmap, mask)
    check_grid(cell, mode)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, got {type(generator).__name__}")
    refuse_tangents("sample_grid", heatmap)
    argmax = mode == "argmax"
    seed = torch.zeros((), dtype=torch.int64) if argmax else _draw_seed(generator)
    return GridSamples(*torch.ops.disk_ops.sample_grid(heatmap, cell, seed, argmax, mask))


def _draw_seed(generator: torch.Generator | None) -> Tensor:
    """A key on the CPU, as a tensor, so that compiled code takes a new one in each call."""
    device = torch.device("cpu") if generator is None else generator.device
    return torch.randint(2**63 - 1, (), generator=generator, device=device, dtype=torch.int64).cpu()


def check_grid(cell: int, mode: str) -> None:
    """Raise for a cell or mode that :func:`sample_grid` doesn't know."""
    check_integer("cell", cell)
    if not 1 <= cell <= MOST_CELL:
        raise ValueError(f"cell must be from 1 to {MOST_CELL} pixels, got {cell}")
    if mode not in _MODES:
        raise ValueError(f"mode must be 'sample' or 'argmax', got {mode!r}")


def _fake(heatmap: Tensor, cell: int, seed: Tensor, argmax: bool, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    batch, _, height, width = heatmap.shape
    grid = (batch, (height + cell - 1) // cell, (width + cell - 1) // cell)
    return (
        heatmap.new_empty((*grid, 2), dtype=torch.int64),
        heatmap.new_empty(grid, dtype=torch.bool),
        heatmap.new_empty(grid, dtype=torch.float64 if heatmap.dtype == torch.float64 else torch.float32),
    )


def _fake_backward(
    grad_logp: Tensor, heatmap: Tensor, cell: int, keypoints: Tensor, accepted: Tensor, mask: Tensor | None
) -> Tensor:
    return heatmap.new_empty(heatmap.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    heatmap, ctx.cell, _, _, mask = inputs
    keypoints, accepted, _ = output
    ctx.save_for_backward(heatmap, keypoints, accepted, mask)
    ctx.mark_non_differentiable(keypoints, accepted)
    ctx.set_materialize_grads(False)  # no zeros for keypoints and accepted


def _backward(
    ctx: Any, _keypoints: None, _accepted: None, grad_logp: Tensor | None
) -> tuple[Tensor | None, None, None, None, None]:
    if grad_logp is None or not ctx.needs_input_grad[0]:
        return None, None, None, None, None
    heatmap, keypoints, accepted, mask = ctx.saved_tensors
    grad = torch.ops.disk_ops._sample_grid_backward(grad_logp, heatmap, ctx.cell, keypoints, accepted, mask)
    return grad, None, None, None, None


torch.library.register_fake("disk_ops::sample_grid", _fake)
torch.library.register_fake("disk_ops::_sample_grid_backward", _fake_backward)
torch.library.register_autograd("disk_ops::sample_grid", _backward, setup_context=_setup_context)
torch.library.register_autograd("disk_ops::_sample_grid_backward", no_second_derivative("sample_grid"))
