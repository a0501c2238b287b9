"""disk_ops.DISKDetector: every entry point, on every kind of image."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from comparing import assert_same_features, photo_like
from torch import nn

from disk_ops import DISKDetector, DISKFeatures
from disk_ops.model import UNet

IMAGE = torch.rand(1, 3, 32, 32)
SIZES = [(1, 1), (1, 40), (16, 16), (17, 33), (64, 48), (50, 90)]


@pytest.fixture(scope="module", params=[True, False], ids=["with gradients", "fused"])
def detector(request, device):
    """With gradients the network is PyTorch's layers, without them its fused blocks."""
    return DISKDetector.from_pretrained(device=device).requires_grad_(request.param)


@pytest.fixture(scope="module")
def invariant(device):
    return DISKDetector.from_pretrained(device=device, norm="valid")


class TestForward:
    @pytest.mark.parametrize("channels", [1, 3])
    @pytest.mark.parametrize("size", SIZES)
    def test_smoke(self, device, detector, channels, size):
        for features in detector(photo_like(device, 2, channels, *size)):
            n = features.n
            assert features.keypoints.shape == (n, 2) and features.keypoints.dtype == torch.float32
            assert features.descriptors.shape == (n, 128)
            assert features.detection_scores.shape == (n,)
            assert (features.x < size[1]).all() and (features.y < size[0]).all()
            torch.testing.assert_close(features.descriptors.norm(dim=-1), torch.ones(n, device=device))
            assert (features.detection_scores > 0).all()
            assert (features.detection_scores.diff() <= 0).all()

    @pytest.mark.parametrize(
        ("images", "arguments", "error", "message"),
        [
            (
                torch.rand(3, 32, 32),
                {},
                ValueError,
                r"images must have shape \[B, C, H, W\] with C 1 or 3, got \[3, 32, 32\]",
            ),
            (torch.rand(1, 4, 32, 32), {}, ValueError, r"C 1 or 3, got \[1, 4, 32, 32\]"),
            (
                torch.zeros(1, 3, 32, 32, dtype=torch.uint8),
                {},
                TypeError,
                r"floating point in \[0, 1\], got torch.uint8",
            ),
            (torch.rand(1, 3, 0, 32), {}, ValueError, r"at least 1×1 pixels, got \[1, 3, 0, 32\]"),
            (
                torch.rand(1, 3, 32, 32).double(),
                {},
                TypeError,
                r"detector's dtype \(torch.float32\), got torch.float64",
            ),
            (torch.rand(1, 3, 32, 40), {"pad_if_not_divisible": False}, ValueError, r"divisible by 16, got \[32, 40\]"),
            (torch.rand(1, 3, 32, 32), {"n": 0}, ValueError, "n must be a positive integer or None, got 0"),
            (
                torch.rand(1, 3, 32, 32),
                {"window_size": 2},
                ValueError,
                "window_size must be an odd positive integer, got 2",
            ),
            (torch.rand(1, 3, 32, 32), {"border": -1}, ValueError, "border must be 0 or more pixels, got -1"),
            (
                torch.rand(1, 3, 32, 32),
                {"mask": torch.ones(1, 1, 32, 31)},
                ValueError,
                r"mask must have shape \[1, 1, 32, 32\]",
            ),
            (
                torch.rand(1, 3, 32, 32),
                {"image_size": torch.tensor([[33, 5]])},
                ValueError,
                r"between 1 and \[32, 32\]",
            ),
            (
                torch.rand(1, 3, 32, 32),
                {"image_size": torch.tensor([33, 5])},
                ValueError,
                r"image_size must have shape \[1, 2\]",
            ),
            (
                torch.rand(1, 3, 32, 32),
                {"image_size": torch.tensor([[32, 32]]), "n": 0},
                ValueError,
                "n must be a positive integer or None, got 0",
            ),
            (
                torch.rand(1, 3, 32, 32),
                {"image_size": torch.tensor([[32, 32]]), "n": 5, "window_size": -1, "border": 2},
                ValueError,
                "window_size must be an odd positive integer, got -1",
            ),
            (torch.rand(1, 3, 32, 32), {"image_size": torch.ones(1, 2)}, TypeError, "image_size must hold integers"),
            (np.zeros((1, 3, 32, 32), np.float32), {}, TypeError, "images must be a tensor, got ndarray"),
            (IMAGE, {"mask": np.ones((1, 1, 32, 32), bool)}, TypeError, "mask must be a tensor, got ndarray"),
            (IMAGE, {"image_size": np.array([[32, 32]])}, TypeError, "image_size must be a tensor, got ndarray"),
            (IMAGE, {"n": "3"}, TypeError, "n must be an integer, got str '3'"),
            (IMAGE, {"window_size": "5"}, TypeError, "window_size must be an integer, got str '5'"),
            (IMAGE, {"score_threshold": "a"}, TypeError, "score_threshold must be a number, got str 'a'"),
            (IMAGE, {"border": "2"}, TypeError, "border must be an integer, got str '2'"),
            (IMAGE, {"statistics": "some"}, ValueError, "statistics must be 'exact' or 'sampled', got 'some'"),
        ],
    )
    def test_exception(self, device, detector, images, arguments, error, message):
        with pytest.raises(error, match=message):
            detector(images.to(device) if torch.is_tensor(images) else images, **arguments)

    def test_exception_of_the_constructor(self):
        with pytest.raises(ValueError, match="desc_dim must be a positive integer, got 0"):
            DISKDetector(desc_dim=0)
        with pytest.raises(TypeError, match=r"desc_dim must be an integer, got float 1\.5"):
            DISKDetector(1.5)
        with pytest.raises(ValueError, match="norm must be 'instance' or 'valid', got 'batch'"):
            DISKDetector(norm="batch")
        with pytest.raises(ValueError, match=r"norm=.valid. needs the network of disk_ops\.model"):
            DISKDetector(unet=nn.Conv2d(3, 129, 1), norm="valid")

    @pytest.mark.parametrize("batch", [0, 1, 3])
    @pytest.mark.parametrize("n", [None, 1, 50])
    def test_cardinality(self, device, detector, batch, n):
        features = detector(photo_like(device, batch, 3, 64, 48), n)
        assert len(features) == batch
        assert all(n is None or f.n == min(n, f.n) for f in features)

    def test_feature(self, device, detector):
        """The definition, composed of the dense maps."""
        images = photo_like(device, 2, 3, 64, 80)
        heatmap, descriptors = detector.heatmap_and_dense_descriptors(images)
        for b, features in enumerate(detector(images, n=40)):
            x, y = features.x.long(), features.y.long()
            rounding = 1e-5 * float(heatmap.detach().abs().max())  # sums of the same products in another order
            torch.testing.assert_close(features.detection_scores, heatmap[b, 0, y, x], rtol=0, atol=rounding)
            torch.testing.assert_close(features.descriptors, F.normalize(descriptors[b, :, y, x].T, dim=-1))
            highest = F.max_pool2d(heatmap[b], 5, 1, 2)[0]
            torch.testing.assert_close(features.detection_scores, highest[y, x], rtol=0, atol=rounding)

    def test_best_come_first_and_fewer_are_a_prefix(self, device, detector):
        images = photo_like(device, 1, 3, 96, 96)
        every, some = detector(images)[0], detector(images, n=10)[0]
        assert_same_features(detector(images, n=10**15)[0], every)  # takes no memory for features that can't be
        assert every.n > 10
        assert torch.equal(some.keypoints, every.keypoints[:10])
        assert torch.equal(some.descriptors, every.descriptors[:10])

    def test_uniform_images_are_legal(self, device, detector):
        for value in (0.0, 1.0):
            features = detector(torch.full((1, 3, 64, 64), value, device=device), n=10, score_threshold=1e3)[0]
            assert features.n == 0
            assert features.keypoints.shape == (0, 2) and features.descriptors.shape == (0, 128)

    def test_border(self, device, detector):
        images = photo_like(device, 1, 3, 64, 64)
        for border, expected in ((None, 2), (0, 0), (9, 9)):
            keypoints = detector(images, score_threshold=-1e3, border=border)[0].keypoints
            assert keypoints.min() >= expected and keypoints.max() <= 63 - expected
        assert detector(images, score_threshold=-1e3, window_size=9)[0].keypoints.min() >= 4
        assert detector(images, score_threshold=-1e3, border=0)[0].keypoints.min() == 0

    @pytest.mark.parametrize("convert", [lambda m: m, lambda m: m.float(), lambda m: m.to(torch.uint8) * 255])
    def test_mask(self, device, detector, convert):
        images = photo_like(device, 2, 3, 64, 64)
        mask = torch.zeros(2, 1, 64, 64, dtype=torch.bool, device=device)
        mask[0, 0, :, 20:40] = True
        masked, empty = detector(images, mask=convert(mask))
        assert masked.n > 0 and ((masked.x >= 20) & (masked.x < 40)).all()
        assert empty.n == 0

    def test_one_channel_is_grey(self, device, detector):
        grey = photo_like(device, 1, 1, 48, 48)
        assert_same_features(detector(grey)[0], detector(grey.expand(-1, 3, -1, -1))[0])

    def test_padding_is_cropped_back(self, device, detector):
        images = photo_like(device, 1, 3, 50, 70)
        padded = F.pad(images, (0, 10, 0, 14))
        heatmap, descriptors = detector.heatmap_and_dense_descriptors(images)
        full_heatmap, full_descriptors = detector.heatmap_and_dense_descriptors(padded)
        assert heatmap.shape == (1, 1, 50, 70) and descriptors.shape == (1, 128, 50, 70)
        torch.testing.assert_close(heatmap, full_heatmap[..., :50, :70])
        torch.testing.assert_close(descriptors, full_descriptors[..., :50, :70])

    def test_custom_unet(self, device):
        detector = DISKDetector(desc_dim=4, unet=nn.Conv2d(3, 5, 3, padding=1)).to(device)
        assert detector(photo_like(device, 1, 3, 32, 32))[0].descriptors.shape[1] == 4
        half_size = nn.Conv2d(3, 5, 1, stride=2)
        with pytest.raises(ValueError, match=r"unet must keep the size of the images \[32, 32\], got \[16, 16\]"):
            DISKDetector(desc_dim=4, unet=half_size).to(device)(torch.rand(1, 3, 32, 32, device=device))
        with pytest.raises(TypeError, match=r"unet must be an nn\.Module, got function"):
            DISKDetector(unet=lambda x: x)
        infrared = DISKDetector(desc_dim=4, unet=UNet(in_channels=4, desc_dim=4)).to(device)
        assert len(infrared(torch.rand(2, 4, 32, 32, device=device))) == 2
        with pytest.raises(ValueError, match="unet must give desc_dim \\+ 1 = 9 channels, got 5"):
            DISKDetector(desc_dim=8, unet=nn.Conv2d(3, 5, 1)).to(device)(torch.rand(1, 3, 32, 32, device=device))

    def test_gradients_reach_all_weights(self, device):
        detector = DISKDetector.from_pretrained(device=device)
        features = detector(photo_like(device, 1, 3, 48, 64), n=20)[0]
        (features.detection_scores.sum() + features.descriptors[:, 0].sum()).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in detector.parameters())
        assert all(p.grad.any() for name, p in detector.named_parameters() if name.endswith("3.weight"))

    def test_gradcheck(self, device):
        torch.manual_seed(2)
        detector = DISKDetector(desc_dim=2).to(device).double()
        images = photo_like(device, 1, 3, 16, 32).double().requires_grad_()
        points = torch.tensor([[[3.0, 4.0], [7.25, 11.5]]], device=device, dtype=torch.float64)
        assert torch.autograd.gradcheck(lambda x: detector.describe(x, points), (images,), fast_mode=True)

    def test_generators_of_a_draw(self, device, detector):
        for generator in (3, [3], "x"):
            with pytest.raises(TypeError, match=r"generator must be a torch\.Generator, a sequence of them or None"):
                detector.sample(IMAGE.to(device), generator)


class TestNormValid:
    def test_image_alone_and_in_a_padded_batch(self, device, invariant):
        small, large = photo_like(device, 1, 3, 60, 77), photo_like(device, 1, 3, 96, 112)
        batch = torch.rand(2, 3, 96, 112, device=device)  # what lies in the padding must not matter
        batch[0, :, :60, :77], batch[1] = small[0], large[0]
        together = invariant(batch, n=40, image_size=torch.tensor([[77, 60], [112, 96]]))
        assert_same_features(together[0], invariant(small, n=40)[0])
        assert_same_features(together[1], invariant(large, n=40)[0])

    def test_masked_pixels_have_no_influence(self, device, invariant):
        images = photo_like(device, 1, 3, 64, 64)
        mask = torch.ones(1, 1, 64, 64, dtype=torch.bool, device=device)
        mask[..., 20:40, 30:64] = False
        other = torch.where(mask, images, torch.rand_like(images) * 100)
        assert_same_features(invariant(images, mask=mask)[0], invariant(other, mask=mask)[0])

    @pytest.mark.parametrize("hidden", [(slice(2), slice(None)), (slice(None), slice(16)), (slice(20, 30), slice(9))])
    def test_gradients_with_a_mask_are_finite(self, device, hidden):
        detector = DISKDetector.from_pretrained(device=device, norm="valid")
        images = photo_like(device, 1, 3, 48, 48).requires_grad_()
        mask = torch.ones(1, 1, 48, 48, dtype=torch.bool, device=device)
        mask[:, :, hidden[0], hidden[1]] = False
        features = detector.forward_padded(images, 8, mask=mask)
        (features.scores.sum() + features.descriptors[..., 0].sum()).backward()
        assert all(p.grad.isfinite().all() for p in detector.parameters())
        assert images.grad.isfinite().all() and not images.grad.masked_fill(mask, 0).any()

    def test_equals_default_where_nothing_is_padded(self, device, detector, invariant):
        images = photo_like(device, 1, 3, 64, 80)
        assert_same_features(invariant(images, n=50)[0], detector(images, n=50)[0])

    def test_image_size_alone_keeps_to_the_images(self, device, detector):
        images = photo_like(device, 2, 3, 64, 64)
        small, full = detector(images, image_size=torch.tensor([[30, 20], [64, 64]]))
        assert small.n > 0 and small.x.max() <= 27 and small.y.max() <= 17 and full.x.max() > 30
        padded = detector.forward_padded(images, 200, image_size=torch.tensor([[30, 20], [64, 64]]))
        assert padded.keypoints.shape == (2, 200, 2) and padded.valid.sum(1).tolist() == [small.n, full.n]


class TestOtherForms:
    def test_forward_padded(self, device, detector):
        images = photo_like(device, 2, 3, 64, 64)
        images[1] = 0
        padded = detector.forward_padded(images, 60, score_threshold=0.2)
        assert padded.keypoints.shape == (2, 60, 2) and padded.descriptors.shape == (2, 60, 128)
        assert padded.scores.shape == padded.valid.shape == (2, 60)
        for features, expected in zip(padded.unpad(), detector(images, 60, score_threshold=0.2), strict=True):
            assert torch.equal(features.keypoints, expected.keypoints)
            assert torch.equal(features.descriptors, expected.descriptors)
        assert not padded.descriptors[~padded.valid].any() and not padded.keypoints[~padded.valid].any()

    def test_a_broken_image_of_a_batch_stays_alone(self, device, detector):
        images = photo_like(device, 2, 3, 48, 48)
        expected = detector.forward_padded(images, 30)
        images[0, 0, 0, 0] = torch.nan
        padded = detector.forward_padded(images, 30)
        assert not padded.valid[0].any() and not padded.descriptors[0].any() and not padded.scores[0].any()
        torch.testing.assert_close(padded.descriptors[1], expected.descriptors[1])

    def test_forward_laf(self, device, detector):
        images = photo_like(device, 2, 1, 64, 64)
        mask = torch.ones(2, 1, 64, 64, device=device)
        mask[1, :, 30:] = 0
        lafs, responses, descriptors = detector.forward_laf(images, mask, n=50)
        features = detector(images, 50, mask=mask)
        assert lafs.shape == (2, 50, 2, 3) and responses.shape == (2, 50, 1) and descriptors.shape == (2, 50, 128)
        for b, f in enumerate(features):
            assert torch.equal(lafs[b, : f.n, :, 2], f.keypoints)
            assert torch.equal(lafs[b, : f.n, :, :2], torch.eye(2, device=device).expand(f.n, 2, 2))
            assert torch.equal(responses[b, : f.n, 0], f.detection_scores)
            assert not lafs[b, f.n :].any() and not responses[b, f.n :].any() and not descriptors[b, f.n :].any()

    def test_forward_laf_of_nothing(self, device, detector):
        lafs, responses, descriptors = detector.forward_laf(
            torch.zeros(2, 3, 32, 32, device=device), score_threshold=1e3
        )
        assert lafs.shape == (2, 0, 2, 3) and responses.shape == (2, 0, 1) and descriptors.shape == (2, 0, 128)

    def test_detect_and_describe_are_forward_laf(self, device, detector):
        images = photo_like(device, 1, 3, 64, 64)
        lafs, responses = detector.detect(images, n=30)
        descriptors = detector.describe(images, lafs)
        expected = detector.forward_laf(images, n=30)
        assert torch.equal(lafs, expected[0])  # the maps that it reads are rounded in another way
        torch.testing.assert_close(responses, expected[1][..., 0], rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(descriptors, expected[2], rtol=1e-5, atol=1e-5)

    def test_features_keep_pixels_when_halved(self, device, detector):
        features = DISKFeatures(
            torch.tensor([[4097.0, 257.0]], device=device),
            torch.rand(1, 8, device=device),
            torch.rand(1, device=device),
        )
        halved = features.to(torch.bfloat16)
        assert halved.keypoints.tolist() == [[4097.0, 257.0]] and halved.descriptors.dtype == torch.bfloat16
        assert features.to(torch.float64).keypoints.dtype == torch.float64


class TestAsModule:
    def test_copies_are_equal(self, device, detector):
        images = photo_like(device, 1, 3, 48, 48)
        buffer = io.BytesIO()
        torch.save(detector, buffer)
        buffer.seek(0)
        copies = [
            copy.deepcopy(detector),
            pickle.loads(pickle.dumps(detector)),
            torch.load(buffer, weights_only=False),
        ]
        fresh = DISKDetector().to(device)
        fresh.load_state_dict(detector.state_dict())
        fresh.requires_grad_(next(detector.parameters()).requires_grad)
        for other in (*copies, fresh.eval()):
            assert torch.equal(other(images)[0].descriptors, detector(images)[0].descriptors)

    def test_no_global_state_is_touched(self, device):
        before = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(), torch.get_rng_state())
        detector = DISKDetector.from_pretrained(device=device)
        state = torch.get_rng_state()
        detector(photo_like(device, 1, 3, 32, 32).detach())
        after = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads())
        assert after == before[:3]
        del state

    def test_training_mode_gives_the_same(self, device, detector):
        images = photo_like(device, 1, 3, 48, 48)
        trained = copy.deepcopy(detector).train()
        assert torch.equal(trained(images)[0].keypoints, detector(images)[0].keypoints)

    def test_channels_last(self, device, detector):
        images = photo_like(device, 2, 3, 64, 48)
        ours = detector(images.to(memory_format=torch.channels_last), n=30)
        for a, b in zip(ours, detector(images, n=30), strict=True):
            assert_same_features(a, b)

    def test_float64(self, device, detector):
        images = photo_like(device, 1, 3, 64, 64)
        double = copy.deepcopy(detector).double()
        features = double(images.double(), n=40)[0]
        assert features.keypoints.dtype == features.descriptors.dtype == torch.float64
        assert_same_features(features.to(torch.float32), detector(images, n=40)[0])

    def test_other_device_is_an_error(self, detector):
        meta = torch.empty(1, 3, 32, 32, device="meta")
        with pytest.raises(ValueError, match=r"images must be on the detector's device \(.*\), got meta"):
            detector(meta)
