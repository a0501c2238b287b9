"""Training: rewards of matches and the policy-gradient loss."""

from disk_ops.training.loss import LossStatistics, PolicyGradientLoss
from disk_ops.training.rewards import DepthReward, EpipolarReward, HomographyReward, View

__all__ = ["DepthReward", "EpipolarReward", "HomographyReward", "LossStatistics", "PolicyGradientLoss", "View"]
