"""The network of a training: where it begins, and the running mean of its weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from disk_ops.checkpoint import weights_digest
from disk_ops.detector import DISKDetector
from disk_ops.training.config import ModelConfig
from disk_ops.training.export import read_record
from disk_ops.training.settings import SettingsError


def make_detector(config: ModelConfig, seed: int, resumed: bool = False) -> DISKDetector:
    """The detector that a training begins with, in float32: of a checkpoint, or random by ``seed``.

    Where the training is ``resumed`` its weights are replaced anyway, so ``init`` needn't be there any more.
    """
    if resumed or not config.init:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return DISKDetector(config.desc_dim)
    try:
        detector = DISKDetector.from_pretrained(config.init)
    except (OSError, ValueError) as error:
        raise SettingsError(f"model.init: {error}") from error
    if detector.desc_dim != config.desc_dim:
        raise SettingsError(f"model.desc_dim is {config.desc_dim}, but {config.init} has {detector.desc_dim}")
    return detector.float().train()


def origin(config: ModelConfig, detector: DISKDetector) -> dict[str, Any] | None:
    """Which weights a detector that :func:`make_detector` made began with, for the record; None: random ones."""
    if not config.init:
        return None
    try:
        record = read_record(config.init)
    except ValueError:  # no reason not to train from weights that could be read
        record = None
    return {"weights": weights_digest(detector.state_dict()), "record": record}


def average_weights(detector: DISKDetector, decay: float) -> AveragedModel:
    """The running mean of weights, which at first forgets faster: its n-th update keeps (1 + n) / (10 + n) at most."""

    def mean(averages: Any, weights: Any, count: Tensor | int) -> None:
        number = float(count)
        torch._foreach_lerp_(averages, weights, 1 - min(decay, (1 + number) / (10 + number)))

    return AveragedModel(detector, multi_avg_fn=torch.no_grad()(mean))


def compile_network(detector: DISKDetector) -> None:
    """Let ``torch.compile`` make the network's passes; names of weights stay as they are."""
    unet: Any = detector.unet
    unet.features = torch.compile(unet.features)
