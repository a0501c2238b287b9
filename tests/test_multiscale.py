"""disk_ops.MultiscaleDetector: the best features of an image at several sizes, at their places in the image."""

from __future__ import annotations

import copy
from fractions import Fraction

import kornia.feature as KF
import pytest
import torch
import torch.nn.functional as F
from comparing import photo_like
from torch import Tensor

from disk_ops import (
    DISKDetector,
    DISKKeypoints,
    DISKLocalFeature,
    MultiscaleDetector,
    MutualNearestNeighbor,
    PaddedFeatures,
)
from disk_ops.demo import IMAGES
from disk_ops.io.images import read_image, to_rgb_float
from disk_ops.model import UNet
from disk_ops.multiscale import SCALES, at_scales


@pytest.fixture(scope="module")
def detector(device) -> DISKDetector:
    return DISKDetector.from_pretrained(device=device)


@pytest.fixture
def images(device) -> Tensor:
    return photo_like(device, 2, 3, 83, 131)


def resized(images: Tensor, scale: float) -> Tensor:
    size = (round(images.shape[2] * scale), round(images.shape[3] * scale))
    return F.interpolate(images, size, mode="bilinear", antialias=True)


@torch.inference_mode()
def expected_at(detector: DISKDetector, images: Tensor, scale: float) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Keypoints, in float64, scores and descriptors: what is found in the resized images, moved to its place."""
    small = resized(images, scale)
    zoom = torch.tensor([images.shape[3] / small.shape[3], images.shape[2] / small.shape[2]], dtype=torch.float64)
    edge = torch.tensor([images.shape[3] - 1.0, images.shape[2] - 1.0], dtype=torch.float64)
    return [
        (
            ((found.keypoints.double().cpu() + 0.5) * zoom - 0.5).clamp(torch.zeros(2).double(), edge),
            found.detection_scores,
            found.descriptors,
        )
        for found in detector(small)
    ]


class TestFeatures:
    def test_smoke_and_shapes(self, detector, images) -> None:
        features = MultiscaleDetector(detector)(images, n=40)
        assert [tuple(found.keypoints.shape) for found in features] == [(40, 2), (40, 2)]
        assert features[0].descriptors.shape == (40, 128) and features[0].detection_scores.shape == (40,)
        assert MultiscaleDetector(detector)(images[:0]) == []

    def test_the_scale_1_is_the_detector(self, detector, images) -> None:
        once = MultiscaleDetector(detector, [1])
        for mine, other in zip(once(images, n=50), detector(images, n=50), strict=True):
            assert torch.equal(mine.keypoints, other.keypoints)
            assert torch.equal(mine.descriptors, other.descriptors)
        for ours, theirs in zip(once.forward_laf(images), detector.forward_laf(images), strict=True):
            assert torch.equal(ours, theirs)
        assert at_scales(detector, (1.0,)) is detector
        assert isinstance(at_scales(detector, (1.0, 0.5)), MultiscaleDetector)

    @pytest.mark.parametrize("scale", [0.5, 0.71, 0.3, 1.6])
    def test_are_those_of_the_resized_image_at_their_places(self, detector, images, scale) -> None:
        found = MultiscaleDetector(detector, [scale])(images)
        for mine, (keypoints, scores, descriptors) in zip(found, expected_at(detector, images, scale), strict=True):
            torch.testing.assert_close(mine.keypoints.double().cpu(), keypoints, rtol=0, atol=1e-4)
            torch.testing.assert_close(mine.detection_scores, scores, rtol=1e-4, atol=1e-3)
            torch.testing.assert_close(mine.descriptors, descriptors, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("n", [None, 30])
    def test_are_the_best_of_all_scales(self, detector, images, n) -> None:
        found = MultiscaleDetector(detector, (1, 0.5, 0.25))(images, n=n)
        levels = [expected_at(detector, images, scale) for scale in (1, 0.5, 0.25)]
        for i, mine in enumerate(found):
            scores = torch.cat([level[i][1] for level in levels]).sort(descending=True).values[:n]
            torch.testing.assert_close(mine.detection_scores, scores, rtol=1e-4, atol=1e-3)
            keypoints = torch.cat([level[i][0] for level in levels])
            assert torch.cdist(mine.keypoints.double().cpu(), keypoints).min(1).values.max() < 1e-4

    def test_find_what_is_zoomed(self, detector) -> None:
        """Of a photograph and one of 0.3 times its size."""
        image = torch.from_numpy(to_rgb_float(read_image(IMAGES[0])))[None].to(next(detector.parameters()).device)
        small = resized(image, 0.3)
        correct = []
        for features in (detector, MultiscaleDetector(detector)):
            with torch.inference_mode():
                large, little = (features(each, n=512)[0] for each in (image, small))
            pairs = MutualNearestNeighbor()(large.descriptors, little.descriptors)[1]
            places = (large.keypoints[pairs[:, 0]] + 0.5) * 0.3 - 0.5
            correct.append(int(((places - little.keypoints[pairs[:, 1]]).norm(dim=1) < 2).sum()))
        assert correct[1] > 3 * correct[0] and correct[1] > 60

    def test_a_batch_gives_what_its_images_give(self, detector, images) -> None:
        several = MultiscaleDetector(detector, (1, 0.6))
        for i, found in enumerate(several(images, n=20)):
            torch.testing.assert_close(found.detection_scores, several(images[i, None], n=20)[0].detection_scores)

    def test_nothing_is_found_where_nothing_scores(self, detector, images) -> None:
        several = MultiscaleDetector(detector, (1, 0.5))
        assert [found.n for found in several(images, score_threshold=1e6)] == [0, 0]
        assert not several.forward_padded(images, 7, score_threshold=1e6).valid.any()

    @pytest.mark.parametrize("size", [(1, 1), (1, 40), (7, 3)])
    def test_any_size_will_do(self, detector, size, device) -> None:
        found = MultiscaleDetector(detector)(torch.rand(1, 1, *size, device=device), border=0, score_threshold=-1e6)[0]
        assert found.n > 0
        assert (found.keypoints >= 0).all() and (found.x <= size[1] - 1).all() and (found.y <= size[0] - 1).all()

    def test_sizes_that_are_equal_count_once(self, detector, images) -> None:
        """Else each feature would come twice, and a ratio test would reject all."""
        once, twice = MultiscaleDetector(detector, (1,)), MultiscaleDetector(detector, (1, 0.999, 1.001))
        assert torch.equal(twice(images)[0].keypoints, once(images)[0].keypoints)
        assert twice.forward_padded(images, None).valid.shape == once.forward_padded(images, None).valid.shape

    def test_subpixel_is_the_detectors(self, detector, images) -> None:
        refined = copy.deepcopy(detector)
        refined.subpixel = True
        moved = MultiscaleDetector(refined, (0.5,))(images)[0].keypoints
        expected = expected_at(refined, images, 0.5)[0][0]
        torch.testing.assert_close(moved.double().cpu(), expected, rtol=0, atol=1e-4)
        assert not torch.equal(moved, MultiscaleDetector(detector, (0.5,))(images)[0].keypoints)


class TestForms:
    def test_padded(self, detector, images) -> None:
        several = MultiscaleDetector(detector, (1, 0.5))
        padded = several.forward_padded(images, 4000)
        assert padded.keypoints.shape == (2, 4000, 2) and padded.descriptors.shape == (2, 4000, 128)
        for mine, other in zip(padded.unpad(), several(images), strict=True):
            assert torch.equal(mine.keypoints, other.keypoints) and torch.equal(mine.descriptors, other.descriptors)
        assert all(not values[~padded.valid].any() for values in padded[:3])
        assert several.forward_padded(images[:0], 5).descriptors.shape == (0, 5, 128)

    def test_without_a_number_there_are_columns_for_the_richest(self, detector, images) -> None:
        several = MultiscaleDetector(detector, (1, 0.5))
        images = torch.cat([images[:1], torch.zeros_like(images[:1])])
        padded = several.forward_padded(images, None)
        assert padded.valid.shape[1] == max(found.n for found in several(images))

    def test_there_may_be_more_columns_than_pixels(self, detector, device) -> None:
        padded = MultiscaleDetector(detector, (1, 0.5)).forward_padded(torch.rand(1, 3, 9, 7, device=device), 500)
        assert padded.keypoints.shape == (1, 500, 2) and padded.valid.shape == (1, 500)

    def test_a_compiled_detector_will_do(self, detector, images) -> None:
        compiled = torch.compile(detector, backend="eager")
        assert DISKLocalFeature(compiled, n=5)(images)[1].shape == (2, 5, 1)
        assert MultiscaleDetector(compiled, (0.5,)).forward_padded(images, 5).scores.shape == (2, 5)

    def test_frames_have_the_scale_of_the_image_they_were_found_in(self, detector, images) -> None:
        lafs, responses, descriptors = MultiscaleDetector(detector, (0.5,)).forward_laf(images)
        filled = KF.laf_is_filled(lafs)
        scales = KF.get_laf_scale(lafs).flatten(1)[filled].cpu()
        torch.testing.assert_close(scales, torch.full_like(scales, (83 / 42 * 131 / 66) ** 0.5))
        assert not responses[~filled].any() and not descriptors[~filled].any()

    def test_in_a_matcher_of_kornia(self, detector, images) -> None:
        feature = DISKLocalFeature(MultiscaleDetector(detector, (1, 0.5)), n=50)
        result = KF.LocalFeatureMatcher(feature, MutualNearestNeighbor())({"image0": images, "image1": images})
        torch.testing.assert_close(result["keypoints0"], result["keypoints1"])
        assert len(result["keypoints0"]) == 100

    def test_weights_are_the_detectors(self, detector) -> None:
        several = MultiscaleDetector(detector)
        assert set(several.state_dict()) == {f"detector.{name}" for name in detector.state_dict()}
        assert "scales=(1.0, 0.5, 0.25)" in repr(several) and several.scales == SCALES


class TestWhere:
    @pytest.mark.parametrize("scale", [1, 0.5, 0.3, 1.7])
    def test_features_lie_in_the_mask(self, detector, images, scale) -> None:
        mask = torch.zeros(2, 1, 83, 131, dtype=torch.bool, device=images.device)
        mask[0, 0, 20:61, 33:90] = True
        mask[1, 0, :, 70:] = True
        several = MultiscaleDetector(detector, (scale,))
        for given in (mask, mask.float()):
            for found, allowed in zip(several(images, mask=given), mask[:, 0], strict=True):
                x, y = found.keypoints.round().long().unbind(1)
                assert found.n > 0 and allowed[y, x].all()

    @pytest.mark.parametrize("scale", [0.5, 0.3, 1.7])
    @pytest.mark.parametrize("border", [0, 1, 9])
    def test_features_keep_from_the_edges(self, detector, images, scale, border) -> None:
        found = MultiscaleDetector(detector, (scale,))(images, border=border, score_threshold=-1e6)[0]
        assert found.x.min() >= border - 1e-4 and found.x.max() <= 130 - border + 1e-4
        assert found.y.min() >= border - 1e-4 and found.y.max() <= 82 - border + 1e-4
        nearest = torch.minimum(found.keypoints, torch.tensor([130, 82], device=images.device) - found.keypoints).min()
        assert nearest < border + 4 / scale  # no more than asked is left out

    @pytest.mark.parametrize("given", ["mask", "image_size"])
    def test_what_is_masked_has_no_influence_with_norm_valid(self, images, device, given) -> None:
        several = MultiscaleDetector(DISKDetector.from_pretrained(device=device, norm="valid"), (1, 0.6, 0.3, 1.5))
        mask = torch.zeros(2, 1, 83, 131, dtype=torch.bool, device=images.device)
        mask[..., :50, :70] = True
        size = torch.tensor([[70, 50], [70, 50]])
        arguments = {"mask": mask} if given == "mask" else {"image_size": size}
        expected = several(images, **arguments)
        for other in (0.0, 1.0, float("nan")):
            for mine, theirs in zip(several(images.where(mask, other), **arguments), expected, strict=True):
                assert mine.n > 0 and torch.equal(mine.keypoints, theirs.keypoints)
                assert torch.equal(mine.descriptors, theirs.descriptors)

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
    def test_features_lie_in_the_images_of_a_padded_batch(self, detector, images, dtype) -> None:
        size = torch.tensor([[131, 83], [70, 50]], dtype=dtype)
        whole, part = MultiscaleDetector(detector, (1, 0.6, 0.3))(images, image_size=size)
        assert whole.x.max() > 100 and part.n > 0
        assert part.x.max() <= 69 and part.y.max() <= 49

    @pytest.mark.parametrize("scale", [0.1, 0.25, 2])
    @pytest.mark.parametrize("size", [(1, 1), (3, 5), (50, 40)])
    def test_features_lie_in_small_images_of_a_padded_batch(self, detector, images, scale, size) -> None:
        arguments = {"image_size": torch.tensor([size, size]), "window_size": 1, "score_threshold": -1e9}
        found = MultiscaleDetector(detector, (scale,))(images, border=0, **arguments)[0]
        assert found.n > 0 and found.x.max() <= size[0] - 1 and found.y.max() <= size[1] - 1

    def test_refined_features_stay_in_the_mask(self, detector, images) -> None:
        refined = copy.deepcopy(detector)
        refined.subpixel = True
        mask = torch.rand(2, 1, 83, 131, generator=torch.Generator().manual_seed(0)).to(images.device) > 0.3
        for found, allowed in zip(MultiscaleDetector(refined, (0.5, 0.25))(images, mask=mask), mask[:, 0], strict=True):
            x, y = (found.keypoints + 0.5).floor().long().unbind(1)
            assert found.n > 0 and allowed[y, x].all()


class TestNumerics:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_other_dtypes(self, detector, images, dtype) -> None:
        several = MultiscaleDetector(copy.deepcopy(detector).to(dtype), (1, 0.5))
        found = several(images.to(dtype), n=20)[0]
        assert found.descriptors.dtype == dtype
        assert found.keypoints.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        expected = MultiscaleDetector(detector, (1, 0.5))(images, n=20)[0]
        close = torch.cdist(found.keypoints.float(), expected.keypoints.float()).min(1).values < 1e-3
        assert close.float().mean() > 0.6  # near ties may come in another order

    def test_gradients_are_finite_beside_masked_pixels(self, images, device) -> None:
        several = MultiscaleDetector(DISKDetector.from_pretrained(device=device, norm="valid"), (0.5,))
        images = images.clone().requires_grad_()
        several(images, n=10, image_size=torch.tensor([[70, 50], [131, 40]]))[0].descriptors[:, 0].sum().backward()
        assert images.grad is not None and images.grad.isfinite().all() and not images.grad[0, :, 52:].any()

    def test_gradients_reach_image_and_weights(self, detector, images) -> None:
        several = MultiscaleDetector(copy.deepcopy(detector), (0.5,))
        images = images.clone().requires_grad_()
        found = several(images, n=10)[0]
        (found.detection_scores.sum() + found.descriptors[:, 0].sum()).backward()
        assert images.grad is not None and images.grad[0].any() and not images.grad[1].any()
        assert all(weight.grad is not None for weight in several.parameters())

    @torch.inference_mode()
    def test_in_tiles(self, detector, device) -> None:
        images, calls = photo_like(device, 1, 3, 260, 330), []
        several = MultiscaleDetector(detector, (1, 0.5))
        found = several(images, n=100, max_memory=0.001, progress=lambda done, total: calls.append((done, total)))[0]
        assert calls and calls[-1][0] == calls[-1][1]
        expected = several(images, n=100)[0]
        torch.testing.assert_close(found.detection_scores, expected.detection_scores, atol=1e-3, rtol=1e-4)


class TestErrors:
    @pytest.mark.parametrize(
        ("scales", "error", "reason"),
        [
            ([], ValueError, r"scales must be one or more different numbers, got \[\]"),
            ([1, 0.5, 0.5], ValueError, r"scales must be one or more different numbers, got \[1, 0.5, 0.5\]"),
            ([1, 0], ValueError, "each of scales must be above 0 and finite in torch.float32, got 0"),
            ([float("nan")], ValueError, "each of scales must be a number, got nan"),
            (["1"], TypeError, "each of scales must be a number, got str '1'"),
            ([1, 17], ValueError, "each of scales must be at most 16, got 17"),
            ([1 / 3, Fraction(1, 3)], ValueError, "scales must be one or more different numbers"),
            ("1", TypeError, "scales must be a sequence of numbers, got str '1'"),
            (b"1", TypeError, "scales must be a sequence of numbers, got bytes b'1'"),
            (0.5, TypeError, "scales must be a sequence of numbers, got float 0.5"),
        ],
    )
    def test_scales(self, detector, scales, error, reason) -> None:
        with pytest.raises(error, match=reason):
            MultiscaleDetector(detector, scales)

    def test_detector(self, detector) -> None:
        with pytest.raises(TypeError, match="detector must be a DISKDetector, got UNet"):
            MultiscaleDetector(detector.unet)
        with pytest.raises(TypeError, match="detector must be a DISKDetector, got MultiscaleDetector"):
            MultiscaleDetector(MultiscaleDetector(detector))
        with pytest.raises(TypeError, match="detector must be a DISKDetector, of a single scale, got Multiscale"):
            DISKKeypoints(MultiscaleDetector(detector))

    def test_sizes_that_the_network_takes_are_the_networks(self) -> None:
        small = DISKDetector(8, UNet(desc_dim=8, down=[16, 32, 64], up=[64]))
        several = MultiscaleDetector(small, (1, 0.5))
        several(torch.rand(1, 3, 12, 20), pad_if_not_divisible=False)
        with pytest.raises(ValueError, match="images must have sizes divisible by 4"):
            several(torch.rand(1, 3, 13, 20), pad_if_not_divisible=False)

    @pytest.mark.parametrize(
        ("arguments", "error", "reason"),
        [
            ({"images": torch.rand(3, 40, 40)}, ValueError, r"images must have shape \[B, C, H, W\]"),
            ({"images": torch.rand(1, 2, 40, 40)}, ValueError, "C 1 or 3"),
            ({"images": torch.zeros(1, 3, 40, 40, dtype=torch.uint8)}, TypeError, "images must be floating point"),
            ({"images": torch.rand(1, 3, 40, 40).numpy()}, TypeError, "images must be a tensor, got ndarray"),
            ({"pad_if_not_divisible": False}, ValueError, "images must have sizes divisible by 16"),
            ({"n": 0}, ValueError, "n must be a positive integer or None, got 0"),
            ({"window_size": 4}, ValueError, "window_size must be an odd positive integer, got 4"),
            ({"border": -1}, ValueError, "border must be 0 or more pixels, got -1"),
            ({"mask": torch.ones(1, 1, 9, 9)}, ValueError, r"mask must have shape \[1, 1, 40, 40\]"),
            ({"image_size": torch.tensor([[41, 40]])}, ValueError, "image_size must lie between 1 and"),
            ({"statistics": "none"}, ValueError, "statistics must be"),
            ({"max_memory": -1.0}, ValueError, "max_memory must be"),
        ],
    )
    def test_what_is_wrong_is_named(self, arguments, error, reason) -> None:
        several = MultiscaleDetector(DISKDetector(), (0.5, 1))
        with pytest.raises(error, match=reason), torch.inference_mode():
            several(**{"images": torch.rand(1, 3, 40, 40), **arguments})


def test_padding_is_undone() -> None:
    padded = DISKDetector.from_pretrained().forward_padded(torch.rand(2, 3, 50, 60), 30)
    again = PaddedFeatures.of(padded.unpad())
    count = int(padded.valid.sum(1).max())
    assert all(torch.equal(mine, other[:, :count]) for mine, other in zip(again, padded, strict=True))
