"""disk_ops.training.data.colmap: reconstructions of any camera model as training data."""

from __future__ import annotations

import pickle
import shutil
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import posed_scene
import pytest
import torch
from colmap_scene import MODELS, SIZE, make_scene

from disk_ops.scenes.errors import DataError, SampleError
from disk_ops.training.data.colmap import ScenesConfig, ScenesSource
from disk_ops.training.data.sample import Frame
from disk_ops.training.rewards import reproject

pycolmap = pytest.importorskip("pycolmap")


def make_source(folder: Path, frame: Frame | None = None, split: str = "train", **settings) -> ScenesSource:
    config = {"holdout": 0.0, "covisibility": (0.1, 1.0), "path": str(folder), **settings}
    return ScenesSource(ScenesConfig(**config), frame or Frame(320, 240), split)


def errors_of(sample, radius: int = 7) -> np.ndarray:
    """How far points lie from where the views say."""
    errors = []
    for image, view in zip(sample.images, sample.views, strict=True):
        expected = posed_scene.project(posed_scene.points_on_plane(), *(array.numpy() for array in view[:3]))
        errors.append(posed_scene.blob_errors(image[0].numpy(), expected, radius))
    return np.concatenate(errors)


class TestGeometry:
    @pytest.mark.parametrize("model", MODELS)
    @pytest.mark.parametrize("fit", ["pad", "crop"])
    def test_points_lie_where_the_pinhole_says(self, tmp_path, model, fit):
        make_scene(tmp_path, model)
        for frame in (Frame(320, 240, 4), Frame(256, 256, 4)):
            source = make_source(tmp_path, frame, fit=fit)
            errors = errors_of(source.load(0, np.random.default_rng(0)))
            assert len(errors) > 80
            assert errors.max() < 0.1
            assert errors.mean() < 0.04

    def test_without_undistortion_they_do_not(self, tmp_path):
        make_scene(tmp_path, "OPENCV")
        errors = errors_of(make_source(tmp_path, undistort=False).load(0, np.random.default_rng(0)))
        assert errors.max() > 0.5

    def test_the_centre_of_the_first_pixel_is_the_origin(self, tmp_path):
        make_scene(tmp_path, "PINHOLE")
        K = make_source(tmp_path).load(0, np.random.default_rng(0)).views[0].K
        assert K.tolist() == [[340, 0, 158.1], [0, 350, 121.2], [0, 0, 1]]

    @pytest.mark.parametrize("model", ["SIMPLE_RADIAL", "OPENCV"])
    @pytest.mark.parametrize("shared", [True, False])
    def test_large_images_are_reduced_exactly(self, tmp_path, model, shared):
        make_scene(tmp_path, model, size=(1280, 960), shared_camera=shared)
        errors = errors_of(make_source(tmp_path, Frame(320, 240, 3)).load(0, np.random.default_rng(0)))
        assert len(errors) > 60
        assert errors.max() < 0.1

    @pytest.mark.parametrize("model", ["PINHOLE", "OPENCV"])
    def test_images_may_be_stored_smaller_than_their_camera(self, tmp_path, model):
        make_scene(tmp_path, model, size=(960, 720))
        for path in (tmp_path / "images").iterdir():
            small = cv2.resize(cv2.imread(str(path)), (480, 360), interpolation=cv2.INTER_AREA)
            cv2.imwrite(str(path), small)
        errors = errors_of(make_source(tmp_path).load(0, np.random.default_rng(0)))
        assert len(errors) > 30
        assert errors.max() < 0.1

    @pytest.mark.parametrize("model", ["PINHOLE", "OPENCV"])
    def test_an_image_of_another_aspect_is_named(self, tmp_path, model):
        make_scene(tmp_path, model)
        cv2.imwrite(str(tmp_path / "images" / "0.png"), np.zeros((320, 240), np.uint8))
        source = make_source(tmp_path, Frame(64, 64, 4))
        with pytest.raises(SampleError, match=r"0\.png: is 240x320, but its camera is for 320x240"):
            source.load(0, np.random.default_rng(0))

    def test_what_the_lens_does_not_show_is_masked(self, tmp_path):
        make_scene(tmp_path, "OPENCV")
        source = make_source(tmp_path)
        lens = source._models[tmp_path.name].lenses[0]
        lens.K[0, 0] /= 2  # a wider pinhole than the lens fills
        sample = source.load(0, np.random.default_rng(0))
        share = sample.mask.float().mean().item()
        assert 0.4 < share < 0.6
        assert (sample.images[~sample.mask.expand_as(sample.images)] == 0).all()


class TestDepth:
    @pytest.mark.parametrize("model", ["PINHOLE", "OPENCV", "OPENCV_FISHEYE"])
    @pytest.mark.parametrize("ending", [".png.geometric.bin", ".npy", ".png"])
    def test_depth_fits_to_image_and_camera(self, tmp_path, model, ending):
        depth = make_scene(tmp_path, model)
        (tmp_path / "depth").mkdir()
        for index, values in enumerate(depth.astype(np.float32)):
            path = str(tmp_path / "depth" / f"{index}{ending}")
            if ending == ".npy":
                np.save(path, values)
            elif ending == ".png":
                cv2.imwrite(path, np.rint(values * 5000).astype(np.uint16))
            else:
                Path(path).write_bytes(b"320&240&1&" + values.tobytes())
        source = make_source(tmp_path, Frame(200, 160, 4), depth="depth", depth_scale=1 / 5000)
        sample = source.load(0, np.random.default_rng(0))
        points = posed_scene.points_on_plane()
        for view in sample.views:
            K, R, t, values = (array.numpy() for array in view)
            pixels = posed_scene.project(points, K, R, t)
            inside = ((pixels > 1) & (pixels < [198, 148])).all(1)
            x, y = np.rint(pixels[inside]).astype(int).T
            found = values[y, x]
            known = np.isfinite(found)
            assert known.sum() > 10
            assert np.abs(found - (points @ R.T + t)[inside, 2])[known].max() < 0.02
        x, y = torch.meshgrid(torch.arange(200.0), torch.arange(160.0), indexing="xy")
        grid = torch.stack([x, y], -1).reshape(-1, 2)
        back = reproject(reproject(grid, *sample.views[:2]), sample.views[1], sample.views[0])
        known = back.isfinite().all(1)
        assert known.float().mean() > 0.3
        assert (back - grid)[known].norm(dim=1).max() < 1.0

    def test_images_without_a_map_are_left_out(self, tmp_path):
        depth = make_scene(tmp_path, count=5)
        (tmp_path / "depth").mkdir()
        for index in (0, 2, 3):
            np.save(tmp_path / "depth" / f"{index}.npy", depth[index])
        source = make_source(tmp_path, depth="depth")
        assert source.scenes[0].images == ("0.png", "2.png", "3.png")
        assert source.notes == (f"scene {tmp_path.name}: 2 images without depth map in {tmp_path / 'depth'}",)

    def test_without_a_folder_there_is_no_depth(self, tmp_path):
        make_scene(tmp_path)
        assert make_source(tmp_path).load(0, np.random.default_rng(0)).views[0].depth is None

    def test_a_broken_map_is_named(self, tmp_path):
        make_scene(tmp_path, count=2)
        (tmp_path / "depth").mkdir()
        for index in range(2):
            (tmp_path / "depth" / f"{index}.h5").write_bytes(b"no")
        with pytest.raises(SampleError, match=r"\d\.h5: can't be read as a depth map"):
            make_source(tmp_path, depth="depth").load(0, np.random.default_rng(0))


class TestFolders:
    @pytest.mark.parametrize("text", [True, False])
    @pytest.mark.parametrize(
        ("sparse", "path"),
        [
            (".", "."),
            ("sparse", "."),
            ("sparse/0", "."),
            ("sparse", "sparse"),
            ("sparse/0", "sparse/0"),
            ("sparse/0", "sparse"),
            ("sparse/town/0", "."),
        ],
    )
    def test_models_are_found_where_colmap_puts_them(self, tmp_path, sparse, path, text):
        make_scene(tmp_path / "town", sparse=sparse, text=text, count=2)
        source = make_source(tmp_path / "town" / path)
        assert len(source.order(0, 0)) == 1
        assert errors_of(source.load(0, np.random.default_rng(0))).max() < 0.1

    @pytest.mark.parametrize("path", [".", "dense", "dense/sparse"])
    def test_the_dense_workspace_is_preferred(self, tmp_path, path):
        make_scene(tmp_path / "town" / "dense", names="dense{}.png")
        make_scene(tmp_path / "town", names="original{}.png", model="OPENCV")
        source = make_source(tmp_path / "town" / path)
        assert source.scenes[0].images[0] == "dense0.png"

    def test_of_unconnected_parts_the_largest_is_taken(self, tmp_path):
        make_scene(tmp_path, sparse="sparse/0", count=2)
        make_scene(tmp_path, sparse="sparse/1", count=4)
        assert len(make_source(tmp_path).scenes[0].images) == 4

    def test_a_folder_of_scenes(self, tmp_path):
        make_scene(tmp_path / "a", count=3, sparse="sparse/0")
        make_scene(tmp_path / "b", count=2, model="OPENCV")
        make_scene(tmp_path / "c", count=2, sparse=".")
        (tmp_path / "other").mkdir()
        source = make_source(tmp_path)
        assert [scene.name for scene in source.scenes] == ["a", "b", "c"]
        assert source.name == f"scenes {tmp_path}"
        for item in source.order(0, 0):
            assert errors_of(source.load(int(item), np.random.default_rng(0))).max() < 0.1
        assert [scene.name for scene in make_source(tmp_path, blacklist=("a", "c/1.png")).scenes] == ["b"]

    def test_images_and_depth_may_lie_elsewhere(self, tmp_path):
        depth = make_scene(tmp_path / "scenes" / "a", count=2, names="left/{}.png")
        shutil.move(tmp_path / "scenes" / "a" / "images", tmp_path / "pictures" / "a")
        (tmp_path / "scenes" / "a" / "stereo" / "depth_maps" / "left").mkdir(parents=True)
        for index in range(2):
            np.save(tmp_path / "scenes" / "a" / "stereo" / "depth_maps" / "left" / f"{index}.npy", depth[index])
        where = {"images": str(tmp_path / "pictures" / "{scene}"), "depth": "stereo/depth_maps"}
        for path in (tmp_path / "scenes", tmp_path / "scenes" / "a"):
            view = make_source(path, **where).load(0, np.random.default_rng(0)).views[0]
            assert view.depth.isfinite().all()

    def test_images_that_are_missing_are_left_out(self, tmp_path):
        make_scene(tmp_path, count=4)
        (tmp_path / "images" / "1.png").unlink()
        source = make_source(tmp_path)
        assert source.scenes[0].images == ("0.png", "2.png", "3.png")
        assert source.notes == (f"scene {tmp_path.name}: 1 images not found in {tmp_path / 'images'}",)


class TestTuples:
    def test_pairs_are_in_the_range_of_covisibility(self, tmp_path):
        make_scene(tmp_path, count=8)
        points = posed_scene.points_on_plane()
        seen = []
        for index in range(8):
            R, t = posed_scene.pose(index)
            camera = pycolmap.Camera(model="PINHOLE", width=SIZE[0], height=SIZE[1], params=MODELS["PINHOLE"])
            pixels = camera.img_from_cam(points @ R.T + t)
            seen.append(set(np.flatnonzero(((pixels > 0) & (pixels < SIZE)).all(1)).tolist()))
        expected = {
            (i, j)
            for i in range(8)
            for j in range(i + 1, 8)
            if 0.8 <= len(seen[i] & seen[j]) / min(len(seen[i]), len(seen[j])) <= 0.9
        }
        pairs = make_source(tmp_path, covisibility=(0.8, 0.9)).scenes[0].tuples
        assert 3 < len(expected) < 25
        assert {tuple(sorted(pair)) for pair in pairs.tolist()} == expected
        triplets = make_source(tmp_path, Frame(64, 64, 3), covisibility=(0.8, 0.9)).scenes[0].tuples
        for a, b, c in np.sort(triplets, 1).tolist():
            assert {(a, b), (b, c), (a, c)} <= expected

    def test_validation_shares_no_image_with_training(self, tmp_path):
        make_scene(tmp_path, count=10)
        train = make_source(tmp_path, Frame(64, 64, 3), holdout=0.1).scenes[0].tuples
        val = make_source(tmp_path, Frame(64, 64, 2), "val", holdout=0.1).scenes[0].tuples
        assert len(train) > 10 and len(val) >= 2
        assert not set(train.ravel().tolist()) & set(val.ravel().tolist())

    def test_an_image_that_sees_no_point_is_no_fault(self, tmp_path):
        make_scene(tmp_path, count=3)
        model = pycolmap.Reconstruction(str(tmp_path / "sparse"))
        camera = model.cameras[1]
        image = pycolmap.Image(name="0.png", camera_id=camera.camera_id, image_id=9)
        model.add_image_with_trivial_frame(image, pycolmap.Rigid3d())
        model.write_binary(str(tmp_path / "sparse"))
        assert len(make_source(tmp_path).scenes[0].tuples) == 3

    def test_a_source_goes_to_other_processes(self, tmp_path):
        make_scene(tmp_path, "OPENCV")
        source = make_source(tmp_path)
        copy = pickle.loads(pickle.dumps(source))
        assert np.array_equal(copy.order(3, 5), source.order(3, 5))
        a, b = (each.load(2, np.random.default_rng(0)) for each in (source, copy))
        assert torch.equal(a.images, b.images) and torch.equal(a.views[0].K, b.views[0].K)
        assert len(pickle.dumps(source)) < 20_000


class TestErrors:
    def test_no_folder_and_no_model(self, tmp_path):
        for path in ("", str(tmp_path / "none")):
            with pytest.raises(DataError, match="path must be a folder"):
                ScenesSource(ScenesConfig(path=path), Frame(64, 64), "train")
        with pytest.raises(DataError, match=r"there is no COLMAP model; looked for cameras, images and points3D"):
            make_source(tmp_path)

    def test_no_images_folder_is_named(self, tmp_path):
        make_scene(tmp_path, count=3)
        shutil.rmtree(tmp_path / "images")
        with pytest.raises(DataError, match=rf"nothing to use.*3 images not found in {tmp_path / 'images'}"):
            make_source(tmp_path)

    def test_no_overlap_in_the_range(self, tmp_path):
        make_scene(tmp_path, count=3)
        with pytest.raises(DataError, match=r"looked for 2 images that share 0 to 0.01 of their points"):
            make_source(tmp_path, covisibility=(0.0, 0.01))

    def test_blacklisting_everything(self, tmp_path):
        make_scene(tmp_path / "a", count=2)
        with pytest.raises(DataError, match="all its scenes are blacklisted"):
            make_source(tmp_path, blacklist=("a",))

    @pytest.mark.parametrize("part", ["cameras", "images", "points3D"])
    @pytest.mark.parametrize("change", ["half", "last byte", "empty", "longer"])
    def test_a_damaged_model_is_named(self, tmp_path, part, change):
        make_scene(tmp_path, count=2)  # pycolmap would hang, or go on with wrong numbers
        path = tmp_path / "sparse" / f"{part}.bin"
        data = path.read_bytes()
        path.write_bytes(
            {"half": data[: len(data) // 2], "last byte": data[:-1], "empty": b""}.get(change, data + b"x")
        )
        with pytest.raises(DataError, match=rf"model {tmp_path / 'sparse'} can't be read: {part}.bin is truncated"):
            make_source(tmp_path)

    @pytest.mark.parametrize("part", ["cameras", "images", "points3D", "rigs", "frames"])
    def test_a_text_that_ends_early(self, tmp_path, part):
        make_scene(tmp_path, count=2, text=True)
        path = tmp_path / "sparse" / f"{part}.txt"
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        try:
            source = make_source(tmp_path)
        except DataError as error:
            assert str(tmp_path) in str(error)
        else:  # half of a text may still be a model
            assert len(source.scenes) == 1

    def test_garbage_instead_of_a_model(self, tmp_path):
        make_scene(tmp_path, count=2)
        for path in (tmp_path / "sparse").iterdir():
            path.write_bytes(np.random.default_rng(0).bytes(3000))
        with pytest.raises(DataError, match=r"sparse can't be read"):
            make_source(tmp_path)

    def test_a_camera_that_no_pinhole_can_replace(self, tmp_path):
        make_scene(tmp_path, count=3)
        model = pycolmap.Reconstruction(str(tmp_path / "sparse"))
        model.cameras[1].params = [np.nan, 350, 158, 121]
        model.write_binary(str(tmp_path / "sparse"))
        with pytest.raises(DataError, match=r"of a camera that can't be used \(PINHOLE\)"):
            make_source(tmp_path)

    def test_a_panorama(self, tmp_path):
        if "EQUIRECTANGULAR" not in pycolmap.CameraModelId.__members__:
            pytest.skip("this pycolmap has no EQUIRECTANGULAR")
        make_scene(tmp_path, count=2, text=True)
        cameras = tmp_path / "sparse" / "cameras.txt"
        lines = [line if line.startswith("#") else "1 EQUIRECTANGULAR 320 240 320 240" for line in cameras.open()]
        cameras.write_text("\n".join(lines))
        with pytest.raises(DataError, match=r"of a camera that can't be used \(EQUIRECTANGULAR\)"):
            make_source(tmp_path)

    def test_a_focal_length_of_zero(self, tmp_path):
        make_scene(tmp_path, count=2, text=True)
        cameras = tmp_path / "sparse" / "cameras.txt"
        cameras.write_text(cameras.read_text().replace("PINHOLE 320 240 340 350", "PINHOLE 320 240 0 0"))
        with pytest.raises(DataError, match="of a camera that can't be used"):
            make_source(tmp_path)

    def test_a_broken_image_is_named(self, tmp_path):
        make_scene(tmp_path, count=2)
        (tmp_path / "images" / "0.png").write_bytes(b"no image")
        with pytest.raises(SampleError, match=r"0\.png: is not an image"):
            make_source(tmp_path).load(0, np.random.default_rng(0))

    def test_without_pycolmap_it_says_how_to_get_it(self, tmp_path, monkeypatch):
        make_scene(tmp_path, count=2)
        monkeypatch.setitem(sys.modules, "pycolmap", None)
        with pytest.raises(DataError, match="pip install pycolmap"):
            make_source(tmp_path)

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"covisibility": (0.8, 0.1)}, "covisibility must be two numbers from 0 to 1 in order"),
            ({"covisibility": (0.8, 1.1)}, "covisibility must be"),
            ({"depth_scale": 0.0}, "depth_scale must be positive, got 0.0"),
            ({"fit": "none"}, "fit must be"),
        ],
    )
    def test_settings_out_of_range(self, values, message):
        with pytest.raises(ValueError, match=message):
            ScenesConfig(**values)


def test_undistorted_images_come_from_the_cache_in_milliseconds(tmp_path):
    make_scene(tmp_path, "OPENCV", count=3, size=(1280, 960))
    source = make_source(tmp_path, Frame(384, 384, 3))
    times = []
    for _ in range(6):
        start = time.process_time()
        source.load(0, np.random.default_rng(0))
        times.append(time.process_time() - start)
    assert min(times[1:]) < 0.04
