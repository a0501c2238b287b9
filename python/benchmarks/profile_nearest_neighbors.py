"""Where nearest_neighbors spends its time on the CPU, and how far from the machine's limit that is.

The time grows linearly with the descriptor dimension D: the slope is the matrix product, the intercept all the rest
(comparisons, packing, merging, exact distances). The limit is the best rate of multiply-adds of torch.mm here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from harness import Row, parse_arguments, write

from disk_ops.ops import nearest_neighbors

ROWS = 8192
DIMENSIONS = (16, 64, 128, 256)


def median_seconds(run: Callable[[], object], repeats: int) -> float:
    """Median wall time of a call."""
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def product_rate(size: int, repeats: int) -> float:
    """GFLOP/s of torch.mm on square matrices."""
    a, b, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    return 2 * size**3 / median_seconds(lambda: torch.mm(a, b, out=out), repeats) / 1e9


def run(repeats: int) -> list[Row]:
    """Measure, print, and return the rows of the result."""
    limit = max(product_rate(size, repeats) for size in (1024, 2048))
    rows: list[Row] = [{"what": "best torch.mm", "gflops": round(limit, 1)}]
    seconds = {}
    for dimension in DIMENSIONS:
        desc1, desc2 = (F.normalize(torch.randn(ROWS, dimension), dim=-1) for _ in range(2))
        seconds[dimension] = median_seconds(lambda a=desc1, b=desc2: nearest_neighbors(a, b), repeats)  # type: ignore[misc]
        rows.append({"what": f"nearest_neighbors, D = {dimension}", "ms": round(seconds[dimension] * 1e3, 1)})
    slope, intercept = statistics.linear_regression(list(seconds), list(seconds.values()))
    product = slope * 128
    rows += [
        {"what": "product of D = 128", "ms": round(product * 1e3, 1), "gflops": round(2 * ROWS**2 / slope / 1e9, 1)},
        {"what": "everything else", "ms": round(intercept * 1e3, 1)},
        {"what": "product of D = 128 at the best rate", "ms": round(2 * ROWS**2 * 128 / limit / 1e6, 1)},
    ]
    for row in rows:
        print(*row.values())
    return rows


if __name__ == "__main__":
    torch.manual_seed(0)
    options = parse_arguments(__doc__, "nearest_neighbors_profile.json")
    with torch.inference_mode():
        write(run(3 if options.quick else 15), options, "profile_nearest_neighbors")
