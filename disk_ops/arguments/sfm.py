"""The programs around structure from motion."""

from __future__ import annotations

import argparse
from pathlib import Path

from disk_ops.arguments.features import add_extraction
from disk_ops.arguments.shared import Commands, add_command, add_detector, add_pairs, add_ratio
from disk_ops.arguments.values import numbers, positive_number, workers


def add_export_colmap(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add ``disk-ops export-colmap``."""
    parser = add_command(
        commands,
        "export-colmap",
        "write stored features and matches as a COLMAP database",
        "Cameras, keypoints (0.5 added, as COLMAP's first pixel has its corner at 0, 0), matches, and the two-view "
        "geometries of matches that agree with one. Descriptors are not written: COLMAP's are SIFT. Needs pycolmap.",
    )
    parser.add_argument("features", type=Path, help="HDF5 file of disk-ops extract or of hloc")
    parser.add_argument("matches", type=Path, help="HDF5 file of disk-ops match or of hloc")
    parser.add_argument(
        "--images", type=Path, required=True, metavar="FOLDER", help="that the names in FEATURES are relative to"
    )
    parser.add_argument(
        "--database", type=Path, required=True, metavar="FILE", help="database to write, such as database.db"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing database")
    _add_cameras(parser)
    parser.add_argument("--skip-verification", action="store_true", help="write the matches without verifying them")
    _add_verification(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def add_reconstruct(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add ``disk-ops reconstruct``."""
    parser = add_command(
        commands,
        "reconstruct",
        "reconstruct cameras and points from a folder of photographs",
        "Features, matches, verification and incremental mapping, one after the other. FOLDER gets features.h5, "
        "matches.h5, database.db, summary.json and sparse/0, sparse/1, ... (models of COLMAP, the one with most images "
        "first, each with points3D.ply). Interrupted at any moment, it goes on with --resume. Needs pycolmap.",
    )
    parser.add_argument("images", type=Path, metavar="IMAGES", help="folder, searched recursively")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help="where results are written")
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument(
        "--resume", action="store_true", help="go on in FOLDER; what is there and was made the same way is kept"
    )
    existing.add_argument("--overwrite", action="store_true", help="start afresh; results in FOLDER are removed")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.add_argument(
        "--features", type=Path, metavar="FILE", help="take these, of disk-ops extract or hloc, and extract none"
    )
    parser.add_argument(
        "--matches", type=Path, metavar="FILE", help="with --features: take these of disk-ops match or hloc, too"
    )
    add_detector(parser)
    add_extraction(parser)
    add_pairs(parser)
    add_ratio(parser)
    _add_cameras(parser)
    parser.add_argument(
        "--fix-cameras",
        action="store_true",
        help="keep focal lengths and distortion as EXIF or --camera-params say (default: refine them)",
    )
    _add_verification(parser)
    parser.add_argument(
        "--mapper-threads",
        type=workers,
        default=1,
        metavar="T",
        help="of the mapping. With 1, repeated runs give equal results; more are faster (default: %(default)s)",
    )


def _add_cameras(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--camera-model",
        default="SIMPLE_RADIAL",
        metavar="MODEL",
        help="of COLMAP: PINHOLE, SIMPLE_RADIAL, OPENCV, ... (default: %(default)s)",
    )
    parser.add_argument(
        "--camera-params",
        type=numbers,
        metavar="P,P,...",
        help="parameters of the model, in COLMAP's order and convention (default: the focal length from EXIF; without "
        "EXIF 1.2 times the longest edge)",
    )
    parser.add_argument(
        "--single-camera",
        action="store_true",
        help="one camera took all images (default: images of the same size, camera and focal length by EXIF share one; "
        "without EXIF each has its own)",
    )


def _add_verification(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-error",
        type=positive_number,
        default=4.0,
        metavar="PIXELS",
        help="of matches from their epipolar lines when they are verified (default: %(default)s)",
    )
    parser.add_argument(
        "--verify-threads",
        type=workers,
        default=2,
        metavar="T",
        help="pairs that are verified at the same time (default: %(default)s)",
    )
