"""``disk-ops export-colmap``: stored features and matches as a COLMAP database."""

from __future__ import annotations

import argparse
from pathlib import Path

from disk_ops.io.output import OutputError, check_writable
from disk_ops.programs.common import OK, SOME_FAILED, Failures, UserError, counted, note, refuse_ignored
from disk_ops.sfm.cameras import CameraOptions
from disk_ops.sfm.colmap import require_pycolmap
from disk_ops.sfm.database import DatabaseSummary, Verification
from disk_ops.sfm.reconstruction import SfmOptions, export_database


def run(arguments: argparse.Namespace) -> int:
    """Run the program; see ``disk-ops export-colmap --help``."""
    require_pycolmap()
    database: Path = arguments.database
    if arguments.skip_verification:
        refuse_ignored(arguments, ("max_error", "verify_threads"), "with --skip-verification")
    check_writable(database)
    if database.exists() and not arguments.overwrite:
        raise OutputError(f"{database} exists already: use --overwrite to replace it")
    for source in (arguments.features, arguments.matches):
        if database.exists() and source.exists() and database.samefile(source):
            raise UserError(f"{database} is an input and the output as well")
    failures = Failures()
    summary = export_database(
        arguments.features,
        arguments.matches,
        arguments.images,
        database,
        sfm_options(arguments),
        failures.add,
        note,
        quiet=arguments.quiet,
    )
    failed = f", {len(failures):,} failed" if failures else ""
    print(f"{database}: {describe_database(summary, not arguments.skip_verification)}{failed}")
    return SOME_FAILED if failures else OK


def sfm_options(arguments: argparse.Namespace) -> SfmOptions:
    """The options for cameras and verification; see `disk_ops.arguments.sfm`."""
    skip = getattr(arguments, "skip_verification", False)
    return SfmOptions(
        cameras=CameraOptions(arguments.camera_model, arguments.camera_params, arguments.single_camera),
        verification=None if skip else Verification(arguments.max_error, threads=arguments.verify_threads),
    )


def describe_database(summary: DatabaseSummary, verified: bool = True) -> str:
    """The contents of a database in words."""
    parts = [
        counted(summary.images, "image"),
        counted(summary.cameras, "camera"),
        counted(summary.keypoints, "keypoint"),
        f"{counted(summary.matches, 'match')} of {counted(summary.pairs, 'pair')}",
    ]
    if verified:
        parts.append(f"verified: {counted(summary.inliers, 'match')} of {counted(summary.verified_pairs, 'pair')}")
    return ", ".join(parts)
