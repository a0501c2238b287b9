"""disk_ops.training.data.homography_sets: samples whose homographies fit their resized and padded images."""

from __future__ import annotations

import pickle
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from disk_ops.scenes.errors import DataError, SampleError
from disk_ops.training.data.homography_sets import HomographySetsConfig, HomographySetsSource
from disk_ops.training.data.sample import Frame
from disk_ops.training.settings import from_mapping, to_mapping

FRAME = Frame(64, 48)
SHIFT = np.array([[1.0, 0, 6], [0, 1, -4], [0, 0, 1]])


def blob(width: int, height: int, x: float, y: float, dtype=np.uint8) -> np.ndarray:
    ys, xs = np.mgrid[:height, :width]
    return (np.iinfo(dtype).max * np.exp(-((xs - x) ** 2 + (ys - y) ** 2) / 50)).astype(dtype)


def write_set(folder: Path, images: dict[int, np.ndarray], homography: np.ndarray = SHIFT) -> None:
    folder.mkdir(parents=True)
    for number, pixels in images.items():
        cv2.imwrite(str(folder / f"{number}.png"), pixels)
        if number > 1:
            np.savetxt(folder / f"H_1_{number}", homography)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sets of three images; a blob is where the homography takes it."""
    for name in ("v_a", "v_b"):
        write_set(
            tmp_path / name,
            {1: blob(100, 90, 40, 50), 2: blob(120, 80, 46, 46), 3: blob(40, 60, 23, 23, np.uint16)},
        )
        np.savetxt(tmp_path / name / "H_1_3", np.array([[0.5, 0, 3], [0, 0.5, -2], [0, 0, 1]]))
    return tmp_path


def centre(image: torch.Tensor) -> np.ndarray:
    """The bright spot [2] of an image [3, H, W]."""
    weights = image[0].double()
    ys, xs = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in weights.shape), indexing="ij")
    return np.array([(weights * xs).sum() / weights.sum(), (weights * ys).sum() / weights.sum()])


def load(source: HomographySetsSource, item: int = 0, seed: int = 0):
    return source.load(item, np.random.default_rng(seed))


class TestSamples:
    @pytest.mark.parametrize("frame", [FRAME, Frame(64, 48, 3), Frame(200, 100, 3)])
    def test_homographies_fit_the_images(self, folder, frame):
        source = HomographySetsSource(HomographySetsConfig(str(folder)), frame, "val")
        for item in range(len(source.items)):
            sample = load(source, item)
            assert sample.images.shape == (frame.images, 3, frame.height, frame.width)
            assert sample.images.dtype == torch.uint8 and sample.mask.dtype == torch.bool
            assert sample.homographies.dtype == torch.float64
            assert torch.equal(sample.homographies[0], torch.eye(3, dtype=torch.float64))
            reference = np.append(centre(sample.images[0]), 1)
            for image, homography in zip(sample.images, sample.homographies.numpy(), strict=True):
                x, y, w = homography @ reference
                np.testing.assert_allclose(centre(image), [x / w, y / w], atol=0.15)

    def test_images_are_reduced_to_fit_and_the_rest_is_masked(self, folder):
        source = HomographySetsSource(HomographySetsConfig(str(folder)), FRAME, "val")
        sample = load(source, source.items.index((0, 1)))
        assert sample.name == "v_a 1.png-2.png"
        widths, heights = sample.mask[:, 0].any(1).sum(1).tolist(), sample.mask[:, 0].any(2).sum(1).tolist()
        assert (widths, heights) == ([53, 64], [48, 43])  # of 100x90 and 120x80
        assert sample.mask.flatten(1).sum(1).tolist() == [53 * 48, 64 * 43]
        assert not sample.images[~sample.mask.expand(-1, 3, -1, -1)].any()

    def test_small_images_keep_their_size(self, folder):
        source = HomographySetsSource(HomographySetsConfig(str(folder)), Frame(640, 480), "val")
        sample = load(source, source.items.index((0, 2)))
        assert sample.mask.flatten(1).sum(1).tolist() == [100 * 90, 40 * 60]
        assert abs(int(sample.images[1].max()) - 255) <= 1  # of 16 bits

    def test_a_sample_depends_on_item_and_rng_alone(self, folder):
        source = HomographySetsSource(HomographySetsConfig(str(folder)), Frame(64, 48, 3), "val")
        copy = pickle.loads(pickle.dumps(source))
        for item in range(4):
            one, other = load(source, item, 5), load(copy, item, 5)
            assert one.name == other.name and torch.equal(one.images, other.images)

    def test_samples_do_not_share_memory_with_the_cache(self, folder):
        source = HomographySetsSource(HomographySetsConfig(str(folder)), FRAME, "val")
        before = load(source).images.clone()
        load(source).images.zero_()
        assert torch.equal(load(source).images, before)

    def test_a_broken_file_is_named(self, folder):
        (folder / "v_a" / "2.png").write_bytes(b"")
        (folder / "v_b" / "H_1_2").write_text("1 2 3")
        source = HomographySetsSource(HomographySetsConfig(str(folder)), FRAME, "val")
        with pytest.raises(SampleError, match=r"v_a/2\.png: is empty"):
            load(source, source.items.index((0, 1)))
        with pytest.raises(SampleError, match="v_b/H_1_2: must hold the 9 numbers"):
            load(source, source.items.index((1, 1)))


class TestOrder:
    def test_a_pass_has_each_pair_once_in_an_order_of_its_own(self, folder):
        source = HomographySetsSource(HomographySetsConfig(str(folder)), FRAME, "val")
        first, second = source.order(0, 7), source.order(1, 7)
        assert sorted(first) == sorted(second) == [0, 1, 2, 3]
        assert first.dtype == np.int64
        assert any(source.order(0, seed).tolist() != first.tolist() for seed in range(5))
        assert source.order(0, 7).tolist() == first.tolist()


class TestSplit:
    @pytest.mark.parametrize("holdout", [0.01, 0.3, 0.5, 0.99])
    def test_both_splits_have_sets_and_share_none(self, tmp_path, holdout):
        for number in range(6):
            write_set(tmp_path / f"v_{number}", {1: blob(40, 30, 20, 15), 2: blob(40, 30, 26, 11)})
        names = {}
        for split in ("train", "val"):
            source = HomographySetsSource(HomographySetsConfig(str(tmp_path), holdout), FRAME, split)
            names[split] = {entry.name for entry in source.sets}
        assert 1 <= len(names["val"]) <= 5
        assert len(names["train"] | names["val"]) == 6 and not names["train"] & names["val"]

    def test_further_sets_move_none(self, tmp_path):
        def held_out() -> set[str]:
            source = HomographySetsSource(HomographySetsConfig(str(tmp_path), 0.3), FRAME, "val")
            return {entry.name for entry in source.sets}

        before: set[str] = set()
        for number in range(20):
            write_set(tmp_path / f"v_{number}", {1: blob(40, 30, 20, 15), 2: blob(40, 30, 26, 11)})
            if number == 9:
                before = held_out()
        kept = {name for name in held_out() if int(name.rpartition("_")[2]) < 10}
        assert len(before) > 1 and kept == before

    def test_all_sets_are_held_out_by_default(self, folder):
        assert len(HomographySetsSource(HomographySetsConfig(str(folder)), FRAME, "val").sets) == 2
        with pytest.raises(DataError, match=r'is left for train: there are 2, and holdout is 1\.0; use = "val"'):
            HomographySetsSource(HomographySetsConfig(str(folder)), FRAME, "train")
        with pytest.raises(DataError, match="is left for val"):
            HomographySetsSource(HomographySetsConfig(str(folder), holdout=0), FRAME, "val")


class TestErrors:
    def test_no_sets(self, tmp_path):
        with pytest.raises(DataError, match="homography: path must name a folder"):
            HomographySetsSource(HomographySetsConfig(), FRAME, "val")
        with pytest.raises(DataError, match="nowhere: no such folder"):
            HomographySetsSource(HomographySetsConfig(str(tmp_path / "nowhere")), FRAME, "val")
        with pytest.raises(DataError, match="no homography set: looked for"):
            HomographySetsSource(HomographySetsConfig(str(tmp_path)), FRAME, "val")

    def test_too_few_images_for_a_sample(self, folder):
        with pytest.raises(DataError, match="has the 4 images"):
            HomographySetsSource(HomographySetsConfig(str(folder)), Frame(64, 48, 4), "val")

    def test_settings(self):
        config = from_mapping(HomographySetsConfig, {"path": "sets", "holdout": 1})
        assert from_mapping(HomographySetsConfig, to_mapping(config)) == config
        with pytest.raises(ValueError, match=r"holdout must be from 0 to 1, got 1\.5"):
            HomographySetsConfig(holdout=1.5)
        with pytest.raises(ValueError, match="cache_mb must be at least 0, got -1"):
            HomographySetsConfig(cache_mb=-1)
