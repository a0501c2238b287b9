"""disk_ops.training.PolicyGradientLoss: the paper's loss, its gradient, and what it is an estimate of."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from disk_ops import SampledFeatures
from disk_ops.ops import MatchGeometry, expected_reward, mutual_softmax
from disk_ops.training import HomographyReward, PolicyGradientLoss


def image(device, n, dim=8, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    desc = F.normalize(torch.randn(n, dim, generator=generator, dtype=dtype), dim=-1).to(device).requires_grad_()
    logp = -torch.rand(n, generator=generator, dtype=dtype).to(device)
    keypoints = torch.rand(n, 2, generator=generator, dtype=dtype).to(device) * 40
    return SampledFeatures(keypoints, desc, logp.requires_grad_())


def materialised_loss(features, rewards, theta, lambda_kp):
    """The released code's formula, pair by pair, with every matrix written out (exact distances)."""
    loss = torch.zeros((), dtype=torch.float64, device=features[0].logp.device)
    for (i, j), reward in rewards.items():
        a, b = features[i], features[j]
        difference = a.descriptors[:, None] - b.descriptors[None]
        logits = -theta * difference.square().sum(-1).clamp(min=1e-30).sqrt()
        log = logits.log_softmax(1) + logits.log_softmax(0)
        credit = log + a.logp[:, None] + b.logp[None]
        loss = loss - (reward * log.exp().detach() * credit).sum() - lambda_kp * (a.logp.sum() + b.logp.sum())
    return loss


class TestPolicyGradientLoss:
    def test_gradient_is_the_materialised_formulas(self, device):
        features = [image(device, n, seed=n) for n in (9, 7, 12)]
        rewards = {
            (i, j): torch.randn(features[i].n, features[j].n, dtype=torch.float64, device=device)
            for i, j in itertools.combinations(range(3), 2)
        }
        theta = torch.tensor(12.0, dtype=torch.float64, device=device, requires_grad=True)
        leaves = [theta, *(leaf for f in features for leaf in (f.descriptors, f.logp))]
        loss, statistics = PolicyGradientLoss(lambda_kp=-0.01)(features, rewards, theta)
        ours = torch.autograd.grad(loss, leaves)
        theirs = torch.autograd.grad(materialised_loss(features, rewards, theta, -0.01), leaves)
        for mine, reference in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, reference, rtol=1e-6, atol=1e-12)
        expected = sum((mutual_softmax(features[i].descriptors, features[j].descriptors, theta) * r).sum()
                       for (i, j), r in rewards.items())  # fmt: skip
        torch.testing.assert_close(statistics.reward, expected.detach())
        assert statistics.keypoints == 28 and statistics.pairs == 3

    def test_penalty_for_each_pair_or_image(self, device):
        features = [image(device, 4, seed=s) for s in range(3)]
        rewards = {pair: torch.zeros(4, 4, device=device) for pair in ((0, 1), (0, 2), (1, 2))}
        total = sum(f.logp.sum() for f in features)
        per_pair, _ = PolicyGradientLoss(-0.5)(features, rewards, 10.0)
        per_image, _ = PolicyGradientLoss(-0.5, penalize="image")(features, rewards, 10.0)
        torch.testing.assert_close(per_pair, 0.5 * 2 * total)
        torch.testing.assert_close(per_image, 0.5 * total)

    def test_a_function_is_asked_for_all_pairs(self, device):
        features = [image(device, 4, seed=s) for s in range(3)]
        asked = []

        def reward(i, j):
            asked.append((i, j))
            return torch.ones(4, 4, device=device)

        PolicyGradientLoss()(features, reward, 10.0)
        assert asked == [(0, 1), (0, 2), (1, 2)]

    @pytest.mark.parametrize("counts", [(0, 5), (5, 0), (0, 0), (1, 1), (1, 5)])
    def test_few_keypoints_are_legal(self, device, counts):
        features = [image(device, n, seed=n) for n in counts]
        loss, statistics = PolicyGradientLoss()(features, {(0, 1): torch.ones(counts, device=device)}, 50.0)
        loss.backward()
        assert loss.isfinite() and statistics.keypoints == sum(counts)
        assert all(f.descriptors.grad.isfinite().all() and f.logp.grad.isfinite().all() for f in features)

    def test_one_image_and_none(self, device):
        loss, _ = PolicyGradientLoss()([image(device, 3)], {}, 50.0)
        loss.backward()
        assert loss == 0
        with pytest.raises(ValueError, match="features must hold at least one image"):
            PolicyGradientLoss()([], {}, 50.0)
        for pair in ((0, 1), (0, 0), (-1, 0)):
            with pytest.raises(ValueError, match="rewards must be of pairs of the 1 images, counted from 0, got"):
                PolicyGradientLoss()([image(device, 3)], {pair: torch.zeros(3, 3)}, 50.0)
        with pytest.raises(ValueError, match="penalize must be 'pair' or 'image', got 'both'"):
            PolicyGradientLoss(penalize="both")

    @pytest.mark.parametrize("theta", [1e-30, 1e-3, 1e4, 1e6])
    def test_extreme_temperatures_and_identical_images(self, device, theta):
        first = image(device, 6, dtype=torch.float32)
        twin = SampledFeatures(first.keypoints, first.descriptors.detach().clone().requires_grad_(), first.logp)
        geometry = HomographyReward()(first.keypoints, twin.keypoints, torch.eye(3, device=device))
        loss, statistics = PolicyGradientLoss()([first, twin], {(0, 1): geometry}, theta)
        loss.backward()
        assert loss.isfinite() and first.descriptors.grad.isfinite().all()
        if theta >= 1e4:
            torch.testing.assert_close(statistics.matches, torch.tensor(6.0, device=device))
            torch.testing.assert_close(statistics.reward, torch.tensor(6.0, device=device))

    def test_nan_geometry_is_never_right(self, device):
        first, second = image(device, 5, seed=1), image(device, 6, seed=2)
        nowhere = torch.full((5, 2), torch.nan, device=device), torch.full((6, 2), torch.nan, device=device)
        geometry = MatchGeometry(first.keypoints, second.keypoints, *nowhere)
        loss, statistics = PolicyGradientLoss()([first, second], {(0, 1): geometry}, 20.0)
        loss.backward()
        torch.testing.assert_close(statistics.reward, -0.25 * statistics.matches)


def outcomes(logits: Tensor) -> list[tuple[Tensor, int | None]]:
    """All that can happen in one cell ``[P]``: (probability, accepted pixel or None)."""
    proposal, accept = logits.softmax(0), logits.sigmoid()
    accepted = [(proposal[p] * accept[p], p) for p in range(len(logits))]
    return [*accepted, ((proposal * (1 - accept)).sum(), None)]


def test_expectation_of_the_estimator_is_the_true_gradient(device):
    """One 8×8 cell in each of two images: all samples enumerated, all matches summed."""
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(64, generator=generator, dtype=torch.float64).to(device).requires_grad_() for _ in range(2)]
    reward = torch.randn(64, 64, generator=generator, dtype=torch.float64).to(device)
    desc = F.normalize(torch.randn(2, 64, 4, generator=generator, dtype=torch.float64), dim=-1).to(device)

    true = sum(p1 * p2 * reward[x1, x2] for p1, x1 in outcomes(logits[0]) for p2, x2 in outcomes(logits[1])
               if x1 is not None and x2 is not None)  # fmt: skip
    true_gradient = torch.autograd.grad(true, logits)

    log = [cell.log_softmax(0) + F.logsigmoid(cell) for cell in logits]
    loss_of = PolicyGradientLoss(lambda_kp=0.0)
    total = torch.zeros((), dtype=torch.float64, device=device)
    for pixels in itertools.product(range(64), repeat=2):
        probability = (log[0][pixels[0]] + log[1][pixels[1]]).exp().detach()
        if probability < 1e-7:
            continue
        features = [
            SampledFeatures(torch.zeros(1, 2, device=device), desc[k, pixel, None], log[k][pixel, None])
            for k, pixel in enumerate(pixels)
        ]
        loss, _ = loss_of(features, {(0, 1): reward[pixels].view(1, 1)}, 20.0)
        total = total - probability * loss
    estimate = torch.autograd.grad(total, logits)
    for mine, exact in zip(estimate, true_gradient, strict=True):
        torch.testing.assert_close(mine, exact, rtol=1e-3, atol=1e-5)


def test_descriptor_part_is_exact_for_every_sample(device):
    """Matches are not sampled: the gradient to descriptors is that of the sum over all matches."""
    first, second = image(device, 3, seed=1), image(device, 4, seed=2)
    reward = torch.randn(3, 4, dtype=torch.float64, device=device)
    theta = 8.0
    logits = -theta * torch.cdist(first.descriptors, second.descriptors)
    choose1, choose2 = logits.softmax(1), logits.softmax(0)
    # Every way that the rows of image 1 and the columns of image 2 can choose; a match is a mutual choice.
    expected = torch.zeros((), dtype=torch.float64, device=device)
    for rows in itertools.product(range(4), repeat=3):
        for columns in itertools.product(range(3), repeat=4):
            probability = torch.stack([choose1[i, j] for i, j in enumerate(rows)]).prod()
            probability = probability * torch.stack([choose2[i, j] for j, i in enumerate(columns)]).prod()
            earned = sum(reward[i, j] for i, j in enumerate(rows) if columns[j] == i)
            expected = expected + probability * earned
    ours = expected_reward(first.descriptors, second.descriptors, theta, reward).reward1.sum()
    torch.testing.assert_close(ours, expected)
    for mine, exact in zip(
        torch.autograd.grad(ours, (first.descriptors, second.descriptors)),
        torch.autograd.grad(expected, (first.descriptors, second.descriptors)),
        strict=True,
    ):
        torch.testing.assert_close(mine, exact, rtol=1e-6, atol=1e-10)
