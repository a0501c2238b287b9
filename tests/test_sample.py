"""DISKDetector.sample: the training policy from images to features, and gradients back to every weight."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from comparing import photo_like
from torch import nn

from disk_ops import DISKDetector, MutualNearestNeighbor, demo
from disk_ops.model import UNet
from disk_ops.ops import MatchGeometry, sample_grid
from disk_ops.training import HomographyReward, PolicyGradientLoss


@pytest.fixture(scope="module")
def detector(device):
    return DISKDetector.from_pretrained(device=device)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class TestSample:
    def test_composes_network_grid_and_descriptors(self, device, detector):
        images = photo_like(device, 2, 3, 50, 70)
        heatmap, dense = detector.heatmap_and_dense_descriptors(images)
        drawn = sample_grid(heatmap, 8, seeded())
        for b, features in enumerate(detector.sample(images, seeded())):
            accepted = drawn.accepted[b]
            assert torch.equal(features.keypoints, drawn.keypoints[b][accepted].float())
            torch.testing.assert_close(features.logp, drawn.logp[b][accepted], rtol=1e-4, atol=1e-4)
            x, y = features.keypoints.long().T
            expected = F.normalize(dense[b, :, y, x].T, dim=-1)
            torch.testing.assert_close(features.descriptors, expected, rtol=1e-4, atol=1e-5)

    def test_seeds(self, device, detector):
        images = photo_like(device, 1, 3, 64, 64)
        first, again, other = (detector.sample(images, seeded(s))[0] for s in (0, 0, 1))
        assert torch.equal(first.keypoints, again.keypoints) and torch.equal(first.logp, again.logp)
        assert first.n != other.n or not torch.equal(first.keypoints, other.keypoints)

    def test_mask(self, device, detector):
        images = photo_like(device, 2, 3, 64, 64)
        mask = torch.zeros(2, 1, 64, 64, device=device)
        mask[0, :, 10:30] = 1
        some, none = detector.sample(images, seeded(), mask)
        assert some.n > 0 and (some.keypoints[:, 1] >= 10).all() and (some.keypoints[:, 1] < 30).all()
        assert none.n == 0 and none.descriptors.shape == (0, 128) and none.logp.shape == (0,)

    def test_no_images(self, device, detector):
        assert detector.sample(torch.zeros(0, 3, 32, 32, device=device)) == []

    def test_custom_unet(self, device):
        detector = DISKDetector(desc_dim=4, unet=nn.Conv2d(3, 5, 3, padding=1)).to(device)
        features = detector.sample(photo_like(device, 1, 3, 32, 32), seeded(), cell=4)[0]
        assert features.n > 0 and features.descriptors.shape == (features.n, 4)

    def test_another_dimension_than_the_networks(self, device):
        unet = UNet(desc_dim=8, size=3, down=(4, 4), up=())
        detector = DISKDetector(desc_dim=4, unet=unet).to(device)
        with pytest.raises(ValueError, match=r"unet must give desc_dim \+ 1 = 5 channels, got 9"):
            detector.sample(photo_like(device, 1, 3, 32, 32))

    def test_valid_norm(self, device):
        detector = DISKDetector.from_pretrained(device=device, norm="valid")
        images = photo_like(device, 1, 3, 48, 48)
        mask = torch.ones(1, 1, 48, 48, dtype=torch.bool, device=device)
        mask[..., 30:] = False
        other = torch.where(mask, images, 7.0)
        first, second = (detector.sample(x, seeded(), mask)[0] for x in (images, other))
        assert torch.equal(first.keypoints, second.keypoints)
        torch.testing.assert_close(first.descriptors, second.descriptors)


def berlin(device, width, height):
    """The bundled pair of photographs, as float64."""
    photos = [cv2.resize(cv2.imread(str(path)), (width, height), interpolation=cv2.INTER_AREA) for path in demo.IMAGES]
    return torch.from_numpy(np.stack(photos)).to(device).flip(-1).permute(0, 3, 1, 2) / 255.0


def fundamental_of(detector, images):
    """A fundamental matrix that the pair's own matches agree on."""
    first, second = detector(images, n=400)
    _, pairs = MutualNearestNeighbor()(first.descriptors, second.descriptors)
    points = [f.keypoints[column].cpu().numpy() for f, column in ((first, pairs[:, 0]), (second, pairs[:, 1]))]
    cv2.setRNGSeed(0)
    matrix, _ = cv2.findFundamentalMat(*points, cv2.FM_RANSAC, 2.0, 0.99)
    return torch.from_numpy(matrix).to(images.device)


def distances_to_lines(points, others, fundamental):
    """Of others [M, 2] from the epipolar lines of points [N, 2]: [N, M]."""
    lines = F.pad(points, (0, 1), value=1.0) @ fundamental.T
    return (lines @ F.pad(others, (0, 1), value=1.0).T).abs() / lines[:, :2].norm(dim=-1, keepdim=True)


class TestTrainingStep:
    @pytest.mark.parametrize("inverse_temperature", [15.0, 50.0])
    def test_loss_and_gradients_are_those_of_the_materialised_formula(self, device, inverse_temperature):
        """Two photographs, the bundled weights, float64: equation 1 of the paper with dense maps and matrices."""
        detector = DISKDetector.from_pretrained(device=device).double()
        images = berlin(device, 160, 120).double()
        fundamental = fundamental_of(detector, images)
        features = detector.sample(images, seeded())
        geometry = MatchGeometry(features[0].keypoints, features[1].keypoints, fundamental=fundamental)
        loss, statistics = PolicyGradientLoss(-0.01)(features, {(0, 1): geometry}, inverse_temperature)
        ours = torch.autograd.grad(loss, list(detector.parameters()))

        heatmap, dense = detector.heatmap_and_dense_descriptors(images)
        descriptors, logs = [], []
        for b, f in enumerate(features):
            x, y = f.keypoints.long().T
            descriptors.append(F.normalize(dense[b, :, y, x].T, dim=-1))
            cells = F.unfold(heatmap[b, None], 8, stride=8)[0]  # [64, cells]
            cell, inside = y // 8 * 20 + x // 8, y % 8 * 8 + x % 8
            logs.append(cells.log_softmax(0)[inside, cell] + F.logsigmoid(heatmap[b, 0, y, x]))
        near = distances_to_lines(features[0].keypoints, features[1].keypoints, fundamental) < 1.5
        near &= distances_to_lines(features[1].keypoints, features[0].keypoints, fundamental.T).T < 1.5
        assert 0 < near.sum() < near.numel()
        reward = torch.where(near, 1.0, -0.25).double()
        logits = -inverse_temperature * (descriptors[0][:, None] - descriptors[1]).square().sum(-1).sqrt()
        log = logits.log_softmax(1) + logits.log_softmax(0)
        credit = log + logs[0][:, None] + logs[1]
        paper = -(reward * log.exp().detach() * credit).sum() + 0.01 * (logs[0].sum() + logs[1].sum())
        theirs = torch.autograd.grad(paper, list(detector.parameters()))
        rounding = 1e-12 * sum(exact.norm() for exact in theirs)  # biases before an instance norm have a gradient of 0
        for mine, exact in zip(ours, theirs, strict=True):
            assert (mine - exact).norm() <= 1e-6 * exact.norm() + rounding
        torch.testing.assert_close(statistics.reward, (reward * log.exp()).sum().detach())

    def test_nothing_accepted(self, device):
        detector = DISKDetector(desc_dim=4, unet=UNet(desc_dim=4, size=3, down=(4, 4), up=())).to(device)
        with torch.no_grad():
            detector.unet.path_up[-1].conv[3].bias[-1] = -1e4
        features = detector.sample(photo_like(device, 2, 3, 32, 32), seeded())
        assert [f.n for f in features] == [0, 0]
        loss, _ = PolicyGradientLoss()(features, {(0, 1): torch.zeros(0, 0, device=device)}, 50.0)
        loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in detector.parameters())

    def test_deterministic(self, device, detector):
        images = photo_like(device, 2, 3, 64, 64)

        def gradients():
            features = detector.sample(images, seeded())
            geometry = HomographyReward()(features[0].keypoints, features[1].keypoints, torch.eye(3, device=device))
            loss, _ = PolicyGradientLoss()(features, {(0, 1): geometry}, 20.0)
            return torch.autograd.grad(loss, list(detector.parameters()))

        torch.use_deterministic_algorithms(True)
        try:
            first, second = gradients(), gradients()
        finally:
            torch.use_deterministic_algorithms(False)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_toy_example_learns(repository, capsys, monkeypatch):
    """python/examples/train_toy.py, shortened: the expected reward grows."""
    import runpy

    monkeypatch.setattr("sys.argv", ["train_toy.py", "--steps", "61", "--size", "96"])
    runpy.run_path(str(repository / "python" / "examples" / "train_toy.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    rewards = [float(line.split()[3]) for line in lines]
    assert len(rewards) == 4 and max(rewards[2:]) > rewards[0] + 1
