"""disk_ops.training.data.posed: images fitted to a frame with their cameras and depth, and passes over tuples."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import numpy as np
import posed_scene
import pytest
import torch

from disk_ops.scenes.errors import SampleError
from disk_ops.training.data import framing, posed
from disk_ops.training.data.framing import NO_DEPTH, PosedImage
from disk_ops.training.data.posed import PosedConfig, PosedSource, fitted_size
from disk_ops.training.data.sample import Frame
from disk_ops.training.data.tuples import Scene
from disk_ops.training.rewards import reproject

SIZES = [(640, 480), (333, 500), (101, 997), (500, 120), (64, 48), (1501, 1001)]
AUGMENTED = {"rotation": 15.0, "full_rotation": 0.2, "zoom": (0.7, 2.0), "photometric": 0.5}


class Rendered(PosedSource):
    """Exact images of the plane by cameras of different sizes."""

    def __init__(self, config=None, frame=None, tuples=((0, 1), (1, 2), (0, 3)), scenes=1, sizes=SIZES, depth=True,
                 split="train"):  # fmt: skip
        names = tuple(f"{index}.png" for index in range(len(sizes)))
        rows = [Scene(f"scene{k}", names, np.array(tuples, np.int32)) for k in range(scenes)]
        super().__init__("rendered", config or PosedConfig(), frame or Frame(160, 128), rows, split)
        self.sizes, self.depth, self.reads = sizes, depth, 0

    def read(self, scene: int, image: int) -> PosedImage:
        self.reads += 1
        if image == 5 and len(self.sizes) == 6:
            raise SampleError("5.png", "is broken")
        camera = posed_scene.pinhole(self.sizes[image], image)
        grey, depth = posed_scene.render(posed_scene.rays_of(camera), camera.R, camera.t)
        return PosedImage(
            np.repeat(grey[:, :, None], 3, axis=2),
            np.ones(grey.shape, bool),
            *camera[:3],
            depth.astype(np.float32) if self.depth else NO_DEPTH,
            np.array(3.0),
        )


class TestConfig:
    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"fit": "squeeze"}, "fit must be 'pad' or 'crop', got 'squeeze'"),
            ({"tuples_per_scene": 0}, "tuples_per_scene must be at least 1, got 0"),
            ({"holdout": 1.5}, "holdout must be from 0 to 1, got 1.5"),
            ({"cache_mb": -1.0}, "cache_mb must be at least 0, got -1.0"),
            ({"rotation": -1.0}, "rotation must be from 0 to 360 degrees, got -1.0"),
        ],
    )
    def test_values_out_of_range_are_named(self, values, message):
        with pytest.raises(ValueError, match=message.replace(".", r"\.")):
            PosedConfig(**values)

    def test_the_blacklist_names_scenes_images_or_images_of_a_scene(self):
        config = PosedConfig(blacklist=("bad", "x.jpg", "good/y.jpg"))
        assert config.excludes("bad") and not config.excludes("good")
        assert config.excludes("good", "x.jpg") and config.excludes("good", "y.jpg")
        assert config.excludes("bad", "y.jpg") and not config.excludes("other", "y.jpg")


class TestFittedSize:
    @pytest.mark.parametrize("size", [*SIZES, (1, 5000), (5000, 1), (160, 128)])
    @pytest.mark.parametrize("frame", [Frame(160, 128), Frame(384, 384), Frame(97, 301)])
    def test_fits_or_covers_by_the_least_change_of_aspect(self, size, frame):
        box = np.array([frame.width, frame.height])
        inside, around = np.array(fitted_size(size, frame, "pad")), np.array(fitted_size(size, frame, "crop"))
        assert (inside <= box).all() and (inside == box).any() and (inside >= 1).all()
        assert (around >= box).all() and (around == box).any()
        for fitted in (inside, around):
            other = np.argmin(fitted == box)  # the edge that follows
            exact = size[other] * fitted[1 - other] / size[1 - other]
            assert abs(fitted[other] - exact) <= 0.5 or fitted[other] == 1

    def test_a_frame_of_the_same_size_changes_nothing(self):
        assert fitted_size((160, 128), Frame(160, 128), "pad") == fitted_size((160, 128), Frame(160, 128), "crop")


class TestResize:
    @pytest.mark.parametrize("fit", ["pad", "crop"])
    @pytest.mark.parametrize("index", range(5))
    def test_intrinsics_follow_pixels(self, fit, index):
        source = Rendered(PosedConfig(fit=fit))
        original = source.read(0, index)
        points = posed_scene.points_on_plane()
        before = posed_scene.project(points, original.K, original.R, original.t)
        resized = posed.resize(original, fitted_size(SIZES[index], source.frame, fit))
        framed = framing.cut(resized, (5, 3), source.frame)
        factor = np.array(resized.mask.shape[::-1]) / SIZES[index]
        expected = (before + 0.5) * factor - 0.5 - [5, 3]
        after = posed_scene.project(points, framed.K, framed.R, framed.t)
        assert np.abs(after - expected).max() < 1e-9

    @pytest.mark.parametrize("size", [(320, 240), (213, 160), (641, 481), (900, 675)])
    def test_pixels_lie_where_the_new_intrinsics_say(self, size):
        camera = posed_scene.pinhole((640, 480))
        points = posed_scene.points_on_plane()
        grey, depth = posed_scene.render(posed_scene.rays_of(camera), camera.R, camera.t)
        image = PosedImage(grey[:, :, None].repeat(3, 2), grey > -1, *camera[:3], depth, np.array(3.0))
        resized = posed.resize(image, size)
        expected = posed_scene.project(points, resized.K, camera.R, camera.t)
        errors = posed_scene.blob_errors(resized.pixels[:, :, 0], expected, radius=round(15 * size[0] / 640))
        assert len(errors) > 30
        assert errors.max() < 0.05

    def test_depth_is_that_of_a_pixel_and_never_a_mean(self):
        depth = np.where(np.arange(64) < 31, np.float32(1), np.float32(9))[None].repeat(48, 0)
        depth[10:20, 10:20] = np.nan
        for size in ((32, 24), (45, 33), (100, 75)):
            resized = posed.nearest(depth, size)
            assert set(np.unique(resized[np.isfinite(resized)])) == {1.0, 9.0}
            columns = np.floor((np.arange(size[0]) + 0.5) * 64 / size[0]).astype(int)
            rows = np.floor((np.arange(size[1]) + 0.5) * 48 / size[1]).astype(int)
            assert np.array_equal(resized, depth[np.ix_(rows, columns)], equal_nan=True)

    def test_a_pixel_counts_only_if_all_under_it_do(self):
        mask = np.ones((40, 40), bool)
        mask[:, 5:] = False
        image = PosedImage(
            np.zeros((40, 40, 3), np.uint8), mask, np.eye(3), np.eye(3), np.zeros(3), NO_DEPTH, np.array(1)
        )
        assert np.array_equal(posed.resize(image, (10, 10)).mask, (np.arange(10) < 1)[None].repeat(10, 0))


class TestLoad:
    @pytest.mark.parametrize("fit", ["pad", "crop"])
    def test_a_sample_is_complete(self, fit):
        source = Rendered(PosedConfig(fit=fit), Frame(160, 128, 3), tuples=((0, 1, 2),))
        sample = source.load(0, np.random.default_rng(0))
        assert sample.images.shape == (3, 3, 128, 160) and sample.images.dtype == torch.uint8
        assert sample.mask.shape == (3, 1, 128, 160) and sample.mask.dtype == torch.bool
        assert sample.homographies is None and len(sample.views) == 3
        assert sample.name == "scene0: 0.png, 1.png, 2.png"
        for view, mask in zip(sample.views, sample.mask, strict=True):
            assert view.K.dtype == view.R.dtype == view.t.dtype == torch.float64
            assert view.depth.shape == (128, 160) and view.depth.dtype == torch.float32
            assert torch.equal(view.depth.isfinite(), mask[0])  # padding has no depth, all else here has
        assert bool(sample.mask.all()) == (fit == "crop")
        assert (sample.images[~sample.mask.expand_as(sample.images)] == 0).all()

    @pytest.mark.parametrize("fit", ["pad", "crop"])
    def test_points_are_where_the_views_say(self, fit):
        source = Rendered(PosedConfig(fit=fit), Frame(320, 256, 4), tuples=((0, 1, 3, 4),))
        sample = source.load(0, np.random.default_rng(1))
        points = posed_scene.points_on_plane()
        for image, view in zip(sample.images[:2], sample.views, strict=False):  # the others have too small blobs
            expected = posed_scene.project(points, view.K.numpy(), view.R.numpy(), view.t.numpy())
            errors = posed_scene.blob_errors(image[0].numpy(), expected)
            assert len(errors) > 5
            assert np.median(errors) < 0.05 and errors.max() < 0.1

    @pytest.mark.parametrize("fit", ["pad", "crop"])
    def test_depth_warps_there_and_back(self, fit):
        source = Rendered(PosedConfig(fit=fit), tuples=((0, 1), (1, 4), (4, 0), (3, 0)))
        for item in range(4):
            a, b = source.load(item, np.random.default_rng(2)).views
            x, y = torch.meshgrid(torch.arange(160.0), torch.arange(128.0), indexing="xy")
            grid = torch.stack([x, y], -1).reshape(-1, 2)
            there = reproject(grid, a, b)
            seen = reproject(there, b, a)
            known = seen.isfinite().all(1)
            assert known.sum() > 300
            assert (seen - grid)[known].norm(dim=1).median() < 0.15  # depth is that of the nearest pixel
            assert (seen - grid)[known].norm(dim=1).max() < 1

    def test_a_sample_depends_on_item_and_generator_alone(self):
        config = PosedConfig(fit="crop")
        first, second = Rendered(config), Rendered(config)
        second.load(2, np.random.default_rng(9))  # fills the cache and draws
        np.random.seed(123)
        a, b = first.load(0, np.random.default_rng(3)), second.load(0, np.random.default_rng(3))
        assert torch.equal(a.images, b.images)
        assert all(torch.equal(x.K, y.K) for x, y in zip(a.views, b.views, strict=True))
        c = second.load(0, np.random.default_rng(4))
        assert not torch.equal(a.images, c.images)

    def test_without_depth_the_views_have_none(self):
        assert all(view.depth is None for view in Rendered(depth=False).load(0, np.random.default_rng(0)).views)

    def test_of_longer_tuples_some_images_are_drawn(self):
        source = Rendered(frame=Frame(64, 64, 2), tuples=((0, 1, 2, 3),))
        names = {source.load(0, np.random.default_rng(seed)).name for seed in range(40)}
        assert len(names) == 12
        assert all(len(set(name.removeprefix("scene0: ").split(", "))) == 2 for name in names)

    def test_rows_filled_up_with_minus_one_are_shorter_tuples(self):
        source = Rendered(frame=Frame(64, 64, 2), tuples=((0, 1, -1), (1, 2, 3)))
        assert source.load(0, np.random.default_rng(0)).name == "scene0: 0.png, 1.png"

    def test_crops_of_a_sample_show_the_same(self):
        shared = []
        for known in (True, False):
            source = Rendered(PosedConfig(fit="crop"), Frame(64, 128), sizes=[(600, 150), (620, 155)], tuples=((0, 1),))
            if not known:
                source.read = lambda scene, image, read=source.read: read(scene, image)._replace(
                    typical_depth=np.array(np.nan), depth=NO_DEPTH
                )
            points = np.random.default_rng(0).uniform([-2, -2, 0], [2, 2, 0], (2000, 3))
            parts = []
            for seed in range(30):
                inside = []
                for view in source.load(0, np.random.default_rng(seed)).views:
                    pixels = posed_scene.project(points, view.K.numpy(), view.R.numpy(), view.t.numpy())
                    inside.append(((pixels >= 0) & (pixels <= [63, 127])).all(1))
                parts.append((inside[0] & inside[1]).sum() / max(1, inside[0].sum()))
            shared.append(np.mean(parts))
        assert shared[0] > 0.7
        assert shared[0] > 2 * shared[1]

    def test_a_broken_file_is_named(self):
        source = Rendered(tuples=((0, 5),))
        with pytest.raises(SampleError, match=r"5\.png: is broken"):
            source.load(0, np.random.default_rng(0))
        with pytest.raises(SampleError, match=r"no\.jpg: no such file"):
            posed.read_pixels(Path("no.jpg"))

    def test_images_are_read_once(self):
        source = Rendered(tuples=((0, 1), (1, 0)))
        source.load(0, np.random.default_rng(0)), source.load(1, np.random.default_rng(0))
        assert source.reads == 2
        fresh = pickle.loads(pickle.dumps(source))
        assert len(fresh.cache) == 0
        assert torch.equal(
            fresh.load(0, np.random.default_rng(0)).images, source.load(0, np.random.default_rng(0)).images
        )

    def test_the_cache_isnt_changed_by_who_gets_a_sample(self):
        source = Rendered(frame=Frame(160, 120))  # of the aspect of the image: nothing is padded or cut
        sample = source.load(0, np.random.default_rng(0))
        before = sample.images.clone()
        sample.images.zero_(), sample.views[0].depth.zero_(), sample.views[0].K.zero_()
        again = source.load(0, np.random.default_rng(0))
        assert torch.equal(again.images, before) and again.views[0].K[0, 0] > 0 and again.views[0].depth.max() > 0

    @pytest.mark.parametrize("fit", ["pad", "crop"])
    def test_loading_from_the_cache_takes_milliseconds(self, fit):
        source = Rendered(PosedConfig(fit=fit), Frame(384, 384, 3), tuples=((0, 1, 3),))
        source.load(0, np.random.default_rng(0))
        times = []
        for seed in range(5):
            start = time.process_time()
            source.load(0, np.random.default_rng(seed))
            times.append(time.process_time() - start)
        assert min(times) < 0.04


class TestAugmentation:
    @pytest.mark.parametrize("fit", ["pad", "crop"])
    def test_depth_warps_there_and_back(self, fit):
        source = Rendered(PosedConfig(fit=fit, **AUGMENTED), tuples=((0, 1), (1, 4), (4, 0), (3, 0)))
        for item in range(4):
            sample = source.load(item, np.random.default_rng(2))
            a, b = sample.views
            x, y = torch.meshgrid(torch.arange(160.0), torch.arange(128.0), indexing="xy")
            grid = torch.stack([x, y], -1).reshape(-1, 2)
            seen = reproject(reproject(grid, a, b), b, a)
            known = seen.isfinite().all(1)
            assert known.sum() > 300
            assert (seen - grid)[known].norm(dim=1).median() < 0.2  # depth is that of the nearest pixel
            assert (sample.images[~sample.mask.expand_as(sample.images)] == 0).all()

    def test_held_out_images_are_left_alone(self):
        plain, held_out = Rendered(), Rendered(PosedConfig(**AUGMENTED), split="val")
        for a, b in zip(*(s.load(0, np.random.default_rng(0)) for s in (plain, held_out)), strict=True):
            if isinstance(a, torch.Tensor):
                assert torch.equal(a, b)
        training = Rendered(PosedConfig(**AUGMENTED))
        assert not torch.equal(training.load(0, np.random.default_rng(0)).views[0].K, plain.load(0, None).views[0].K)

    def test_a_sample_depends_on_item_and_generator_alone(self):
        first, second = Rendered(PosedConfig(**AUGMENTED)), Rendered(PosedConfig(**AUGMENTED))
        second.load(2, np.random.default_rng(9))
        a, b = first.load(0, np.random.default_rng(3)), second.load(0, np.random.default_rng(3))
        assert torch.equal(a.images, b.images) and torch.equal(a.mask, b.mask)
        assert all(torch.equal(x.K, y.K) for x, y in zip(a.views, b.views, strict=True))
        assert not torch.equal(a.images, second.load(0, np.random.default_rng(4)).images)

    def test_images_are_kept_as_large_as_the_largest_zoom_needs(self):
        source = Rendered(PosedConfig(zoom=(1.0, 2.5)), frame=Frame(160, 120))
        kept = [source._resized(0, image).pixels.shape[:2] for image in (0, 4)]
        assert kept == [(300, 400), (120, 160)]  # an image of 64x48 has no more to show
        assert source._scale(source._resized(0, 0)) == 160 / 400

    def test_the_early_steps_of_a_training_are_eased(self):
        eased = PosedConfig(path="here", **AUGMENTED).eased(0.5)
        assert eased.path == "here" and eased.rotation == 7.5


class TestOrder:
    def test_each_pass_draws_anew_and_has_the_same_length(self):
        tuples = np.stack([np.arange(50) % 5, np.arange(50) % 4 + 1], 1)
        source = Rendered(PosedConfig(tuples_per_scene=20), tuples=tuples, scenes=3)
        passes = [source.order(epoch, 0) for epoch in range(20)]
        assert all(order.dtype == np.int64 and len(order) == 60 for order in passes)
        assert all(len(set(order.tolist())) == 60 for order in passes)
        assert all(np.bincount(order // 50, minlength=3).tolist() == [20, 20, 20] for order in passes)
        assert not np.array_equal(passes[0], passes[1])
        assert set(np.concatenate(passes).tolist()) == set(range(150))
        assert np.array_equal(passes[3], source.order(3, 0)) and not np.array_equal(passes[3], source.order(3, 1))

    def test_items_of_all_scenes_can_be_loaded(self):
        source = Rendered(scenes=2, frame=Frame(32, 32))
        names = {source.load(int(item), np.random.default_rng(0)).name for item in source.order(0, 0)}
        pairs = ("0.png, 1.png", "1.png, 2.png", "0.png, 3.png")
        assert names == {f"scene{k}: {pair}" for k in range(2) for pair in pairs}
