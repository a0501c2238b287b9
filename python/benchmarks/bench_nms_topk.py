"""nms_topk: the n best local maxima of heatmaps, against kornia and a max-pool written in plain torch."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from harness import OURS, Row, compare, parse_arguments, synchronized, write
from torch import Tensor

from disk_ops.ops import nms_topk

# batch, height, width, n, window
CASES = [(1, 1024, 1024, 2048, 5), (1, 1024, 1024, 2048, 15), (100, 128, 128, 256, 5), (1, 2048, 2048, 8192, 5)]


def implementations(heatmap: Tensor, n: int, window: int) -> dict[str, Callable[[], object]]:
    """The same maxima by everyone who is installed (kornia leaves out the image border)."""
    found: dict[str, Callable[[], object]] = {
        OURS: lambda: nms_topk(heatmap, n, window),
        "torch max_pool2d + topk": lambda: _plain_torch(heatmap, n, window),
    }
    try:
        from kornia.feature.disk.detector import heatmap_to_keypoints

        found["kornia heatmap_to_keypoints"] = lambda: heatmap_to_keypoints(heatmap, n, window)
    except ImportError:
        print("kornia is not installed: left out")
    return found


def _plain_torch(heatmap: Tensor, n: int, window: int) -> object:
    highest = F.max_pool2d(heatmap, window, 1, window // 2)
    maxima = heatmap.where((highest == heatmap) & (heatmap > 0), 0).flatten(1)
    return maxima.topk(n, dim=1)


def run(arguments: argparse.Namespace) -> list[Row]:
    """Measure all cases."""
    rows: list[Row] = []
    for batch, height, width, n, window in CASES[:1] if arguments.quick else CASES:
        heatmap = torch.randn(batch, 1, height, width).to(arguments.device)
        cases = {name: synchronized(f, arguments.device) for name, f in implementations(heatmap, n, window).items()}
        rows += compare("nms_topk", f"{batch} x {height} x {width}, n {n}, window {window}", cases, arguments)
    return rows


if __name__ == "__main__":
    torch.manual_seed(0)
    options = parse_arguments(__doc__, "nms_topk_cpu.json")
    with torch.inference_mode():
        write(run(options), options, "bench_nms_topk")
