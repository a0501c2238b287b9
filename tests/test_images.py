"""Image files as the programs read them: decoding, downscaling and coordinates, masks, names."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from disk_ops.io import images
from disk_ops.io.images import ImageError, to_rgb8
from disk_ops.io.inputs import InputError, list_images, natural_key

RGB = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 255]], [[0, 0, 0], [10, 20, 30]]], np.uint8)


def photo(height: int = 48, width: int = 64, seed: int = 0) -> np.ndarray:
    """A smooth random RGB image."""
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return cv2.GaussianBlur(noise, (0, 0), 1.5)


def encode(extension: str, rgb: np.ndarray, *options: int) -> bytes:
    bgr = rgb if rgb.ndim == 2 else rgb[..., [2, 1, 0, 3][: rgb.shape[2]]]
    done, data = cv2.imencode(extension, np.ascontiguousarray(bgr), list(options))
    assert done
    return data.tobytes()


def png(kind: int, depth: int, rows: list[bytes], width: int, *extra: tuple[bytes, bytes]) -> bytes:
    """A PNG of any colour type, made by hand."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, len(rows), depth, kind, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    chunks = [(b"IHDR", header), *extra, (b"IDAT", body), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*item) for item in chunks)


def jpeg_segment(marker: int, body: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", len(body) + 2) + body


def exif(orientation: int, thumbnail: bytes = b"") -> bytes:
    """An APP1 segment with an orientation, and a thumbnail behind it."""
    tiff = b"II*\0" + struct.pack("<IH", 8, 1) + struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0) + b"\0\0\0\0"
    return jpeg_segment(0xE1, b"Exif\0\0" + tiff + thumbnail)


@pytest.fixture
def read(tmp_path: Path):
    def read(data: bytes) -> np.ndarray:
        path = tmp_path / "image"
        path.write_bytes(data)
        return images.read_image(path)

    return read


# ------------------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("extension", [".png", ".bmp", ".tif", ".ppm"])
def test_colours_are_rgb(read, extension: str) -> None:
    np.testing.assert_array_equal(read(encode(extension, RGB)), RGB)


def test_16_bit_images_keep_their_precision(read) -> None:
    values = np.array([[0, 1, 256], [32768, 65534, 65535]], np.uint16)
    pixels = read(encode(".png", values))
    np.testing.assert_array_equal(pixels, values)
    image = images.to_rgb_float(pixels)
    np.testing.assert_array_equal(image, np.broadcast_to(values.astype(np.float32) / np.float32(65535), (3, 2, 3)))
    assert image.max() == 1.0
    colour = np.stack([values, values[::-1], values], axis=2)
    np.testing.assert_array_equal(read(encode(".png", colour)), colour)


def test_8_bit_and_16_bit_versions_of_an_image_are_the_same(read) -> None:
    rgb = photo()
    wide = read(encode(".png", rgb.astype(np.uint16) * 257))
    np.testing.assert_allclose(images.to_rgb_float(wide), images.to_rgb_float(rgb), rtol=0, atol=1e-7)


def test_grey_images_become_three_equal_channels(read) -> None:
    grey = photo()[..., 0]
    image = images.to_rgb_float(read(encode(".png", grey)))
    assert image.shape == (3, *grey.shape) and image.dtype == np.float32
    for channel in image:
        np.testing.assert_array_equal(channel, grey.astype(np.float32) / np.float32(255))


def test_alpha_is_dropped_and_hidden_colours_stay(read) -> None:
    alpha = np.zeros((3, 2, 1), np.uint8)
    np.testing.assert_array_equal(read(encode(".png", np.concatenate([RGB, alpha], axis=2))), RGB)
    pixels = read(png(4, 8, [bytes([10, 0, 20, 255])], 2))  # grey with alpha
    np.testing.assert_array_equal(images.to_rgb_float(pixels)[0] * 255, [[10, 20]])


def test_palette_and_one_bit_images_are_expanded(read) -> None:
    palette = (b"PLTE", bytes([255, 0, 0, 0, 0, 255]))
    np.testing.assert_array_equal(read(png(3, 8, [b"\0\1"], 2, palette)), [[[255, 0, 0], [0, 0, 255]]])
    image = images.to_rgb_float(read(png(0, 1, [b"\x80"], 2)))
    np.testing.assert_array_equal(image, np.broadcast_to(np.float32([[1, 0]]), (3, 1, 2)))


def test_float_images_must_be_in_range(read) -> None:
    values = photo().astype(np.float32) / 255
    np.testing.assert_array_equal(read(encode(".tif", values)), values)
    np.testing.assert_array_equal(read(encode(".tif", values.astype(np.float64))), values)
    for bad in (2.0, -0.1, np.nan):
        values[3, 4, 1] = bad
        with pytest.raises(ImageError, match=r"float image with values .* must be in \[0, 1\]"):
            read(encode(".tif", values))
    with pytest.raises(ImageError, match="int16"):
        read(encode(".tif", RGB.astype(np.int16)))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_ignored(read, orientation: int) -> None:
    plain = encode(".jpg", photo(40, 56))
    turned = plain[:2] + exif(orientation) + plain[2:]
    np.testing.assert_array_equal(read(turned), read(plain))


def test_one_pixel(read) -> None:
    assert read(encode(".png", RGB[:1, :1])).shape == (1, 1, 3)


@pytest.mark.parametrize("progressive", [0, 1])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9, 0.99])
def test_truncated_jpegs_are_found(read, progressive: int, share: float) -> None:
    whole = encode(".jpg", photo(), cv2.IMWRITE_JPEG_PROGRESSIVE, progressive, cv2.IMWRITE_JPEG_RST_INTERVAL, 3)
    assert read(whole).shape == (48, 64, 3)
    with pytest.raises(ImageError, match="truncated"):
        read(whole[: int(len(whole) * share)])
    with pytest.raises(ImageError, match="truncated"):
        read(whole[:-1])


def test_the_end_of_a_thumbnail_is_not_the_end_of_the_image(read) -> None:
    whole = encode(".jpg", photo())
    with_thumbnail = whole[:2] + exif(1, encode(".jpg", photo(16, 16))) + whole[2:]
    assert read(with_thumbnail).shape == (48, 64, 3)
    with pytest.raises(ImageError, match="truncated"):
        read(with_thumbnail[:-50])


def test_data_behind_the_end_of_a_jpeg_is_harmless(read) -> None:
    whole = encode(".jpg", photo())
    np.testing.assert_array_equal(read(whole + b"\xff\xd8 a second picture, cut off"), read(whole))


@pytest.mark.parametrize("share", [0.01, 0.5, 0.95])
@pytest.mark.parametrize("extension", [".png", ".webp", ".tif", ".bmp"])
def test_other_truncated_images_are_errors(read, extension: str, share: float) -> None:
    whole = encode(extension, photo())
    with pytest.raises(ImageError, match=r"truncated|damaged|decoded"):
        read(whole[: int(len(whole) * share)])


def test_a_png_that_lost_its_last_bytes_is_truncated(read) -> None:
    whole = encode(".png", photo())
    for lost in (1, 5, 13):
        with pytest.raises(ImageError, match="truncated"):
            read(whole[:-lost])


def test_files_that_are_no_images(read, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="is empty"):
        read(b"")
    with pytest.raises(ImageError, match="not an image"):
        read(b"just text")
    with pytest.raises(ImageError, match="no such file"):
        images.read_image(tmp_path / "nowhere.jpg")
    with pytest.raises(ImageError, match="not a regular file"):
        images.read_image(tmp_path)
    (tmp_path / "link.jpg").symlink_to("nowhere.jpg")
    with pytest.raises(ImageError, match="broken link"):
        images.read_image(tmp_path / "link.jpg")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may read all files")
def test_an_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.png"
    path.write_bytes(encode(".png", RGB))
    path.chmod(0)
    with pytest.raises(ImageError, match="Permission denied"):
        images.read_image(path)


# ------------------------------------------------------------------------------------------ sizes and coordinates


@pytest.mark.parametrize(
    ("size", "limit", "expected"),
    [
        ((640, 480), None, (640, 480)),
        ((640, 480), 640, (640, 480)),
        ((640, 480), 5000, (640, 480)),  # never larger
        ((640, 480), 320, (320, 240)),
        ((480, 640), 320, (240, 320)),
        ((1000, 667), 500, (500, 334)),
        ((5000, 1), 100, (100, 1)),  # no edge vanishes
        ((3, 2), 1, (1, 1)),
    ],
)
def test_limited_size(size: images.Size, limit: int | None, expected: images.Size) -> None:
    assert images.limited_size(size, limit) == expected


def test_keypoints_map_to_the_same_place_of_the_original() -> None:
    """Pixel centres are integers: the corner (-0.5, -0.5) stays the corner, on each axis with its own factor."""
    resized, original = (150, 100), (401, 267)
    corners = np.array([[-0.5, -0.5], [149.5, 99.5]], np.float32)
    np.testing.assert_allclose(images.to_original(corners, resized, original), [[-0.5, -0.5], [400.5, 266.5]])
    points = np.random.default_rng(0).uniform(0, 100, (50, 2)).astype(np.float32)
    np.testing.assert_array_equal(images.to_original(points, resized, resized), points)


@pytest.mark.parametrize("size", [(100, 75), (131, 98), (57, 43)])
def test_a_blob_is_found_where_it_was(size: images.Size) -> None:
    """Downscaling and mapping back agree: the centre of mass of a blob doesn't move."""
    width, height, center = 400, 300, np.array([231.3, 117.8])
    ys, xs = np.mgrid[:height, :width]
    blob = np.exp(-((xs - center[0]) ** 2 + (ys - center[1]) ** 2) / (2 * 12.0**2)).astype(np.float32)
    small = images.downscale(blob, size)
    assert small.shape == size[::-1]
    ys, xs = np.mgrid[: size[1], : size[0]]
    found = np.float32([[(small * xs).sum(), (small * ys).sum()]]) / small.sum()
    np.testing.assert_allclose(images.to_original(found, size, (width, height))[0], center, atol=0.02)


def test_downscaling_is_antialiased() -> None:
    stripes = np.zeros((64, 64), np.uint8)
    stripes[:, ::2] = 200
    np.testing.assert_array_equal(images.downscale(stripes, (16, 16)), np.full((16, 16), 100))


# ---------------------------------------------------------------------------------------------------------- masks


def test_masks_are_found_under_both_names(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    assert images.find_mask(tmp_path, "sub/a.jpg") is None
    (tmp_path / "sub" / "a.png").touch()
    assert images.find_mask(tmp_path, "sub/a.jpg") == tmp_path / "sub" / "a.png"
    (tmp_path / "sub" / "a.jpg.png").touch()
    assert images.find_mask(tmp_path, "sub/a.jpg") == tmp_path / "sub" / "a.jpg.png"


def test_zero_is_masked(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    path.write_bytes(encode(".png", np.array([[0, 1, 255]], np.uint8)))
    np.testing.assert_array_equal(images.read_mask(path, (3, 1)), [[False, True, True]])
    path.write_bytes(encode(".png", np.array([[[0, 0, 0], [0, 0, 9], [255, 255, 255]]], np.uint8)))
    np.testing.assert_array_equal(images.read_mask(path, (3, 1)), [[False, True, True]])


def test_a_mask_of_another_size_is_scaled_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    path.write_bytes(encode(".png", np.array([[0, 255], [255, 255]], np.uint8)))
    mask = images.read_mask(path, (6, 6))
    assert mask.shape == (6, 6) and not mask[:3, :3].any() and mask.sum() == 27
    with pytest.raises(ImageError, match="mask is 2x2, but the image is 60x20"):
        images.read_mask(path, (60, 20))


def test_no_keypoint_of_a_downscaled_image_comes_from_a_masked_pixel() -> None:
    mask = np.random.default_rng(0).random((90, 131)) > 0.03
    size = (53, 36)
    small = images.downscale_mask(mask, size)
    assert 0 < small.sum() < small.size
    ys, xs = np.nonzero(small)
    found = images.to_original(np.stack([xs, ys], axis=1).astype(np.float32), size, (131, 90))
    columns, rows = np.rint(found).astype(int).T
    assert mask[rows, columns].all()


# ---------------------------------------------------------------------------------------------------------- names


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def names(*arguments: Path, exclude: tuple[Path, ...] = ()) -> list[str]:
    return [image.name for image in list_images(arguments, exclude).images]


def test_natural_order() -> None:
    unsorted = ["f10.png", "f2.png", "f1b.png", "f1.png", "a", "10", "9"]
    assert sorted(unsorted, key=natural_key) == ["9", "10", "a", "f1.png", "f1b.png", "f2.png", "f10.png"]


def test_names_in_a_folder_are_relative_paths(tmp_path: Path) -> None:
    make(tmp_path, "b.jpg", "b.png", "sub/b.jpg", "sub/deep/c.TIFF", "notes.txt", ".hidden.jpg", ".cache/x.jpg")
    found = list_images([tmp_path])
    assert [image.name for image in found.images] == ["b.jpg", "b.png", "sub/b.jpg", "sub/deep/c.TIFF"]
    assert all(image.path == tmp_path / image.name for image in found.images)
    assert any("1 file without an image extension" in note for note in found.notes)


def test_single_files_have_their_file_name_whatever_the_extension(tmp_path: Path) -> None:
    make(tmp_path, "x/a.jpg", "y/b.data")
    assert names(tmp_path / "x/a.jpg", tmp_path / "y/b.data") == ["a.jpg", "b.data"]


def test_equal_names_get_as_many_folders_as_needed(tmp_path: Path) -> None:
    make(tmp_path, "one/cam/a.jpg", "two/cam/a.jpg", "two/cam/b.jpg")
    first, second = tmp_path / "one/cam/a.jpg", tmp_path / "two/cam/a.jpg"
    found = list_images([first, second, tmp_path / "two/cam/b.jpg"])
    assert [image.name for image in found.images] == ["one/cam/a.jpg", "two/cam/a.jpg", "b.jpg"]
    assert any("one/cam/a.jpg" in note for note in found.notes)
    # The names of a folder grow together, so that they stay relative to one place.
    assert names(tmp_path / "one/cam", tmp_path / "two/cam") == ["one/cam/a.jpg", "two/cam/a.jpg", "two/cam/b.jpg"]
    assert names(first, tmp_path / "two") == ["a.jpg", "cam/a.jpg", "cam/b.jpg"]


def test_an_image_is_used_once(tmp_path: Path) -> None:
    make(tmp_path, "a.jpg", "b.jpg")
    found = list_images([tmp_path / "a.jpg", tmp_path, tmp_path / "a.jpg"])
    assert [image.name for image in found.images] == ["a.jpg", "b.jpg"]
    assert any("2 images given more than once" in note for note in found.notes)


def test_an_image_is_never_a_group_of_images(tmp_path: Path) -> None:
    """HDF5 can't hold an image ``a.jpg`` next to images in a folder ``a.jpg``."""
    make(tmp_path, "x/a.jpg", "y/a.jpg/b.jpg")
    assert names(tmp_path / "x/a.jpg", tmp_path / "y") == ["x/a.jpg", "y/a.jpg/b.jpg"]


def test_names_that_match_files_confuse_are_announced(tmp_path: Path) -> None:
    make(tmp_path, "a/b.jpg", "a-b.jpg")
    assert any("a/b.jpg and a-b.jpg" in note or "a-b.jpg and a/b.jpg" in note for note in list_images([tmp_path]).notes)


def test_links_to_folders_are_followed_once(tmp_path: Path) -> None:
    make(tmp_path, "photos/a.jpg", "elsewhere/b.jpg")
    (tmp_path / "photos" / "loop").symlink_to(tmp_path / "photos")
    (tmp_path / "photos" / "more").symlink_to(tmp_path / "elsewhere")
    assert names(tmp_path / "photos") == ["a.jpg", "more/b.jpg"]


def test_masks_and_outputs_among_the_images_are_left_out(tmp_path: Path) -> None:
    make(tmp_path, "a.jpg", "masks/a.png", "out.png")
    assert names(tmp_path, exclude=(tmp_path / "masks", tmp_path / "out.png")) == ["a.jpg"]


def test_a_folder_that_is_left_out_is_one_in_what_was_given(tmp_path: Path) -> None:
    """Results or masks may lie around the images, or beside them in the same folder."""
    make(tmp_path, "images/a.jpg")
    assert names(tmp_path / "images", exclude=(tmp_path, tmp_path / "images")) == ["a.jpg"]


def test_wrong_inputs_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file or folder: nowhere, .*gone\.jpg"):
        list_images([Path("nowhere"), tmp_path / "gone.jpg"])
    with pytest.raises(InputError, match="no images found"):
        list_images([tmp_path])


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        (np.array([[0, 65535]], np.uint16), [[0, 0, 0], [255, 255, 255]]),
        (np.array([[0.0, 0.5]], np.float32), [[0, 0, 0], [128, 128, 128]]),
        (np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8), [[1, 2, 3], [4, 5, 6]]),
    ],
)
def test_any_image_becomes_rgb_of_8_bits(pixels, expected):
    converted = to_rgb8(pixels)
    assert converted.dtype == np.uint8
    assert converted[0].tolist() == expected
