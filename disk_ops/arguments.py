"""The arguments of the ``disk-ops`` command. Nothing heavy is imported here, so that ``--help`` is there at once."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

PROGRAMS = ("extract", "match", "show", "demo", "train", "export-onnx")

_STATUS = "exit status: 0 all done, 1 some items failed (named on standard error), 2 wrong usage, 130 interrupted"


def build_parser() -> argparse.ArgumentParser:
    """The command line of all the programs."""
    parser = argparse.ArgumentParser(prog="disk-ops", description="DISK local features: extract, match, show, train.")
    parser.add_argument("--version", action=_Version, help="show the version and exit")
    commands = parser.add_subparsers(dest="program", required=True, metavar="{" + ",".join(PROGRAMS) + "}")
    _add_extract(commands)
    _add_match(commands)
    _add_show(commands)
    _add_demo(commands)
    _add_train(commands)
    _add_export_onnx(commands)
    return parser


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from disk_ops import __version__

        print(f"disk-ops {__version__}")
        parser.exit()


_Commands = argparse._SubParsersAction


def _add_command(
    commands: _Commands[argparse.ArgumentParser], name: str, about: str, more: str = ""
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}. {more}".strip(),
        epilog=_STATUS,
    )


def _add_extract(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands,
        "extract",
        "detect and describe keypoints of many images",
        "The HDF5 file is laid out as hloc's: a group per image with keypoints [N, 2] (x, y; the centre of the first "
        "pixel is 0, 0), descriptors [D, N], scores [N], image_size (width, height). The images of a folder are named "
        "by their path relative to it, single files by their file name; equal names get parent folders in front. "
        "Pixels are taken as stored: an EXIF orientation is ignored, as in COLMAP.",
    )
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGE|FOLDER", help="folders are searched recursively")
    _add_hdf5_output(parser, "features.h5")
    _add_detector(parser)
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
        type=_number,
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
        type=_positive,
        default=1,
        metavar="B",
        help="images of equal size computed together (default: %(default)s)",
    )
    parser.add_argument(
        "--num-workers",
        type=_positive,
        default=2,
        metavar="W",
        help="threads that decode images (default: %(default)s)",
    )
    parser.add_argument(
        "--layout",
        choices=("hloc", "glue-factory"),
        default="hloc",
        help="hloc (also read by deep-image-matching), or glue-factory: descriptors [N, D], keypoints with the corner "
        "of the first pixel at 0, 0 (default: %(default)s)",
    )


def _add_match(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands,
        "match",
        "match stored features by mutual nearest neighbours",
        "The HDF5 file is laid out as hloc's: a group name0/name1 per pair (slashes in names written as -) with "
        "matches0 [N0] (index or -1) and matching_scores0 [N0] ((1 + cos) / 2).",
    )
    parser.add_argument("features", type=Path, help="HDF5 file of disk-ops extract or of hloc")
    _add_hdf5_output(parser, "matches.h5")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--pairs",
        type=Path,
        metavar="FILE",
        help="text file with two image names a line, separated by a space, or by a tab if names contain spaces (or "
        "quoted); empty lines and lines that begin with # are skipped",
    )
    which.add_argument("--exhaustive", action="store_true", help="all pairs (the default)")
    which.add_argument(
        "--sequential",
        type=_positive,
        metavar="K",
        help="each image with the K next ones, in the order of names (frame2 before frame10)",
    )
    _add_ratio(parser)
    _add_device(parser)
    parser.add_argument(
        "--layout",
        choices=("hloc", "deep-image-matching"),
        default="hloc",
        help="hloc, or deep-image-matching: one dataset [K, 2] of indices a pair (default: %(default)s)",
    )


def _add_show(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands,
        "show",
        "draw the keypoints of an image, or the matches of two",
        "Without --features the keypoints are detected, without --matches they are matched. Keypoints are coloured by "
        "the rank of their score (orange: best), matches by their height in the first image.",
    )
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGE", help="one image or two")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="PICTURE", help="such as out.png; is replaced"
    )
    parser.add_argument("--features", type=Path, metavar="FILE", help="HDF5 file with the features of the images")
    parser.add_argument("--matches", type=Path, metavar="FILE", help="HDF5 file with the matches of the two images")
    parser.add_argument(
        "--verify", action="store_true", help="show only matches that agree with one fundamental matrix"
    )
    parser.add_argument("--max-width", type=_positive, default=1600, help="of the picture (default: %(default)s)")
    parser.add_argument(
        "--max-lines",
        type=_positive,
        default=150,
        help="of more matches only the ends are drawn (default: %(default)s)",
    )
    _add_detector(parser)
    _add_ratio(parser)


def _add_demo(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = _add_command(commands, "demo", "detect, match and draw two bundled photographs")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path(), metavar="FOLDER", help="where demo.png is written (default: here)"
    )
    _add_n(parser)
    _add_weights(parser)
    _add_device(parser)


def _add_train(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands,
        "train",
        "train features from photographs or posed images",
        "FOLDER gets checkpoints, history.csv, validation.csv, TensorBoard's files, and the weights best.safetensors "
        "(of the best validation) and last.safetensors. Under torchrun all processes share the work.",
    )
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help="a TOML file, or a preset: paper, photos-small, photos-gpu (default with --resume: that of FOLDER)",
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
    parser.add_argument("--dry-run", action="store_true", help="print settings, data and memory, and stop")
    parser.add_argument("--write-config", type=Path, metavar="FILE", help="write all settings as TOML, and stop")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _add_export_onnx(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands,
        "export-onnx",
        "write the detector as an ONNX file",
        "For onnxruntime and OpenCV 5's cv::DISK. Input: image [1, 3, H, W], RGB in [0, 1]. Outputs, best score first: "
        "keypoints [1, N, 2] int64 (x, y), scores [1, N], descriptors [1, N, 128]; a row without a keypoint has the "
        "score S and zeros. Where onnxruntime is installed, the model is compared with the detector.",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="such as disk.onnx")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing FILE")
    parser.add_argument(
        "--size",
        type=_image_size,
        metavar="WxH|any",
        help="of the images, such as 1024x768 (default: any, padded to multiples of 16 inside the model)",
    )
    parser.add_argument("--n", type=_positive, default=2048, help="N, rows of the outputs (default: %(default)s)")
    _add_maxima(parser)
    _add_weights(parser)


def _add_hdf5_output(parser: argparse.ArgumentParser, example: str) -> None:
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help=f"HDF5 file to write, such as {example}. Until it is complete the results are kept in FILE.part",
    )
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument(
        "--resume", action="store_true", help="add what is missing to an existing or interrupted FILE"
    )
    existing.add_argument(
        "--overwrite", action="store_true", help="start afresh; an existing FILE is replaced at the end"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _add_detector(parser: argparse.ArgumentParser) -> None:
    _add_n(parser)
    parser.add_argument(
        "--max-size",
        type=_size_limit,
        default=1600,
        metavar="PIXELS",
        help="longest edge; larger images are scaled down for detection (antialiased), keypoints are given in the "
        "original image. 0: never scale (default: %(default)s)",
    )
    _add_maxima(parser)
    _add_weights(parser)
    _add_device(parser)


def _add_maxima(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--window-size",
        type=_odd,
        default=5,
        metavar="W",
        help="of non-maximum suppression, odd (default: %(default)s)",
    )
    parser.add_argument(
        "--score-threshold",
        type=_number,
        default=0.0,
        metavar="S",
        help="only keypoints with a score above this (default: %(default)s)",
    )


def _add_n(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--n", type=_count_or_all, default=2048, help="keypoints per image at most, or all (default: %(default)s)"
    )


def _add_weights(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--weights", default="start", metavar="NAME|FILE", help="checkpoint (default: %(default)s)")


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, ... (default: %(default)s)")


def _add_ratio(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ratio",
        type=_ratio,
        metavar="R",
        help="keep matches whose distance is at most R times that of the second best, both ways (default: keep all)",
    )


def _checked(convert: Callable[[str], float], text: str, fits: Callable[[float], bool], what: str) -> float:
    try:
        value = convert(text)
    except ValueError:
        value = math.nan
    if math.isnan(value) or not fits(value):
        raise argparse.ArgumentTypeError(f"{what} is needed, got {text!r}")
    return value


def _positive(text: str) -> int:
    return int(_checked(int, text, lambda value: value >= 1, "a positive integer"))


def _odd(text: str) -> int:
    return int(_checked(int, text, lambda value: value >= 1 and value % 2 == 1, "an odd positive integer"))


def _number(text: str) -> float:
    return _checked(float, text, lambda value: True, "a number")


def _ratio(text: str) -> float:
    return _checked(float, text, lambda value: 0 < value <= 1, "a number above 0 and at most 1")


def _count_or_all(text: str) -> int | str:
    return "all" if text == "all" else int(_checked(int, text, lambda value: value >= 1, "a positive integer or 'all'"))


def _image_size(text: str) -> tuple[int, int] | None:
    if text == "any":
        return None
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal() and int(width) and int(height)):
        raise argparse.ArgumentTypeError(f"a width and a height such as 1024x768 are needed, or any, got {text!r}")
    return int(width), int(height)


def _size_limit(text: str) -> int | None:
    return int(_checked(int, text, lambda value: value >= 0, "a positive integer, or 0 for no limit,")) or None
