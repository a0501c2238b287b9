"""Features that lie where an image shows something."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from disk_ops.evaluation.features import Features


def within(
    features: Features,
    mask: npt.NDArray[np.bool_] | None,  # [H, W]; None: the image shows something everywhere
) -> Features:
    """The features, in their order, whose keypoints are finite and nearest to a pixel that counts."""
    keypoints = features.keypoints.cpu()
    kept = torch.isfinite(keypoints).all(dim=1)
    if mask is not None:
        height, width = mask.shape
        pixels = keypoints.double().nan_to_num(0, 0, 0).round().long()
        x, y = pixels[:, 0].clamp(0, width - 1), pixels[:, 1].clamp(0, height - 1)
        kept &= torch.from_numpy(np.ascontiguousarray(mask))[y, x]
    scores = None if features.scores is None else features.scores.cpu()[kept]
    return Features(keypoints[kept], features.descriptors.cpu()[kept], scores)
