"""COLMAP databases of features and matches from anywhere, with two-view geometries."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from disk_ops.io.images import Size
from disk_ops.io.output import part_of
from disk_ops.sfm.cameras import Cameras
from disk_ops.sfm.colmap import SfmError, quiet_colmap, require_pycolmap

Origin = Mapping[str, Any]
"""What a database is made from and how, as JSON."""

Failed = Callable[[str, object], None]
"""Takes the name of what failed, and why."""


class SfmImage(NamedTuple):
    """An image with its keypoints."""

    name: str
    path: Path | None  # its file, for EXIF
    size: Size  # (width, height) that the keypoints are given in
    keypoints: npt.NDArray[np.float32]  # [N, 2] xy, pixel centres at integers


class MatchedPair(NamedTuple):
    """Matches of two images."""

    name1: str
    name2: str
    matches: npt.NDArray[np.int64]  # [K, 2] indices of keypoints


@dataclass(frozen=True)
class Verification:
    """How matches are verified: COLMAP's two-view geometry, an essential matrix where focal lengths are known.

    Attributes:
        max_error: largest distance from the epipolar line, in pixels.
        seed: of RANSAC; each pair starts alike, so that results depend on nothing else.
        threads: pairs that are verified at the same time.
    """

    max_error: float = 4.0
    seed: int = 0
    threads: int = 1


@dataclass(frozen=True)
class DatabaseSummary:
    """What a database holds."""

    images: int
    cameras: int
    keypoints: int
    pairs: int  # with matches
    matches: int
    verified_pairs: int
    inliers: int


def build_database(
    path: Path,
    origin: Origin,
    images: Callable[[], Iterable[SfmImage]],
    pairs: Callable[[], Iterable[MatchedPair]],
    cameras: Cameras,
    verification: Verification | None,
    failed: Failed,
    *,
    resume: bool = False,
    quiet: bool = True,
) -> DatabaseSummary:
    """Write a database, under a temporary name until it is complete. An existing one is replaced then.

    Args:
        path: of the database.
        origin: is stored in it, for :func:`stored_origin`.
        images: gives the images; they get ids 1, 2, ... in this order.
        pairs: gives the matches. Pairs with an image that isn't there are left out.
        cameras: tells which camera took an image.
        verification: how two-view geometries are estimated; ``None``: there will be none.
        failed: is told of images whose camera can't be, and of matches that don't fit the keypoints.
        resume: keep the unfinished database when interrupted, and go on with one that has the same origin.
        quiet: show no progress.

    Raises:
        SfmError: none of the images could be used.
    """
    pycolmap = require_pycolmap()
    part = part_of(path)
    imported = resume and stored_origin(part) == dict(origin)
    if not imported:
        remove_database(part)
    try:
        with quiet_colmap(), closing(pycolmap.Database.open(part)) as database:
            if not imported:
                with pycolmap.DatabaseTransaction(database):
                    sizes = _write_images(database, images(), cameras, failed)
                    _write_matches(database, sizes, pairs(), failed)
                # Comes last, so that a database with an origin is one with all its matches.
                _store_origin(part, origin)
            if verification is not None:
                verify_matches(database, verification, quiet)
            summary = summarize_database(database)
        # A log that a killed program left of the old database would be played back into the new one.
        _remove_logs(path)
        os.replace(part, path)
    except BaseException:
        if not resume:
            remove_database(part)
        raise
    return summary


@contextmanager
def open_database(path: Path) -> Iterator[Any]:
    """An existing database as a ``pycolmap.Database``, closed at the end; raise `SfmError` if there is none."""
    if not path.is_file():  # COLMAP would make one
        raise SfmError(f"{path}: no such file")
    with quiet_colmap():
        try:
            database = require_pycolmap().Database.open(path)
        except (ValueError, RuntimeError) as error:
            raise SfmError(f"{path} can't be read as a COLMAP database: {error}") from error
        with closing(database):
            yield database


def stored_origin(path: Path) -> dict[str, Any] | None:
    """The origin of a database; None if there is no database, or it is another program's or unfinished."""
    try:
        # Not read-only: such a connection leaves the files of its write-ahead log behind.
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            return dict(json.loads(connection.execute("SELECT origin FROM disk_ops").fetchone()[0]))
    except (sqlite3.Error, TypeError, ValueError):
        return None


def _store_origin(path: Path, origin: Origin) -> None:
    # A table of its own in the file: COLMAP doesn't mind, and file and origin can't get separated.
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE disk_ops (origin TEXT)")
        connection.execute("INSERT INTO disk_ops VALUES (?)", (json.dumps(dict(origin)),))


def remove_database(path: Path) -> None:
    """Delete a database and what SQLite keeps beside it, if there is any."""
    path.unlink(missing_ok=True)
    _remove_logs(path)


def _remove_logs(path: Path) -> None:
    for ending in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def _write_images(
    database: Any, images: Iterable[SfmImage], cameras: Cameras, failed: Failed
) -> dict[str, tuple[int, int]]:
    """Write images and keypoints; returns the id and the number of keypoints of each."""
    written: dict[str, tuple[int, int]] = {}
    rigs: dict[Hashable, tuple[int, int]] = {}  # camera's and rig's id
    pycolmap = require_pycolmap()
    for image in images:
        if not _is_utf8(image.name):
            failed(image.name, "the file name is not UTF-8, so it can't be in a COLMAP database; rename the file")
            continue
        try:
            key, camera = cameras(image.name, image.path, image.size)
        except SfmError as error:
            failed(image.name, error)
            continue
        if key not in rigs:
            camera_id = database.write_camera(camera)
            rig = pycolmap.Rig()
            rig.add_ref_sensor(pycolmap.sensor_t(pycolmap.SensorType.CAMERA, camera_id))
            rigs[key] = (camera_id, database.write_rig(rig))
        camera_id, rig_id = rigs[key]
        stored = pycolmap.Image(name=image.name, camera_id=camera_id)
        stored.image_id = database.write_image(stored)
        frame = pycolmap.Frame()
        frame.rig_id = rig_id
        frame.add_data_id(stored.data_id)
        database.write_frame(frame)
        database.write_keypoints(stored.image_id, image.keypoints.astype(np.float32) + np.float32(0.5))
        written[image.name] = (stored.image_id, len(image.keypoints))
    if not written:
        raise SfmError("none of the images could be used")
    return written


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # bytes that aren't, as Python holds them
        return False
    return True


def _write_matches(
    database: Any, images: Mapping[str, tuple[int, int]], pairs: Iterable[MatchedPair], failed: Failed
) -> None:
    for pair in pairs:
        if pair.name1 not in images or pair.name2 not in images:
            continue
        (id1, count1), (id2, count2) = images[pair.name1], images[pair.name2]
        if len(pair.matches) and (pair.matches.min() < 0 or (pair.matches.max(axis=0) >= (count1, count2)).any()):
            failed(f"{pair.name1} - {pair.name2}", "the matches are of other features: there are fewer keypoints")
        elif not database.exists_matches(id1, id2):
            database.write_matches(id1, id2, np.ascontiguousarray(pair.matches, np.uint32))


def verify_matches(database: Any, options: Verification, quiet: bool = True) -> None:
    """Write a two-view geometry, perhaps an empty one, for each pair of a database that has none yet.

    Args:
        database: a ``pycolmap.Database``.
        options: how.
        quiet: show no progress.
    """
    pycolmap = require_pycolmap()
    colmap_options = pycolmap.TwoViewGeometryOptions()
    colmap_options.ransac.max_error = options.max_error
    colmap_options.ransac.random_seed = options.seed
    cameras = {camera.camera_id: camera for camera in database.read_all_cameras()}
    camera_of = {image.image_id: cameras[image.camera_id] for image in database.read_all_images()}
    keypoints: dict[int, npt.NDArray[np.float64]] = {}

    def read(pair: tuple[int, int]) -> tuple[Any, ...]:
        for image_id in pair:
            if image_id not in keypoints:
                keypoints[image_id] = np.asarray(database.read_keypoints(image_id), np.float64)[:, :2]
        first, second = pair
        matches = database.read_matches(first, second)
        return camera_of[first], keypoints[first], camera_of[second], keypoints[second], matches

    def verify(job: tuple[Any, ...]) -> Any:
        geometry = pycolmap.estimate_two_view_geometry(*job, colmap_options)
        enough = len(geometry.inlier_matches) >= colmap_options.min_num_inliers
        return geometry if enough else pycolmap.TwoViewGeometry()

    pairs = [tuple(pycolmap.pair_id_to_image_pair(pair_id)) for pair_id in database.read_num_matches()[0]]
    todo = [pair for pair in pairs if not database.exists_two_view_geometry(*pair)]
    bar = tqdm(total=len(pairs), initial=len(pairs) - len(todo), unit="pair", disable=True if quiet else None)
    waiting = iter(todo)
    with bar, _cancelling(ThreadPoolExecutor(options.threads)) as pool:
        while batch := list(islice(waiting, 8 * options.threads)):
            for pair, geometry in zip(batch, pool.map(verify, [read(pair) for pair in batch]), strict=True):
                database.write_two_view_geometry(*pair, geometry)
                bar.update()


@contextmanager
def _cancelling(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """The pool; when left by an exception such as Ctrl-C, what has not begun isn't waited for."""
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def summarize_database(database: Any) -> DatabaseSummary:
    """Count what a ``pycolmap.Database`` holds."""
    inliers = database.read_two_view_geometry_num_inliers()[1]
    return DatabaseSummary(
        images=database.num_images(),
        cameras=database.num_cameras(),
        keypoints=database.num_keypoints(),
        pairs=database.num_matched_image_pairs(),
        matches=database.num_matches(),
        verified_pairs=sum(count > 0 for count in inliers),
        inliers=sum(inliers),
    )
