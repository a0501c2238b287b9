"""The program that trains."""

from __future__ import annotations

import argparse
from pathlib import Path

from disk_ops.arguments.shared import Commands, add_command

_STATUS = (
    "exit status: 0 trained to the end (files that couldn't be used are named on standard error), 1 a full disk or an "
    "error of the program, 2 can't begin or go on, 130 interrupted"
)


def add_train(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add ``disk-ops train``."""
    parser = add_command(
        commands,
        "train",
        "train features from photographs or posed images",
        "FOLDER gets checkpoints, history.csv, validation.csv, TensorBoard's files, and the weights best.safetensors "
        "(of the best validation) and last.safetensors. Under torchrun all processes share the work.",
        _STATUS,
    )
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help="a TOML file, or a preset: paper, photos-small, photos-gpu; photos-start, photos-larger, photos-zoomed, "
        "photos-general, photos-turned, photos-turned-larger, photos-rotation, which made the bundled weights (default "
        "with --resume: that of FOLDER)",
    )
    parser.add_argument(
        "--data",
        action="append",
        metavar="[KIND:]PATH",
        help="what to train on, in place of what CONFIG says; may be repeated. KIND: photos (the default), scenes "
        "(COLMAP), rgbd, disk-dataset, homography",
    )
    parser.add_argument(
        "--set", action="append", metavar="KEY=VALUE", help="change a setting, such as optimizer.learning_rate=3e-4"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="where the training is kept")
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument("--resume", action="store_true", help="go on with the training in FOLDER, or begin one")
    existing.add_argument("--overwrite", action="store_true", help="start afresh; the training in FOLDER is removed")
    parser.add_argument(
        "--export", type=Path, metavar="FILE", help="write the best weights, as .safetensors or .pth, at the end"
    )
    parser.add_argument(
        "--export-dtype",
        choices=("float32", "float16"),
        default="float32",
        help="of the weights in that file: float16 halves it (default: float32)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print settings, data and memory, and stop")
    parser.add_argument("--write-config", type=Path, metavar="FILE", help="write all settings as TOML, and stop")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
