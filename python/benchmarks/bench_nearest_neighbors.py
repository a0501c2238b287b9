"""nearest_neighbors: best and second-best neighbours both ways, against kornia, faiss, OpenCV and plain torch."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from harness import OURS, Row, compare, parse_arguments, synchronized, write
from torch import Tensor

from disk_ops.ops import nearest_neighbors

SHAPES = [(2048, 2048, 128), (8192, 8192, 128)]


def implementations(desc1: Tensor, desc2: Tensor) -> dict[str, Callable[[], object]]:
    """The same neighbours by everyone who is installed."""
    found: dict[str, Callable[[], object]] = {
        OURS: lambda: nearest_neighbors(desc1, desc2),
        "torch.mm, the product alone": lambda: torch.mm(desc1, desc2.mT),
        "torch cdist + topk": lambda: _plain_torch(desc1, desc2),
    }
    try:
        import kornia.feature as KF

        found["kornia match_smnn"] = lambda: KF.match_smnn(desc1, desc2, 0.95)
    except ImportError:
        print("kornia is not installed: left out")
    if desc1.device.type == "cpu":
        found |= _on_arrays(desc1.numpy(), desc2.numpy())
    return found


def _plain_torch(desc1: Tensor, desc2: Tensor) -> object:
    distance = torch.cdist(desc1, desc2)
    return distance.topk(2, dim=1, largest=False), distance.topk(2, dim=0, largest=False)


def _on_arrays(array1: object, array2: object) -> dict[str, Callable[[], object]]:
    found: dict[str, Callable[[], object]] = {}
    try:
        import faiss

        faiss.omp_set_num_threads(torch.get_num_threads())

        def with_faiss() -> object:
            results = []
            for base, queries in ((array2, array1), (array1, array2)):
                index = faiss.IndexFlatL2(base.shape[1])  # type: ignore[attr-defined]
                index.add(base)
                results.append(index.search(queries, 2))
            return results

        found["faiss IndexFlatL2, twice"] = with_faiss
    except ImportError:
        print("faiss is not installed: left out")
    import cv2

    cv2.setNumThreads(torch.get_num_threads())
    matcher = cv2.BFMatcher(cv2.NORM_L2)
    found["OpenCV BFMatcher, twice"] = lambda: (
        matcher.knnMatch(array1, array2, 2),
        matcher.knnMatch(array2, array1, 2),
    )
    return found


def run(arguments: argparse.Namespace) -> list[Row]:
    """Measure all shapes."""
    rows: list[Row] = []
    for n, m, d in SHAPES[:1] if arguments.quick else SHAPES:
        desc1 = F.normalize(torch.randn(n, d), dim=-1).to(arguments.device)
        desc2 = F.normalize(torch.randn(m, d), dim=-1).to(arguments.device)
        cases = {name: synchronized(f, arguments.device) for name, f in implementations(desc1, desc2).items()}
        rows += compare("nearest_neighbors", f"{n} x {m} x {d} float32", cases, arguments)
    return rows


if __name__ == "__main__":
    torch.manual_seed(0)
    options = parse_arguments(__doc__, "nearest_neighbors_cpu.json")
    with torch.inference_mode():
        write(run(options), options, "bench_nearest_neighbors")
