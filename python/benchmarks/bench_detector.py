"""DISKDetector: image to features, against kornia's DISK with the same weights.

Beside them kornia's XFeat, a network made to be light (with random weights, which take the same time), and OpenCV's
SIFT: other features. Where kornia's DISK needs more memory than there is, it is left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from harness import OURS, Row, compare, parse_arguments, synchronized, write
from torch import Tensor

from disk_ops import DISKDetector
from disk_ops.graphs import GraphedDetector
from disk_ops.tiled.memory import available_memory

CASES = [(1, 480, 640), (8, 480, 640), (1, 1024, 1024), (1, 1200, 1600), (1, 3000, 4000)]
FEATURES = 2048
HALF_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
KORNIA_BYTES_PER_PIXEL = 2300  # measured


def implementations(images: Tensor, device: str) -> dict[str, Callable[[], object]]:
    """The same number of features by everyone who is installed."""
    detector = DISKDetector.from_pretrained(device=device)
    found: dict[str, Callable[[], object]] = {OURS: lambda: detector(images, n=FEATURES)}
    if device.startswith("cuda"):
        found |= forms_on_cuda(images, device)
    else:
        for name, dtype in HALF_TYPES.items():
            half, given = DISKDetector.from_pretrained(device=device).to(dtype), images.to(dtype)
            found[f"{OURS}, {name}"] = partial(half, given, FEATURES)
    try:
        import kornia.feature as KF

        needed, free = KORNIA_BYTES_PER_PIXEL * images[:, 0].numel(), available_memory()
        if device != "cpu" or free is None or needed < free:
            disk = KF.DISK().to(device).eval()
            disk.load_state_dict(detector.state_dict())
            found["kornia DISK"] = lambda: disk(images, n=FEATURES, pad_if_not_divisible=True)
        else:
            print(f"kornia's DISK needs about {needed / 1e9:.0f} GB for {list(images.shape)}: left out")
        light = KF.XFeat(top_k=FEATURES, detection_threshold=0.0).to(device).eval()
        found["kornia XFeat (other features)"] = lambda: light.detectAndCompute(images)
    except ImportError:
        print("kornia is not installed: left out")
    if device == "cpu" and len(images) == 1:
        import cv2

        cv2.setNumThreads(torch.get_num_threads())
        sift = cv2.SIFT_create(FEATURES)
        pixels = (images[0].mean(0) * 255).to(torch.uint8).numpy()
        found["OpenCV SIFT (other features)"] = lambda: sift.detectAndCompute(pixels, None)
    return found


def forms_on_cuda(images: Tensor, device: str) -> dict[str, Callable[[], object]]:
    """Padded results, which nothing waits for, in each precision, called and as CUDA graphs."""
    found: dict[str, Callable[[], object]] = {}
    for name, dtype in {"float32": torch.float32, **HALF_TYPES}.items():
        detector, given = DISKDetector.from_pretrained(device=device).to(dtype), images.to(dtype)
        graphed = GraphedDetector(detector, FEATURES)
        found[f"{OURS}, padded, {name}"] = partial(detector.forward_padded, given, FEATURES)
        found[f"{OURS}, padded, {name}, graph"] = partial(graphed, given)
    return found


def photograph_like(batch: int, height: int, width: int) -> Tensor:
    """Noise with the spectrum of photographs: coarse structure is strong, fine structure weak."""
    images = torch.zeros(batch, 3, height, width)
    for step in (4, 8, 16, 32, 64):
        coarse = torch.rand(batch, 3, -(-height // step), -(-width // step))
        images += F.interpolate(coarse, size=(height, width), mode="bicubic") * step
    return images / images.amax()


def run(arguments: argparse.Namespace) -> list[Row]:
    """Measure all image sizes."""
    rows: list[Row] = []
    for batch, height, width in CASES[:1] if arguments.quick else CASES:
        images = photograph_like(batch, height, width).to(arguments.device)
        found = implementations(images, arguments.device)
        cases = {name: synchronized(f, arguments.device) for name, f in found.items()}
        rows += compare("DISKDetector", f"{batch} x 3 x {height} x {width}, n {FEATURES}", cases, arguments)
    return rows


if __name__ == "__main__":
    torch.manual_seed(0)
    options = parse_arguments(__doc__, "detector_cpu.json")
    with torch.inference_mode():
        write(run(options), options, "bench_detector")
