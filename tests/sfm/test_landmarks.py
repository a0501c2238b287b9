"""disk_ops.sfm.landmarks: keypoints find their 3D points, and matches are judged by these."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import sfm_scene
from sfm_scene import SIZE, K, SyntheticScene

from disk_ops.sfm import KnownCameras, MappingOptions, SfmError, SfmImage, Verification, build_database
from disk_ops.sfm.database import MatchedPair
from disk_ops.sfm.landmarks import Model, match_errors
from disk_ops.sfm.mapping import map_incrementally, write_models

pycolmap = pytest.importorskip("pycolmap")


@pytest.fixture(scope="module")
def scene() -> SyntheticScene:
    return sfm_scene.make_scene(4, points=200)


@pytest.fixture(scope="module")
def folder(scene: SyntheticScene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scene's folder with a model. Its images have one keypoint more, without a match, the first one."""
    folder = tmp_path_factory.mktemp("scene")

    def images() -> list[SfmImage]:
        return [SfmImage(name, None, SIZE, np.vstack([[[1, 2]], scene.keypoints[name]])) for name in scene.names]

    def pairs() -> list[MatchedPair]:
        found = []
        for index, one in enumerate(scene.names):
            for two in scene.names[index + 1 :]:
                first, second = partners(scene, one, two)
                found.append(MatchedPair(one, two, np.stack([first, second], 1) + 1))
        return found

    cameras = KnownCameras(dict.fromkeys(scene.names, K))
    build_database(folder / "d.db", {}, images, pairs, cameras, Verification(), lambda *failure: None)
    (folder / "out").mkdir()
    models = map_incrementally(folder / "d.db", None, folder / "out", MappingOptions(fix_intrinsics=True))
    write_models(models, folder / "sparse")
    return folder


def partners(scene: SyntheticScene, one: str, two: str) -> tuple[np.ndarray, np.ndarray]:
    """Indices of keypoints that show the same point."""
    matches0 = scene.matches0(one, two)
    first = np.flatnonzero(matches0 >= 0)
    return first, matches0[first]


def test_keypoints_that_became_landmarks(scene: SyntheticScene, folder: Path) -> None:
    model = Model(folder)
    assert model.folder == folder / "sparse" / "0" and model.names == scene.names
    image = model.image("1.png")
    assert (image.name, image.size) == ("1.png", SIZE)
    own = scene.keypoints["1.png"]
    places = np.vstack([own + 0.3, [[1, 2]], [[300.25, 1.25]]])  # rounded a little; never matched; not in the model
    is_landmark = np.isfinite(image.landmarks(places)).all(1)
    assert is_landmark[: len(own)].mean() > 0.95 and not is_landmark[len(own) :].any()
    known = image.known(places)
    assert known[: len(own) + 1].all() and not known[-1]
    assert not image.known(own + 30)[np.argmax(own[:, 0])]  # beyond the others


def test_landmarks_are_projected_where_they_are_seen(scene: SyntheticScene, folder: Path) -> None:
    model = Model(folder / "sparse" / "0")
    first, second = partners(scene, "0.png", "2.png")
    landmarks = model.image("0.png").landmarks(scene.keypoints["0.png"][first])
    projected = model.image("2.png").project(landmarks)
    errors = np.linalg.norm(projected - scene.keypoints["2.png"][second], axis=1)
    assert np.nanmax(errors) < 0.05  # half a pixel's shift between the conventions would be seen


def test_what_lies_behind_a_camera_is_infinitely_far(folder: Path) -> None:
    pose = next(iter(pycolmap.Reconstruction(folder / "sparse" / "0").images.values()))
    behind = pose.cam_from_world().inverse() * np.array([0.0, 0, -3])
    projected = Model(folder).image(pose.name).project(np.array([behind, [np.nan] * 3]))
    assert np.isinf(projected[0]).all() and np.isnan(projected[1]).all()


class TestMatches:
    def errors(self, scene: SyntheticScene, folder: Path, move0: object = 0, move1: object = 0) -> np.ndarray:
        """Errors of matches of keypoints that have a 3D point in both images, which are moved."""
        model = Model(folder)
        first, second = partners(scene, "0.png", "1.png")
        points0, points1 = scene.keypoints["0.png"][first], scene.keypoints["1.png"][second]
        image0, image1 = model.image("0.png"), model.image("1.png")
        both = np.isfinite(image0.landmarks(points0)[:, 0]) & np.isfinite(image1.landmarks(points1)[:, 0])
        assert both.sum() > 100
        return match_errors(image0, image1, points0[both] + move0, points1[both] + move1)

    def test_true_matches_have_none(self, scene: SyntheticScene, folder: Path) -> None:
        assert self.errors(scene, folder).max() < 0.05

    def test_one_end_without_landmark_is_judged_by_the_other(self, scene: SyntheticScene, folder: Path) -> None:
        for ends in ({"move0": [3, -4]}, {"move1": [3, -4]}):
            assert np.median(self.errors(scene, folder, **ends)) == pytest.approx(5, abs=0.05)

    def test_without_landmark_at_either_end_nothing_is_known(self, scene: SyntheticScene, folder: Path) -> None:
        model = Model(folder)
        errors = match_errors(model.image("0.png"), model.image("1.png"), [[1, 2]], [[1, 2]])
        assert np.isnan(errors).all() and errors.shape == (1,)

    def test_of_two_distances_the_larger_counts(self, scene: SyntheticScene, folder: Path) -> None:
        model = Model(folder)
        image0, image1 = model.image("0.png"), model.image("1.png")
        first, second = partners(scene, "0.png", "1.png")
        points0, points1 = scene.keypoints["0.png"][first], scene.keypoints["1.png"][second]
        wrong = np.roll(points1, 1, axis=0)
        forward = np.linalg.norm(image1.project(image0.landmarks(points0)) - wrong, axis=1)
        backward = np.linalg.norm(image0.project(image1.landmarks(wrong)) - points0, axis=1)
        np.testing.assert_allclose(match_errors(image0, image1, points0, wrong), np.fmax(forward, backward))
        assert np.nanmedian(np.fmax(forward, backward)) > 50

    def test_no_matches(self, folder: Path) -> None:
        model = Model(folder)
        assert match_errors(model.image("0.png"), model.image("1.png"), np.empty((0, 2)), np.empty((0, 2))).shape == (
            0,
        )


def test_what_is_no_model(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SfmError, match=r"gone holds no COLMAP model"):
        Model(tmp_path / "gone")
    for file in (folder / "sparse" / "0").glob("*.bin"):
        (tmp_path / file.name).write_bytes(file.read_bytes()[:-3])
    with pytest.raises(SfmError, match=r"the COLMAP model .* can't be read"):
        Model(tmp_path)
