"""sample_grid with its gradient, against the released code's unfold, Categorical and Bernoulli."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from harness import OURS, Row, compare, parse_arguments, synchronized, write
from torch import Tensor
from torch.distributions import Bernoulli, Categorical

from disk_ops.ops import sample_grid

CELL = 8
# images, height, width: a batch of two triplets as DISK is trained on, and one image
CASES = [(6, 768, 768), (1, 768, 768)]


def fused(heatmap: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keypoints, which are accepted, log-probabilities."""
    samples = sample_grid(heatmap, CELL)
    return samples.keypoints, samples.accepted, samples.logp


def unfolded(
    heatmap: Tensor,  # [B, 1, H, W]
) -> tuple[Tensor, Tensor, Tensor]:
    """The same by the operations of the released code, of which each reads or writes the cells once more."""
    batch, _, height, width = heatmap.shape
    rows, columns = height // CELL, width // CELL
    cells = heatmap.unfold(2, CELL, CELL).unfold(3, CELL, CELL).reshape(batch, rows, columns, CELL * CELL)
    proposals = Categorical(logits=cells)
    index = proposals.sample()
    logit = cells.gather(-1, index[..., None])[..., 0]
    decisions = Bernoulli(logits=logit)
    accepted = decisions.sample()
    logp = proposals.log_prob(index) + decisions.log_prob(accepted)
    x = index % CELL + torch.arange(columns, device=heatmap.device) * CELL
    y = index // CELL + torch.arange(rows, device=heatmap.device)[:, None] * CELL
    return torch.stack([x, y], dim=-1), accepted.bool(), logp


Sampler = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


def forward(sampler: Sampler, heatmap: Tensor) -> object:
    """Without gradients."""
    with torch.no_grad():
        return sampler(heatmap)


def backward(sampler: Sampler, heatmap: Tensor) -> object:
    """Forward and the gradient of the accepted keypoints' log-probability, as the loss takes it."""
    _, accepted, logp = sampler(heatmap)
    return torch.autograd.grad((logp * accepted).sum(), heatmap)


def run(arguments: argparse.Namespace) -> list[Row]:
    """Measure all cases."""
    rows: list[Row] = []
    for batch, height, width in CASES[:1] if arguments.quick else CASES:
        heatmap = torch.randn(batch, 1, height, width).to(arguments.device).requires_grad_()
        samplers = {OURS: fused, "torch, unfold + distributions": unfolded}
        for name, function in {"sample_grid": forward, "sample_grid + backward": backward}.items():
            cases = {
                who: synchronized(partial(function, sampler, heatmap), arguments.device)
                for who, sampler in samplers.items()
            }
            rows += compare(name, f"{batch} x 1 x {height} x {width} float32, cell {CELL}", cases, arguments)
    return rows


if __name__ == "__main__":
    torch.manual_seed(0)
    options = parse_arguments(__doc__, "sample_grid_cpu.json")
    write(run(options), options, "bench_sample_grid")
