"""PhotosSource: overlapping views of the photographs in a folder, with the homographies between them."""

from __future__ import annotations

import dataclasses
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from disk_ops.scenes.errors import DataError, SampleError
from disk_ops.training.data.photos import PhotosConfig, PhotosSource
from disk_ops.training.data.sample import Frame, Sample
from disk_ops.training.settings import from_mapping, to_mapping

FRAME = Frame(64, 48, 2)
EXACT: dict[str, Any] = {"photometric": 0.0, "scale": (1.0, 1.2), "flip": 0.0}  # neither degraded nor smoothed


def smooth_photo(seed: int, width: int = 160, height: int = 120) -> np.ndarray:
    """A colourful image [H, W, 3] without fine detail."""
    small = np.random.default_rng(seed).integers(0, 256, (height // 10, width // 10, 3), dtype=np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


def save(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for seed in range(6):
        save(folder / f"{seed}.png", smooth_photo(seed))
    save(folder / "sub" / "deep" / "7.jpg", smooth_photo(7))
    save(folder / "sub" / "8.webp", smooth_photo(8))
    (folder / "read me.txt").write_text("no photo")
    return folder


def source(folder: Path, split: str = "train", frame: Frame = FRAME, **settings: Any) -> PhotosSource:
    return PhotosSource(PhotosConfig(path=str(folder), **settings), frame, split)  # type: ignore[arg-type]


def load(photos: PhotosSource, item: int = 0, seed: int = 0) -> Sample:
    return photos.load(item, np.random.default_rng(seed))


def assert_equal(first: Sample, second: Sample) -> None:
    assert first.name == second.name
    for name in ("images", "mask", "homographies"):
        torch.testing.assert_close(getattr(first, name), getattr(second, name), rtol=0, atol=0)


def sample_at(
    image: torch.Tensor,  # [3, H, W] uint8
    points: torch.Tensor,  # [h, w, 2] xy
) -> torch.Tensor:
    """Bilinear values [3, h, w]."""
    size = torch.tensor([image.shape[2], image.shape[1]], dtype=torch.float64)
    grid = points / (size - 1) * 2 - 1
    return F.grid_sample(image[None].double(), grid[None], align_corners=True)[0]


def mapped(homography: torch.Tensor, width: int, height: int) -> torch.Tensor:
    """Where each pixel goes [h, w, 2]."""
    x, y = torch.meshgrid(torch.arange(width).double(), torch.arange(height).double(), indexing="xy")
    points = torch.stack([x, y, torch.ones_like(x)], -1) @ homography.mT
    return points[..., :2] / points[..., 2:]


@pytest.mark.parametrize("frame", [FRAME, Frame(80, 80, 3), Frame(300, 200, 2)])
def test_sample(photos: Path, frame: Frame) -> None:
    train = source(photos, frame=frame)
    for item in range(len(train.files)):
        sample = load(train, item, item)
        assert sample.name == train.files[item].name
        assert sample.images.shape == (frame.images, 3, frame.height, frame.width)
        assert sample.images.dtype == torch.uint8
        assert sample.mask.shape == (frame.images, 1, frame.height, frame.width)
        assert sample.mask.dtype == torch.bool
        assert sample.homographies is not None
        assert sample.homographies.shape == (frame.images, 3, 3)
        assert sample.homographies.dtype == torch.float64
        assert sample.views is None
        assert (sample.images * ~sample.mask == 0).all()
        assert sample.images.is_contiguous()
        assert sample.mask.any((1, 2, 3)).all()


@pytest.mark.parametrize("mirrored", [False, True])
def test_views_show_the_photo_where_the_homography_says(photos: Path, mirrored: bool) -> None:
    train = source(photos, **{**EXACT, "flip": float(mirrored)})
    photo = cv2.cvtColor(cv2.imread(str(train.files[2].path)), cv2.COLOR_BGR2RGB)
    pixels = torch.from_numpy(np.ascontiguousarray(photo[:, ::-1] if mirrored else photo)).permute(2, 0, 1)
    for seed in range(10):
        sample = load(train, 2, seed)
        assert sample.homographies is not None
        for image, mask, homography in zip(sample.images, sample.mask, sample.homographies, strict=True):
            expected = sample_at(pixels, mapped(torch.linalg.inv(homography), 64, 48))
            assert ((image - expected).abs() * mask).max() < 0.6  # rounded to whole numbers


@pytest.mark.parametrize("scale", [(0.3, 0.5), (0.5, 1.5)], ids=str)
def test_pairs_agree(photos: Path, scale: tuple[float, float]) -> None:
    train = source(photos, photometric=0.0, scale=scale)
    for seed in range(20):
        sample = load(train, seed % len(train.files), seed)
        assert sample.homographies is not None
        between = sample.homographies[1] @ torch.linalg.inv(sample.homographies[0])
        points = mapped(between, 64, 48)
        other = sample_at(sample.images[1], points)
        both = sample.mask[0] & (sample_at(sample.mask[1].expand(3, -1, -1), points)[:1] > 0.999)
        assert both.float().mean() > 0.05
        error = ((other - sample.images[0]).abs() * both).sum() / (3 * both.sum())
        moved = ((other.roll(2, -1) - sample.images[0]).abs() * both).sum() / (3 * both.sum())
        assert error < 6
        assert error < 0.5 * moved


def test_views_are_degraded_independently(photos: Path) -> None:
    still = {"scale": (1.0, 1.0), "rotation": 0.0, "perspective": 0.0, "shift": 0.0}
    exact = load(source(photos, photometric=0.0, **still))
    assert torch.equal(exact.images[0], exact.images[1])
    degraded = load(source(photos, **still))
    assert torch.equal(degraded.homographies[0], degraded.homographies[1])  # type: ignore[index]
    assert not torch.equal(degraded.images[0], degraded.images[1])


def test_mirrors_as_often_as_it_should(photos: Path) -> None:
    """Mirrored or not is seen from the photo: the views of one sample are all the same."""
    train, photo = source(photos, **{**EXACT, "flip": 0.3}), None
    plain = source(photos, **EXACT)
    photo = torch.from_numpy(plain._photo(plain.files[0].path).copy()).permute(2, 0, 1)
    mirrored = []
    for seed in range(100):
        sample = load(train, 0, seed)
        errors = []
        for image, mask, homography in zip(sample.images, sample.mask, sample.homographies, strict=True):  # type: ignore[arg-type]
            expected = sample_at(photo, mapped(torch.linalg.inv(homography), 64, 48))
            errors.append(bool(((image - expected).abs() * mask).max() > 5))
        assert errors[0] == errors[1]
        mirrored.append(errors[0])
    assert 0.18 < np.mean(mirrored) < 0.42


@pytest.mark.parametrize("kind", ["grey", "rgba", "16 bit", "16 bit grey", "float"])
def test_any_image_is_read_as_rgb(tmp_path: Path, kind: str) -> None:
    photo = smooth_photo(0)
    stored: dict[str, tuple[str, np.ndarray, np.ndarray]] = {
        "grey": ("a.png", photo[:, :, 0], photo[:, :, [0, 0, 0]]),
        "rgba": ("a.png", np.dstack([photo, photo[:, :, 0]]), photo[:, :, ::-1]),
        "16 bit": ("a.png", photo.astype(np.uint16) * 257 + 100, photo[:, :, ::-1]),
        "16 bit grey": ("a.png", photo[:, :, 0].astype(np.uint16) * 257, photo[:, :, [0, 0, 0]]),
        "float": ("a.tiff", photo.astype(np.float32) / 255, photo[:, :, ::-1]),
    }
    name, image, expected = stored[kind]
    if kind == "16 bit":
        image = np.where(photo == 255, 65535, image).astype(np.uint16)
    save(tmp_path / name, image)
    pixels = source(tmp_path)._photo(tmp_path / name)
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, expected)
    assert load(source(tmp_path)).images.shape == (2, 3, 48, 64)


def test_large_photos_are_reduced(tmp_path: Path) -> None:
    save(tmp_path / "a.png", smooth_photo(0, 400, 300))
    assert source(tmp_path, max_size=200)._photo(tmp_path / "a.png").shape == (150, 200, 3)
    assert source(tmp_path)._photo(tmp_path / "a.png").shape == (300, 400, 3)


def test_photo_smaller_than_the_frame_is_masked_around(tmp_path: Path) -> None:
    save(tmp_path / "a.png", smooth_photo(0, 100, 60))
    train = source(tmp_path, frame=Frame(200, 200, 2), **EXACT)
    for seed in range(10):
        sample = load(train, 0, seed)
        assert (sample.mask.float().mean((1, 2, 3)) > 0.1).all()
        assert (sample.mask.float().mean((1, 2, 3)) < 0.3).all()


def test_sample_is_a_function_of_the_generator(photos: Path) -> None:
    first, second = source(photos), source(photos)
    for item in range(3):
        np.random.seed(item)
        state = torch.get_rng_state()
        assert_equal(load(first, item, 5), load(second, item, 5))
        assert torch.equal(state, torch.get_rng_state())
        assert not torch.equal(load(first, item, 5).images, load(first, item, 6).images)


def load_arrays(photos: PhotosSource, item: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Of a sample, what crosses between processes without shared memory."""
    sample = photos.load(item, rng)
    assert sample.homographies is not None
    return [tensor.numpy() for tensor in (sample.images, sample.mask, sample.homographies)]


def test_another_process_makes_the_same_sample(photos: Path) -> None:
    train = source(photos)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        other = pool.submit(load_arrays, train, 3, np.random.default_rng(9)).result()
    for here, there in zip(load_arrays(train, 3, np.random.default_rng(9)), other, strict=True):
        np.testing.assert_array_equal(here, there)


def test_pickle_is_small_and_the_same(photos: Path) -> None:
    train = source(photos)
    expected = load(train)
    data = pickle.dumps(train)
    assert len(data) < 10_000
    assert_equal(load(pickle.loads(data)), expected)


def test_photos_are_read_once(tmp_path: Path) -> None:
    save(tmp_path / "a.png", smooth_photo(0))
    cached, uncached = source(tmp_path), source(tmp_path, cache_mb=0.0)
    expected = load(cached)
    load(uncached)
    (tmp_path / "a.png").unlink()
    assert_equal(load(cached), expected)
    with pytest.raises(SampleError, match="no such file"):
        load(uncached)


def test_order_is_a_new_permutation_each_pass(photos: Path) -> None:
    train = source(photos)
    orders = [train.order(epoch, seed) for seed in (0, 1) for epoch in range(4)]
    for order in orders:
        assert order.dtype == np.int64
        np.testing.assert_array_equal(np.sort(order), np.arange(len(train.files)))
    assert len({tuple(order) for order in orders}) == len(orders)
    np.testing.assert_array_equal(train.order(2, 1), source(photos).order(2, 1))


def many(tmp_path: Path, names: list[str]) -> Path:
    """A folder of empty files: what is in it counts only when they are loaded."""
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(("balance", "expected"), [(0.0, (90, 9, 1)), (1.0, (34, 33, 33)), (0.5, (70, 22, 8))])
def test_balance_of_folders(tmp_path: Path, balance: float, expected: tuple[int, int, int]) -> None:
    names = [f"{folder}/{i}.jpg" for folder, count in (("a", 90), ("b", 9), ("c", 1)) for i in range(count)]
    train = source(many(tmp_path, names), balance=balance, holdout=0.0)
    orders = [train.order(epoch, 0) for epoch in range(3)]
    for order in orders:
        assert len(order) == 100
        folders = [train.files[item].name[0] for item in order]
        assert np.abs(np.array([folders.count(name) for name in "abc"]) - expected).max() <= 1
        in_b = np.bincount([item for item in order if train.files[item].name[0] == "b"])[90:99]
        assert in_b.max() - in_b.min() <= 1  # equally often within a folder
    assert {*orders[0]} != {*orders[1]} or balance == 0  # others are left out in another pass


def test_each_held_out_photo_counts_in_validation(tmp_path: Path) -> None:
    names = [f"{folder}/{i}.jpg" for folder, count in (("a", 30), ("b", 3)) for i in range(count)]
    held_out = source(many(tmp_path, names), "val", balance=1.0, holdout=0.5)
    assert sorted(held_out.order(0, 0).tolist()) == list(range(len(held_out.files)))


def names_of(photos: PhotosSource) -> set[str]:
    return {file.name for file in photos.files}


def test_splits_are_disjoint_and_complete(tmp_path: Path) -> None:
    folder = many(tmp_path, [f"{i}.jpg" for i in range(1000)])
    train, val = source(folder, "train", holdout=0.2), source(folder, "val", holdout=0.2)
    assert not names_of(train) & names_of(val)
    assert len(names_of(train) | names_of(val)) == 1000
    assert 150 < len(val.files) < 250
    numbers = [int(Path(name).stem) for name in names_of(val)]
    assert 400 < np.mean(numbers) < 600  # from all over the folder


def test_splits_stay_when_files_are_added_or_the_folder_moves(tmp_path: Path) -> None:
    folder = many(tmp_path / "a", [f"{i}.jpg" for i in range(100)])
    before = names_of(source(folder, "val", holdout=0.1))
    many(folder, [f"new/{i}.jpg" for i in range(100)])
    folder = folder.rename(tmp_path / "b")
    after = names_of(source(folder, "val", holdout=0.1))
    assert {name for name in after if not name.startswith("new")} == before
    assert len(after) > len(before)


def test_both_splits_have_a_photo(tmp_path: Path) -> None:
    for count in (2, 3, 5):
        folder = many(tmp_path / str(count), [f"{i}.jpg" for i in range(count)])
        for holdout in (0.01, 0.99):
            assert len(source(folder, "val", holdout=holdout).files) >= 1
            assert len(source(folder, "train", holdout=holdout).files) >= 1


def test_single_photo_is_for_training(tmp_path: Path) -> None:
    folder = many(tmp_path, ["a.jpg"])
    assert len(source(folder).files) == 1
    with pytest.raises(DataError, match=r"has no photos for val: 1 in all, holdout is 0\.05"):
        source(folder, "val")


@pytest.mark.parametrize(("holdout", "split"), [(0.0, "val"), (1.0, "train")])
def test_nothing_or_all_held_out(tmp_path: Path, holdout: float, split: str) -> None:
    folder = many(tmp_path, [f"{i}.jpg" for i in range(10)])
    with pytest.raises(DataError, match=f"has no photos for {split}: 10 in all"):
        source(folder, split, holdout=holdout)
    assert len(source(folder, "train" if split == "val" else "val", holdout=holdout).files) == 10


def test_folder_without_photos_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError, match="no images found in"):
        source(tmp_path)
    with pytest.raises(DataError, match=f"no such folder: {tmp_path / 'missing'}"):
        source(tmp_path / "missing")
    with pytest.raises(DataError, match="path must name a folder of photographs"):
        PhotosSource(PhotosConfig(), FRAME, "train")


def test_broken_photo_is_named(tmp_path: Path) -> None:
    save(tmp_path / "whole.jpg", smooth_photo(0))
    data = (tmp_path / "whole.jpg").read_bytes()
    (tmp_path / "half.jpg").write_bytes(data[: len(data) // 2])
    (tmp_path / "empty.png").touch()
    save(tmp_path / "small.png", smooth_photo(0, 40, 20))
    train = source(tmp_path, holdout=0.0)
    reasons = {"half.jpg": "is truncated", "empty.png": "is empty", "small.png": "is too small: 40x20 pixels"}
    for item, file in enumerate(train.files):
        if file.name in reasons:
            with pytest.raises(SampleError, match=reasons[file.name]) as error:
                load(train, item)
            assert error.value.path == str(tmp_path / file.name)
        else:
            load(train, item)


def test_name_says_what_and_where(photos: Path) -> None:
    assert source(photos).name == f"photos {photos}"


def test_settings_are_explained_and_path_comes_first() -> None:
    fields = dataclasses.fields(PhotosConfig)
    assert fields[0].name == "path"
    assert all(len(field.metadata["comment"]) > 10 for field in fields)
    config = PhotosConfig(path="a", scale=(0.3, 2.0), jpeg=(0.5, 20.0))
    assert from_mapping(PhotosConfig, to_mapping(config)) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"holdout": 1.5}, "holdout must be from 0 to 1, got 1.5"),
        ({"balance": -0.5}, "balance must be from 0 to 1, got -0.5"),
        ({"max_size": 10}, "max_size must be at least 32 pixels, got 10"),
        ({"cache_mb": -1.0}, "cache_mb must be at least 0, got -1"),
        ({"scale": (2.0, 1.0)}, "scale must be"),
        ({"photometric": -1.0}, "photometric must be"),
    ],
)
def test_refuses_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PhotosConfig(**settings)


def test_real_photographs(shared_data: Path) -> None:
    train = source(shared_data / "photos", frame=Frame(256, 256, 2))
    val = source(shared_data / "photos", "val", frame=Frame(256, 256, 2))
    assert len(val.files) / (len(train.files) + len(val.files)) == pytest.approx(0.05, abs=0.02)
    shown = [load(train, int(item), int(item)).mask.float().mean() for item in train.order(0, 0)[:12]]
    assert np.mean(shown) > 0.8
