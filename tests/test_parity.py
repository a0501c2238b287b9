"""The same features as kornia.feature.DISK with the same weights, on real photographs."""

from __future__ import annotations

import cv2
import pytest
import torch

from disk_ops import DISKDetector

KF = pytest.importorskip("kornia.feature")

PHOTOGRAPHS = [
    "homography/oxford_affine/graf/img1.png",
    "homography/oxford_affine/bark/img3.png",
    "homography/hpatches/v_churchill/1.png",
    "pose/strecha/castle-P30/images/0010.jpg",
    "depth/middlebury_motorcycle/motorcycle_left.png",
]


@pytest.fixture(scope="module")
def detectors(device):
    ours = DISKDetector.from_pretrained("start", device)
    theirs = KF.DISK().to(device).eval()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def read(shared_data, name, device):
    candidates = [shared_data / name, *sorted((shared_data / name).parent.glob("*.[jp][pn]g"))]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        pytest.skip(f"{name} is not in ../shared/data")
    pixels = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)[:400, :500]
    return torch.from_numpy(pixels).to(device).permute(2, 0, 1)[None] / 255


@pytest.mark.parametrize(
    ("name", "n", "window_size", "threshold"),
    [
        (PHOTOGRAPHS[0], 2048, 5, 0.0),
        (PHOTOGRAPHS[1], 500, 5, 0.0),
        (PHOTOGRAPHS[2], None, 3, 0.0),
        (PHOTOGRAPHS[3], 300, 9, 1.0),
        (PHOTOGRAPHS[4], None, 5, 0.0),
    ],
)
def test_features_are_kornias(shared_data, device, detectors, name, n, window_size, threshold):
    images = read(shared_data, name, device)
    ours, theirs = detectors
    with torch.inference_mode():
        mine = ours(images, n, window_size, threshold)[0]
        reference = theirs(images, n, window_size, threshold, pad_if_not_divisible=True)[0]
    assert mine.n == reference.n > 100
    raster = (mine.y * images.shape[3] + mine.x).argsort()  # kornia's order
    assert torch.equal(mine.keypoints[raster], reference.keypoints)
    torch.testing.assert_close(mine.detection_scores[raster], reference.detection_scores, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine.descriptors[raster], reference.descriptors, rtol=1e-5, atol=1e-5)


def test_differs_only_where_kornia_has_no_plateaus_and_no_border(shared_data, device, detectors):
    images = read(shared_data, PHOTOGRAPHS[0], device)
    ours, _ = detectors
    with torch.inference_mode():
        inner, every = ours(images)[0], ours(images, border=0)[0]
    near_edge = (every.keypoints < 2).any(1) | (every.x >= images.shape[3] - 2) | (every.y >= images.shape[2] - 2)
    assert near_edge.any()
    assert torch.equal(every.keypoints[~near_edge], inner.keypoints)
