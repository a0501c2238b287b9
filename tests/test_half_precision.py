"""Networks in float16 and bfloat16, and under autocast: the features of float32, with scores that aren't rounded."""

from __future__ import annotations

from typing import NamedTuple

import cv2
import pytest
import torch
from comparing import as_sets
from torch import Tensor, nn

from disk_ops import DISKDetector, demo
from disk_ops.features import DISKFeatures


class Bounds(NamedTuple):
    """How far features of a photograph may be from those of float32: about twice what was measured on the CPU."""

    same: float  # share of keypoints, at least
    score: float  # relative to the largest
    descriptor: float
    gradient: float  # relative to that of a convolution's weights


BOUNDS = {torch.float16: Bounds(0.99, 1e-3, 8e-4, 7e-3), torch.bfloat16: Bounds(0.98, 1e-2, 5e-3, 4e-2)}
# cuDNN reads rounded numbers where the CPU's kernels read float32.
CUDA_BOUNDS = {torch.float16: Bounds(0.95, 4e-3, 4e-3, 4e-2), torch.bfloat16: Bounds(0.8, 4e-2, 3e-2, 0.2)}


@pytest.fixture(scope="module", params=[0, 1])
def photograph(request, device) -> Tensor:  # [1, 3, 231, 320]
    pixels = cv2.cvtColor(cv2.imread(str(demo.IMAGES[request.param])), cv2.COLOR_BGR2RGB)[200:431, 200:520]
    return torch.from_numpy(pixels).to(device).permute(2, 0, 1)[None] / 255


@pytest.fixture(params=BOUNDS, ids=str)
def dtype(request) -> torch.dtype:
    return request.param


@pytest.fixture
def detector(device, dtype) -> DISKDetector:
    return DISKDetector.from_pretrained(device=device).to(dtype)


@torch.no_grad()
def assert_near(found: DISKFeatures, expected: DISKFeatures, bounds: Bounds) -> None:
    """Most keypoints are the same, and scores and descriptors there are near."""
    first, second = ({tuple(xy): i for i, xy in enumerate(f.keypoints.tolist())} for f in (found, expected))
    both = first.keys() & second.keys()
    assert found.n == expected.n and len(both) >= bounds.same * expected.n
    mine, other = [first[xy] for xy in both], [second[xy] for xy in both]
    scores = found.detection_scores[mine] - expected.detection_scores[other]
    assert float(scores.abs().max() / expected.detection_scores.max()) < bounds.score
    descriptors = found.descriptors[mine].float() - expected.descriptors[other]
    assert float(descriptors.abs().max()) < bounds.descriptor


def bounds_of(dtype: torch.dtype, device: torch.device) -> Bounds:
    return (BOUNDS if device.type == "cpu" else CUDA_BOUNDS)[dtype]


@pytest.mark.parametrize("gradients", [True, False], ids=["with gradients", "fused"])
def test_features_are_those_of_float32(photograph, device, detector, dtype, gradients):
    detector.requires_grad_(gradients)
    features = detector(photograph.to(dtype), n=300)[0]
    assert features.keypoints.dtype == torch.float32  # whole pixels need more than a half
    assert features.detection_scores.dtype == torch.float32 and features.descriptors.dtype == dtype
    with torch.inference_mode():
        expected = DISKDetector.from_pretrained(device=device)(photograph, n=300)[0]
    assert_near(features, expected, bounds_of(dtype, device))


@torch.inference_mode()
def test_scores_are_not_rounded(photograph, detector, dtype):
    """Rounding makes equal scores of most, which no longer have an order."""
    images = photograph.to(dtype)
    scores = detector(images, n=300)[0].detection_scores
    assert len(scores.unique()) > 295 > len(scores.to(dtype).unique())
    heatmap, _ = detector.heatmap_and_dense_descriptors(images)
    assert heatmap.dtype == torch.float32 and not torch.equal(heatmap, heatmap.to(dtype).float())


@torch.inference_mode()
def test_all_forms_give_the_same(photograph, detector, dtype):
    images = photograph.to(dtype)
    features = detector(images, n=300)[0]
    x, y = features.keypoints.long().unbind(-1)
    heatmap, dense = detector.heatmap_and_dense_descriptors(images)
    torch.testing.assert_close(heatmap[0, 0, y, x], features.detection_scores, rtol=1e-5, atol=1e-4)
    assert dense.dtype == dtype
    rounding = 2 * torch.finfo(dtype).eps
    described = detector.describe(images, features.keypoints[None])[0]
    torch.testing.assert_close(described, features.descriptors, rtol=rounding, atol=rounding)
    padded = detector.forward_padded(images, n=300)
    assert torch.equal(padded.scores[0], features.detection_scores)
    assert torch.equal(padded.keypoints[0], features.keypoints)
    lafs, responses, descriptors = detector.forward_laf(images, n=300)
    assert lafs.dtype == responses.dtype == torch.float32 and torch.equal(descriptors[0], features.descriptors)
    assert detector.detect(images, n=300)[1].dtype == torch.float32


@torch.inference_mode()
def test_descriptors_are_normalised_before_rounding(photograph, detector, dtype):
    lengths = detector(photograph.to(dtype), n=300)[0].descriptors.double().norm(dim=-1)
    assert float((lengths - 1).abs().max()) < torch.finfo(dtype).eps / 2


@torch.inference_mode()
def test_tiles_give_the_same(photograph, device, detector, dtype):
    images = photograph.to(dtype)
    found, expected = detector(images, n=300, max_memory=0.001)[0], detector(images, n=300)[0]
    assert found.detection_scores.dtype == torch.float32 and found.descriptors.dtype == dtype
    assert_near(found, expected, bounds_of(dtype, device))  # statistics differ by rounding


@torch.inference_mode()
def test_valid_pixels_only(photograph, device, dtype):
    """With norm="valid", alone and in a padded batch; and what is masked has no keypoints."""
    single = DISKDetector.from_pretrained(device=device, norm="valid")
    expected = single(photograph, n=300)[0]
    detector = DISKDetector.from_pretrained(device=device, norm="valid").to(dtype)
    canvas = nn.functional.pad(photograph, (0, 40, 0, 30)).to(dtype)
    size = torch.tensor([[photograph.shape[3], photograph.shape[2]]])
    bounds = bounds_of(dtype, device)
    assert_near(detector(photograph.to(dtype), n=300)[0], expected, bounds)
    assert_near(detector(canvas, n=300, image_size=size)[0], expected, bounds)
    mask = torch.zeros_like(photograph[:, :1], dtype=torch.bool)
    mask[..., 60:] = True
    masked = detector(photograph.to(dtype), n=300, mask=mask)[0]
    assert masked.n == 300 and masked.keypoints[:, 0].min() >= 60 and masked.detection_scores.dtype == torch.float32


def test_samples(photograph, detector, dtype):
    samples = detector.sample(photograph.to(dtype), torch.Generator().manual_seed(0))[0]
    assert samples.keypoints.dtype == samples.logp.dtype == torch.float32 and samples.descriptors.dtype == dtype
    (samples.logp.sum() + samples.descriptors.float().sum()).backward()
    assert all(weight.grad.dtype == dtype and weight.grad.isfinite().all() for weight in detector.parameters())


def gradients(detector: DISKDetector, images: Tensor) -> list[Tensor]:
    """Of a function of all outputs, of the weights of each convolution."""
    heatmap, descriptors = detector.heatmap_and_dense_descriptors(images)
    loss = heatmap.tanh().mean() + descriptors.float().square().mean()
    weights = [weight for weight in detector.parameters() if weight.ndim == 4]
    return list(torch.autograd.grad(loss, weights))


def largest_error(found: list[Tensor], exact: list[Tensor]) -> float:
    return max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in zip(found, exact, strict=True))


def test_gradients_are_those_of_float32(photograph, device, detector, dtype):
    """To the rounding of what is stored, which grows from block to block."""
    exact = gradients(DISKDetector.from_pretrained(device=device), photograph)
    found = gradients(detector, photograph.to(dtype))
    assert largest_error(found, exact) < bounds_of(dtype, device).gradient


@pytest.mark.parametrize("gradients", [True, False], ids=["with gradients", "fused"])
def test_autocast(photograph, device, dtype, gradients):
    single = DISKDetector.from_pretrained(device=device).requires_grad_(gradients)
    expected = single(photograph, n=300)[0]
    with torch.autocast(device.type, dtype):
        found = single(photograph, n=300)[0]
    assert found.keypoints.dtype == found.detection_scores.dtype == torch.float32 and found.descriptors.dtype == dtype
    assert_near(found, expected, bounds_of(dtype, device))


def test_gradients_under_autocast(photograph, device, dtype):
    single = DISKDetector.from_pretrained(device=device)
    exact = gradients(single, photograph)
    with torch.autocast(device.type, dtype):
        found = gradients(single, photograph)
    assert largest_error(found, exact) < bounds_of(dtype, device).gradient


@torch.inference_mode()
def test_custom_unet(photograph, dtype, device):
    """Scores of any network are float32, if it rounds them itself as well."""
    network = nn.Conv2d(3, 9, 3, padding=1).to(device, dtype)
    features = DISKDetector(desc_dim=8, unet=network)(photograph.to(dtype), n=50)[0]
    assert features.keypoints.dtype == features.detection_scores.dtype == torch.float32
    assert features.descriptors.dtype == dtype and len(as_sets([features])[0]) == features.n
