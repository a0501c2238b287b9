"""disk_ops.training.data.augment: posed images turned, zoomed and degraded, with cameras and depth that follow."""

from __future__ import annotations

import math

import numpy as np
import posed_scene
import pytest
import torch

from disk_ops.training.data.augment import AugmentConfig, augmented, moved
from disk_ops.training.data.framing import NO_DEPTH, PosedImage
from disk_ops.training.data.sample import Frame
from disk_ops.training.rewards import View, fundamental_matrix, reproject

FRAME = Frame(200, 150)
EVERYTHING = AugmentConfig(rotation=20.0, full_rotation=0.3, zoom=(0.7, 1.6), photometric=1.0)


def image_of(index: int, size: tuple[int, int] = (320, 240), depth: bool = True) -> PosedImage:
    camera = posed_scene.pinhole(size, index)
    grey, distance = posed_scene.render(posed_scene.rays_of(camera), camera.R, camera.t)
    pixels, mask = np.repeat(grey[:, :, None], 3, axis=2), np.ones(grey.shape, bool)
    for array in (pixels, mask):
        array.setflags(write=False)  # as from the cache
    return PosedImage(
        pixels,
        mask,
        *camera[:3],
        distance.astype(np.float32) if depth else NO_DEPTH,
        np.array(3.0 if depth else np.nan),
    )


def similarity(scale: float, degrees: float, x: float, y: float) -> np.ndarray:
    c, s = scale * math.cos(math.radians(degrees)), scale * math.sin(math.radians(degrees))
    return np.array([[c, -s, x], [s, c, y], [0, 0, 1]])


def view_of(image: PosedImage) -> View:
    return View(*(torch.tensor(array) for array in (image.K, image.R, image.t)), torch.tensor(image.depth))


def apply(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    mapped = np.column_stack([points, np.ones(len(points))]) @ matrix.T
    return mapped[:, :2] / mapped[:, 2:]


SIMILARITIES = [similarity(1, 0, -40, -30), similarity(0.6, 90, 180, 10), similarity(1.5, -33, -150, 20)]


class TestConfig:
    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"rotation": -1.0}, "rotation must be from 0 to 360 degrees, got -1.0"),
            ({"full_rotation": 1.5}, "full_rotation must be from 0 to 1, got 1.5"),
            ({"zoom": (1.4, 0.7)}, "zoom must be two numbers from 0.1 to 10 in order, got (1.4, 0.7)"),
            ({"zoom": (0.0, 1.0)}, "zoom must be two numbers"),
            ({"photometric": -0.5}, "photometric must be at least 0, got -0.5"),
        ],
    )
    def test_values_out_of_range_are_named(self, values, message):
        with pytest.raises(ValueError) as error:
            AugmentConfig(**values)
        assert message in str(error.value)

    def test_by_default_nothing_is_changed(self):
        assert not AugmentConfig().augments
        assert all(
            AugmentConfig(**{name: value}).augments
            for name, value in {"rotation": 1.0, "full_rotation": 0.1, "zoom": (0.9, 1.0), "photometric": 0.2}.items()
        )

    def test_easing_goes_down_to_nothing(self):
        half = EVERYTHING.eased(0.5)
        assert (half.rotation, half.full_rotation, half.photometric) == (10.0, 0.15, 0.5)
        assert half.zoom == pytest.approx((math.sqrt(0.7), math.sqrt(1.6)))
        assert not EVERYTHING.eased(0).augments and EVERYTHING.eased(1) == EVERYTHING


class TestMoved:
    @pytest.mark.parametrize("matrix", SIMILARITIES)
    def test_pixels_lie_where_the_new_intrinsics_say(self, matrix):
        view = moved(image_of(0, (640, 480)), matrix @ np.diag([0.5, 0.5, 1]), FRAME)
        expected = posed_scene.project(posed_scene.points_on_plane(), view.K, view.R, view.t)
        radius = round(7.5 * math.sqrt(np.linalg.det(matrix)))
        errors = posed_scene.blob_errors(view.pixels[:, :, 0] * view.mask, expected, radius)
        assert len(errors) > 8
        assert errors.max() < 0.1

    @pytest.mark.parametrize("first", SIMILARITIES)
    @pytest.mark.parametrize("second", SIMILARITIES)
    def test_depth_reprojects_to_the_same_points(self, first, second):
        images = image_of(0), image_of(2)
        views = [view_of(moved(image, A, FRAME)) for image, A in zip(images, (first, second), strict=True)]
        x, y = np.meshgrid(np.arange(0, 320, 3), np.arange(0, 240, 3))
        before = np.stack([x, y], -1).reshape(-1, 2).astype(float)
        there = reproject(torch.tensor(before), view_of(images[0]), view_of(images[1])).numpy()
        # The pixel of the view that is nearest may have the depth of a neighbour: compare where it is the same one.
        after = apply(first, before)
        nearest = np.rint(apply(np.linalg.inv(first), np.rint(after)))
        inside = ((after >= 0) & (after <= [199, 149])).all(1) & (nearest == before).all(1)
        assert inside.sum() > 500
        got = reproject(torch.tensor(after[inside]), *views).numpy()
        assert np.abs(got - apply(second, there[inside])).max() < 1e-3

    @pytest.mark.parametrize("first", SIMILARITIES)
    @pytest.mark.parametrize("second", SIMILARITIES)
    def test_points_lie_on_epipolar_lines(self, first, second):
        views = [moved(image_of(k), A, FRAME) for k, A in ((0, first), (3, second))]
        points = posed_scene.points_on_plane() + np.random.default_rng(0).uniform(0, 0.5, (169, 1))
        one, two = (posed_scene.project(points, view.K, view.R, view.t) for view in views)
        F = fundamental_matrix(*map(view_of, views)).numpy()
        lines = np.column_stack([one, np.ones(169)]) @ F.T
        distance = (np.column_stack([two, np.ones(169)]) * lines).sum(1) / np.linalg.norm(lines[:, :2], axis=1)
        assert np.abs(distance).max() < 1e-6

    @pytest.mark.parametrize("matrix", SIMILARITIES)
    def test_pixels_without_source_are_masked_and_have_no_depth(self, matrix):
        view = moved(image_of(0), matrix, FRAME)
        x, y = np.meshgrid(np.arange(200), np.arange(150))
        source = apply(np.linalg.inv(matrix), np.stack([x, y], -1).reshape(-1, 2)).reshape(150, 200, 2)
        inside = ((source >= -1e-9) & (source <= np.array([319, 239]) + 1e-9)).all(2)
        assert not view.mask[~inside].any()
        deep = ((source >= 6) & (source <= [313, 233])).all(2)  # where the image shrinks, smoothing needs a margin
        assert view.mask[deep].all() and deep.sum() > 5000
        assert np.isfinite(view.depth[inside]).all()
        assert np.isnan(view.depth[((source < -0.51) | (source > [319.51, 239.51])).any(2)]).all()

    def test_masked_pixels_of_an_image_stay_masked(self):
        mask = np.ones((240, 320), bool)
        mask[:, :100] = False
        view = moved(image_of(0)._replace(mask=mask), SIMILARITIES[2], FRAME)
        x, y = np.meshgrid(np.arange(200), np.arange(150))
        source = apply(np.linalg.inv(SIMILARITIES[2]), np.stack([x, y], -1).reshape(-1, 2)).reshape(150, 200, 2)
        assert not view.mask[source[:, :, 0] < 99.99].any()
        assert view.mask[((source > [100.01, 0.01]) & (source < [318, 238])).all(2)].all()


class TestAugmented:
    def views(self, seed: int, config: AugmentConfig = EVERYTHING, depth: bool = True) -> list[PosedImage]:
        images = [image_of(k, depth=depth) for k in (0, 1, 2)]
        return augmented(images, [200 / 320] * 3, FRAME, config, np.random.default_rng(seed))

    def test_views_are_complete_and_depend_on_the_generator_alone(self):
        first, again, other = self.views(1), self.views(1), self.views(2)
        assert all(
            np.array_equal(a, b, equal_nan=True)
            for x, y in zip(first, again, strict=True)
            for a, b in zip(x, y, strict=True)
        )
        assert not any(np.array_equal(x.K, y.K) for x, y in zip(first, other, strict=True))
        for view in first:
            assert view.pixels.shape == (150, 200, 3) and view.pixels.dtype == np.uint8
            assert view.mask.shape == view.depth.shape == (150, 200)
            assert (view.pixels[~view.mask] == 0).all()
            assert np.array_equal(view.K[2], [0, 0, 1])

    def test_without_depth_the_views_have_none(self):
        assert all(view.depth.size == 0 for view in self.views(0, depth=False))

    @pytest.mark.parametrize("depth", [True, False])
    def test_turns_and_zooms_are_as_the_settings_say(self, depth):
        angles, zooms = [], []
        for seed in range(60):
            for index, view in enumerate(self.views(seed, AugmentConfig(rotation=10.0, zoom=(0.5, 2.0)), depth)):
                A = view.K @ np.linalg.inv(posed_scene.pinhole((320, 240), index).K)
                angles.append(math.degrees(math.atan2(A[1, 0], A[0, 0])))
                zooms.append(math.sqrt(np.linalg.det(A)) * 320 / 200)
                assert np.abs(A[:2, :2] @ A[:2, :2].T - np.eye(2) * np.linalg.det(A)).max() < 1e-9
        assert 8 < np.std(angles) < 12
        assert 0.5 <= min(zooms) < 0.55 and 1.8 < max(zooms) <= 2
        assert np.median(zooms) == pytest.approx(1, abs=0.15)

    def test_full_rotation_turns_by_any_angle(self):
        A = [view.K for seed in range(20) for view in self.views(seed, AugmentConfig(full_rotation=1.0))]
        angles = np.array([math.atan2(K[1, 0], K[0, 0]) for K in A])
        assert np.histogram(angles, 4, (-math.pi, math.pi))[0].min() > 5

    def test_views_show_the_same(self):
        points, shared = np.random.default_rng(0).uniform([-1, -1, 0], [1, 1, 0], (3000, 3)), []
        for seed in range(30):
            inside = []
            for view in self.views(seed, AugmentConfig(rotation=15.0, zoom=(2.0, 3.0))):
                pixels = posed_scene.project(points, view.K, view.R, view.t)
                inside.append(((pixels >= 0) & (pixels <= [199, 149])).all(1))
            shared += [(inside[0] & inside[k]).sum() / max(1, inside[0].sum()) for k in (1, 2)]
        assert np.mean(shared) > 0.6 and np.min(shared) > 0.1

    def test_images_smaller_than_the_frame_lie_anywhere_in_it(self):
        centres = [apply(view.K @ np.linalg.inv(posed_scene.pinhole((320, 240), 0).K), np.array([[159.5, 119.5]]))[0]
                   for view in (self.views(seed, AugmentConfig(zoom=(0.5, 0.5)))[0] for seed in range(40))]  # fmt: skip
        spread = np.ptp(centres, axis=0)
        assert (spread > [70, 50]).all() and (spread <= [101, 76]).all()
        views = self.views(0, AugmentConfig(zoom=(0.5, 0.5)))
        assert all(view.mask.sum() > 0.9 * 100 * 75 for view in views)  # all of the image is in the frame

    def test_degradations_leave_geometry_alone(self):
        plain, degraded = (self.views(5, AugmentConfig(zoom=(1.2, 1.2), photometric=p)) for p in (0.0, 1.0))
        assert all(
            np.array_equal(x.K, y.K) and np.array_equal(x.mask, y.mask) for x, y in zip(plain, degraded, strict=True)
        )
        assert not all(np.array_equal(x.pixels, y.pixels) for x, y in zip(plain, degraded, strict=True))
