"""disk_ops inside kornia: every contract that kornia's own local features fulfil."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from disk_ops import DISKDescriptors, DISKDetector, DISKKeypoints, DISKLocalFeature, MutualNearestNeighbor, NMSTopK

kornia = pytest.importorskip("kornia")
KF = pytest.importorskip("kornia.feature")


@pytest.fixture(scope="module")
def detector(device):
    return DISKDetector.from_pretrained(device=device)


@pytest.fixture
def image(device):
    return F.interpolate(torch.rand(1, 3, 24, 32), scale_factor=5, mode="bicubic").clamp(0, 1).to(device)


def test_drop_in_for_kornias_disk(device, detector, image):
    """The same call, the same fields; the order alone is ours (best first)."""
    disk = KF.DISK().to(device).eval()
    disk.load_state_dict(detector.state_dict())
    ours, theirs = detector(image, n=100)[0], disk(image, n=100, pad_if_not_divisible=True)[0]
    assert ours.n == theirs.n and {*map(tuple, ours.keypoints.tolist())} == {*map(tuple, theirs.keypoints.tolist())}
    assert {name for name in vars(theirs)} <= {name for name in vars(ours)}
    assert ours.keypoints.dtype == theirs.keypoints.dtype and ours.to("cpu").device == torch.device("cpu")


def test_local_feature(detector, image):
    """Detector and descriptor halves share one pass and give what forward_laf gives, to rounding."""
    passes = []
    hook = detector.unet.register_forward_hook(lambda *_: passes.append(1))
    keypoints = DISKKeypoints(detector, n=50)
    lafs, responses, descriptors = KF.LocalFeature(keypoints, DISKDescriptors(keypoints))(image)
    hook.remove()
    expected = detector.forward_laf(image, n=50)
    assert len(passes) == 1
    assert torch.equal(lafs, expected[0])
    torch.testing.assert_close(responses, expected[1][..., 0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(descriptors, expected[2])


def test_local_feature_with_mask(device, detector, image):
    mask = torch.zeros(1, 1, *image.shape[2:], device=device)
    mask[..., :60] = 1
    keypoints = DISKKeypoints(detector, n=50)
    lafs, _, _ = KF.LocalFeature(keypoints, DISKDescriptors(keypoints))(image, mask)
    assert KF.get_laf_center(lafs)[..., 0].max() < 60


def test_local_feature_describes_under_the_mask(device, image):
    invariant = DISKDetector.from_pretrained(device=device, norm="valid")
    mask = torch.zeros(1, 1, *image.shape[2:], device=device)
    mask[..., :60] = 1
    keypoints = DISKKeypoints(invariant, n=50)
    _, _, descriptors = KF.LocalFeature(keypoints, DISKDescriptors(keypoints))(image, mask)
    torch.testing.assert_close(descriptors, invariant.forward_laf(image, mask, n=50)[2])


def test_describing_another_image_takes_a_pass_of_its_own(device, detector, image):
    keypoints = DISKKeypoints(detector, n=20)
    descriptors = DISKDescriptors(keypoints)
    lafs, _ = keypoints(image)
    other = image.flip(3)
    assert torch.equal(descriptors(other, lafs), detector.describe(other, lafs))
    assert torch.equal(descriptors(image, lafs), detector.describe(image, lafs))  # not the pass handed over before
    copied = copy.deepcopy(keypoints)
    assert torch.equal(copied(image)[0], lafs)


@pytest.mark.parametrize("seen", [True, False], ids=["the image seen last", "another image"])
def test_frames_that_are_none(detector, image, seen):
    keypoints = DISKKeypoints(detector, n=8)
    descriptors = DISKDescriptors(keypoints)
    for lafs, error in ((torch.rand(2, 8, 2, 3), ValueError), (torch.ones(1, 8, 2, 3) > 0, TypeError)):
        if seen:
            keypoints(image)
        with pytest.raises(error, match=r"(lafs|keypoints) must "):
            descriptors(image, lafs.to(image.device))


def test_wrong_arguments_are_named_when_a_feature_is_made(detector):
    with pytest.raises(TypeError, match="n must be an integer, got str '3'"):
        DISKLocalFeature(detector, n="3")
    with pytest.raises(ValueError, match="window_size must be an odd positive integer, got 4"):
        DISKKeypoints(detector, window_size=4)


def test_local_feature_with_larger_lafs(detector, image):
    keypoints = DISKKeypoints(detector, n=20)
    lafs, _, descriptors = KF.LocalFeature(keypoints, DISKDescriptors(keypoints), 6.0)(image)
    assert torch.equal(KF.get_laf_scale(lafs), torch.full((1, 20, 1, 1), 6.0, device=image.device))
    torch.testing.assert_close(descriptors, detector.forward_laf(image, n=20)[2])


@pytest.mark.parametrize(
    "matcher",
    [MutualNearestNeighbor(), MutualNearestNeighbor(0.95), KF.DescriptorMatcher("mnn")],
    ids=["mnn", "ratio", "kornia"],
)
def test_local_feature_matcher(device, detector, image, matcher):
    shifted = image.roll((3, -7), (2, 3))
    batch0 = torch.cat([image, torch.zeros_like(image)])  # the second pair has nothing to match
    batch1 = torch.cat([shifted, image])
    local_feature = DISKLocalFeature(detector, n=100, score_threshold=0.5)
    result = KF.LocalFeatureMatcher(local_feature, matcher)({"image0": batch0, "image1": batch1})
    mine = result["batch_indexes"] == 0
    moved = result["keypoints1"][mine] - result["keypoints0"][mine]
    correct = (moved - torch.tensor([-7.0, 3.0], device=device)).norm(dim=-1) < 1.5
    assert mine.sum() > 20 and correct.float().mean() > 0.5
    assert set(result) >= {"keypoints0", "keypoints1", "lafs0", "lafs1", "confidence", "batch_indexes"}


def test_local_feature_matcher_finds_nothing(device, detector):
    blank = torch.zeros(1, 1, 32, 32, device=device)
    local_feature = DISKLocalFeature(detector, score_threshold=1e3)
    result = KF.LocalFeatureMatcher(local_feature, MutualNearestNeighbor())({"image0": blank, "image1": blank})
    assert result["keypoints0"].shape == (0, 2)


def test_image_stitcher(device, detector):
    from kornia.contrib import ImageStitcher

    torch.manual_seed(1)
    scene = F.interpolate(torch.rand(1, 3, 30, 50), scale_factor=6, mode="bicubic").clamp(0, 1).to(device)
    matcher = KF.LocalFeatureMatcher(DISKLocalFeature(detector, n=300), MutualNearestNeighbor())
    stitched = ImageStitcher(matcher, estimator="ransac")(scene[..., :200], scene[..., 90:290])
    assert stitched.shape[2] == 180 and stitched.shape[3] > 200 and stitched.isfinite().all()


def test_homography_tracker(device, detector, image):
    matcher = KF.LocalFeatureMatcher(DISKLocalFeature(detector, n=200), MutualNearestNeighbor())
    tracker = kornia.tracking.HomographyTracker(matcher, matcher, minimum_inliers_num=15)
    tracker.set_target(image)
    homography, found = tracker(image.roll((4, 6), (2, 3)))
    assert found and homography.isfinite().all()


def test_light_glue_matcher(device, detector, image):
    """Random weights: the contract of shapes and ranges, not the quality."""
    matcher = object.__new__(KF.LightGlueMatcher)
    nn.Module.__init__(matcher)
    matcher.feature_name, matcher.params = "disk", {}
    matcher.matcher = KF.LightGlue(None, input_dim=128, n_layers=2, filter_threshold=0.0).to(device).eval()
    lafs, _, descriptors = detector.forward_laf(image, n=40)
    hw = image.shape[2:]
    scores, idxs = matcher(descriptors[0], descriptors[0], lafs, lafs, hw1=hw, hw2=hw)
    assert scores.shape == (len(idxs), 1) and idxs.shape[1] == 2
    nothing, _ = matcher(descriptors[0, :0], descriptors[0], lafs[:, :0], lafs, hw1=hw, hw2=hw)
    assert len(nothing) == 0


def test_after_augmentation(device, detector, image):
    augment = kornia.augmentation.AugmentationSequential(
        kornia.augmentation.RandomAffine(15.0, p=1.0), kornia.augmentation.ColorJitter(0.2, 0.2, 0.2, 0.1, p=1.0)
    )
    features = detector(augment(image.expand(2, -1, -1, -1)), n=30)
    assert len(features) == 2 and all(f.n > 0 for f in features)


def test_in_sequential(device, detector, image):
    resize = kornia.augmentation.Resize((64, 96))
    assert nn.Sequential(resize, detector)(image)[0].n > 0
    maxima = nn.Sequential(kornia.filters.GaussianBlur2d((5, 5), (1.0, 1.0)), NMSTopK(n=20))(image[:, :1])
    assert maxima.keypoints.shape == (1, 20, 2)


def test_kornias_ransac_takes_the_matches(device, detector, image):
    shifted = image.roll((4, 6), (2, 3))
    first, second = detector(image, n=200)[0], detector(shifted, n=200)[0]
    _, idxs = MutualNearestNeighbor()(first.descriptors, second.descriptors)
    torch.manual_seed(0)
    homography, inliers = kornia.geometry.RANSAC("homography", inl_th=1.5)(
        first.keypoints[idxs[:, 0]], second.keypoints[idxs[:, 1]]
    )
    expected = torch.tensor([[1.0, 0, 6], [0, 1, 4], [0, 0, 1]], device=device)
    assert inliers.sum() > 30
    torch.testing.assert_close(homography / homography[2, 2], expected, rtol=0.02, atol=0.5)
