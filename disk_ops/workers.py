"""Several processes that share one piece of work, as ``torchrun`` starts them: which of them this is, and its share.

They don't talk to each other: each finds its share by its number alone, so that none waits for one that was lost.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class WorkerError(Exception):
    """Environment variables that don't say which process this is. The message names them."""


class Worker(NamedTuple):
    """This process among those that share the work."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among those of this machine
    restarted: bool = False  # all were started again after one was lost

    @property
    def is_main(self) -> bool:
        """Whether this process tells what all of them would tell alike."""
        return self.rank == 0

    def share(self, items: Sequence[T], run: int = 1) -> list[T]:
        """The items that are this process's to do, in their order.

        They are dealt out at random, but always alike, so that each process gets as many as any other, large and small
        ones, and so that what is left of an interrupted run of another number of processes is dealt out evenly, too.

        Args:
            items: all the items, the same in all the processes.
            run: how many successive items stay together.
        """
        if self.size == 1:
            return list(items)
        starts = sorted(range(0, len(items), run), key=lambda start: _shuffled(f"{start // run} of {self.size}"))
        return [item for start in sorted(starts[self.rank :: self.size]) for item in items[start : start + run]]

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size}"


ALONE = Worker()
"""A process of its own."""


def _shuffled(text: str) -> bytes:
    """A key that sorts at random: the same for all versions of Python, on all machines."""
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def this_worker() -> Worker:
    """This process by the environment variables of ``torchrun``; a process of its own where they are not set.

    Raises:
        WorkerError: when they contradict each other.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    # Some clusters set RANK and WORLD_SIZE of their own for whole machines; LOCAL_RANK is only set for a process.
    if any(name not in os.environ for name in names):
        return ALONE
    told = ", ".join(f"{name}={os.environ[name]!r}" for name in names)
    try:
        rank, size, local_rank = (int(os.environ[name]) for name in names)
    except ValueError:
        raise WorkerError(f"environment variables of torchrun must be integers, got {told}") from None
    if not (0 <= rank < size and local_rank >= 0):
        raise WorkerError(f"environment variables of torchrun must have 0 <= RANK < WORLD_SIZE, got {told}")
    return Worker(rank, size, local_rank, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0")


@contextmanager
def stopped_by_launcher(worker: Worker) -> Iterator[None]:
    """Unwind when ``torchrun`` stops this process because another one was lost, so that nothing half made is left."""
    if worker.size == 1:
        yield
        return

    def stop(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
