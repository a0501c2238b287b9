"""Training: rewards of matches, the policy-gradient loss, and the trainer.

``train(read_config("photos-small", ["photos/"]), Path("runs/mine"))`` is ``disk-ops train`` as a library.
"""

from disk_ops.training.config import TrainingConfig, read_config
from disk_ops.training.loss import LossStatistics, PolicyGradientLoss
from disk_ops.training.rewards import DepthReward, EpipolarReward, HomographyReward, View
from disk_ops.training.run import train
from disk_ops.training.trainer import Outcome, Trainer

__all__ = [
    "DepthReward",
    "EpipolarReward",
    "HomographyReward",
    "LossStatistics",
    "Outcome",
    "PolicyGradientLoss",
    "Trainer",
    "TrainingConfig",
    "View",
    "read_config",
    "train",
]
