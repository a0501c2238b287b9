"""``disk-ops demo``: detect and match two bundled photographs, and draw what was found."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from disk_ops import _library, demo
from disk_ops.drawing import draw_matches, save_picture, to_picture
from disk_ops.io import images as image_io
from disk_ops.io.output import check_writable
from disk_ops.programs.common import (
    OK,
    UserError,
    counted,
    load_detector,
    number_of_keypoints,
    pick_device,
    quiet_opencv,
)
from disk_ops.programs.extract import Extractor
from disk_ops.programs.show import detect, epipolar_inliers, match

_WINDOW_SIZE = 5


def run(arguments: argparse.Namespace) -> int:
    """Run the program; see ``disk-ops demo --help``."""
    quiet_opencv()
    folder: Path = arguments.output
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder {folder} can't be made: {error.strerror}") from error
    output = folder / "demo.png"
    check_writable(output)
    device = pick_device(arguments.device)
    detector, weights_hash = load_detector(arguments.weights, device)
    extractor = Extractor(detector, device, torch.float32, number_of_keypoints(arguments), _WINDOW_SIZE, 0.0)

    pictures = [to_picture(image_io.read_image(path)) for path in demo.IMAGES]
    width, height = image_io.size_of(pictures[0])
    _print("images", f"{demo.TITLE}, two photographs of {width} x {height} pixels")
    _print("weights", f"{arguments.weights} ({weights_hash})")
    _print("backend", _backend(device))

    start = time.perf_counter()
    features0, features1 = (detect(extractor, path, None) for path in demo.IMAGES)
    seconds = time.perf_counter() - start
    counts = f"{len(features0.keypoints):,} and {counted(len(features1.keypoints), 'keypoint')}"
    _print("detected", f"{counts} in {seconds:.2f} s")

    start = time.perf_counter()
    pairs = match(features0, features1, ratio=None)
    seconds = time.perf_counter() - start
    _print("matched", f"{len(pairs):,} mutual nearest neighbours in {1000 * seconds:.0f} ms")

    points0, points1 = features0.keypoints[pairs[:, 0]], features1.keypoints[pairs[:, 1]]
    inliers = epipolar_inliers(points0, points1)
    share = inliers.mean() if len(inliers) else 0.0
    _print("verified", f"{inliers.sum():,} ({share:.0%}) agree with one fundamental matrix up to 1 pixel (MAGSAC)")

    save_picture(output, draw_matches(pictures[0], pictures[1], points0[inliers], points1[inliers]))
    _print("picture", str(output))
    return OK


def _print(label: str, text: str) -> None:
    print(f"{label:10}{text}", flush=True)


def _backend(device: torch.device) -> str:
    status = _library.library_status()
    kind = "pure-PyTorch" if _library.missing_kernels(device.type.upper()) else "native"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    return f"{device} ({name}), {kind} ops" + ("" if status.loaded else f" ({status.reason})")
