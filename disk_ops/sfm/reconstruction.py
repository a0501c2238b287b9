"""From files of features and matches to models: database, verification, mapping, with what is done kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from disk_ops.io.hdf5 import open_h5
from disk_ops.io.output import part_of, whole_file
from disk_ops.sfm.cameras import CameraOptions, ExifCameras
from disk_ops.sfm.colmap import SfmError
from disk_ops.sfm.database import (
    DatabaseSummary,
    Failed,
    Origin,
    Verification,
    build_database,
    open_database,
    stored_origin,
    summarize_database,
)
from disk_ops.sfm.mapping import MappingOptions, map_incrementally, summarize_model, write_models
from disk_ops.sfm.stored import StoredFeatures

DATABASE, MODELS, SUMMARY = "database.db", "sparse", "summary.json"
"""Names of the results in their folder."""


@dataclass(frozen=True)
class SfmOptions:
    """All that decides on a reconstruction, given features and matches."""

    cameras: CameraOptions = field(default_factory=CameraOptions)
    verification: Verification | None = field(default_factory=Verification)
    mapping: MappingOptions = field(default_factory=MappingOptions)


def export_database(
    features: Path,
    matches: Path,
    images: Path,
    database: Path,
    options: SfmOptions,
    failed: Failed,
    note: Callable[[str], None],
    *,
    resume: bool = False,
    quiet: bool = True,
) -> DatabaseSummary:
    """Write a COLMAP database of stored features and matches; an existing one is replaced when it is complete.

    Args:
        features: HDF5 file in hloc's layout.
        matches: HDF5 file in hloc's layout.
        images: folder that the names of images are relative to.
        database: to write.
        options: all but the mapping's.
        failed: is told of images and pairs that can't be used.
        note: is told what else is worth knowing.
        resume: keep it when interrupted, and go on with what was made of the same files by the same options.
        quiet: show no progress.

    Raises:
        SfmError: nothing can be used.
        StorageError: a file can't be read.
    """
    cameras = ExifCameras(options.cameras)
    if not images.is_dir():
        raise SfmError(f"{images} is not a folder")
    with open_h5(features) as feature_file, open_h5(matches) as match_file:
        stored = StoredFeatures(feature_file, match_file, images, failed, quiet)
        if stored.others:
            note(f"{matches} has {stored.others:,} more pairs, of images that {features} doesn't hold")
        return build_database(
            database,
            database_origin(features, matches, options),
            stored.images,
            stored.matched_pairs,
            cameras,
            options.verification,
            failed,
            resume=resume,
            quiet=quiet,
        )


def database_origin(features: Path, matches: Path, options: SfmOptions) -> Origin:
    """What a database is made from; changes when one of the files or an option does."""
    verification = None if options.verification is None else asdict(options.verification)
    if verification is not None:
        verification.pop("threads")  # makes no difference
    origin = {
        "features": _stamp(features),
        "matches": _stamp(matches),
        "cameras": asdict(options.cameras),
        "verification": verification,
    }
    return dict(json.loads(json.dumps(origin)))  # lists in place of tuples, as it will be read back


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def map_database(folder: Path, images: Path, options: MappingOptions, *, quiet: bool = True) -> dict[str, Any]:
    """Make models of a folder's database, and write them and their figures beside it, replacing those there.

    Args:
        folder: with the database.
        images: folder of the images, for the colours of points.
        options: how.
        quiet: show no progress.

    Returns:
        The figures, as in ``summary.json``: ``models`` has those of `ModelSummary` for each.
    """
    database, models = folder / DATABASE, folder / MODELS
    part = part_of(models)
    with open_database(database) as opened:
        summary = summarize_database(opened)
    shutil.rmtree(part, ignore_errors=True)
    if models.exists():  # gone at once, and never half of it
        models.rename(part)
        shutil.rmtree(part)
    (folder / SUMMARY).unlink(missing_ok=True)
    part.mkdir()
    try:
        found = map_incrementally(database, images, part, options, quiet=quiet)
        shutil.rmtree(part)  # what COLMAP wrote, in its own order
        part.mkdir()
        write_models(found, part)
        figures = {
            "images": summary.images,
            "verified_pairs": summary.verified_pairs,
            "models": [asdict(summarize_model(model)) for model in found],
            "made_from": _mapping_origin(folder, options),
        }
        with whole_file(folder / SUMMARY) as file:
            file.write((json.dumps(figures, indent=1) + "\n").encode())
        part.rename(models)  # last, so that models are never there without their figures
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return figures


def mapped_before(folder: Path, options: MappingOptions) -> dict[str, Any] | None:
    """The figures of a folder's models, if these were made by these options from the database that is there."""
    try:
        figures = dict(json.loads((folder / SUMMARY).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None
    same = figures.get("made_from") == _mapping_origin(folder, options)
    return figures if same and (folder / MODELS).is_dir() else None


def _mapping_origin(folder: Path, options: MappingOptions) -> Origin:
    return {"database": stored_origin(folder / DATABASE), "mapping": asdict(options)}
