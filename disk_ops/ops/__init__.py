"""The ops: functions on tensors, each with CPU and CUDA kernels, a reference twin, a fake kernel and autograd."""

from disk_ops.ops.neighbors import NearestNeighbors, nearest_neighbors
from disk_ops.ops.nms import LocalMaxima, nms_topk

__all__ = ["LocalMaxima", "NearestNeighbors", "nearest_neighbors", "nms_topk"]
