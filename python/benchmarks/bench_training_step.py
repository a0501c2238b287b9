"""A training step on a triplet (features, loss of all three pairs, gradient), against the released code's way.

The other way computes descriptors at every pixel, samples by unfold and torch.distributions, and keeps the matrices of
each pair in turn (its gradient reaches the features before the next pair is looked at, as in the released code); with
the network layer by layer (kornia's, which is the released one), and with that of disk_ops. All ways keep freed memory,
as ``disk-ops train`` does on the CPU; the other way would lose more by fresh pages.
"""

from __future__ import annotations

import argparse
from itertools import combinations

import cv2
import torch
import torch.nn.functional as F
from bench_expected_reward import materialised_log_terms
from bench_sample_grid import unfolded
from harness import OURS, Row, compare, parse_arguments, synchronized, write
from kornia.feature import DISK
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from disk_ops import DISKDetector, demo
from disk_ops.features import SampledFeatures
from disk_ops.training import HomographyReward, PolicyGradientLoss
from disk_ops.training.memory import keep_freed_memory

SIZE, IMAGES, INVERSE_TEMPERATURE, LAMBDA_KP = 768, 3, 50.0, -0.001
PAIRS = list(combinations(range(IMAGES), 2))


def triplet(size: int, device: str) -> tuple[Tensor, list[Tensor]]:
    """Three overlapping crops [3, 3, S, S] of a photograph, and the homography of each pair."""
    photo = cv2.cvtColor(cv2.imread(str(demo.IMAGES[0])), cv2.COLOR_BGR2RGB)
    photo = cv2.resize(photo, (size + 64, size + 64), interpolation=cv2.INTER_CUBIC)
    corners = [(0, 0), (40, 24), (16, 64)]
    crops = [photo[y : y + size, x : x + size] for x, y in corners]
    homographies = []
    for i, j in PAIRS:
        homography = torch.eye(3)
        homography[:2, 2] = torch.tensor(corners[i]) - torch.tensor(corners[j])
        homographies.append(homography.to(device))
    return torch.stack([torch.from_numpy(crop).permute(2, 0, 1) for crop in crops]).to(device) / 255, homographies


def loss_of(features: list[SampledFeatures], homographies: list[Tensor]) -> Tensor:
    """The loss of all pairs in linear memory."""
    reward = HomographyReward()
    rewards = {
        (i, j): reward(features[i].keypoints, features[j].keypoints, homography)
        for (i, j), homography in zip(PAIRS, homographies, strict=True)
    }
    return PolicyGradientLoss(LAMBDA_KP)(features, rewards, INVERSE_TEMPERATURE)[0]


def fused(detector: DISKDetector, images: Tensor, homographies: list[Tensor]) -> None:
    """Descriptors at keypoints only, fused sampling and loss."""
    detector.zero_grad()
    loss_of(detector.sample(images), homographies).backward()


def recomputed(detector: DISKDetector, images: Tensor, homographies: list[Tensor]) -> None:
    """The same, with the activations of one image at a time (compute.memory_gb)."""
    detector.zero_grad()
    seeds = torch.randint(2**31, (IMAGES,)).tolist()

    def draw(i: int) -> SampledFeatures:
        return detector.sample(images[i, None], torch.Generator().manual_seed(seeds[i]))[0]

    features = [checkpoint(draw, i, use_reentrant=False, preserve_rng_state=False) for i in range(IMAGES)]
    loss_of(features, homographies).backward()


def released(detector: DISKDetector | DISK, images: Tensor, homographies: list[Tensor]) -> None:
    """Descriptors everywhere, unfolded sampling, matrices of every pair."""
    detector.zero_grad()
    heatmap, dense = detector.heatmap_and_dense_descriptors(images)
    keypoints, accepted, logp = unfolded(heatmap)
    points = [keypoints[i][accepted[i]] for i in range(IMAGES)]
    outputs = [
        (F.normalize(dense[i][:, xy[:, 1], xy[:, 0]].T, dim=-1), logp[i][accepted[i]]) for i, xy in enumerate(points)
    ]
    leaves = [tuple(tensor.detach().requires_grad_() for tensor in output) for output in outputs]
    reward = HomographyReward()
    for (i, j), homography in zip(PAIRS, homographies, strict=True):
        geometry = reward(points[i].to(images.dtype), points[j].to(images.dtype), homography)
        weighted, log_probability = materialised_log_terms(leaves[i][0], leaves[j][0], geometry)
        total = log_probability + leaves[i][1][:, None] + leaves[j][1]
        loss = -(weighted * total).sum() - LAMBDA_KP * (leaves[i][1].sum() + leaves[j][1].sum())
        loss.backward()
    flat_outputs = [tensor for output in outputs for tensor in output]
    torch.autograd.backward(flat_outputs, [tensor.grad for leaf in leaves for tensor in leaf])


def run(arguments: argparse.Namespace) -> list[Row]:
    """Measure all ways."""
    size = 128 if arguments.quick else SIZE
    if arguments.device == "cpu":
        keep_freed_memory()
    detector = DISKDetector.from_pretrained().train().to(arguments.device)
    images, homographies = triplet(size, arguments.device)
    with torch.no_grad():
        number = sum(image.n for image in detector.sample(images, torch.Generator().manual_seed(0))) // IMAGES
    layered = DISK().train().to(arguments.device)
    layered.load_state_dict(detector.state_dict())
    cases = {
        OURS: (fused, detector),
        "disk_ops, images recomputed": (recomputed, detector),
        "released way: layers, dense, materialised": (released, layered),
        "disk_ops network, dense, materialised": (released, detector),
    }
    calls = {
        name: synchronized(lambda way=way, network=network: way(network, images, homographies), arguments.device)
        for name, (way, network) in cases.items()
    }
    return compare("training step", f"{IMAGES} x {size} x {size}, about {number} keypoints each", calls, arguments)


if __name__ == "__main__":
    torch.manual_seed(0)
    options = parse_arguments(__doc__, "training_step_cpu.json")
    write(run(options), options, "bench_training_step")
