"""What changes in the course of a training, as functions of the step: penalties, temperature, learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from disk_ops.training.settings import setting


@dataclass(frozen=True)
class ScheduleConfig:
    """Annealing (DISK, section 4). A length of 0 steps means: at its final value from the start."""

    ramp_start: int = setting(0, "lambda_fp and lambda_kp are 0 up to this step ...")
    ramp_steps: int = setting(25000, "... and rise to their full size within this many steps")
    theta_start: float = setting(15.0, "inverse temperature of the match probabilities at the start ...")
    theta_end: float = setting(50.0, "... and at the end")
    theta_steps: int = setting(100000, "steps from theta_start to theta_end")

    def __post_init__(self) -> None:
        for name in ("ramp_start", "ramp_steps", "theta_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        for name in ("theta_start", "theta_end"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")


@dataclass(frozen=True)
class OptimizerConfig:
    """Adam and what is done around it."""

    learning_rate: float = setting(1e-4, "of Adam")
    warmup_steps: int = setting(0, "the learning rate rises linearly within this many steps")
    decay: Literal["constant", "cosine"] = setting("constant", "'constant', or 'cosine' down to final_rate at the end")
    final_rate: float = setting(0.01, "learning rate at the end of the cosine, as a share of learning_rate")
    clip: float = setting(0.0, "longest gradient (L2 norm over all weights); 0: no limit")
    ema: float = setting(
        0.0, "decay of the running mean of weights that is validated and exported, e.g. 0.999; 0: none"
    )

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate <= 1:
            raise ValueError(f"learning_rate must be above 0 and at most 1, got {self.learning_rate}")
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must be at least 0, got {self.warmup_steps}")
        if not 0 <= self.final_rate <= 1:
            raise ValueError(f"final_rate must be from 0 to 1, got {self.final_rate}")
        if self.clip < 0:
            raise ValueError(f"clip must be at least 0, got {self.clip}")
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema must be from 0 up to, not including, 1, got {self.ema}")


class Annealing(NamedTuple):
    """The values of one step."""

    ramp: float  # factor of lambda_fp and lambda_kp
    theta: float
    learning_rate: float


def annealing(step: int, steps: int, schedule: ScheduleConfig, optimizer: OptimizerConfig) -> Annealing:
    """Return the values of ``step`` (from 0) of a training of ``steps``."""
    theta = schedule.theta_start + (schedule.theta_end - schedule.theta_start) * _share(step, schedule.theta_steps)
    rate = optimizer.learning_rate * _share(step + 1, optimizer.warmup_steps)
    if optimizer.decay == "cosine":
        done = _share(step - optimizer.warmup_steps, steps - 1 - optimizer.warmup_steps)
        rate *= optimizer.final_rate + (1 - optimizer.final_rate) * 0.5 * (1 + math.cos(math.pi * done))
    return Annealing(_share(step - schedule.ramp_start, schedule.ramp_steps), theta, rate)


def _share(step: int, length: int) -> float:
    return min(1.0, max(0.0, step / length)) if length > 0 else float(step >= 0)
