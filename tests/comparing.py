"""Images to detect features in, and comparisons of features that don't mind the order of near ties."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from disk_ops import DISKFeatures


def photo_like(device, *shape):
    """Smooth random images, on which the network finds structure."""
    coarse = torch.rand(shape[0], shape[1], -(-shape[2] // 4), -(-shape[3] // 4))
    return F.interpolate(coarse, size=shape[2:], mode="bilinear", align_corners=False).to(device)


def as_sets(features: list[DISKFeatures]) -> list[set[tuple[float, ...]]]:
    return [{tuple(xy) for xy in f.keypoints.tolist()} for f in features]


def assert_same_features(ours: DISKFeatures, other: DISKFeatures, atol: float = 1e-4) -> None:
    """Equal keypoint by keypoint, though near ties may come in another order."""
    assert as_sets([ours]) == as_sets([other])
    order = {tuple(xy): i for i, xy in enumerate(other.keypoints.tolist())}
    index = [order[tuple(xy)] for xy in ours.keypoints.tolist()]
    torch.testing.assert_close(ours.detection_scores, other.detection_scores[index], rtol=1e-4, atol=atol)
    torch.testing.assert_close(ours.descriptors, other.descriptors[index], rtol=1e-4, atol=atol)
