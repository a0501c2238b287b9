"""disk_ops.training.data.disk_dataset: the layout that DISK was released with."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import cv2
import h5py
import numpy as np
import posed_scene
import pytest
import torch

from disk_ops.scenes.errors import DataError, SampleError
from disk_ops.training.data.disk_dataset import DiskDatasetConfig, DiskDatasetSource
from disk_ops.training.data.sample import Frame
from disk_ops.training.rewards import reproject

TRIPLETS = [[0, 1, 2], [1, 2, 3], [0, 2, 3]]


def make_dataset(
    folder: Path,
    scenes: tuple[str, ...] = ("0015",),
    names: tuple[str, ...] = ("a.jpg", "b.png", "c.d.jpg", "e.JPG"),
    tuples: list = TRIPLETS,
    depth: bool = True,
    absolute: bool = False,
) -> Path:
    """Write a dataset with K as COLMAP has it; returns the JSON file."""
    content = {}
    for scene in scenes:
        entry = {"image_path": f"{scene}/images", "calib_path": f"{scene}/calibration", "depth_path": f"{scene}/depth"}
        for path in entry.values():
            (folder / path).mkdir(parents=True)
        for index, name in enumerate(names):
            camera = posed_scene.pinhole((320, 240), index)
            grey, depth_map = posed_scene.render(posed_scene.rays_of(camera), camera.R, camera.t)
            cv2.imwrite(str(folder / entry["image_path"] / name), grey)
            with h5py.File(folder / entry["calib_path"] / f"calibration_{name}.h5", "w") as file:
                file["K"] = np.float32([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]]) @ camera.K.astype(np.float32)
                file["R"], file["T"] = camera.R, camera.t[:, None] if index == 1 else camera.t
            depth_map[:20] = 0  # unknown
            with h5py.File(folder / entry["depth_path"] / f"{name.rpartition('.')[0]}.h5", "w") as file:
                file["depth"] = depth_map.astype(np.float16)
        if absolute:
            entry = {key: str(folder / path) for key, path in entry.items()}
        if not depth:
            del entry["depth_path"]
        content[scene] = {**entry, "images": list(names), "tuples": tuples}
    (folder / "dataset.json").write_text(json.dumps(content))
    return folder / "dataset.json"


def change(file: Path, **entries) -> None:
    content = json.loads(file.read_text())
    next(iter(content.values())).update(entries)
    file.write_text(json.dumps(content))


def make_source(path: Path, frame: Frame | None = None, split: str = "train", **settings) -> DiskDatasetSource:
    config = DiskDatasetConfig(**{"path": str(path), "holdout": 0.0, **settings})
    return DiskDatasetSource(config, frame or Frame(160, 120, 3), split)


class TestGeometry:
    @pytest.mark.parametrize("absolute", [True, False])
    @pytest.mark.parametrize("as_folder", [True, False])
    def test_points_lie_where_the_views_say(self, tmp_path, absolute, as_folder):
        file = make_dataset(tmp_path, absolute=absolute)
        source = make_source(tmp_path if as_folder else file, Frame(320, 240, 3))
        names = set()
        for item in source.order(0, 0):
            sample = source.load(int(item), np.random.default_rng(0))
            names |= set(sample.name.removeprefix("0015: ").split(", "))
            for image, view in zip(sample.images, sample.views, strict=True):
                K, R, t = (array.numpy() for array in view[:3])
                errors = posed_scene.blob_errors(
                    image[0].numpy(), posed_scene.project(posed_scene.points_on_plane(), K, R, t)
                )
                assert len(errors) > 30 and errors.max() < 0.1
        assert names == {"a.jpg", "b.png", "c.d.jpg", "e.JPG"}

    def test_the_principal_point_may_be_that_of_pixel_centres(self, tmp_path):
        make_dataset(tmp_path)
        views = [make_source(tmp_path, pixel_center=c).load(0, np.random.default_rng(0)).views[0] for c in (0.5, 0.0)]
        assert torch.allclose(views[1].K - views[0].K, torch.tensor([[0, 0, 0.25], [0, 0, 0.25], [0, 0, 0]]).double())

    def test_zero_depth_is_unknown(self, tmp_path):
        make_dataset(tmp_path)
        for view in make_source(tmp_path).load(0, np.random.default_rng(0)).views:
            assert view.depth[:10].isnan().all() and view.depth[10:].isfinite().all()

    def test_depth_warps_there_and_back(self, tmp_path):
        make_dataset(tmp_path)
        a, b, _ = make_source(tmp_path).load(0, np.random.default_rng(0)).views
        x, y = torch.meshgrid(torch.arange(160.0), torch.arange(120.0), indexing="xy")
        grid = torch.stack([x, y], -1).reshape(-1, 2)
        back = reproject(reproject(grid, a, b), b, a)
        known = back.isfinite().all(1)
        assert known.float().mean() > 0.4
        assert (back - grid)[known].norm(dim=1).max() < 0.5

    @pytest.mark.parametrize("how", ["no depth_path", "null", "setting"])
    def test_without_depth_the_views_have_none(self, tmp_path, how):
        file = make_dataset(tmp_path, depth=how != "no depth_path")
        if how == "null":
            change(file, depth_path=None)
        source = make_source(tmp_path, use_depth=how != "setting")
        assert all(view.depth is None for view in source.load(0, np.random.default_rng(0)).views)

    def test_the_ending_may_be_another_one(self, tmp_path):
        file = make_dataset(tmp_path)
        (tmp_path / "0015/images/a.jpg").rename(tmp_path / "0015/images/a.png")
        (tmp_path / "0015/images/c.d.jpg").rename(tmp_path / "0015/images/c.d.webp")
        source = make_source(file)
        for item in range(3):
            source.load(item, np.random.default_rng(0))


class TestTuples:
    def test_longer_tuples_give_any_of_their_images(self, tmp_path):
        make_dataset(tmp_path, tuples=[[0, 1, 2, 3]])
        source = make_source(tmp_path, Frame(64, 64, 2))
        assert len({source.load(0, np.random.default_rng(seed)).name for seed in range(50)}) == 12

    def test_shorter_tuples_are_skipped_with_a_note(self, tmp_path):
        make_dataset(tmp_path, tuples=[[0, 1], [1, 2, 3], [2, 3], [0, 1, 2, 3]])
        source = make_source(tmp_path)
        assert len(source.order(0, 0)) == 2
        assert source.notes == ("scene 0015: 2 tuples of fewer than 3 images",)
        with pytest.raises(DataError, match=r"looked for tuples of 5 images.*4 tuples of fewer than 5 images"):
            make_source(tmp_path, Frame(64, 64, 5))

    def test_a_pass_takes_some_of_each_scene(self, tmp_path):
        make_dataset(tmp_path, scenes=("0", "1"))
        source = make_source(tmp_path, tuples_per_scene=2)
        orders = [source.order(epoch, 0) for epoch in range(20)]
        assert all(np.bincount(order // 3).tolist() == [2, 2] for order in orders)
        assert set(np.concatenate(orders).tolist()) == set(range(6))

    def test_the_blacklist_has_scenes_and_images(self, tmp_path):
        make_dataset(tmp_path, scenes=("0", "1"))
        source = make_source(tmp_path, blacklist=("0", "1/a.jpg"))
        assert [scene.name for scene in source.scenes] == ["1"]
        assert source.scenes[0].tuples.tolist() == [[1, 2, 3]]

    def test_train_and_test_folders_are_the_splits(self, tmp_path):
        make_dataset(tmp_path / "train", scenes=("0", "1"))
        make_dataset(tmp_path / "test", scenes=("2",))
        for holdout in (0.0, 0.5):
            assert [scene.name for scene in make_source(tmp_path, holdout=holdout).scenes] == ["0", "1"]
            assert [scene.name for scene in make_source(tmp_path, split="val", holdout=holdout).scenes] == ["2"]

    def test_otherwise_some_is_held_out(self, tmp_path):
        make_dataset(tmp_path / "train", scenes=tuple("0123"))
        parts = [
            {s.name for s in make_source(tmp_path, split=split, holdout=0.25).scenes} for split in ("train", "val")
        ]
        assert not parts[0] & parts[1] and len(parts[0] | parts[1]) == 4 and all(parts)

    def test_a_source_goes_to_other_processes(self, tmp_path):
        make_dataset(tmp_path)
        source = make_source(tmp_path)
        copy = pickle.loads(pickle.dumps(source))
        images = [each.load(1, np.random.default_rng(0)).images for each in (source, copy)]
        assert torch.equal(*images)


class TestErrors:
    @pytest.mark.parametrize(
        ("path", "content", "message"),
        [
            ("0015/images/a.jpg", None, r"a\.jpg: no such file"),
            ("0015/images/a.jpg", b"x", r"a\.jpg: is not an image"),
            ("0015/depth/a.h5", None, r"a\.h5: can't be read as a depth map"),
            ("0015/depth/a.h5", b"x", r"a\.h5: can't be read as a depth map"),
            ("0015/calibration/calibration_a.jpg.h5", None, r"calibration_a\.jpg\.h5: can't be read as a calibration"),
            ("0015/calibration/calibration_a.jpg.h5", b"x", r"calibration_a\.jpg\.h5: can't be read as a calibration"),
        ],
    )
    def test_a_broken_or_missing_file_is_named(self, tmp_path, path, content, message):
        make_dataset(tmp_path)
        (tmp_path / path).unlink()
        if content is not None:
            (tmp_path / path).write_bytes(content)
        source = make_source(tmp_path)
        with pytest.raises(SampleError, match=message):
            source.load(0, np.random.default_rng(0))
        source.load(1, np.random.default_rng(0))

    def test_a_calibration_that_is_none(self, tmp_path):
        make_dataset(tmp_path)
        with h5py.File(tmp_path / "0015/calibration/calibration_a.jpg.h5", "r+") as file:
            file["R"][...] = 2
        with pytest.raises(SampleError, match=r"calibration_a\.jpg\.h5: R must be a rotation"):
            make_source(tmp_path).load(0, np.random.default_rng(0))
        with h5py.File(tmp_path / "0015/calibration/calibration_a.jpg.h5", "r+") as file:
            del file["R"]
        with pytest.raises(SampleError, match="can't be read as a calibration with K, R and T"):
            make_source(tmp_path).load(0, np.random.default_rng(0))

    def test_no_file(self, tmp_path):
        for path in ("", tmp_path, tmp_path / "none"):
            with pytest.raises(DataError, match=r"no dataset\.json, and no train/dataset\.json"):
                DiskDatasetSource(DiskDatasetConfig(path=str(path)), Frame(64, 64), "train")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", r"dataset\.json can't be read"),
            ("[1]", "must be an object that has an object for each scene"),
            ('{"a": 1}', "must be an object that has an object for each scene"),
            ('{"a": {"image_path": "x"}}', "scene 'a' must have calib_path, images, tuples"),
        ],
    )
    def test_json_of_another_form(self, tmp_path, text, message):
        (tmp_path / "dataset.json").write_text(text)
        with pytest.raises(DataError, match=message):
            make_source(tmp_path)

    @pytest.mark.parametrize(
        ("entries", "message"),
        [
            ({"tuples": [[0, 1, 4]]}, r"from 0 to 3, got \[0, 1, 4\]"),
            ({"tuples": [[0, 1, -1]]}, r"got \[0, 1, -1\]"),
            ({"tuples": [[0, 1, 1]]}, r"different images from 0 to 3, got \[0, 1, 1\]"),
            ({"tuples": [3]}, "got 3"),
            ({"tuples": [["a", "b"]]}, "got"),
            ({"tuples": []}, "nothing to use; looked for tuples of 3 images in .*: there are no tuples"),
            ({"images": [1, 2, 3, 4]}, "images of scene '0015' must be names"),
            ({"depth_path": 3}, "depth_path of scene '0015' must be a text, got 3"),
            ({"image_path": "elsewhere"}, "nothing to use; .*scene 0015: there is no folder .*elsewhere"),
            ({"calib_path": "elsewhere"}, "there is no folder .*elsewhere"),
        ],
    )
    def test_entries_that_cant_be(self, tmp_path, entries, message):
        file = make_dataset(tmp_path)
        change(file, **entries)
        with pytest.raises(DataError, match=message):
            make_source(tmp_path)

    def test_a_scene_without_its_folders_is_left_out(self, tmp_path):
        file = make_dataset(tmp_path, scenes=("0", "1"))
        change(file, image_path="elsewhere")
        source = make_source(tmp_path)
        assert [scene.name for scene in source.scenes] == ["1"]
        assert source.notes == (f"scene 0: there is no folder {tmp_path / 'elsewhere'}",)
