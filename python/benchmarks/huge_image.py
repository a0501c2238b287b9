"""An aerial image of 16000 x 16000 pixels in tiles under a limit of memory, once: minutes, where others take a round.

The image is the demo photograph, mirrored again and again: its features are as dense as those of photographs.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Literal

import cv2
import numpy as np
import torch
from harness import OURS, Row, parse_arguments, peak_memory, write
from torch import Tensor
from tqdm import tqdm

from disk_ops import DISKDetector, demo

EDGE, FEATURES, GIGABYTES = 16000, 20000, 2.0


def mosaic(edge: int) -> Tensor:  # [1, 3, edge, edge]
    """The demo photograph and its mirror images side by side."""
    photo = cv2.cvtColor(cv2.imread(str(demo.IMAGES[0])), cv2.COLOR_BGR2RGB)
    height, width = photo.shape[:2]
    padding = ((0, max(0, edge - height)), (0, max(0, edge - width)), (0, 0))
    pixels = np.pad(photo, padding, mode="symmetric")[:edge, :edge]
    return torch.from_numpy(pixels).permute(2, 0, 1)[None].to(torch.float32).div_(255)


def detect(
    detector: DISKDetector,
    images: Tensor,  # [1, 3, H, W]
    limit: float,
    statistics: Literal["exact", "sampled"],
    bar: tqdm[object],
) -> None:
    """Detect features and show how far it is."""

    def show(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    detector(images, FEATURES, max_memory=limit, statistics=statistics, progress=show)


def run(arguments: argparse.Namespace) -> list[Row]:
    """Measure the exact way and the one by a sample of tiles."""
    edge, limit = (500, 0.05) if arguments.quick else (EDGE, GIGABYTES)
    images = mosaic(edge).to(arguments.device)
    detector = DISKDetector.from_pretrained(device=arguments.device)
    ways: dict[str, Literal["exact", "sampled"]] = {OURS: "exact", "sampled statistics": "sampled"}
    rows: list[Row] = []
    for name, statistics in ways.items():
        started = time.perf_counter()
        with tqdm(desc=name, unit="tile", disable=None) as bar:
            call = partial(detect, detector, images, limit, statistics, bar)
            peak = peak_memory(call, arguments.device) / 2**20
        median = round((time.perf_counter() - started) * 1e3, 1)
        row = {
            "op": "huge image",
            "shape": f"1 x 3 x {edge} x {edge}, n {FEATURES}, max_memory {limit:g}",
            "implementation": name,
            "median_ms": median,
            "quartiles_ms": [median, median],
            "blocks": 1,
            "ratio": round(median / (rows[0]["median_ms"] if rows else median), 3),
            "peak_mib": round(peak, 1),
        }
        print(f"{row['shape']} {name:20} {median / 1e3:8.1f} s  {row['peak_mib']} MiB")
        rows.append(row)
    return rows


if __name__ == "__main__":
    options = parse_arguments(__doc__, "huge_image_cpu.json")
    with torch.inference_mode():
        write(run(options), options, "huge_image")
