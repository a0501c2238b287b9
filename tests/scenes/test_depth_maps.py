"""disk_ops.scenes.depth_maps: depth map files and their names."""

from __future__ import annotations

import os
import struct

import cv2
import h5py
import numpy as np
import pytest

from disk_ops.scenes.depth_maps import find_depth, list_files, read_depth
from disk_ops.scenes.errors import DataError, SampleError

DEPTH = np.array([[1.5, 2.5, 0.0], [4.0, 5.25, 6.0]], np.float32)  # 3 wide, 2 high
KNOWN = np.where(DEPTH > 0, DEPTH, np.nan)


def colmap_bytes(depth: np.ndarray) -> bytes:
    """COLMAP's layout written out: x runs fastest."""
    height, width = depth.shape
    values = [depth[y, x] for y in range(height) for x in range(width)]
    return f"{width}&{height}&1&".encode() + struct.pack(f"<{len(values)}f", *values)


class TestRead:
    def test_colmap_binary(self, tmp_path):
        (tmp_path / "a.jpg.geometric.bin").write_bytes(colmap_bytes(DEPTH))
        depth = read_depth(tmp_path / "a.jpg.geometric.bin")
        assert depth.dtype == np.float32 and depth.flags.writeable
        assert np.array_equal(depth, KNOWN, equal_nan=True)

    def test_files_written_by_colmap(self, tmp_path):
        pycolmap = pytest.importorskip("pycolmap")
        if not hasattr(pycolmap, "DepthMap"):
            pytest.skip("this pycolmap has no DepthMap")
        pycolmap.DepthMap.from_array(DEPTH, 0.0, 10.0).write(str(tmp_path / "a.bin"))
        assert (tmp_path / "a.bin").read_bytes() == colmap_bytes(DEPTH)
        assert np.array_equal(read_depth(tmp_path / "a.bin"), KNOWN, equal_nan=True)

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_hdf5(self, tmp_path, dtype):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["depth"] = DEPTH.astype(dtype)
        assert np.array_equal(read_depth(tmp_path / "a.h5"), KNOWN, equal_nan=True)

    @pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1), (1, 2, 3)])
    def test_npy(self, tmp_path, shape):
        np.save(tmp_path / "a.npy", DEPTH.reshape(shape))
        assert np.array_equal(read_depth(tmp_path / "a.npy", scale=5.0), KNOWN, equal_nan=True)  # not for floats

    @pytest.mark.parametrize("ending", ["png", "tif"])
    def test_16_bit_image_with_a_unit(self, tmp_path, ending):
        cv2.imwrite(str(tmp_path / f"a.{ending}"), (DEPTH * 1000).astype(np.uint16))
        assert np.allclose(read_depth(tmp_path / f"a.{ending}"), KNOWN, equal_nan=True)
        assert np.allclose(read_depth(tmp_path / f"a.{ending}", scale=0.5), 500 * KNOWN, equal_nan=True)

    def test_integers_of_npy_have_the_unit_too(self, tmp_path):
        np.save(tmp_path / "a.npy", (DEPTH * 1000).astype(np.int32))
        assert np.allclose(read_depth(tmp_path / "a.npy"), KNOWN, equal_nan=True)

    def test_what_is_no_positive_number_is_unknown(self, tmp_path):
        np.save(tmp_path / "a.npy", np.array([[np.nan, np.inf, -np.inf, -1.0, 0.0, 2.0]]))
        assert np.isnan(read_depth(tmp_path / "a.npy")).tolist() == [[True] * 5 + [False]]

    def test_another_resolution_is_fine_another_aspect_is_not(self, tmp_path):
        np.save(tmp_path / "a.npy", np.ones((120, 160)))
        assert read_depth(tmp_path / "a.npy", size=(641, 480)).shape == (120, 160)
        with pytest.raises(SampleError, match=r"a\.npy: depth map is 160x120, but the image is 480x640"):
            read_depth(tmp_path / "a.npy", size=(480, 640))

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("a.bin", b"", "doesn't start with width&height&channels&"),
            ("a.bin", b"x&y&1&", "doesn't start with"),
            ("a.bin", colmap_bytes(DEPTH)[:-1], "3x2x1 floats are 24 bytes, but 23 follow"),
            ("a.bin", b"2&1&3&" + bytes(24), r"must be numbers \[H, W\], got float32 \[3, 1, 2\]"),
            ("a.bin", b"0&0&1&", r"must be numbers \[H, W\]"),
            ("a.h5", b"no", "can't be read as a depth map"),
            ("a.npy", b"no", "can't be read as a depth map"),
            ("a.npy", b"", "can't be read as a depth map"),
            ("a.png", b"no", "is not an image"),
            ("a.png", cv2.imencode(".png", np.ones((4, 4), np.uint8))[1].tobytes(), "grey and of 16 bits, got uint8"),
            ("a.png", cv2.imencode(".png", np.ones((4, 4, 3), np.uint16))[1].tobytes(), "grey and of 16 bits"),
        ],
    )
    def test_a_broken_file_is_named(self, tmp_path, name, content, message):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SampleError, match=rf"{name}: .*{message}"):
            read_depth(tmp_path / name)

    @pytest.mark.parametrize("name", ["a.bin", "a.h5", "a.npy", "a.png"])
    def test_a_missing_file_is_named(self, tmp_path, name):
        with pytest.raises(SampleError, match=name):
            read_depth(tmp_path / name)

    def test_objects_and_texts_are_refused(self, tmp_path):
        np.save(tmp_path / "a.npy", np.array([[{}]], dtype=object), allow_pickle=True)
        np.save(tmp_path / "b.npy", np.array([["x"]]))
        with h5py.File(tmp_path / "c.h5", "w") as file:
            file["other"] = DEPTH
        with h5py.File(tmp_path / "d.h5", "w") as file:
            file.create_group("depth")
        for name in ("a.npy", "b.npy", "c.h5", "d.h5"):
            with pytest.raises(SampleError, match=name):
                read_depth(tmp_path / name)


class TestFind:
    @pytest.mark.parametrize(
        ("files", "image", "found"),
        [
            ({"a.jpg.photometric.bin", "a.jpg.geometric.bin", "a.h5"}, "a.jpg", "a.jpg.geometric.bin"),
            ({"a.jpg.photometric.bin", "a.h5"}, "a.jpg", "a.jpg.photometric.bin"),
            ({"a.h5", "a.png"}, "a.jpg", "a.h5"),
            ({"a.b.npy", "a.npy"}, "a.b.jpg", "a.b.npy"),
            ({"left/a.png", "a.png"}, "left/a.jpg", "left/a.png"),
            ({"a.jpg.png"}, "a.jpg", "a.jpg.png"),
            ({"a.txt", "ab.png"}, "a.jpg", None),
        ],
    )
    def test_by_name_with_or_without_ending(self, files, image, found):
        assert find_depth(files, image) == found

    def test_files_of_a_folder_are_listed_with_subfolders(self, tmp_path):
        (tmp_path / "x" / "y").mkdir(parents=True)
        (tmp_path / "a.png").touch(), (tmp_path / "x" / "y" / "b.png").touch()
        assert list_files(tmp_path) == {"a.png", "x/y/b.png"}
        assert list_files(tmp_path / "none") == frozenset()

    def test_links_that_lead_back_end(self, tmp_path):
        (tmp_path / "a.png").touch()
        for name in ("here", "there"):  # each would double the files at each of 40 levels
            (tmp_path / name).symlink_to(".", target_is_directory=True)
        assert list_files(tmp_path) == {"a.png"}

    def test_a_folder_that_cannot_be_read_is_named(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "scandir", lambda path: os.listdir(tmp_path / "none"))
        with pytest.raises(DataError, match="none: folder can't be read"):
            list_files(tmp_path)
