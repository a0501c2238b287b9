"""Databases that are made in steps: interrupted and resumed, origins, and what doesn't fit."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sfm_scene
from sfm_scene import SIZE, K

from disk_ops.io.output import part_of
from disk_ops.sfm import CameraOptions, ExifCameras, KnownCameras, SfmError, SfmImage, Verification, build_database
from disk_ops.sfm import database as database_module
from disk_ops.sfm.database import DatabaseSummary, MatchedPair, open_database, stored_origin, summarize_database

pycolmap = pytest.importorskip("pycolmap")

SCENE = sfm_scene.make_scene(5, points=60)
IMAGES = [SfmImage(name, None, SIZE, SCENE.keypoints[name]) for name in SCENE.names]


def matches_of(one: str, two: str) -> MatchedPair:
    matches0 = SCENE.matches0(one, two)
    index = np.flatnonzero(matches0 >= 0)
    return MatchedPair(one, two, np.stack([index, matches0[index]], 1))


PAIRS = [matches_of(one, two) for one, two in combinations(SCENE.names, 2)]


def build(path: Path, origin: dict[str, Any], resume: bool = True, **changes: Any) -> DatabaseSummary:
    arguments = {"images": IMAGES, "pairs": PAIRS, "failed": lambda *_: None, **changes}
    cameras = KnownCameras(dict.fromkeys(SCENE.names, K))
    return build_database(
        path,
        origin,
        lambda: arguments["images"],
        lambda: arguments["pairs"],
        cameras,
        Verification(),
        arguments["failed"],
        resume=resume,
    )


class Interrupted:
    """Raises KeyboardInterrupt in the n-th estimate of a two-view geometry, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
        self.after, self.calls, self.original = after, 0, pycolmap.estimate_two_view_geometry
        monkeypatch.setattr(pycolmap, "estimate_two_view_geometry", self)

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        if self.calls > self.after:
            raise KeyboardInterrupt
        return self.original(*arguments)


def geometries(path: Path) -> list[Any]:
    with open_database(path) as database:
        return [geometry.inlier_matches.tolist() for geometry in database.read_two_view_geometries()[1]]


def test_an_interrupted_verification_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, path = tmp_path / "whole.db", tmp_path / "d.db"
    summary = build(whole, {"from": 1})
    assert summary.pairs == summary.verified_pairs == 10 and summary.images == 5 and summary.cameras == 1
    with monkeypatch.context() as patch:
        Interrupted(patch, after=9)
        with pytest.raises(KeyboardInterrupt):
            build(path, {"from": 1})
    assert not path.exists() and stored_origin(part_of(path)) == {"from": 1}
    with monkeypatch.context() as patch:
        counter = Interrupted(patch, after=100)
        assert build(path, {"from": 1}) == summary
        assert 0 < counter.calls < 10
    assert not part_of(path).exists() and geometries(path) == geometries(whole)


def test_what_was_made_of_something_else_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "d.db"
    with monkeypatch.context() as patch:
        Interrupted(patch, after=9)
        with pytest.raises(KeyboardInterrupt):
            build(path, {"from": 1})
    counter = Interrupted(monkeypatch, after=100)
    build(path, {"from": 2}, pairs=PAIRS[:3])
    assert counter.calls == 3 and stored_origin(path) == {"from": 2} and len(geometries(path)) == 3


@pytest.mark.parametrize("stage", ["_write_images", "_write_matches", "_store_origin"])
def test_an_interrupted_import_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    path = tmp_path / "d.db"
    original = getattr(database_module, stage)

    def interrupt(*arguments: Any) -> None:
        if stage != "_store_origin":
            original(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(database_module, stage, interrupt)
        with pytest.raises(KeyboardInterrupt):
            build(path, {})
    assert build(path, {}).images == 5


def test_without_resume_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Interrupted(monkeypatch, after=9)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "d.db", {}, resume=False)
    assert list(tmp_path.iterdir()) == []


def test_logs_of_a_killed_program_are_not_played_back(tmp_path: Path) -> None:
    """The log that is left beside a database holds changes to that one, not to the one that takes its place."""
    path, log = tmp_path / "d.db", tmp_path / "d.db-wal"
    build(path, {"from": 1})
    with open_database(path) as database:
        database.clear_matches()
        left = log.read_bytes()
    assert left
    log.write_bytes(left)
    build(path, {"from": 2})
    assert not log.exists()
    with open_database(path) as database:
        assert database.num_matched_image_pairs() == 10


def test_origins(tmp_path: Path) -> None:
    assert stored_origin(tmp_path / "gone.db") is None and list(tmp_path.iterdir()) == []
    pycolmap.Database.open(tmp_path / "other.db").close()
    assert stored_origin(tmp_path / "other.db") is None
    (tmp_path / "text.db").write_text("hello")
    assert stored_origin(tmp_path / "text.db") is None


def test_names_with_umlauts_and_odd_signs(tmp_path: Path) -> None:
    path = tmp_path / "übung #1?%20" / "d b.db"
    path.parent.mkdir()
    build(path, {"a": [1, 2]})
    assert stored_origin(path) == {"a": [1, 2]}


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    bad = PAIRS[0]._replace(matches=np.array([[0, 10_000]]))
    stranger = SfmImage("stranger.png", None, SIZE, np.zeros((3, 2), np.float32))
    summary = build(
        tmp_path / "d.db",
        {},
        images=[*IMAGES, stranger, stranger._replace(name="\udcff.png")],
        pairs=[bad, *PAIRS[1:], matches_of(SCENE.names[1], SCENE.names[0])],
        failed=lambda name, reason: told.append((name, str(reason))),
    )
    assert told == [
        ("stranger.png", "its intrinsics are not known"),
        ("\udcff.png", "the file name is not UTF-8, so it can't be in a COLMAP database; rename the file"),
        (f"{bad.name1} - {bad.name2}", "the matches are of other features: there are fewer keypoints"),
    ]
    assert summary.images == 5 and summary.pairs == 10


def test_a_pair_without_matches(tmp_path: Path) -> None:
    empty = MatchedPair(SCENE.names[0], SCENE.names[1], np.empty((0, 2), np.int64))
    summary = build(tmp_path / "d.db", {}, pairs=[empty, *PAIRS[1:]])
    assert summary.verified_pairs == 9


def test_no_image_can_be_used(tmp_path: Path) -> None:
    with pytest.raises(SfmError, match="none of the images could be used"):
        build(tmp_path / "d.db", {}, images=[], resume=False)
    assert list(tmp_path.iterdir()) == []


def test_camera_options_are_checked() -> None:
    with pytest.raises(SfmError, match=r"camera model 'FISH' is not one of COLMAP's: .*OPENCV.*PINHOLE"):
        ExifCameras(CameraOptions("FISH"))
    with pytest.raises(SfmError, match="PINHOLE has the 4 parameters fx, fy, cx, cy, got 1"):
        ExifCameras(CameraOptions("PINHOLE", (1.0,)))


def test_an_image_that_colmap_can_not_read_gets_a_guess(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no image")
    key, camera = ExifCameras()("a.png", tmp_path / "a.png", (100, 200))
    assert key == "a.png" and camera.focal_length == 240 and (camera.width, camera.height) == (100, 200)


def test_counts(tmp_path: Path) -> None:
    summary = build(tmp_path / "d.db", {})
    with open_database(tmp_path / "d.db") as database:
        assert summarize_database(database) == summary
    assert summary.keypoints == sum(len(image.keypoints) for image in IMAGES)
    assert summary.matches == sum(len(pair.matches) for pair in PAIRS) and summary.inliers <= summary.matches
