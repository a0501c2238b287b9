"""disk_ops.evaluation.homography and .features: sets in their layouts, and matching accuracy with known errors."""

from __future__ import annotations

import pickle
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from disk_ops import DISKDetector
from disk_ops.evaluation.features import DetectorExtractor, Features, RootSift, evaluation_mode, mutual_matches
from disk_ops.evaluation.homography import (
    PairAccuracy,
    evaluate_set,
    matching_accuracy,
    pair_accuracy,
    reprojection_errors,
    summarize,
    warp,
)
from disk_ops.evaluation.homography_sets import SetError, find_homography_sets
from disk_ops.scenes.cameras import scaling

TILTED = np.array([[0.9, 0.1, 5.0], [-0.2, 1.1, 3.0], [1e-3, 2e-3, 1.0]])


def write_set(
    folder: Path, layout: str, homographies: dict[int, np.ndarray], sizes: dict[int, tuple[int, int]]
) -> Path:
    """A set of grey images of the given sizes (width, height) in the layout "oxford" or "hpatches"."""
    folder.mkdir(parents=True)
    image, matrix = ("img{}.png", "H1to{}p") if layout == "oxford" else ("{}.ppm", "H_1_{}")
    for number, (width, height) in sizes.items():
        cv2.imwrite(str(folder / image.format(number)), np.full((height, width, 3), 10 * number, np.uint8))
    for number, homography in homographies.items():
        np.savetxt(folder / matrix.format(number), homography)
    return folder


def features(points: np.ndarray | torch.Tensor) -> Features:
    """Features at points, the i-th of which matches the i-th of any other."""
    return Features(torch.as_tensor(points, dtype=torch.float64), torch.eye(len(points), 32))


class TestFindHomographySets:
    def test_finds_both_layouts_at_any_depth_in_natural_order(self, tmp_path):
        eye = np.eye(3)
        write_set(tmp_path / "affine" / "graf10", "oxford", {2: eye}, {1: (9, 8), 2: (9, 8)})
        write_set(tmp_path / "affine" / "graf9", "oxford", {2: eye}, {1: (9, 8), 2: (9, 8)})
        write_set(tmp_path / "v_there", "hpatches", {2: eye, 10: eye}, {1: (9, 8), 2: (9, 8), 10: (9, 8)})
        sets = find_homography_sets(tmp_path)
        assert [entry.name for entry in sets] == ["affine/graf9", "affine/graf10", "v_there"]
        assert [entry.collection for entry in sets] == ["affine", "affine", "v_there"]
        assert [path.name for path in sets[2].images] == ["1.ppm", "2.ppm", "10.ppm"]
        assert [path.name for path in sets[2].homographies] == ["H_1_2", "H_1_10"]

    def test_the_folder_may_be_a_set(self, tmp_path):
        folder = write_set(tmp_path / "wall", "oxford", {2: TILTED}, {1: (9, 8), 2: (9, 8)})
        (found,) = find_homography_sets(str(folder))
        assert (found.name, found.collection) == ("wall", "wall")
        np.testing.assert_allclose(found.read_homography(1), TILTED)
        np.testing.assert_array_equal(found.read_homography(0), np.eye(3))

    def test_links_in_circles_end(self, tmp_path):
        folder = write_set(tmp_path / "all" / "wall", "oxford", {2: TILTED}, {1: (9, 8), 2: (9, 8)})
        (tmp_path / "all" / "again").symlink_to(tmp_path / "all", target_is_directory=True)
        assert [entry.images[0].parent for entry in find_homography_sets(tmp_path / "all")] == [folder]

    def test_says_what_is_missing(self, tmp_path):
        with pytest.raises(SetError, match=r"nowhere: no such folder"):
            find_homography_sets(tmp_path / "nowhere")
        with pytest.raises(SetError, match=r"no homography set: looked for folders with H1to2p and img1"):
            find_homography_sets(tmp_path)
        write_set(tmp_path / "wall", "oxford", {2: TILTED, 3: TILTED}, {1: (9, 8), 2: (9, 8)})
        with pytest.raises(SetError, match=r"wall: has a homography for the image img3\.\*, but not the image"):
            find_homography_sets(tmp_path)

    @pytest.mark.parametrize("text", ["1 0 0 0 1 0 0 0", "1 0 0 0 1 0 0 0 nan", "1 0 0 0 1 0 0 0 0", "one", "", "\xff"])
    def test_a_broken_homography_is_named(self, tmp_path, text):
        write_set(tmp_path / "wall", "oxford", {2: TILTED}, {1: (9, 8), 2: (9, 8)})
        (tmp_path / "wall" / "H1to2p").write_bytes(text.encode("latin-1"))
        with pytest.raises(SetError, match="H1to2p: ") as raised:
            find_homography_sets(tmp_path)[0].read_homography(1)
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)

    def test_a_broken_image_is_named(self, tmp_path):
        write_set(tmp_path / "wall", "oxford", {2: TILTED}, {1: (9, 8), 2: (9, 8)})
        (tmp_path / "wall" / "img2.png").write_bytes(b"no image")
        with pytest.raises(SetError, match=r"img2\.png: is not an image"):
            find_homography_sets(tmp_path)[0].read_pixels(1)


class TestGeometry:
    def test_warp_by_hand(self):
        warped = warp(torch.tensor([[10.0, 20.0]]), TILTED)
        torch.testing.assert_close(warped, torch.tensor([[16 / 1.05, 23 / 1.05]], dtype=torch.float64))

    def test_points_beyond_the_horizon_are_infinitely_far(self):
        horizon = np.array([[1.0, 0, 0], [0, 1, 0], [-0.01, 0, 1]])  # at x = 100
        points = torch.tensor([[50.0, 7.0], [100.0, 7.0], [150.0, 7.0]])
        for sign in (1, -1):  # a homography has no sign
            warped = warp(points, sign * horizon)
            assert warped[0].tolist() == [100.0, 14.0]
            assert warped[1:].isinf().all()

    def test_errors_are_measured_in_image_2(self):
        doubled = np.diag([2.0, 2.0, 1.0])
        first, second = features([[1.0, 1.0], [5.0, 5.0]]), features([[2.0, 5.0], [10.0, 13.0]])
        errors = reprojection_errors(first, second, torch.tensor([[0, 0], [1, 1]]), doubled)
        assert errors.tolist() == [3.0, 3.0]


class TestMatchingAccuracy:
    def test_a_case_counted_by_hand(self):
        errors = torch.tensor([0.0, 1.0, 1.5, 7.0, torch.inf, torch.nan])  # exactly 1 px is within 1 px
        expected = [2, 3, 3, 3, 3, 3, 4, 4, 4, 4]
        assert matching_accuracy(errors) == pytest.approx([count / 6 for count in expected])

    def test_no_match_counts_as_0(self):
        assert matching_accuracy(torch.empty(0)) == (0.0,) * 10

    def test_auc5_is_the_mean_over_1_to_5_pixels(self):
        points = torch.rand(4, 2, dtype=torch.float64) * 100
        moved = points + torch.tensor([[0.5, 0.0], [0.0, 1.5], [3.2, 0.0], [0.0, 40.0]])
        pair = pair_accuracy(features(points), features(moved), np.eye(3))
        assert pair.matches == 4
        assert pair.auc5 == pytest.approx((1 + 2 + 2 + 3 + 3) / 4 / 5)

    @pytest.mark.parametrize("count", [0, 1])
    def test_images_with_hardly_any_features(self, count):
        pair = pair_accuracy(features(torch.zeros(count, 2)), features(torch.zeros(0, 2)), np.eye(3))
        assert (pair.features, pair.matches, pair.auc5) == ((count, 0), 0, 0.0)

    def test_descriptors_with_nan_match_nothing(self):
        first = features(torch.zeros(3, 2))
        first.descriptors[1] = torch.nan
        assert mutual_matches(first, features(torch.zeros(3, 2))).tolist() == [[0, 0], [2, 2]]

    def test_every_pair_counts_alike_in_a_summary(self):
        pairs = [
            PairAccuracy("a", "2", (10, 20), 5, (1.0,) * 10),
            PairAccuracy("a", "3", (10, 40), 0, (0.0,) * 10),
            PairAccuracy("b", "2", (10, 30), 1, (0.0,) * 4 + (1.0,) * 6),
        ]
        summary = summarize(pairs)
        assert (summary.pairs, summary.features, summary.matches) == (3, 20, 2)
        assert summary.accuracy == pytest.approx([1 / 3] * 4 + [2 / 3] * 6)
        assert summary.auc5 == pytest.approx((1 + 0 + 0.2) / 3)
        with pytest.raises(ValueError, match="at least one pair"):
            summarize([])


class TestEvaluateSet:
    def test_homographies_follow_the_scaled_images(self, tmp_path):
        sizes = {1: (100, 75), 2: (66, 99), 3: (30, 20)}
        truth = {2: TILTED, 3: np.diag([0.3, 0.3, 1.0])}
        (found,) = find_homography_sets(write_set(tmp_path / "wall", "oxford", truth, sizes))
        scaled = {1: (40, 30), 2: (27, 40), 3: (30, 20)}
        points = torch.rand(8, 2, dtype=torch.float64) * 50 + 5
        seen = []

        def extract(image):
            number = round(image[0, 0, 0].item() * 25.5)
            assert image.shape == (3, *scaled[number][::-1])
            seen.append(number)
            homography = truth.get(number, np.eye(3))
            offset = torch.tensor([2.5, 0.0]) if number == 3 else 0  # pixels of the scaled image
            return features(warp(warp(points, homography), scaling(sizes[number], scaled[number])) + offset)

        exact, shifted = evaluate_set(found, extract, max_size=40)
        assert seen == [1, 2, 3]
        assert (exact.set, exact.image, exact.features, exact.matches) == ("wall", "img2.png", (8, 8), 8)
        assert exact.accuracy == (1.0,) * 10
        assert shifted.accuracy == (0.0,) * 2 + (1.0,) * 8

    def test_no_size_limit(self, tmp_path):
        (found,) = find_homography_sets(
            write_set(tmp_path / "wall", "hpatches", {2: np.eye(3)}, {1: (100, 75), 2: (100, 75)})
        )
        shapes = []
        evaluate_set(found, lambda image: shapes.append(image.shape) or features(torch.zeros(0, 2)), max_size=None)
        assert shapes == [(3, 75, 100)] * 2

    def test_a_real_set(self, shared_data):
        """The bundled checkpoint beats chance by far on real images under change of light, at a small size."""
        (leuven,) = find_homography_sets(shared_data / "homography" / "oxford_affine" / "leuven")
        pairs = evaluate_set(leuven, DetectorExtractor(DISKDetector.from_pretrained(), n=256), max_size=192)
        assert len(pairs) == 5
        assert all(pair.features[0] > 100 for pair in pairs)
        assert summarize(pairs).auc5 > 0.6


class TestExtractors:
    @pytest.mark.parametrize("centre", [(60.0, 50.0), (60.5, 49.75)])
    @pytest.mark.parametrize("sigma", [2.0, 4.0])
    def test_rootsift_has_integer_pixel_centres(self, centre, sigma):
        y, x = torch.meshgrid(torch.arange(101.0), torch.arange(121.0), indexing="ij")
        blob = torch.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / (2 * sigma**2))
        found = RootSift(1)(blob.expand(3, -1, -1))
        torch.testing.assert_close(found.keypoints, torch.tensor([centre]), atol=0.05, rtol=0)

    def test_rootsift_descriptors_have_unit_length(self):
        found = RootSift(20)(torch.nn.functional.interpolate(torch.rand(1, 3, 24, 32), scale_factor=4)[0])
        assert found.keypoints.shape == (20, 2)
        torch.testing.assert_close(found.descriptors.norm(dim=1), torch.ones(20))

    def test_rootsift_finds_nothing_in_a_flat_image(self):
        found = RootSift()(torch.full((3, 64, 64), 0.5))
        assert (found.keypoints.shape, found.descriptors.shape) == ((0, 2), (0, 128))

    def test_detector_features_come_from_the_mask(self):
        detector = DISKDetector.from_pretrained()
        image, mask = torch.rand(3, 64, 96), torch.zeros(1, 64, 96, dtype=torch.bool)
        mask[..., :40] = True
        found = DetectorExtractor(detector, n=30)(image, mask)
        assert 0 < len(found.keypoints) <= 30
        assert found.keypoints[:, 0].max() < 40
        whole = DetectorExtractor(detector, n=None)(image)
        assert not whole.descriptors.requires_grad
        rejected = DetectorExtractor(detector, n=None, score_threshold=-1e9)(image)
        assert len(rejected.keypoints) > len(whole.keypoints) > len(found.keypoints)
        assert rejected.scores.min() < 0 < whole.scores.min()

    def test_evaluation_mode_restores_every_part(self):
        module = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout())
        module[1].eval()
        with pytest.raises(KeyError), evaluation_mode(module):
            assert not module[0].training
            raise KeyError
        assert [part.training for part in (module, *module)] == [True, True, False]
