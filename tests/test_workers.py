"""Which process this is, and its share of the work."""

from __future__ import annotations

import pytest

from disk_ops.workers import ALONE, Worker, WorkerError, this_worker

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT")


def told(monkeypatch: pytest.MonkeyPatch, *values: str | None) -> Worker:
    for name, value in zip(NAMES, values, strict=False):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    return this_worker()


def test_torchrun_says_which_process_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, "5", "8", "1", "0") == Worker(5, 8, 1, restarted=False)
    assert told(monkeypatch, "5", "8", "1", "2").restarted
    assert told(monkeypatch, None, None, None, None) == ALONE
    assert told(monkeypatch, "1", "2", None, None) == ALONE  # a cluster's own numbers, of machines


@pytest.mark.parametrize("values", [("2", "2", "0"), ("-1", "2", "0"), ("0", "two", "0"), ("0", "0", "0")])
def test_contradictions_are_named(monkeypatch: pytest.MonkeyPatch, values: tuple[str, ...]) -> None:
    with pytest.raises(WorkerError, match="RANK='"):
        told(monkeypatch, *values)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 5, 100])
@pytest.mark.parametrize("run", [1, 4])
def test_everything_is_shared_out_once_and_evenly(size: int, count: int, run: int) -> None:
    items = list(range(count))
    shares = [Worker(rank, size).share(items, run) for rank in range(size)]
    assert sorted(item for share in shares for item in share) == items
    assert all(share == sorted(share) for share in shares)
    assert max(map(len, shares)) - min(map(len, shares)) <= run
    assert size == 1 or count < 100 or shares[0] != list(range(0, count, size))


def test_shares_stay_the_same_from_version_to_version() -> None:
    """Else a run could not be resumed with the same shares after an update."""
    assert Worker(0, 2).share(range(10)) == [0, 2, 4, 5, 9]


def test_runs_stay_together() -> None:
    share = Worker(1, 3).share(range(90), run=9)
    assert all(share[i : i + 9] == list(range(share[i], share[i] + 9)) for i in range(0, len(share), 9))


def test_what_is_left_by_another_number_of_processes_is_spread() -> None:
    """One of two was lost; of four that go on, each gets about a quarter of its share."""
    left = set(Worker(1, 2).share(range(4000)))
    counts = [len(left & set(Worker(rank, 4).share(range(4000)))) for rank in range(4)]
    assert min(counts) > 430 and sum(counts) == 2000
