"""Annealing of penalties, inverse temperature and learning rate."""

from __future__ import annotations

from itertools import pairwise

import pytest

from disk_ops.training.schedule import OptimizerConfig, ScheduleConfig, annealing


def test_paper_schedule():
    schedule, optimizer = ScheduleConfig(), OptimizerConfig()
    at = {step: annealing(step, 300000, schedule, optimizer) for step in (0, 12500, 25000, 50000, 100000, 299999)}
    assert [at[step].ramp for step in at] == [0.0, 0.5, 1.0, 1.0, 1.0, 1.0]
    assert [at[step].theta for step in at] == pytest.approx([15.0, 19.375, 23.75, 32.5, 50.0, 50.0])
    assert {value.learning_rate for value in at.values()} == {1e-4}


def test_lengths_of_zero_mean_final_values_at_once():
    values = annealing(0, 10, ScheduleConfig(ramp_steps=0, theta_steps=0), OptimizerConfig())
    assert values == (1.0, 50.0, 1e-4)


def test_warmup_and_cosine():
    optimizer = OptimizerConfig(learning_rate=1.0, warmup_steps=4, decay="cosine", final_rate=0.1)
    rates = [annealing(step, 13, ScheduleConfig(), optimizer).learning_rate for step in range(13)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0  # the cosine begins
    assert rates[8] == pytest.approx(0.1 + 0.9 * 0.5)  # half way
    assert rates[12] == pytest.approx(0.1)
    assert all(a >= b for a, b in pairwise(rates[4:]))


def test_penalties_may_begin_later():
    schedule = ScheduleConfig(ramp_start=10, ramp_steps=4)
    ramps = [annealing(step, 20, schedule, OptimizerConfig()).ramp for step in (0, 9, 10, 11, 14, 19)]
    assert ramps == [0.0, 0.0, 0.0, 0.25, 1.0, 1.0]
    at_once = ScheduleConfig(ramp_start=10, ramp_steps=0)
    assert [annealing(step, 20, at_once, OptimizerConfig()).ramp for step in (9, 10)] == [0.0, 1.0]


@pytest.mark.parametrize("name", ["ramp_start", "ramp_steps", "theta_steps"])
def test_negative_lengths_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 0, got -1"):
        ScheduleConfig(**{name: -1})
