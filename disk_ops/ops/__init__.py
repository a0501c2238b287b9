"""The ops: functions on tensors, each with CPU and CUDA kernels, a reference twin, a fake kernel and autograd."""

from disk_ops.ops.blocks import (
    block_activation,
    block_convolution,
    block_norm,
    block_patches,
    conv_block,
    describe_block,
)
from disk_ops.ops.describe import describe
from disk_ops.ops.match import (
    ExpectedReward,
    MatchGeometry,
    distance_matrix,
    expected_reward,
    match_statistics,
    mutual_softmax,
)
from disk_ops.ops.neighbors import NearestNeighbors, nearest_neighbors
from disk_ops.ops.nms import LocalMaxima, nms_topk
from disk_ops.ops.sampling import GridSamples, sample_grid

__all__ = [
    "ExpectedReward",
    "GridSamples",
    "LocalMaxima",
    "MatchGeometry",
    "NearestNeighbors",
    "block_activation",
    "block_convolution",
    "block_norm",
    "block_patches",
    "conv_block",
    "describe",
    "describe_block",
    "distance_matrix",
    "expected_reward",
    "match_statistics",
    "mutual_softmax",
    "nearest_neighbors",
    "nms_topk",
    "sample_grid",
]
