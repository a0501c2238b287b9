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
    ours = DISKDetector.from_pretrained(device=device)
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


def same_pixels(first, second):
    """How many keypoints are in both, and where they stand in each, in the same order."""
    places = [{tuple(xy): i for i, xy in enumerate(keypoints.tolist())} for keypoints in (first, second)]
    common = [xy for xy in places[0] if xy in places[1]]
    return len(common), *([place[xy] for xy in common] for place in places)


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
    # Both have rounding errors: of two maxima that are equal to rounding, each may take another one.
    common, mine_too, theirs_too = same_pixels(mine.keypoints, reference.keypoints)
    assert common > 100 and common >= 0.999 * max(mine.n, reference.n)
    scores, expected = mine.detection_scores[mine_too], reference.detection_scores[theirs_too]
    torch.testing.assert_close(scores, expected, rtol=0, atol=5e-6 * float(reference.detection_scores.max()))
    torch.testing.assert_close(mine.descriptors[mine_too], reference.descriptors[theirs_too], rtol=1e-5, atol=1e-5)


def test_differs_only_where_kornia_has_no_plateaus_and_no_border(shared_data, device, detectors):
    images = read(shared_data, PHOTOGRAPHS[0], device)
    ours, _ = detectors
    with torch.inference_mode():
        inner, every = ours(images)[0], ours(images, border=0)[0]
    near_edge = (every.keypoints < 2).any(1) | (every.x >= images.shape[3] - 2) | (every.y >= images.shape[2] - 2)
    assert near_edge.any()
    assert torch.equal(every.keypoints[~near_edge], inner.keypoints)


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_rounding_errors_are_no_larger_than_kornias(shared_data, device, detectors, name):
    """Against the same network in float64."""
    if device.type == "mps":
        pytest.skip("mps has no float64")
    images = read(shared_data, name, device)[..., :384, :496]
    ours, theirs = detectors
    with torch.inference_mode():
        exact, _ = DISKDetector.from_pretrained(device=device).double().heatmap_and_dense_descriptors(images.double())
        mine, _ = ours.unet.heads(images)
        reference, _ = theirs.heatmap_and_dense_descriptors(images)
    error, usual = (float((heatmap - exact).abs().max()) for heatmap in (mine, reference))
    assert error < max(usual, 2e-6 * float(exact.abs().max()))
