"""What follows the network, in ONNX's operators: heatmap, the best local maxima, descriptors at keypoints only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from disk_ops.onnx.graph import Graph


class Maxima(NamedTuple):
    """Names of tensors: the best maxima of a heatmap, best first."""

    scores: str  # [1, n] float32; the threshold itself where not valid
    x: str  # [1, n] int64
    y: str  # [1, n] int64
    valid: str  # [1, n] bool


def convolve_to_one(
    graph: Graph,
    activation: str,  # [1, C, H, W]
    weight: np.ndarray,  # [1, C, k, k]
    bias: np.ndarray,  # [1]
) -> str:  # [1, 1, H, W]
    """A convolution to a single channel.

    Runtimes compute output channels in blocks of 8 or 16, so that one costs as much as a block. Here each row of the
    kernel is an output channel of its own, and a second, small convolution adds the rows where they belong.
    """
    size = weight.shape[-1]
    radius = size // 2
    rows = graph.constant(weight[0].transpose(1, 0, 2)[:, :, None], "heatmap.rows")  # [k, C, 1, k]
    by_row = graph.op("Conv", activation, rows, kernel_shape=[1, size], pads=[0, radius, 0, radius])
    add = graph.constant(np.eye(size, dtype=np.float32)[None, :, :, None], "heatmap.add")  # [1, k, k, 1]
    return graph.op(
        "Conv", by_row, add, graph.constant(bias, "heatmap.bias"), kernel_shape=[size, 1], pads=[radius, 0, radius, 0]
    )


def best_maxima(
    graph: Graph,
    heatmap: str,  # [1, 1, H, W]
    n: int,
    window_size: int,
    threshold: float,
    border: int,
) -> Maxima:
    """What :func:`disk_ops.ops.nms_topk` finds, except that the scores of missing maxima are the threshold."""
    low = graph.constant(np.float32(threshold))
    minus_infinity = graph.constant(np.float32(-np.inf))
    heatmap = graph.op("Where", graph.op("IsNaN", heatmap), minus_infinity, heatmap)
    chosen = graph.all([*_beats_neighbours(graph, heatmap, window_size // 2), graph.op("Greater", heatmap, low)])
    candidates = graph.op("Where", chosen, heatmap, low)
    if border:
        candidates = graph.slice(candidates, [border, border], [-border, -border], [2, 3])
    width = graph.op("Shape", candidates, start=3, end=4)
    # There may be fewer than n pixels, which TopK refuses.
    missing = graph.constant(np.full((1, n), threshold, np.float32))
    pixels = graph.op("Concat", graph.op("Reshape", candidates, graph.constant([1, -1])), missing, axis=1)
    # Equal values come by index, that is in raster order.
    scores, index = graph.ops("TopK", pixels, graph.constant([n]), outputs=["scores", "index"], axis=1)
    valid = graph.op("Greater", scores, low)
    # An image within the border has no width to divide by.
    width = graph.op("Max", width, graph.constant([1]))
    y = graph.op("Div", index, width)
    x = graph.op("Sub", index, graph.op("Mul", y, width))
    offset = graph.constant([border])
    return Maxima(scores, graph.op("Add", x, offset), graph.op("Add", y, offset), valid)


def _beats_neighbours(
    graph: Graph,
    heatmap: str,  # [1, 1, H, W]
    radius: int,
) -> list[str]:  # each [1, 1, H, W] bool
    """Conditions that make a pixel the first of the highest in its window.

    No pixel of the window is higher, and none that comes earlier in raster order is as high: those of the rows above,
    and those to the left in the same row.
    """
    if radius == 0:
        return []
    size = 2 * radius + 1
    highest = graph.op("MaxPool", heatmap, kernel_shape=[size, size], pads=[radius] * 4, strides=[1, 1])
    outside = graph.constant(np.float32(-np.inf))

    def earlier(kernel: list[int], pads: list[int], axis: int) -> str:
        # The pads lie before the pixels, so entry i sees what comes before pixel i; the last entry is one too many.
        padded = graph.op("Pad", heatmap, graph.constant(pads), outside)
        pooled = graph.op("MaxPool", padded, kernel_shape=kernel, strides=[1, 1])
        return graph.slice(pooled, [0], [-1], [axis])

    above = earlier([radius, size], [0, 0, radius, radius, 0, 0, 0, radius], 2)
    left = earlier([1, radius], [0, 0, 0, radius, 0, 0, 0, 0], 3)
    earlier_pixels = graph.op("Max", above, left)
    return [graph.op("GreaterOrEqual", heatmap, highest), graph.op("Greater", heatmap, earlier_pixels)]


def describe(
    graph: Graph,
    activation: str,  # [1, C, H, W]
    weight: np.ndarray,  # [D, C, k, k]
    bias: np.ndarray,  # [D]
    maxima: Maxima,
) -> str:  # [1, n, D]
    """What :func:`disk_ops.ops.describe` gives: the patches at the keypoints are gathered, then multiplied."""
    dimension, channels, size, _ = weight.shape
    around = np.arange(size) - size // 2
    down, right = (offsets.reshape(-1, 1) for offsets in np.meshgrid(around, around, indexing="ij"))
    y = graph.op("Add", maxima.y, graph.constant(down))  # [k * k, n]
    x = graph.op("Add", maxima.x, graph.constant(right))
    height = graph.op("Shape", activation, start=2, end=3)
    width = graph.op("Shape", activation, start=3, end=4)
    zero = graph.constant(0)
    inside = graph.all(
        condition
        for position, end in ((y, height), (x, width))
        for condition in (graph.op("GreaterOrEqual", position, zero), graph.op("Less", position, end))
    )
    pixel = graph.op("Where", inside, graph.op("Add", graph.op("Mul", y, width), x), zero)
    pixels = graph.op("Reshape", activation, graph.constant([channels, -1]))  # [C, H * W]
    patches = graph.op("Where", inside, graph.op("Gather", pixels, pixel, axis=1), graph.constant(0.0))  # [C, k * k, n]
    patches = graph.op("Reshape", patches, graph.constant([channels * size * size, -1]))
    matrix = graph.constant(weight.reshape(dimension, -1), "descriptors.weight")
    products = graph.op("Transpose", graph.op("MatMul", matrix, patches), perm=[1, 0])  # [n, D]
    raw = graph.op("Add", products, graph.constant(bias, "descriptors.bias"))
    length = graph.op("Max", graph.op("ReduceL2", raw, axes=[1], keepdims=1), graph.constant(np.float32(1e-12)))
    return graph.op("Unsqueeze", graph.op("Div", raw, length), graph.constant([0]))
