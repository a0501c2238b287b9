"""disk_ops.training.data.rgbd: images with cameras.json, with or without depth."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import cv2
import numpy as np
import posed_scene
import pytest
import torch

from disk_ops.scenes.errors import DataError, SampleError
from disk_ops.training.data.rgbd import RgbdConfig, RgbdSource
from disk_ops.training.data.sample import Frame
from disk_ops.training.rewards import fundamental_matrix, reproject


def make_scene(
    folder: Path,
    count: int = 5,
    common: bool = True,
    images: str = "images",
    depth: str | None = "depth",
    named: bool = True,
) -> Path:
    """Write images of the plane, depth in mm, and cameras.json with one K for all or one for each."""
    cameras = {}
    for path in filter(None, (images, depth)):
        (folder / path).mkdir(parents=True, exist_ok=True)
    for index in range(count):
        camera = posed_scene.pinhole((320, 240), index)
        grey, depth_map = posed_scene.render(posed_scene.rays_of(camera), camera.R, camera.t)
        cv2.imwrite(str(folder / images / f"{index}.png"), grey)
        cameras[f"{index}.png"] = {"R": camera.R.tolist(), "t": camera.t.tolist()}
        own = {"K": camera.K.tolist(), "width": 320, "height": 240}
        if not common:
            cameras[f"{index}.png"] |= own
        if depth:
            map_name = f"map{index}.png" if named else f"{index}.png"
            cv2.imwrite(str(folder / depth / map_name), np.rint(1000 * depth_map).astype(np.uint16))
            cameras[f"{index}.png"] |= {"depth": map_name} if named else {}
    (folder / "cameras.json").write_text(json.dumps({**(own if common else {}), "cameras": cameras}))
    return folder


def change(folder: Path, image: str | None = None, **entries) -> None:
    content = json.loads((folder / "cameras.json").read_text())
    (content["cameras"][image] if image else content).update(entries)
    (folder / "cameras.json").write_text(json.dumps(content))


def make_source(path: Path, frame: Frame | None = None, split: str = "train", **settings) -> RgbdSource:
    config = {"path": str(path), "holdout": 0.0, "covisibility": (0.2, 1.0), **settings}
    return RgbdSource(RgbdConfig(**config), frame or Frame(320, 240), split)


class TestGeometry:
    @pytest.mark.parametrize("common", [True, False])
    @pytest.mark.parametrize("images", ["images", "."])
    @pytest.mark.parametrize(("depth", "named"), [("depth", True), ("depth_registered", False), (None, False)])
    def test_all_the_layouts(self, tmp_path, common, images, depth, named):
        make_scene(tmp_path, common=common, images=images, depth=depth, named=named)
        source = make_source(tmp_path)
        assert source.notes == ()
        sample = source.load(0, np.random.default_rng(0))
        for image, view in zip(sample.images, sample.views, strict=True):
            K, R, t = (array.numpy() for array in view[:3])
            expected = posed_scene.project(posed_scene.points_on_plane(), K, R, t)
            errors = posed_scene.blob_errors(image[0].numpy(), expected)
            assert len(errors) > 30 and errors.max() < 0.1
            assert (view.depth is None) == (depth is None)
            if depth:
                distance = (posed_scene.points_on_plane() @ R.T + t)[:, 2]
                inside = ((expected > 0) & (expected < [319, 239])).all(1)
                x, y = np.rint(expected[inside]).astype(int).T
                assert np.abs(view.depth.numpy()[y, x] - distance[inside]).max() < 0.01

    def test_depth_may_be_left_alone(self, tmp_path):
        make_scene(tmp_path)
        with_depth, without = make_source(tmp_path), make_source(tmp_path, use_depth=False)
        assert all(view.depth is None for view in without.load(0, np.random.default_rng(0)).views)
        assert np.array_equal(with_depth.scenes[0].tuples, without.scenes[0].tuples)  # chosen by overlap in both cases

    def test_the_unit_of_depth(self, tmp_path):
        make_scene(tmp_path)
        views = [make_source(tmp_path, depth_scale=s).load(0, np.random.default_rng(0)).views for s in (0.001, 0.00101)]
        assert abs((views[1][0].depth / views[0][0].depth).nanmean() - 1.01) < 1e-4

    def test_images_may_be_stored_in_another_size(self, tmp_path):
        make_scene(tmp_path)
        path = str(tmp_path / "images" / "0.png")
        cv2.imwrite(path, cv2.resize(cv2.imread(path), (160, 120), interpolation=cv2.INTER_AREA))
        source = make_source(tmp_path)
        expected, found = (source.read(0, image).K for image in (1, 0))
        assert np.allclose(found, np.diag([0.5, 0.5, 1]) @ expected + [[0, 0, -0.25], [0, 0, -0.25], [0, 0, 0]])
        cv2.imwrite(path, np.zeros((320, 240), np.uint8))
        with pytest.raises(SampleError, match=r"0\.png: is 240x320, but its camera is for 320x240"):
            source.read(0, 0)


class TestTuples:
    def test_overlap_by_depth_decides(self, tmp_path):
        make_scene(tmp_path, count=12)
        steps = []  # between the images of each pair: each camera stands further to the right than the one before
        for limits in ((0.8, 1.0), (0.2, 0.6)):
            (scene,) = make_source(tmp_path, covisibility=limits).scenes
            numbers = np.array([int(name.removesuffix(".png")) for name in scene.images])[scene.tuples]
            steps.append(np.abs(numbers[:, 0] - numbers[:, 1]))
        assert len(steps[0]) > 5 < len(steps[1])
        assert steps[0].max() < 6 < steps[1].max() and steps[1].min() > 3

    def test_directions_decide_without_depth(self, tmp_path):
        make_scene(tmp_path, count=8, depth=None)
        R = [posed_scene.pose(index)[0] for index in range(8)]
        pairs = make_source(tmp_path, max_angle=6.0).scenes[0].tuples.tolist()
        angles = {(i, j): np.degrees(np.arccos(min(1, R[i][2] @ R[j][2]))) for i in range(8) for j in range(i + 1, 8)}
        assert {tuple(sorted(pair)) for pair in pairs} == {pair for pair, angle in angles.items() if angle <= 6}
        assert 0 < len(pairs) < 28
        centres = [-R.T @ t for R, t in map(posed_scene.pose, range(8))]
        near = {pair for pair in angles if np.linalg.norm(centres[pair[0]] - centres[pair[1]]) <= 0.8}
        found = make_source(tmp_path, max_angle=180.0, max_distance=0.8).scenes[0].tuples.tolist()
        assert {tuple(sorted(pair)) for pair in found} == near
        assert 0 < len(near) < 28

    def test_of_a_long_recording_some_images_are_used(self, tmp_path):
        make_scene(tmp_path, count=9)
        source = make_source(tmp_path, max_images=3)
        assert source.scenes[0].images == ("0.png", "4.png", "8.png")
        depth = [source.read(0, image).depth[0, 0] for image in range(3)]
        assert len(set(depth)) == 3

    def test_a_folder_of_scenes(self, tmp_path):
        make_scene(tmp_path / "a", count=3), make_scene(tmp_path / "b" / "c", count=2, depth=None)
        source = make_source(tmp_path)
        assert [(scene.name, len(scene.tuples)) for scene in source.scenes] == [("a", 3), ("b/c", 1)]
        names = {source.load(int(item), np.random.default_rng(0)).name for item in source.order(0, 0)}
        assert len(names) == 4
        assert [scene.name for scene in make_source(tmp_path, blacklist=("b/c", "a/0.png")).scenes] == ["a"]
        assert len(make_source(tmp_path, blacklist=("b/c", "a/0.png")).scenes[0].tuples) == 1

    def test_validation_shares_no_image_with_training(self, tmp_path):
        make_scene(tmp_path, count=10)
        train = make_source(tmp_path, Frame(64, 64, 3), holdout=0.1).scenes[0].tuples
        val = make_source(tmp_path, Frame(64, 64, 2), "val", holdout=0.1).scenes[0].tuples
        assert len(train) > 5 and len(val) == 3
        assert not set(train.ravel().tolist()) & set(val.ravel().tolist())

    def test_a_source_goes_to_other_processes(self, tmp_path):
        make_scene(tmp_path)
        source = make_source(tmp_path, fit="crop")
        copy = pickle.loads(pickle.dumps(source))
        assert torch.equal(*(each.load(1, np.random.default_rng(0)).images for each in (source, copy)))


class TestErrors:
    def test_no_folder_and_no_scene(self, tmp_path):
        for path in ("", str(tmp_path / "none")):
            with pytest.raises(DataError, match="rgbd: path must be a folder"):
                RgbdSource(RgbdConfig(path=path), Frame(64, 64), "train")
        with pytest.raises(DataError, match=r"there is no scene; looked for cameras\.json"):
            make_source(tmp_path)
        make_scene(tmp_path / "a")
        with pytest.raises(DataError, match=r"all its scenes are blacklisted"):
            make_source(tmp_path, blacklist=("a",))

    def test_missing_images_and_maps_are_left_out(self, tmp_path):
        make_scene(tmp_path)
        (tmp_path / "images" / "1.png").unlink(), (tmp_path / "depth" / "map3.png").unlink()
        source = make_source(tmp_path)
        assert source.scenes[0].images == ("0.png", "2.png", "4.png")
        assert source.notes == (
            f"scene {tmp_path.name}: 1 images not found in {tmp_path / 'images'}",
            f"scene {tmp_path.name}: 1 images without depth map in {tmp_path / 'depth'}",
        )
        for path in (tmp_path / "images").iterdir():
            path.unlink()
        with pytest.raises(DataError, match=rf"nothing to use; .*5 images not found in {tmp_path / 'images'}"):
            make_source(tmp_path)

    def test_a_broken_map_is_noted_and_left_out(self, tmp_path):
        make_scene(tmp_path)
        (tmp_path / "depth" / "map1.png").write_bytes(b"no")
        source = make_source(tmp_path)
        assert source.notes[0].startswith(f"scene {tmp_path.name}: {tmp_path / 'depth' / 'map1.png'}: is not an image")
        assert not (source.scenes[0].tuples == 1).any()

    def test_maps_that_tell_nothing_or_are_of_another_image_are_told(self, tmp_path):
        make_scene(tmp_path, count=3)
        for pixels, told in (
            (np.zeros((240, 320), np.uint16), "3 depth maps without any known depth"),
            (np.full((320, 240), 1000, np.uint16), r"map0\.png: depth map is 240x320, but the image is 320x240"),
        ):
            for index in range(3):
                cv2.imwrite(str(tmp_path / "depth" / f"map{index}.png"), pixels)
            with pytest.raises(DataError, match=told):
                make_source(tmp_path)

    def test_files_that_break_later_are_named(self, tmp_path):
        make_scene(tmp_path, count=2)
        source = make_source(tmp_path)
        (tmp_path / "depth" / "map1.png").write_bytes(b"no")
        with pytest.raises(SampleError, match=r"map1\.png: is not an image"):
            source.load(0, np.random.default_rng(0))
        (tmp_path / "images" / "0.png").write_bytes(b"")
        (tmp_path / "images" / "1.png").write_bytes(b"")
        with pytest.raises(SampleError, match=r"images/\d\.png: is empty"):
            source.load(0, np.random.default_rng(0))

    def test_images_that_are_none(self, tmp_path):
        make_scene(tmp_path, count=2, depth=None)
        for index in range(2):
            cv2.imwrite(str(tmp_path / "images" / f"{index}.png"), np.zeros((240, 9), np.uint8))
        with pytest.raises(SampleError, match="is 9x240: too small or too elongated"):
            make_source(tmp_path).load(0, np.random.default_rng(0))

    @pytest.mark.parametrize(
        ("image", "entries", "message"),
        [
            (None, {"cameras": [1]}, r"cameras\.json must have an object 'cameras'"),
            (None, {"K": None}, "camera '0.png' must have R, t, K|K, R and t must be"),
            (None, {"K": [[1, 0], [0, 1]]}, "camera '0.png': K, R and t must be 3x3"),
            (None, {"width": "wide"}, "camera '0.png' must have R, t, K and a size"),
            (None, {"width": -320}, r"camera '0\.png' .*: .*width must be a whole number of pixels, got -320"),
            (None, {"height": 240.7}, r"height must be a whole number of pixels, got 240\.7"),
            (None, {"height": True}, "height must be a whole number of pixels, got True"),
            ("1.png", {"width": float("inf")}, r"camera '1\.png' .*width must be a whole number of pixels, got inf"),
            ("1.png", {"width": 10**30}, "width must be a whole number of pixels"),
            ("1.png", {"t": [0, 0, 10**400]}, "camera '1.png' must have R, t, K"),
            ("1.png", {"R": None}, "camera '1.png'"),
            ("1.png", {"R": [[1, 0, 0], [0, 1, 0], [0, 0, -1]]}, "camera '1.png': R must be a rotation"),
            ("1.png", {"t": "x"}, "camera '1.png' must have R, t, K"),
            ("1.png", {"t": [0, 0, float("nan")]}, "camera '1.png': K, R or t has numbers that aren't finite"),
        ],
    )
    def test_cameras_that_cant_be(self, tmp_path, image, entries, message):
        change(make_scene(tmp_path, count=2), image, **entries)
        with pytest.raises(DataError, match=message):
            make_source(tmp_path)

    def test_json_that_is_none(self, tmp_path):
        make_scene(tmp_path)
        for text in ("{", "[" * 100_000):
            (tmp_path / "cameras.json").write_text(text)
            with pytest.raises(DataError, match=r"cameras\.json can't be read"):
                make_source(tmp_path)

    def test_a_size_that_is_0_is_none(self, tmp_path):
        change(make_scene(tmp_path, count=2), width=0, height=0.0)
        assert not make_source(tmp_path)._cameras[tmp_path.name].sizes.any()

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"covisibility": (-0.1, 1.0)}, "covisibility must be two numbers"),
            ({"depth_scale": -1.0}, "depth_scale must be positive"),
            ({"max_angle": 181.0}, "max_angle must be from 0 to 180 degrees"),
            ({"max_distance": -1.0}, "max_distance must be at least 0"),
            ({"max_images": 1}, "max_images must be at least 2"),
            ({"tuples_per_scene": 0}, "tuples_per_scene must be at least 1"),
        ],
    )
    def test_settings_out_of_range(self, values, message):
        with pytest.raises(ValueError, match=message):
            RgbdConfig(**values)


class TestRealScenes:
    @pytest.mark.parametrize("scene", ["7scenes", "hololens_000"])
    @pytest.mark.parametrize("fit", ["pad", "crop"])
    def test_depth_warps_there_and_back(self, shared_data, scene, fit):
        source = make_source(shared_data / "depth" / scene, Frame(384, 384, 2), fit=fit, covisibility=(0.4, 0.95))
        assert source.notes == ()
        grid = torch.cartesian_prod(torch.arange(4.0, 384, 8), torch.arange(4.0, 384, 8))
        errors, shares = [], []
        for item in source.order(0, 0)[:12]:
            a, b = source.load(int(item), np.random.default_rng(int(item))).views
            back = reproject(reproject(grid, a, b), b, a)
            known = back.isfinite().all(1)
            errors.append((back - grid)[known].norm(dim=1))
            shares.append(known.float().mean() / a.depth.isfinite().float().mean())
        assert torch.stack(shares).mean() > 0.3
        assert torch.cat(errors).median() < 1.0
        assert (torch.cat(errors) < 3).float().mean() > 0.6  # the rest is hidden by something

    @pytest.mark.parametrize(
        ("scene", "share"), [("depth/7scenes", 0.3), ("pose/strecha/fountain-P11", 0.8), ("pose/imc_reichstag", 0.35)]
    )
    @pytest.mark.parametrize("fit", ["pad", "crop"])
    def test_matches_of_sift_are_consistent_with_the_views(self, shared_data, scene, share, fit):
        source = make_source(shared_data / scene, Frame(512, 512, 2), fit=fit, max_angle=15.0, covisibility=(0.6, 0.95))
        shares, depth_shares = [], []
        for item in source.order(0, 0)[:4]:
            sample = source.load(int(item), np.random.default_rng(0))
            x, y = sift_matches(*(image.permute(1, 2, 0).numpy() for image in sample.images))
            F = fundamental_matrix(*sample.views)
            lines = torch.cat([x, torch.ones_like(x[:, :1])], 1) @ F.mT
            distance = (lines * torch.cat([y, torch.ones_like(y[:, :1])], 1)).sum(1).abs() / lines[:, :2].norm(dim=1)
            shares.append((distance < 3).double().mean())
            if sample.views[0].depth is not None:
                warped = reproject(x, *sample.views)
                depth_shares.append(((warped - y).norm(dim=1) < 10)[warped.isfinite().all(1)].double().mean())
        assert torch.stack(shares).mean() > share  # by chance: 1 in 50
        assert not depth_shares or torch.stack(depth_shares).mean() > share


def sift_matches(first: np.ndarray, second: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Matches [N, 2] each by the ratio test."""
    sift = cv2.SIFT_create(2000)
    features = [sift.detectAndCompute(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), None) for image in (first, second)]
    pairs = cv2.BFMatcher().knnMatch(features[0][1], features[1][1], k=2)
    best = [a for a, b in pairs if a.distance < 0.8 * b.distance]
    x = torch.tensor([features[0][0][match.queryIdx].pt for match in best], dtype=torch.float64)
    return x, torch.tensor([features[1][0][match.trainIdx].pt for match in best], dtype=torch.float64)
