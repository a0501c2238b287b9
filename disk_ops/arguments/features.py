"""The programs that make, match and draw features."""

from __future__ import annotations

import argparse
from pathlib import Path

from disk_ops.arguments.shared import (
    ONE_JOB_STATUS,
    Commands,
    add_command,
    add_detector,
    add_device,
    add_hdf5_output,
    add_n,
    add_pairs,
    add_ratio,
    add_weights,
)
from disk_ops.arguments.values import positive, positive_or_infinite, workers


def add_extract(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add ``disk-ops extract``."""
    parser = add_command(
        commands,
        "extract",
        "detect and describe keypoints of many images",
        "The HDF5 file is laid out as hloc's: a group per image with keypoints [N, 2] (x, y; the centre of the first "
        "pixel is 0, 0), descriptors [D, N], scores [N], image_size (width, height). The images of a folder are named "
        "by their path relative to it, single files by their file name; equal names get parent folders in front. "
        "Pixels are taken as stored: an EXIF orientation is ignored, as in COLMAP. With --resume, images whose file or "
        "mask changed since are extracted again.",
    )
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGE|FOLDER", help="folders are searched recursively")
    add_hdf5_output(parser, "features.h5")
    add_detector(parser)
    add_extraction(parser)
    parser.add_argument(
        "--layout",
        choices=("hloc", "glue-factory"),
        default="hloc",
        help="hloc (also read by deep-image-matching), or glue-factory: descriptors [N, D], keypoints with the corner "
        "of the first pixel at 0, 0 (default: %(default)s)",
    )


def add_extraction(parser: argparse.ArgumentParser) -> None:
    """Add masks, and how images are read and computed."""
    parser.add_argument(
        "--mask-dir",
        type=Path,
        metavar="FOLDER",
        help="masks named <image name>.png (a.jpg.png, as for COLMAP) or with .png in place of the image's extension; "
        "no keypoints where a mask is 0. An image without a mask is used whole; a mask of another size is "
        "scaled if its aspect is that of the image, otherwise the image fails",
    )
    parser.add_argument(
        "--max-memory",
        type=positive_or_infinite,
        metavar="GB",
        help="of the network; larger images are computed in tiles, with the same features (default: half of what is "
        "free)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        default="float32",
        help="of the network's computation (default: %(default)s); the file always holds float32",
    )
    parser.add_argument(
        "--batch-size",
        type=positive,
        default=1,
        metavar="B",
        help="images of equal size computed together (default: %(default)s)",
    )
    parser.add_argument(
        "--num-workers",
        type=workers,
        default=2,
        metavar="W",
        help="threads that decode images (default: %(default)s)",
    )


def add_match(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add ``disk-ops match``."""
    parser = add_command(
        commands,
        "match",
        "match stored features by mutual nearest neighbours",
        "The HDF5 file is laid out as hloc's: a group name0/name1 per pair (slashes in names written as -) with "
        "matches0 [N0] (index or -1) and matching_scores0 [N0] ((1 + cos) / 2 for descriptors of unit length). With "
        "--resume, pairs whose features changed since are matched again.",
    )
    parser.add_argument("features", type=Path, help="HDF5 file of disk-ops extract or of hloc")
    add_hdf5_output(parser, "matches.h5")
    add_pairs(parser)
    add_ratio(parser)
    add_device(parser)
    parser.add_argument(
        "--layout",
        choices=("hloc", "deep-image-matching"),
        default="hloc",
        help="hloc, or deep-image-matching: one dataset [K, 2] of indices a pair (default: %(default)s)",
    )


def add_merge(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add ``disk-ops merge``."""
    parser = add_command(
        commands,
        "merge",
        "make one plain file of what several processes extracted or matched",
        "Under torchrun, extract and match write FILE as an index of files in the folder FILE.shards, which is read "
        "like one file. FILE becomes plain, and its folder is deleted; with -o both stay.",
        ONE_JOB_STATUS,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="such as features.h5")
    parser.add_argument("-o", "--output", type=Path, metavar="OTHER", help="write this file, and leave FILE as it is")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing OTHER")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def add_show(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add ``disk-ops show``."""
    parser = add_command(
        commands,
        "show",
        "draw the keypoints of an image, or the matches of two",
        "Without --features the keypoints are detected, without --matches they are matched. Keypoints are coloured by "
        "the rank of their score (orange: best), matches by their height in the first image. With --model colours say "
        "what became of them, as in the paper's first figure. Keypoints: blue if they became landmarks (3D points), "
        "else red. Matches: green to yellow by their error from 0 to 5 pixels of the image files, red above, blue "
        "where it is not known. The error is the distance from the projection of the 3D point that one keypoint has in "
        "the model to the other keypoint, the larger one if both have a point; without any it is not known.",
        ONE_JOB_STATUS,
    )
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGE", help="one image or two")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="PICTURE", help="such as out.png; is replaced"
    )
    parser.add_argument("--features", type=Path, metavar="FILE", help="HDF5 file with the features of the images")
    parser.add_argument("--matches", type=Path, metavar="FILE", help="HDF5 file with the matches of the two images")
    parser.add_argument(
        "--model",
        type=Path,
        metavar="FOLDER",
        help="COLMAP model of the images, such as scene/sparse/0, best with the features that it was made of "
        "(--features scene/features.h5). Needs pycolmap",
    )
    parser.add_argument(
        "--verify", action="store_true", help="show only matches that agree with one fundamental matrix"
    )
    parser.add_argument(
        "--max-width",
        type=positive,
        default=1600,
        metavar="PIXELS",
        help="width of the picture at most; two images take 14 in any case (default: %(default)s)",
    )
    parser.add_argument(
        "--max-lines",
        type=positive,
        default=150,
        help="of more matches only the ends are drawn (default: %(default)s)",
    )
    add_detector(parser)
    add_ratio(parser)


def add_demo(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add ``disk-ops demo``."""
    parser = add_command(commands, "demo", "detect, match and draw two bundled photographs", status=ONE_JOB_STATUS)
    parser.add_argument(
        "-o", "--output", type=Path, default=Path(), metavar="FOLDER", help="where demo.png is written (default: here)"
    )
    add_n(parser)
    add_weights(parser)
    add_device(parser)
