"""Whether an exported model gives the detector's features, by running both."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from disk_ops.detector import DISKDetector
from disk_ops.onnx.graph import onnx


@dataclass(frozen=True)
class Agreement:
    """What a model's features have in common with the detector's, which differ by rounding."""

    detected: int
    """Keypoints of the detector."""
    exported: int
    """Keypoints of the model."""
    common: int
    """Keypoints of both: near ties and scores near the threshold may fall either way."""
    scores: float
    """Largest difference of the scores of common keypoints, relative to the largest score."""
    descriptors: float
    """Largest difference of an entry of the descriptors of common keypoints."""

    @property
    def is_close(self) -> bool:
        """Whether rounding explains the differences."""
        few = 0.02 * max(self.detected, self.exported) + 1
        different = max(self.detected, self.exported) - self.common
        return different <= few and self.scores <= 1e-3 and self.descriptors <= 1e-2


def compare_with_detector(
    model: onnx.ModelProto,
    detector: DISKDetector,
    image: Tensor,  # [1, C, H, W]
) -> Agreement:
    """Run a model of :func:`disk_ops.onnx.make_model` in onnxruntime and the detector, both on the CPU in float32.

    Raises:
        ImportError: onnxruntime can't be imported.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    arguments = model_arguments(model)
    outputs = session.run(["keypoints", "scores", "descriptors"], {"image": image.numpy()})
    with torch.inference_mode():
        found = copy.deepcopy(detector).cpu().float().forward_padded(image, **arguments)
    valid = found.valid[0]
    expected = [tensor[0, valid].numpy() for tensor in (found.keypoints, found.scores, found.descriptors)]
    above = outputs[1][0] > np.float32(arguments["score_threshold"])
    return agreement([output[0][above] for output in outputs], expected)


def model_arguments(model: onnx.ModelProto) -> dict[str, Any]:
    """The arguments of the detector's call that a model stands for."""
    stored = {entry.key: entry.value for entry in model.metadata_props}
    return {name: json.loads(stored[name]) for name in ("n", "window_size", "score_threshold", "border")}


def agreement(
    exported: list[np.ndarray],  # keypoints [N, 2], scores [N], descriptors [N, D]
    detected: list[np.ndarray],  # the same with another N
) -> Agreement:
    """Compare features keypoint by keypoint, in whatever order they come."""
    place = {tuple(xy): i for i, xy in enumerate(exported[0].astype(int).tolist())}
    pairs = [(place[tuple(xy)], i) for i, xy in enumerate(detected[0].astype(int).tolist()) if tuple(xy) in place]
    ours, theirs = np.array(pairs, dtype=int).reshape(-1, 2).T
    largest = max(np.abs(detected[1]).max(initial=0.0), 1e-12)
    return Agreement(
        detected=len(detected[0]),
        exported=len(exported[0]),
        common=len(pairs),
        scores=float(np.abs(exported[1][ours] - detected[1][theirs]).max(initial=0.0) / largest),
        descriptors=float(np.abs(exported[2][ours] - detected[2][theirs]).max(initial=0.0)),
    )
