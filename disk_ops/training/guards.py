"""What ends a training early: signals, losses that are no numbers, a network that gives up."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType, TracebackType
from typing import Any


class TrainingError(Exception):
    """A training can't go on in a useful way. The message says why and what to do."""


class StopOnSignal:
    """Notes SIGINT and SIGTERM, so that a training ends between two steps; a second one interrupts at once.

    Args:
        tell: say so at the first one.
    """

    def __init__(self, tell: bool = True) -> None:
        self.requested, self.tell = False, tell
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopOnSignal:
        """Begin to note signals; elsewhere than in the main thread they stay as they are."""
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._previous[number] = signal.signal(number, self._note)
            except ValueError:
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        if self.tell:
            with contextlib.suppress(OSError):  # not by print, in the middle of which the signal may come
                os.write(2, b"\nstopping after this step; once more ends at once\n")


class SkippedSteps:
    """Counts steps without a usable gradient, and stops a training that has too many of them in a row."""

    MOST_IN_A_ROW = 20

    def __init__(self, total: int = 0, in_a_row: int = 0) -> None:
        self.total, self.in_a_row = total, in_a_row

    def good(self) -> None:
        """A step was made."""
        self.in_a_row = 0

    def bad(self, step: int, scenes: list[str]) -> str:
        """A step was skipped because of these scenes; returns what to tell the user."""
        self.total += 1
        self.in_a_row += 1
        where = ", ".join(scenes) or "the sum of the gradients alone"
        if self.in_a_row >= self.MOST_IN_A_ROW:
            raise TrainingError(
                f"{self.in_a_row} steps in a row had a loss or gradient that is no finite number, the last, step "
                f"{step}, because of {where}. Begin again in another folder, from a checkpoint of this one if you like "
                "(model.init), with a lower optimizer.learning_rate, with optimizer.clip, or, if the same scene is "
                "named each time, without it"
            )
        return f"step {step} is skipped: its loss or gradient is no finite number, because of {where}"


class Degeneration:
    """Notices that the network stops proposing keypoints: then nothing is matched and nothing is learned any more."""

    FEWEST, PATIENCE = 0.01, 100  # keypoints, as a part of the cells of the grid; steps

    def __init__(self, steps: int = 0) -> None:
        self.steps = steps

    def check(self, keypoints: float, cells: float, lambda_kp: float, lambda_fp: float) -> None:
        """Take how many cells of a step's images have a keypoint; raises after too many steps with hardly any."""
        self.steps = self.steps + 1 if keypoints < self.FEWEST * cells else 0
        if self.steps >= self.PATIENCE:
            raise TrainingError(
                f"the network has stopped proposing keypoints: for {self.steps} steps, less than {self.FEWEST:.0%} "
                "of the cells had one. It learned that no keypoint is better than wrong ones: with lambda_fp "
                f"{lambda_fp:g} and lambda_kp {lambda_kp:g}, most keypoints cost more than they earn. Let the "
                "penalties begin later or rise more slowly (schedule.ramp_start, schedule.ramp_steps), make them "
                "smaller (reward.lambda_fp, reward.lambda_kp), or lower optimizer.learning_rate; if it happens at "
                "once, look at the data: do the images of a sample overlap?"
            )
