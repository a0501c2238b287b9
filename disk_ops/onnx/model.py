"""The whole detector as an ONNX model, and the file of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from disk_ops.detector import DISKDetector
from disk_ops.io.output import OutputError, check_writable, whole_file
from disk_ops.model import UNet
from disk_ops.multiscale import MultiscaleDetector
from disk_ops.onnx.graph import Graph, onnx
from disk_ops.onnx.heads import Maxima, best_maxima, convolve_to_one, describe
from disk_ops.onnx.network import convolution_weights, features
from disk_ops.ops._arguments import check_integer, check_number, check_positive_integer
from disk_ops.ops.nms import check_maxima

INPUT = "image"
OUTPUTS = ("keypoints", "scores", "descriptors")

_DESCRIPTION = """\
DISK local features (Tyszkiewicz, Fua, Trulls, NeurIPS 2020).
image: RGB in [0, 1]. keypoints: x, y in pixels, the centre of the first pixel is 0, 0; best score first.
Where an image has fewer than {n} keypoints, the last rows have a score of {threshold}, which no keypoint has, and zeros
in keypoints and descriptors: keep the rows whose score is above {threshold}."""


def make_model(
    detector: DISKDetector,
    n: int = 2048,
    window_size: int = 5,
    score_threshold: float = 0.0,
    border: int | None = None,
    size: tuple[int, int] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """The detector for one image, with the results of :meth:`DISKDetector.forward_padded`.

    Input ``image`` [1, 3, H, W] float32, RGB in [0, 1]. Outputs ``keypoints`` [1, n, 2] int64, ``scores`` [1, n]
    float32, ``descriptors`` [1, n, D] float32, best score first. Rows without a keypoint score ``score_threshold``,
    which no keypoint does, and are zero otherwise. (At least one row is what ``cv::DISK`` needs; fixed shapes are what
    compilers of graphs like best.) Sizes that the network can't take are padded inside the graph. Descriptors are
    computed at the keypoints only.

    Args:
        detector: with the network of :mod:`disk_ops.model` and ``norm="instance"``.
        n: number of rows of the outputs: at most this many keypoints.
        window_size: odd width of the non-maximum suppression window.
        score_threshold: keypoints score strictly above it.
        border: keypoints keep this distance from the edges of the image; ``None``: ``window_size // 2``.
        size: width and height, if the model shall take images of this size only.
        metadata: kept in the file, beside the arguments; what isn't a string becomes JSON.

    Raises:
        ValueError, TypeError: an argument has a wrong value or type, or the detector can't be exported; the message
            says what came.
    """
    unet = _check(detector, n, window_size, score_threshold, border, size)
    border = window_size // 2 if border is None else border
    weight, bias = convolution_weights(unet.last_convolution, "unet.last_convolution")
    graph = Graph()
    shape = graph.op("Shape", INPUT, start=2, end=4)
    missing = graph.op("Mod", graph.op("Neg", shape), graph.constant([unet.stride]))  # as in pad_to_multiple
    padded = graph.op("Pad", INPUT, graph.op("Concat", graph.constant([0] * 6), missing, axis=0))
    activation = features(graph, unet, padded)
    heatmap = convolve_to_one(graph, activation, weight[-1:], bias[-1:])
    heatmap = graph.slice(heatmap, [0, 0], shape, [2, 3])
    maxima = best_maxima(graph, heatmap, n, window_size, score_threshold, border)
    descriptors = describe(graph, activation, weight[:-1], bias[:-1], maxima)
    _outputs(graph, maxima, descriptors)
    properties: dict[str, Any] = {
        "n": n,
        "window_size": window_size,
        "score_threshold": score_threshold,
        "border": border,
    }
    properties.update(metadata or {})
    width, height = size or ("width", "height")
    return graph.model(
        {INPUT: (1, unet.in_channels, height, width)},
        {
            "keypoints": (np.int64, (1, n, 2)),
            "scores": (np.float32, (1, n)),
            "descriptors": (np.float32, (1, n, len(bias) - 1)),
        },
        {key: value if isinstance(value, str) else json.dumps(value) for key, value in properties.items()},
        _version(),
        _DESCRIPTION.format(n=n, threshold=float(score_threshold)),
    )


def export_onnx(detector: DISKDetector, path: str | Path, *, overwrite: bool = False, **arguments: Any) -> None:
    """Write the detector as an ONNX file; see :func:`make_model` for the arguments and what the file computes.

    Raises:
        OutputError: the file exists, or can't be written there.
        ValueError: an argument has a wrong value, or the detector can't be exported; the message says what came.
    """
    check_export(Path(path), overwrite=overwrite)
    content = make_model(detector, **arguments).SerializeToString()
    with whole_file(Path(path)) as file:
        file.write(content)


def check_export(path: Path, *, overwrite: bool = False) -> None:
    """Raise `OutputError` if :func:`export_onnx` would."""
    check_writable(path)
    if path.exists() and not overwrite:
        raise OutputError(f"{path} exists already: use --overwrite to replace it")


def _check(
    detector: DISKDetector,
    n: int,
    window_size: int,
    score_threshold: float,
    border: int | None,
    size: tuple[int, int] | None,
) -> UNet:
    if isinstance(detector, MultiscaleDetector):
        raise TypeError("detector must be a DISKDetector, of a single scale, got MultiscaleDetector")
    if not isinstance(detector.unet, UNet):
        raise ValueError(f"detector must have the network of disk_ops.model, got {type(detector.unet).__name__}")
    if detector.norm != "instance":
        raise ValueError(f"detector must have norm='instance' to be exported, got {detector.norm!r}")
    check_positive_integer("n", n)
    check_maxima(n, window_size, score_threshold, border)
    check_number("score_threshold", score_threshold)
    for side in size or ():
        check_integer("size", side)
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise ValueError(f"size must be a width and a height of at least 1 pixel, got {size}")
    return detector.unet


def _outputs(
    graph: Graph,
    maxima: Maxima,
    descriptors: str,  # [1, n, D]
) -> None:
    """Name the outputs; rows without a keypoint become zero."""
    last = graph.constant([2])
    valid = graph.op("Unsqueeze", maxima.valid, last)  # [1, n, 1]
    xy = graph.op("Concat", *(graph.op("Unsqueeze", position, last) for position in (maxima.x, maxima.y)), axis=2)
    graph.op("Where", valid, xy, graph.constant(0), output="keypoints")
    graph.op("Where", valid, descriptors, graph.constant(0.0), output="descriptors")


def _version() -> str:
    from disk_ops import __version__

    return __version__
