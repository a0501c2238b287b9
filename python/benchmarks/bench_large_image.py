"""A large image at once, and in tiles under limits of memory, with the same features."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Literal

import torch
from bench_detector import photograph_like
from harness import OURS, Row, compare, parse_arguments, synchronized, write

from disk_ops import DISKDetector

HEIGHT, WIDTH, FEATURES = 4000, 6000, 8000
GIGABYTES = (2.0, 1.0, 0.5)


def run(arguments: argparse.Namespace) -> list[Row]:
    """Measure the same image in several ways."""
    scale = 8 if arguments.quick else 1
    images = photograph_like(1, HEIGHT // scale, WIDTH // scale).to(arguments.device)
    detector = DISKDetector.from_pretrained(device=arguments.device)

    def detect(gigabytes: float, statistics: Literal["exact", "sampled"] = "exact") -> Callable[[], object]:
        return lambda: detector(images, n=FEATURES, max_memory=gigabytes, statistics=statistics)

    limits = [limit / scale**2 for limit in GIGABYTES]
    calls = {OURS: detect(1000.0), **{f"max_memory {limit:g}": detect(limit) for limit in limits}}
    calls[f"max_memory {limits[-1]:g}, sampled statistics"] = detect(limits[-1], "sampled")
    timed = {name: synchronized(call, arguments.device) for name, call in calls.items()}
    return compare("large image", f"1 x 3 x {images.shape[2]} x {images.shape[3]}, n {FEATURES}", timed, arguments)


if __name__ == "__main__":
    torch.manual_seed(0)
    options = parse_arguments(__doc__, "large_image_cpu.json")
    with torch.inference_mode():
        write(run(options), options, "bench_large_image")
