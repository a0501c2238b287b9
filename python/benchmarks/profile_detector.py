"""Where image to features spends its time on the CPU, stage by stage, beside the least that each stage could take.

The least is the larger of two times: multiply-adds (of Winograd's algorithm where that is used) at the best rate of
torch.mm here, and bytes that must be read and written at the rate of copying.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from bench_detector import FEATURES, photograph_like
from harness import Row, parse_arguments, write
from profile_nearest_neighbors import median_seconds, product_rate
from torch import Tensor, nn

from disk_ops import DISKDetector
from disk_ops.model import ConvBlock
from disk_ops.ops import block_convolution, block_norm, describe_block, nms_topk
from disk_ops.ops.blocks import Resample

WINOGRAD, DIRECT = 4, 25  # multiply-adds for an output, an input channel and a pixel


class Stage(NamedTuple):
    """A call, and what it has to do at least."""

    what: str
    run: Callable[[], object]
    multiply_adds: float
    floats: float  # read and written


def stages(detector: DISKDetector, images: Tensor) -> list[Stage]:
    """All stages for these images, in their order."""
    found: list[Stage] = []
    blocks = [module for module in detector.unet.modules() if isinstance(module, ConvBlock)]
    downward = (len(blocks) + 1) // 2
    x, skips = images, []
    for level, block in enumerate(blocks[:downward]):
        x = add_block(found, f"down {level + 1}", block, x, None, "pool" if level else "none")
        skips.append(x)
    for level, block in enumerate(blocks[downward:-1]):
        x = add_block(found, f"up {level + 1}", block, x, skips[-2 - level], "up")
    last, skip = blocks[-1], skips[0]
    (weight, bias), slope, norm = parameters(last), last.slope, block_norm(x, skip, "up")
    found.append(Stage("heatmap: norm", lambda: block_norm(x, skip, "up"), 0, x.numel() + skip.numel()))
    heatmap = block_convolution(x, weight[-1:], bias[-1:], skip, norm, slope, "up")
    found.append(
        Stage(
            "heatmap: convolution",
            lambda: block_convolution(x, weight[-1:], bias[-1:], skip, norm, slope, "up"),
            DIRECT * weight.shape[1] * heatmap.numel(),
            x.numel() + skip.numel() + heatmap.numel(),
        )
    )
    keypoints = nms_topk(heatmap, FEATURES, 5, 0.0, 2).keypoints
    found.append(
        Stage("non-maximum suppression, best", lambda: nms_topk(heatmap, FEATURES, 5, 0.0, 2), 0, heatmap.numel())
    )
    found.append(
        Stage(
            "descriptors at keypoints",
            lambda: describe_block(x, weight[:-1], bias[:-1], keypoints, skip, norm, slope, "up"),
            FEATURES * weight[:-1].numel(),
            FEATURES * weight[0].numel(),
        )
    )
    return found


def parameters(block: ConvBlock) -> tuple[Tensor, Tensor]:
    """Weight and bias of a block's convolution."""
    convolution = block[3]
    assert isinstance(convolution, nn.Conv2d) and convolution.bias is not None
    return convolution.weight, convolution.bias


def add_block(
    found: list[Stage], name: str, block: ConvBlock, x: Tensor, skip: Tensor | None, resample: Resample
) -> Tensor:
    """Add the stages of a block and return its output."""
    (weight, bias), slope = parameters(block), block.slope
    read = x.numel() + (0 if skip is None else skip.numel())
    norm = None
    if block.gated:
        norm = block_norm(x, skip, resample)
        found.append(Stage(f"{name}: norm", lambda: block_norm(x, skip, resample), 0, read))
    output = block_convolution(x, weight, bias, skip, norm, slope, resample)
    cost = (WINOGRAD if block.gated else DIRECT) * weight.shape[1] * output.numel()
    found.append(
        Stage(
            f"{name}: convolution, {weight.shape[1]} to {weight.shape[0]} channels",
            lambda: block_convolution(x, weight, bias, skip, norm, slope, resample),
            cost,
            read + output.numel(),
        )
    )
    return output


def copy_rate(megabytes: int, repeats: int) -> float:
    """Bytes read and written in a second."""
    source = torch.ones(megabytes * 2**20 // 4)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_seconds(lambda: target.copy_(source), repeats)


def run(size: int, repeats: int) -> list[Row]:
    """Measure, print, and return the rows of the result."""
    flops, bandwidth = max(product_rate(edge, repeats) for edge in (1024, 2048)), copy_rate(256, repeats)
    images = photograph_like(1, size, size)
    detector = DISKDetector.from_pretrained()
    rows: list[Row] = []
    for stage in stages(detector, images):
        floor = max(2 * stage.multiply_adds / flops / 1e9, 4 * stage.floats / bandwidth)
        rows.append({"what": stage.what, "ms": median_seconds(stage.run, repeats) * 1e3, "floor_ms": floor * 1e3})
    rows.append({"what": "all stages", **{key: sum(row[key] for row in rows) for key in ("ms", "floor_ms")}})
    whole = median_seconds(lambda: detector(images, n=FEATURES), repeats) * 1e3
    rows.append({"what": f"image to features, {size} x {size}", "ms": whole, "floor_ms": rows[-1]["floor_ms"]})
    rows += [
        {"what": "best torch.mm", "gflops": round(flops, 1)},
        {"what": "copying, reads and writes", "gbytes": round(bandwidth / 1e9, 1)},
    ]
    for row in rows:
        row.update({key: round(row[key], 2) for key in ("ms", "floor_ms") if key in row})
        print(*row.values())
    return rows


if __name__ == "__main__":
    torch.manual_seed(0)
    options = parse_arguments(__doc__, "detector_profile.json")
    with torch.inference_mode():
        write(run(128 if options.quick else 1024, 3 if options.quick else 15), options, "profile_detector")
