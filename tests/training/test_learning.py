"""From scratch on real posed images: a few dozen steps, and the expected reward grows."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from making import make_config

from disk_ops.training.run import train

SOURCES = {
    "depth": {"kind": "rgbd", "path": "depth/7scenes"},
    "epipolar": {"kind": "rgbd", "path": "pose/strecha/fountain-P11"},
}


@pytest.mark.slow
@pytest.mark.parametrize("supervision", SOURCES)
def test_reward_grows(shared_data, tmp_path, supervision):
    source = SOURCES[supervision]
    config = make_config(
        tmp_path,
        steps=60,
        data={"width": 128, "height": 96, "batch_size": 2, "workers": 1},
        model={"desc_dim": 32},
        reward={"supervision": supervision, "lambda_kp": 0.0},
        schedule={"ramp_steps": 0, "theta_steps": 0, "theta_end": 15.0},
        optimizer={"learning_rate": 1e-3, "ema": 0.0, "clip": 0.0, "warmup_steps": 0},
        validation={"every": 0},
        checkpoint={"every": 60, "log_every": 1},
        source=[{**source, "path": str(shared_data / source["path"]), "use": "train"}],
    )
    train(config, tmp_path / "run", quiet=True)
    with (tmp_path / "run" / "history.csv").open() as file:
        rewards = np.array([float(row["reward"]) for row in csv.DictReader(file)])
    first, last = rewards[:15], rewards[-15:]
    # Beyond chance: the means differ by more than three standard errors.
    error = np.hypot(first.std(ddof=1), last.std(ddof=1)) / np.sqrt(len(first))
    assert last.mean() - first.mean() > 3 * error, (first.mean(), last.mean(), error)
