"""DISKFeatures outside of PyTorch: arrays and OpenCV's keypoints."""

from __future__ import annotations

import cv2
import numpy as np
import torch

from disk_ops import DISKFeatures


def features(n: int = 3, dtype: torch.dtype = torch.float32) -> DISKFeatures:
    return DISKFeatures(
        torch.arange(2.0 * n).reshape(n, 2) * 1.5,
        torch.nn.functional.normalize(torch.randn(n, 8), dim=1).to(dtype),
        torch.linspace(5, 1, n).to(dtype),
    )


def test_keypoints_of_opencv() -> None:
    found = features()
    keypoints = found.to_cv_keypoints()
    assert [keypoint.pt for keypoint in keypoints] == [(0.0, 1.5), (3.0, 4.5), (6.0, 7.5)]
    assert [keypoint.response for keypoint in keypoints] == [5, 3, 1]
    assert all(keypoint.size == 1 and keypoint.angle == -1 and keypoint.class_id == -1 for keypoint in keypoints)
    assert features().to_cv_keypoints(size=7)[0].size == 7
    assert features(0).to_cv_keypoints() == []


def test_opencv_has_the_same_pixel_centres() -> None:
    """A dot at pixel (20, 11) is found there by OpenCV, so a keypoint of ours at (20, 11) is the same point."""
    image = np.zeros((40, 50), np.uint8)
    image[11, 20] = 255
    (keypoint,) = cv2.FastFeatureDetector_create(50).detect(image)
    ours = DISKFeatures(torch.tensor([[20.0, 11.0]]), torch.ones(1, 1), torch.ones(1)).to_cv_keypoints()[0]
    assert keypoint.pt == ours.pt


def test_they_match_in_opencv() -> None:
    one, two = features(20), features(20)
    two.descriptors = one.descriptors.flip(0)
    matches = cv2.BFMatcher(cv2.NORM_L2, crossCheck=True).match(one.numpy().descriptors, two.numpy().descriptors)
    assert sorted((match.queryIdx, match.trainIdx) for match in matches) == [(i, 19 - i) for i in range(20)]


def test_arrays() -> None:
    found = features(4, torch.bfloat16)
    found.descriptors.requires_grad_()
    keypoints, descriptors, scores = found.numpy()
    assert all(array.dtype == np.float32 for array in (keypoints, descriptors, scores))
    assert keypoints.shape == (4, 2) and descriptors.shape == (4, 8) and scores.shape == (4,)
    np.testing.assert_array_equal(keypoints, found.keypoints.numpy())
