"""Arguments that several programs have."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from disk_ops.arguments.given import note_given
from disk_ops.arguments.values import count_or_all, number, odd, positive, ratio, scales, size_limit
from disk_ops.checkpoint import DEFAULT_CHECKPOINT
from disk_ops.multiscale import SCALES

STATUS = "exit status: 0 all done, 1 some items failed (named on standard error), 2 wrong usage, 130 interrupted"
ONE_JOB_STATUS = "exit status: 0 done, 1 a full disk or an error of the program, 2 wrong usage, 130 interrupted"

Commands = argparse._SubParsersAction


def add_command(
    commands: Commands[argparse.ArgumentParser], name: str, about: str, more: str = "", status: str = STATUS
) -> argparse.ArgumentParser:
    """Add a program with its description."""
    parser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}. {more}".strip(),
        epilog=status,
    )
    note_given(parser)
    return parser


def add_hdf5_output(parser: argparse.ArgumentParser, example: str) -> None:
    """Add ``--output`` and what becomes of an existing file."""
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help=f"HDF5 file to write, such as {example}. Until it is complete the results are kept in FILE.part. "
        "Processes of torchrun each write a file in the folder FILE.shards, to which FILE links",
    )
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument(
        "--resume", action="store_true", help="add what is missing to an existing or interrupted FILE"
    )
    existing.add_argument(
        "--overwrite", action="store_true", help="start afresh; an existing FILE is replaced at the end"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def add_detector(parser: argparse.ArgumentParser) -> None:
    """Add everything that decides on the features of an image."""
    add_n(parser)
    parser.add_argument(
        "--max-size",
        type=size_limit,
        default=1600,
        metavar="PIXELS",
        help="longest edge; larger images are scaled down for detection (antialiased), keypoints are given in the "
        "original image. 0: never scale (default: %(default)s)",
    )
    add_maxima(parser)
    parser.add_argument(
        "--subpixel",
        action="store_true",
        help="move keypoints to the peak of the scores around them, between pixels",
    )
    parser.add_argument(
        "--scales",
        type=scales,
        default=(1.0,),
        metavar="S,S,...",
        help="sizes at which to detect, as parts of the image's after --max-size, of which the best features are kept. "
        f"{','.join(f'{scale:g}' for scale in SCALES)} is for images that are zoomed against each other, or blurred, "
        f"and has {sum(scale**2 for scale in SCALES):.2f} times the pixels in all (default: 1)",
    )
    add_weights(parser)
    add_device(parser)


def add_maxima(parser: argparse.ArgumentParser, window: Callable[[str], int] = odd) -> None:
    """Add what counts as a maximum of the heatmap."""
    parser.add_argument(
        "--window-size",
        type=window,
        default=5,
        metavar="W",
        help="of non-maximum suppression, odd (default: %(default)s)",
    )
    parser.add_argument(
        "--score-threshold",
        type=number,
        default=0.0,
        metavar="S",
        help="only keypoints with a score above this; -inf: any score (default: %(default)s)",
    )


def add_n(parser: argparse.ArgumentParser) -> None:
    """Add ``--n``."""
    parser.add_argument(
        "--n", type=count_or_all, default=2048, help="keypoints per image at most, or all (default: %(default)s)"
    )


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Add ``--weights``."""
    parser.add_argument(
        "--weights", default=DEFAULT_CHECKPOINT, metavar="NAME|FILE", help="checkpoint (default: %(default)s)"
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``."""
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, ... (default: %(default)s)")


def add_pairs(parser: argparse.ArgumentParser) -> None:
    """Add the choice of pairs to match."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--exhaustive", action="store_true", help="match all pairs (the default)")
    which.add_argument(
        "--sequential",
        type=positive,
        metavar="K",
        help="match each image with the K next ones, in the order of names (frame2 before frame10)",
    )
    which.add_argument(
        "--pair-pattern",
        metavar="PATTERN",
        help="match by names: 'cam1/* cam2/*', each image that matches the first glob with each that matches the "
        "second; 'cam1/*', those that match it with each other; 're:frame_(\\d+)', images for which the groups of a "
        "regular expression are equal",
    )
    which.add_argument(
        "--pairs",
        type=Path,
        metavar="FILE",
        help="match the pairs of a text file (of a retrieval, for example): two image names a line, separated by a "
        "space, or by a tab if names contain spaces (or quoted); empty lines and lines that begin with # are skipped",
    )
    parser.add_argument(
        "--quadratic-overlap",
        action="store_true",
        help="with --sequential, also match images at distances 1, 2, 4, ... 2^(K-1), as COLMAP does",
    )
    parser.add_argument(
        "--loop-closure",
        type=positive,
        metavar="L",
        help="with --sequential, also match every L-th image with all others, for a sequence that returns to places",
    )


def add_ratio(parser: argparse.ArgumentParser) -> None:
    """Add ``--ratio``."""
    parser.add_argument(
        "--ratio",
        type=ratio,
        metavar="R",
        help="keep matches whose distance is at most R times that of the second best, both ways (default: keep all)",
    )
