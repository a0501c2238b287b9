"""Mapping of synthetic scenes: exact matches give exact cameras; repeated runs are equal; what can't be mapped."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sfm_scene
from sfm_scene import SIZE, K, SyntheticScene

from disk_ops.evaluation.camera_errors import camera_errors
from disk_ops.sfm import (
    ExifCameras,
    KnownCameras,
    MappingOptions,
    SfmError,
    SfmImage,
    Verification,
    build_database,
    map_incrementally,
    summarize_model,
)
from disk_ops.sfm.database import MatchedPair

pycolmap = pytest.importorskip("pycolmap")


def images_of(scene: SyntheticScene) -> list[SfmImage]:
    return [SfmImage(name, None, SIZE, scene.keypoints[name]) for name in scene.names]


def pairs_of(scene: SyntheticScene) -> list[MatchedPair]:
    pairs = []
    for one, two in combinations(scene.names, 2):
        matches0 = scene.matches0(one, two)
        index = np.flatnonzero(matches0 >= 0)
        pairs.append(MatchedPair(one, two, np.stack([index, matches0[index]], 1)))
    return pairs


def refuse(name: str, reason: object) -> None:
    raise AssertionError(f"{name}: {reason}")


def database_of(scene: SyntheticScene, path: Path, cameras: Any, pairs: list[MatchedPair] | None = None) -> Path:
    verification = Verification()
    build_database(path, {}, lambda: images_of(scene), lambda: pairs or pairs_of(scene), cameras, verification, refuse)
    return path


def models_of(database: Path, options: MappingOptions, folder: Path) -> list[Any]:
    folder.mkdir()
    return map_incrementally(database, None, folder, options)


def errors_of(model: Any, scene: SyntheticScene) -> tuple[float, float]:
    """Largest errors of positions, as a part of the extent, and of rotations in degrees."""
    poses = {image.name: image.cam_from_world() for image in model.images.values() if image.has_pose}
    assert set(poses) == set(scene.names)
    R, t = zip(*((poses[name].rotation.matrix(), poses[name].translation) for name in scene.names), strict=True)
    errors = camera_errors(R, t, [scene.R[name] for name in scene.names], [scene.t[name] for name in scene.names])
    assert errors is not None
    return float(errors.positions.max() / errors.extent), float(errors.rotations.max())


@pytest.fixture
def scene() -> SyntheticScene:
    return sfm_scene.make_scene()


def known(scene: SyntheticScene) -> KnownCameras:
    return KnownCameras(dict.fromkeys(scene.names, K))


def test_exact_matches_and_intrinsics_give_exact_cameras(scene: SyntheticScene, tmp_path: Path) -> None:
    database = database_of(scene, tmp_path / "d.db", known(scene))
    (model,) = models_of(database, MappingOptions(fix_intrinsics=True), tmp_path / "out")
    position, rotation = errors_of(model, scene)
    assert position < 1e-5 and rotation < 1e-3
    summary = summarize_model(model)
    assert summary.registered == 8 and summary.landmarks > 0.95 * len(scene.points)
    assert summary.reprojection_error < 1e-3  # a shift of 0.5 between keypoints and camera would be seen here
    assert summary.track_length == pytest.approx(summary.observations / summary.landmarks)
    (camera,) = model.cameras.values()
    assert camera.params.tolist() == [700, 700, 320, 240]


def test_unknown_focal_lengths_are_found(scene: SyntheticScene, tmp_path: Path) -> None:
    database = database_of(scene, tmp_path / "d.db", ExifCameras())  # starts at 768
    (model,) = models_of(database, MappingOptions(), tmp_path / "out")
    position, rotation = errors_of(model, scene)
    assert position < 1e-3 and rotation < 0.1
    assert all(camera.focal_length == pytest.approx(700, rel=1e-2) for camera in model.cameras.values())


def test_repeated_runs_are_equal(scene: SyntheticScene, tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    for name in scene.names:  # noise makes something to decide
        scene.keypoints[name] = (scene.keypoints[name] + generator.normal(0, 0.5, scene.keypoints[name].shape)).astype(
            np.float32
        )
    found = []
    for attempt in ("1", "2"):
        database = database_of(scene, tmp_path / f"{attempt}.db", known(scene))
        (model,) = models_of(database, MappingOptions(), tmp_path / attempt)
        poses = {image.name: image.cam_from_world().matrix().tolist() for image in model.images.values()}
        points = sorted(point.xyz.tolist() for point in model.points3D.values())
        found.append((poses, points, summarize_model(model)))
    assert found[0] == found[1]


def test_separate_groups_become_models_the_largest_first(scene: SyntheticScene, tmp_path: Path) -> None:
    large = sfm_scene.make_scene(14, points=150, seed=1, turn=8, names="large{}.png")
    small = sfm_scene.make_scene(10, points=150, seed=2, turn=8, names="small{}.png")
    both = replace(
        small,
        names=[*small.names, *large.names],
        keypoints={**small.keypoints, **large.keypoints},
    )
    pairs = [*pairs_of(small), *pairs_of(large)]
    database = database_of(both, tmp_path / "d.db", known(both), pairs)
    models = models_of(database, MappingOptions(fix_intrinsics=True), tmp_path / "out")
    assert [model.num_reg_images() for model in models] == [14, 10]


def test_two_images_are_enough(scene: SyntheticScene, tmp_path: Path) -> None:
    two = sfm_scene.make_scene(2, turn=25)
    database = database_of(two, tmp_path / "d.db", known(two))
    (model,) = models_of(database, MappingOptions(fix_intrinsics=True), tmp_path / "out")
    assert model.num_reg_images() == 2 and model.num_points3D() > 200


def test_an_image_that_sees_no_point_is_not_registered(
    scene: SyntheticScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In models of less than 20 images COLMAP leaves poses whose points it has all filtered out again."""
    mapping = pycolmap.incremental_mapping

    def filtering(*arguments: Any, **more: Any) -> dict[int, Any]:
        models = mapping(*arguments, **more)
        image = models[0].find_image_with_name(scene.names[3])
        for index, point in enumerate(image.points2D):
            if point.has_point3D():
                models[0].delete_observation(image.image_id, index)
        assert models[0].num_reg_images() == len(scene.names)
        return models

    monkeypatch.setattr(pycolmap, "incremental_mapping", filtering)
    database = database_of(scene, tmp_path / "d.db", known(scene))
    (model,) = models_of(database, MappingOptions(fix_intrinsics=True), tmp_path / "out")
    assert summarize_model(model).registered == len(scene.names) - 1
    assert scene.names[3] not in {model.image(number).name for number in model.reg_image_ids()}


def test_wrong_matches_give_no_model(scene: SyntheticScene, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    wrong = [
        pair._replace(matches=np.stack([pair.matches[:, 0], generator.permutation(pair.matches[:, 1])], 1))
        for pair in pairs_of(scene)
    ]
    database = database_of(scene, tmp_path / "d.db", known(scene), wrong)
    assert models_of(database, MappingOptions(), tmp_path / "out") == []


def test_no_database(tmp_path: Path) -> None:
    with pytest.raises(SfmError, match=r"gone\.db: no such file"):
        map_incrementally(tmp_path / "gone.db", None, tmp_path, MappingOptions())
    (tmp_path / "text.db").write_text("hello")
    with pytest.raises(SfmError, match=r"text\.db can't be read as a COLMAP database"):
        map_incrementally(tmp_path / "text.db", None, tmp_path, MappingOptions())
