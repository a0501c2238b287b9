"""DISK local features: differentiable, fast, trainable, in kornia's vocabulary."""

from importlib.metadata import PackageNotFoundError, version

from disk_ops import _library

_library.load()

from disk_ops import ops  # noqa: E402  (fake kernels and autograd register on loaded ops)
from disk_ops.detector import DISKDetector  # noqa: E402
from disk_ops.features import DISKFeatures, PaddedFeatures, SampledFeatures  # noqa: E402
from disk_ops.local_feature import DISKDescriptors, DISKKeypoints, DISKLocalFeature  # noqa: E402
from disk_ops.matching import MatchDistribution, MutualNearestNeighbor, MutualSoftmaxMatcher, PaddedMatches  # noqa: E402
from disk_ops.modules import DistanceMatrix, GridSampler, NMSTopK  # noqa: E402
from disk_ops.multiscale import MultiscaleDetector  # noqa: E402

try:
    __version__ = version("disk_ops")
except PackageNotFoundError:  # used from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "DISKDescriptors",
    "DISKDetector",
    "DISKFeatures",
    "DISKKeypoints",
    "DISKLocalFeature",
    "DistanceMatrix",
    "GridSampler",
    "MatchDistribution",
    "MultiscaleDetector",
    "MutualNearestNeighbor",
    "MutualSoftmaxMatcher",
    "NMSTopK",
    "PaddedFeatures",
    "PaddedMatches",
    "SampledFeatures",
    "__version__",
    "ops",
]
