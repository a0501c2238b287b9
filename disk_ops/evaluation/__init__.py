"""Evaluation: matching accuracy under homographies and relative pose, with the paper's protocols.

``disk-ops evaluate`` as a library: ``runs.run`` of a protocol, such as ``homography_protocol.HomographyProtocol``, with
methods from ``methods.parse_method``.
"""

from disk_ops.evaluation.features import DetectorExtractor, Features, RootSift, mutual_matches
from disk_ops.evaluation.homography import evaluate_set, matching_accuracy
from disk_ops.evaluation.homography_sets import HomographySet, find_homography_sets
from disk_ops.evaluation.pose import estimate_relative_pose, mean_average_accuracy, pose_error, relative_pose

__all__ = [
    "DetectorExtractor",
    "Features",
    "HomographySet",
    "RootSift",
    "estimate_relative_pose",
    "evaluate_set",
    "find_homography_sets",
    "matching_accuracy",
    "mean_average_accuracy",
    "mutual_matches",
    "pose_error",
    "relative_pose",
]
