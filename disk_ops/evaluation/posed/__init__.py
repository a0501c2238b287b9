"""Pairs of images whose relative pose is known: from cameras.json, COLMAP, the Image Matching Challenge, or a list."""

from disk_ops.evaluation.posed.pair_list import read_pair_list
from disk_ops.evaluation.posed.scenes import find_pairs
from disk_ops.evaluation.posed.selection import Selection
from disk_ops.evaluation.posed.views import LoadedView, PosedPair, View

__all__ = ["LoadedView", "PosedPair", "Selection", "View", "find_pairs", "read_pair_list"]
