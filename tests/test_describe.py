"""DISKDetector.describe: descriptors at given points, and one network pass for detect and describe."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from comparing import photo_like

from disk_ops import DISKDetector
from disk_ops.geometry import sample_descriptors


@pytest.fixture(scope="module")
def detector(device):
    return DISKDetector.from_pretrained(device=device)


class TestDescribe:
    def test_integer_pixels_are_exact(self, device, detector):
        images = photo_like(device, 2, 3, 40, 50)
        _, dense = detector.heatmap_and_dense_descriptors(images)
        points = torch.tensor([[[0, 0], [49, 39], [7, 11]], [[49, 0], [0, 39], [20, 3]]], device=device)
        read = torch.stack([dense[b, :, y, x] for b in range(2) for x, y in points[b].tolist()]).view(2, 3, 128)
        for keypoints in (points, points.float(), points.double()):
            assert torch.equal(detector.describe(images, keypoints), F.normalize(read, dim=-1))

    def test_fractional_points_are_interpolated(self, device, detector):
        images = photo_like(device, 1, 3, 40, 50)
        _, dense = detector.heatmap_and_dense_descriptors(images)
        points = torch.rand(1, 64, 2, device=device) * torch.tensor([49, 39], device=device)
        grid = points / torch.tensor([49, 39], device=device) * 2 - 1
        expected = F.grid_sample(dense, grid[:, None], align_corners=True)[:, :, 0].mT
        torch.testing.assert_close(
            detector.describe(images, points), F.normalize(expected, dim=-1), rtol=1e-4, atol=1e-5
        )

    def test_lafs_count_by_their_centres(self, device, detector):
        images = photo_like(device, 1, 3, 40, 50)
        points = torch.rand(1, 5, 2, device=device) * 30
        lafs = torch.cat([torch.eye(2, device=device).expand(1, 5, 2, 2) * 7, points[..., None]], -1)
        assert torch.equal(detector.describe(images, lafs), detector.describe(images, points))

    def test_points_outside_get_the_nearest_pixel(self, device, detector):
        images = photo_like(device, 1, 3, 40, 50)
        outside = torch.tensor([[[-3.5, -9.0], [1e9, 1e9], [12.0, -0.1]]], device=device)
        inside = torch.tensor([[[0.0, 0.0], [49.0, 39.0], [12.0, 0.0]]], device=device)
        assert torch.equal(detector.describe(images, outside), detector.describe(images, inside))

    def test_integer_points_outside_get_the_nearest_pixel(self, device, detector):
        images = photo_like(device, 1, 3, 40, 50)
        outside = torch.tensor([[[-1, -7], [50, 40], [12, -1]]], device=device)
        inside = torch.tensor([[[0, 0], [49, 39], [12, 0]]], device=device)
        for dtype in (torch.int64, torch.int32, torch.int16):
            assert torch.equal(detector.describe(images, outside.to(dtype)), detector.describe(images, inside))
        assert torch.equal(detector.describe(images, inside.to(torch.uint8)), detector.describe(images, inside))

    def test_is_independent_of_detect(self, device, detector):
        images = photo_like(device, 1, 3, 32, 32)
        points = torch.tensor([[[8.0, 8.0]]], device=device)
        expected = detector.describe(images, points)
        _, responses = detector.detect(images)
        responses.sum().backward()
        described = detector.describe(images, points)
        described.sum().backward()
        assert torch.equal(described, expected)
        detector.zero_grad()

    def test_nan_gives_nan_and_harms_nobody(self, device):
        dense = torch.rand(1, 4, 5, 6, device=device)
        points = torch.tensor([[[torch.nan, 1.0], [2.0, 1.0]]], device=device)
        sampled = sample_descriptors(dense, points)
        assert sampled[0, 0].isnan().all()
        assert torch.equal(sampled[0, 1], F.normalize(dense[0, :, 1, 2], dim=0))

    def test_no_points(self, device, detector):
        assert detector.describe(photo_like(device, 2, 3, 32, 32), torch.zeros(2, 0, 2, device=device)).shape == (
            2,
            0,
            128,
        )

    def test_gradients_reach_the_points(self, device, detector):
        points = torch.tensor([[[5.3, 7.8]]], device=device, requires_grad=True)
        detector.describe(photo_like(device, 1, 3, 32, 32), points)[..., 0].sum().backward()
        assert points.grad.any()

    @pytest.mark.parametrize("shape", [(4, 2), (2, 4, 2), (1, 4, 3), (1, 4, 3, 2)])
    def test_exception(self, device, detector, shape):
        with pytest.raises(ValueError, match=r"keypoints must have shape \[B, N, 2\] or \[B, N, 2, 3\] with B = 1"):
            detector.describe(torch.rand(1, 3, 32, 32, device=device), torch.rand(shape, device=device))

    @pytest.mark.parametrize("convert", [lambda xy: xy > 0, lambda xy: xy + 0j])
    @pytest.mark.parametrize("shape", [(1, 4, 2), (1, 4, 2, 3)])
    def test_points_must_be_real_numbers(self, device, detector, convert, shape):
        points = convert(torch.rand(shape, device=device))
        with pytest.raises(TypeError, match=f"keypoints must be integers or floating point, got {points.dtype}"):
            detector.describe(torch.rand(1, 3, 32, 32, device=device), points)

    def test_arrays_are_refused(self, device, detector):
        with pytest.raises(TypeError, match="keypoints must be a tensor, got ndarray"):
            detector.describe(torch.rand(1, 3, 32, 32, device=device), np.zeros((1, 4, 2)))
