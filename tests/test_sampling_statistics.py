"""disk_ops.ops.sample_grid draws what its probabilities say: frequencies against exact values, mean gradients of 0."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor


def draw(heatmap: Tensor, cell: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.disk_ops.sample_grid(heatmap, cell, torch.tensor(seed), False, None)


def assert_fits(counts: Tensor, probabilities: Tensor) -> None:
    """Pearson's chi-square test; outcomes expected less than 8 times are taken together."""
    counts, expected = counts.double().flatten(), probabilities.double().flatten() * counts.sum()
    rare = expected < 8
    counts = torch.cat([counts[~rare], counts[rare].sum().view(1)])
    expected = torch.cat([expected[~rare], expected[rare].sum().view(1)])
    assert (counts[expected == 0] == 0).all()
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic, freedom = ((counts - expected) ** 2 / expected).sum().item(), len(counts) - 1
    # Wilson and Hilferty: the cube root is nearly normal. 3.7 deviations: 1 in 10,000; seeds are fixed.
    deviation = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    assert abs(deviation) < 3.7, f"chi-square {statistic:.1f} with {freedom} degrees of freedom"


class TestStatistics:
    """Frequencies over many seeds and images against exact probabilities."""

    IMAGES, SEEDS = 2048, 12

    def outcomes(self, heatmap: Tensor, cell: int) -> tuple[Tensor, Tensor]:
        """Proposals as pixels of their cell and acceptances, ``[draws, cells]``, of an image [H, W]."""
        batch = heatmap.expand(self.IMAGES, 1, *heatmap.shape)
        drawn = [draw(batch, cell, seed * 7919 + 1) for seed in range(self.SEEDS)]
        keypoints = torch.cat([keypoints for keypoints, _, _ in drawn]).flatten(1, 2)
        accepted = torch.cat([accepted for _, accepted, _ in drawn]).flatten(1)
        return keypoints[..., 1] % cell * cell + keypoints[..., 0] % cell, accepted

    @pytest.mark.parametrize(
        ("cell", "dtype"), [(8, torch.float32), (8, torch.float64), (5, torch.float32), (4, torch.bfloat16)]
    )
    def test_proposals_and_acceptances(self, device, cell, dtype):
        heatmap = torch.randn(cell, 2 * cell, device=device).mul(1.5).to(dtype)
        heatmap[0, 1] = -math.inf
        pixel, accepted = self.outcomes(heatmap, cell)
        for j in range(2):
            logits = heatmap[:, j * cell : (j + 1) * cell].double().flatten()
            softmax, sigmoid = logits.softmax(0), logits.sigmoid()
            outcome = pixel[:, j] * 2 + accepted[:, j]
            counts = torch.bincount(outcome, minlength=2 * cell * cell)
            assert_fits(counts, torch.stack([softmax * (1 - sigmoid), softmax * sigmoid], dim=1))

    def test_cells_images_and_decisions_are_independent(self, device):
        heatmap = torch.randn(2, 4, device=device)
        pixel, accepted = self.outcomes(heatmap, 2)
        softmax = [heatmap[:, i : i + 2].double().flatten().softmax(0) for i in (0, 2)]
        assert_fits(torch.bincount(pixel[:, 0] * 4 + pixel[:, 1], minlength=16), torch.outer(*softmax))
        assert_fits(torch.bincount(pixel[:-1, 0] * 4 + pixel[1:, 0], minlength=16), torch.outer(softmax[0], softmax[0]))
        flat = torch.zeros(2, 4, device=device)
        pixel, accepted = self.outcomes(flat, 2)
        assert_fits(torch.bincount(pixel[:, 0] * 2 + accepted[:, 0], minlength=8), torch.full((8,), 1 / 8))

    def test_mean_gradient_is_zero(self, device):
        heatmap = torch.randn(1, 1, 8, 8, device=device)
        batch = heatmap.expand(4096, 1, 8, 8).contiguous().requires_grad_()
        grads = []
        for seed in range(4):
            (grad,) = torch.autograd.grad(draw(batch, 8, 1000 + seed)[2].sum(), batch)
            grads.append(grad.double().flatten(1))
        grad = torch.cat(grads)  # [draws, 64]
        error = grad.std(0) / math.sqrt(len(grad))
        assert (grad.mean(0).abs() < 4.5 * error).all() and error.max() < 0.01

    def test_expected_gradient_is_zero(self, device):
        """Over all 2 * 64 outcomes, each with its exact probability."""
        heatmap = torch.randn(1, 1, 8, 8, device=device, dtype=torch.float64)
        pixel, accepted = torch.arange(128, device=device) // 2, torch.arange(128, device=device) % 2 == 1
        logit = heatmap.flatten()[pixel]
        probability = heatmap.flatten().softmax(0)[pixel] * torch.where(accepted, logit, -logit).sigmoid()
        keypoints = torch.stack([pixel % 8, pixel // 8], dim=-1).view(128, 1, 1, 2)
        grad = torch.ops.disk_ops._sample_grid_backward(
            probability.view(128, 1, 1), heatmap.expand(128, 1, 8, 8), 8, keypoints, accepted.view(128, 1, 1), None
        )
        assert probability.sum().item() == pytest.approx(1)
        assert grad.sum(0).abs().max() < 1e-14
