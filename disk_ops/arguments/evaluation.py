"""The program that evaluates features on data with ground truth; each protocol is a command of its own."""

from __future__ import annotations

import argparse
from pathlib import Path

from disk_ops.arguments.shared import STATUS, Commands, add_command, add_device
from disk_ops.arguments.values import (
    count_or_all,
    odd,
    positive,
    positive_number,
    ratio_or_word,
    share,
    size_limit,
    turn_step,
)

_MORE = (
    "Methods side by side: the same images, numbers of keypoints, matcher and estimator. FOLDER gets results.json, "
    "results.csv and report.html. What is done is kept in FOLDER/cache: the same command again goes on where it "
    "stopped, and adds what is new. Under torchrun (torchrun --nproc-per-node 2 -m -- disk_ops evaluate ...) all "
    "processes share the work."
)


def add_evaluate(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add ``disk-ops evaluate``."""
    parser = add_command(commands, "evaluate", "measure features on data with ground truth", _MORE)
    protocols = parser.add_subparsers(dest="protocol", required=True, metavar="PROTOCOL")
    _add_homography(protocols)
    _add_pose(protocols)
    _add_rotation(protocols)
    _add_reconstruct(protocols)
    _add_ablation(protocols)


def add_protocol(
    protocols: Commands[argparse.ArgumentParser],
    name: str,
    about: str,
    more: str = "",
    only_disk: bool = False,
) -> argparse.ArgumentParser:
    """Add a protocol with the arguments that all have."""
    methods = ["disk"] if only_disk else ["disk", "rootsift"]
    others = (
        ", sift, rootsift, kornia:NAME[:CHECKPOINT] (aliked-n16, xfeat, dedode, ...; weights that are neither given "
        "nor in torch hub's cache are an error, never downloaded)"
    )
    parser = protocols.add_parser(
        name, help=about, description=f"{about[0].upper()}{about[1:]}. {more} {_MORE}", epilog=STATUS
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help="where results are kept")
    parser.add_argument(
        "--method",
        nargs="+",
        default=methods,
        metavar="METHOD",
        help=f"disk[+subpixel]{'' if only_disk else '[+multiscale]'}[:CHECKPOINT]{'' if only_disk else others} "
        f"(default: {' '.join(methods)})",
    )
    parser.add_argument(
        "--n",
        type=positive,
        nargs="+",
        default=[2048, 8000],
        metavar="N",
        help="keypoints per image at most, one number or several (default: 2048 8000)",
    )
    parser.add_argument(
        "--ratio",
        type=ratio_or_word,
        default=None,
        metavar="none|R|auto",
        help="of the ratio test. auto: for each method and N the best on data for validation, which is not in the test "
        "(default: none)",
    )
    parser.add_argument(
        "--validation",
        type=Path,
        metavar="DIR",
        help="data that --ratio auto chooses by (default: a fifth of the data, by a hash of the names, "
        "if possible without images of the test)",
    )
    parser.add_argument(
        "--max-size",
        type=size_limit,
        default=1024,
        metavar="PIXELS",
        help="longest edge; larger images are scaled down. 0: never (default: %(default)s)",
    )
    parser.add_argument(
        "--no-pictures",
        action="store_false",
        dest="pictures",
        help="a report of tables and plots only, for images that may not be passed on",
    )
    add_device(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def add_ransac(parser: argparse.ArgumentParser) -> None:
    """Add the robust estimator."""
    parser.add_argument(
        "--ransac",
        choices=("magsac", "degensac", "poselib"),
        default="magsac",
        help="magsac (OpenCV), degensac (needs pydegensac), poselib (needs poselib) (default: %(default)s)",
    )
    parser.add_argument(
        "--ransac-threshold", type=positive_number, default=0.75, metavar="PIXELS", help="(default: %(default)s)"
    )


def _add_homography(protocols: Commands[argparse.ArgumentParser]) -> None:
    parser = add_protocol(
        protocols,
        "homography",
        "matching accuracy, repeatability and homographies on HPatches and the like",
        "DIR holds sets in the layouts of Oxford affine (img1.*, H1to2p), HPatches (1.*, H_1_2), EVD (1/, 2/, h/) or "
        "homogr (NAMEA.*, NAMEB.*, NAME_vpts.mat or NAME_H.txt), at any depth. The paper uses images in full size "
        "(--max-size 0).",
    )
    _add_homography_data(parser)


def _add_homography_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, metavar="DIR", help="is searched for sets")
    parser.add_argument(
        "--all-scenes", action="store_true", help="with the 8 scenes of HPatches that the paper leaves out"
    )
    add_ransac(parser)


def _add_pose(protocols: Commands[argparse.ArgumentParser]) -> None:
    parser = add_protocol(
        protocols,
        "pose",
        "relative poses of pairs of images against the truth",
        "DIR is a scene, or holds scenes up to two folders below: cameras.json with images/, a COLMAP model (sparse/) "
        "with images/, or a scene of the Image Matching Challenge (calibration/, images/, new-vis-pairs/). PAIRS is a "
        "list in SuperGlue's format with the truth: two images, two numbers of quarter turns, K1, K2, T_1to2 a line.",
    )
    _add_pose_data(parser)


def _add_pose_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, metavar="DIR|PAIRS")
    parser.add_argument(
        "--images", type=Path, metavar="FOLDER", help="that the paths in PAIRS are relative to (default: its own)"
    )
    parser.add_argument(
        "--geometry",
        choices=("fundamental", "essential"),
        default="fundamental",
        help="the matrix that the pose is taken from (default: %(default)s, as in the paper)",
    )
    parser.add_argument(
        "--pairs-per-scene",
        type=count_or_all,
        default=500,
        metavar="P",
        help="of a scene with more, so many are drawn at random, always the same; or all (default: %(default)s)",
    )
    parser.add_argument(
        "--min-covisibility",
        type=share,
        default=0.1,
        metavar="C",
        help="least part of a scene that both images show, where that is known: from 3D points, depth maps or lists "
        "(default: %(default)s)",
    )
    add_ransac(parser)


def _add_rotation(protocols: Commands[argparse.ArgumentParser]) -> None:
    parser = add_protocol(
        protocols,
        "rotation",
        "correct matches with images that are turned by 0 to 180 degrees",
        "Where DIR holds homography sets (see disk-ops evaluate homography), the reference image of each is matched to "
        "each other one, turned; else each image in it is matched to itself, turned.",
    )
    parser.add_argument("data", type=Path, metavar="DIR", help="is searched for sets, or for images")
    parser.add_argument(
        "--step", type=turn_step, default=15.0, metavar="DEGREES", help="between the angles (default: %(default)g)"
    )


def _add_reconstruct(protocols: Commands[argparse.ArgumentParser]) -> None:
    parser = add_protocol(
        protocols,
        "reconstruct",
        "structure from motion of whole scenes, and the errors of cameras where they are known",
        "Each folder of images in DIR, or folder with images/ in it, is a scene: all pairs are matched, verified and "
        "mapped with pycolmap. True cameras come from cameras.json in it, or from Strecha's <image>.camera files.",
    )
    parser.set_defaults(max_size=1600)
    parser.add_argument("data", type=Path, metavar="DIR", help="a scene, or scenes at any depth")
    parser.add_argument(
        "--known-intrinsics",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="where true cameras are known, use their focal lengths and principal points, and keep them",
    )
    parser.add_argument(
        "--single-camera", action="store_true", help="one camera took all images of scenes whose intrinsics aren't used"
    )
    parser.add_argument(
        "--max-error",
        type=positive_number,
        default=4.0,
        metavar="PIXELS",
        help="of matches from their epipolar lines when they are verified, in the files (default: %(default)s)",
    )


def _add_ablation(protocols: Commands[argparse.ArgumentParser]) -> None:
    parser = protocols.add_parser(
        "ablation",
        help="ways to detect keypoints, and checkpoints, side by side",
        description="The paper's ablation: ways to detect keypoints with the same network, and checkpoints, side by "
        "side in one table.",
        epilog=STATUS,
    )
    measures = parser.add_subparsers(dest="measure", required=True, metavar="PROTOCOL")
    for name, about, add_data in (
        ("homography", "detection variants by matching accuracy and homographies", _add_homography_data),
        ("pose", "detection variants by relative poses", _add_pose_data),
    ):
        measured = add_protocol(
            measures,
            name,
            about,
            "Each checkpoint (--method disk:A disk:B, such as trained with depth and with epipolar geometry) detects "
            "one keypoint for each cell of a grid, as in training but without chance, and by non-maximum suppression. "
            f"DIR is as of disk-ops evaluate {name}.",
            only_disk=True,
        )
        add_data(measured)
        measured.add_argument(
            "--cells",
            type=positive,
            nargs="*",
            default=[8],
            metavar="C",
            help="sides of grid cells in pixels; none: without this variant (default: 8)",
        )
        measured.add_argument(
            "--windows",
            type=odd,
            nargs="*",
            default=[3, 5, 7, 9],
            metavar="W",
            help="of the non-maximum suppression, odd; none: without this variant (default: 3 5 7 9)",
        )
