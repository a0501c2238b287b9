"""Processes that work together: what one alone is, and what can't be joined."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from disk_ops.group import DeviceError, Group, join
from disk_ops.workers import WorkerError


def test_a_process_alone_is_the_main_one_and_hears_itself() -> None:
    group = join("cpu")
    assert group == Group(0, 1, torch.device("cpu")) and group.is_main
    assert group.gather("a") == ["a"] and group.broadcast("a") == "a"
    with pytest.raises(ZeroDivisionError):
        group.all_or_none(lambda: 1 / 0)


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("abc", "must be auto, cpu, cuda or cuda:NUMBER, got 'abc'"),
        ("meta", "must be auto, cpu, cuda or cuda:NUMBER, got 'meta'"),
        ("cuda:99", "cuda:99 needs GPU 99; "),
    ],
)
def test_a_device_that_cannot_be(device: str, reason: str) -> None:
    with pytest.raises(DeviceError, match=reason):
        join(device)


def test_numbers_of_machines_are_not_those_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some clusters set RANK and WORLD_SIZE for whole machines; torchrun sets LOCAL_RANK as well."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert join("cpu").size == 1
    monkeypatch.setenv("LOCAL_RANK", "-1")
    with pytest.raises(WorkerError, match="LOCAL_RANK='-1'"):
        join("cpu")


@pytest.mark.parametrize(
    ("joined", "status", "printed"), [(True, 7, "registered\n"), (False, 3, "went on\nregistered\n")]
)
def test_a_process_of_a_group_ends_without_taking_down_the_interpreter(joined: bool, status: int, printed: str) -> None:
    """What is registered for the exit is done all the same."""
    program = f"""
import atexit, sys
from disk_ops import group
atexit.register(print, "registered")
group._joined += [True] * {joined:d}
group.end_process(7)
print("went on")
sys.exit(3)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (status, printed, "")
