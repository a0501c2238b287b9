"""What ends a training early."""

from __future__ import annotations

import os
import signal

import pytest

from disk_ops.training.guards import Degeneration, SkippedSteps, StopOnSignal, TrainingError


def test_the_first_signal_is_noted_and_the_second_interrupts(capfd):
    before = signal.getsignal(signal.SIGINT)
    with StopOnSignal() as signals:
        assert not signals.requested
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.requested
        assert "stopping after this step; once more ends at once" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_terminate_is_noted_too():
    with StopOnSignal() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.requested


def test_skipped_steps_are_counted_and_too_many_in_a_row_name_the_scene():
    skipped = SkippedSteps()
    for step in range(SkippedSteps.MOST_IN_A_ROW - 1):
        assert "castle" in skipped.bad(step, ["castle"])
    skipped.good()
    assert skipped.total == SkippedSteps.MOST_IN_A_ROW - 1
    with pytest.raises(TrainingError, match="because of bridge"):
        for step in range(SkippedSteps.MOST_IN_A_ROW):
            skipped.bad(step, ["bridge"])


def test_a_network_without_keypoints_is_explained():
    degeneration = Degeneration()
    for keypoints in [9.0] * (Degeneration.PATIENCE - 1) + [10.0] + [9.0] * (Degeneration.PATIENCE - 1):
        degeneration.check(keypoints, 1000.0, -0.001, -0.25)
    with pytest.raises(TrainingError, match=r"stopped proposing keypoints.*lambda_fp -0\.25.*ramp_steps"):
        degeneration.check(9.0, 1000.0, -0.001, -0.25)
