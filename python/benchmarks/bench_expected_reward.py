"""expected_reward with its gradient, against the released code's formula, which keeps every N x M matrix."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from harness import OURS, Row, compare, parse_arguments, synchronized, write
from torch import Tensor

from disk_ops.ops import MatchGeometry, expected_reward

SIZES = {1024: "", 4096: "", 9216: " (768 x 768, cell 8)", 18432: " (768 x 768, cell 4, half accepted)"}
DIMENSION, INVERSE_TEMPERATURE = 128, 50.0
LARGEST_MATERIALISED = 9216  # some 20 N x M float32 matrices at a time: 18432 would take over 20 GB


def scene(size: int, device: str) -> tuple[Tensor, Tensor, MatchGeometry]:
    """Two images' features: matching ones within a pixel of each other, a fifth without depth."""
    desc1 = F.normalize(torch.randn(size, DIMENSION), dim=-1)
    desc2 = F.normalize(desc1 + 0.2 * torch.randn(size, DIMENSION), dim=-1)
    keypoints1 = torch.rand(size, 2) * 768
    keypoints2 = keypoints1 + torch.randn(size, 2)
    warped1, warped2 = keypoints1.clone(), keypoints2.clone()
    warped1[::5], warped2[::7] = torch.nan, torch.nan
    fundamental = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]])  # sideways motion: y = y'
    geometry = MatchGeometry(
        keypoints1.to(device),
        keypoints2.to(device),
        warped1=warped1.to(device),
        warped2=warped2.to(device),
        fundamental=fundamental.to(device),
        rule="official",
    )
    return desc1.to(device).requires_grad_(), desc2.to(device).requires_grad_(), geometry


def fused(desc1: Tensor, desc2: Tensor, geometry: MatchGeometry) -> object:
    """Expected rewards of the keypoints, and the gradient of their sum."""
    result = expected_reward(desc1, desc2, INVERSE_TEMPERATURE, geometry)
    return result.reward1.detach(), result.reward2.detach(), torch.autograd.grad(result.reward1.sum(), (desc1, desc2))


def materialised(desc1: Tensor, desc2: Tensor, geometry: MatchGeometry) -> object:
    """The same by the formulas of the released code: its clamp, its log-derivative trick, its matrices.

    It differentiates sqrt(2 - 2ab) and not |a - b|, so the gradients differ along the descriptors themselves, a part
    that their normalisation takes away.
    """
    weighted, log_probability = materialised_log_terms(desc1, desc2, geometry)
    gradients = torch.autograd.grad((weighted * log_probability).sum(), (desc1, desc2))
    return weighted.sum(1), weighted.sum(0), gradients


def materialised_log_terms(
    desc1: Tensor,  # [N, D]
    desc2: Tensor,  # [M, D]
    geometry: MatchGeometry,
) -> tuple[Tensor, Tensor]:
    """Probability times reward, and log-probability of every match: ``[N, M]`` each."""
    distance = 1.414213 * (1 - desc1 @ desc2.T).clamp(min=1e-6).sqrt()
    affinity = -INVERSE_TEMPERATURE * distance
    with torch.no_grad():
        probability = affinity.softmax(1) * affinity.softmax(0)
        weighted = probability * materialised_reward(geometry)
    return weighted, affinity.log_softmax(1) + affinity.log_softmax(0)


def materialised_reward(geometry: MatchGeometry) -> Tensor:
    """Correct where both reprojections are near, wrong where off the epipolar line (if there is one), else 0."""
    warped1, warped2, fundamental = geometry.warped1, geometry.warped2, geometry.fundamental
    assert warped1 is not None and warped2 is not None
    first, second = geometry.keypoints1, geometry.keypoints2
    near = (warped1[:, None] - second[None]).norm(dim=-1) < geometry.epsilon
    near &= (warped2[None] - first[:, None]).norm(dim=-1) < geometry.epsilon
    if fundamental is None:
        return geometry.lambda_tp * near + geometry.lambda_fp * ~near
    on_line = _line_distance(first, second, fundamental) < geometry.epsilon
    on_line &= _line_distance(second, first, fundamental.mT).mT < geometry.epsilon
    return geometry.lambda_tp * near + geometry.lambda_fp * ~(near | on_line)


def _line_distance(
    points: Tensor,  # [N, 2]
    others: Tensor,  # [M, 2]
    fundamental: Tensor,  # [3, 3]
) -> Tensor:  # [N, M]
    lines = F.pad(points, (0, 1), value=1.0) @ fundamental.T
    return (lines @ F.pad(others, (0, 1), value=1.0).T).abs() / lines[:, :2].norm(dim=-1, keepdim=True)


def run(arguments: argparse.Namespace) -> list[Row]:
    """Measure all sizes."""
    rows: list[Row] = []
    for size in list(SIZES)[:1] if arguments.quick else SIZES:
        inputs = scene(size, arguments.device)

        def call(function: Callable[..., object], inputs: tuple = inputs) -> Callable[[], object]:
            return synchronized(lambda: function(*inputs), arguments.device)

        cases = {OURS: call(fused)}
        if size <= LARGEST_MATERIALISED:
            cases["torch, materialised"] = call(materialised)
        rows += compare("expected_reward + backward", f"{size} x {size} x {DIMENSION}{SIZES[size]}", cases, arguments)
    return rows


if __name__ == "__main__":
    torch.manual_seed(0)
    options = parse_arguments(__doc__, "expected_reward_cpu.json")
    write(run(options), options, "bench_expected_reward")
