"""Samples of each step for one process of a training, loaded ahead by worker processes."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import cv2
import torch
from torch.utils.data import DataLoader, Dataset

from disk_ops.scenes.errors import DataError
from disk_ops.training.data.mixture import Loaded

AHEAD = 4  # steps that each worker prepares
# Not "fork": a copy of a process in which OpenCV, OpenMP or CUDA have run threads may wait for those forever. Nor
# "forkserver": its workers don't notice that a training was killed, and stay.
_START = "spawn"


def load_batches(
    samples: Dataset[Loaded],
    batch_size: int,
    steps: range,
    rank: int = 0,
    size: int = 1,
    workers: int = 0,
    pin_memory: bool = False,
) -> Iterator[list[Loaded]]:
    """Yield for each step the samples that process ``rank`` of ``size`` takes of the ``batch_size`` of the step.

    Which samples a step has does not depend on the number of processes or workers. A process may get none.
    """
    loader = DataLoader(
        _Answers(samples),
        batch_sampler=_Positions(batch_size, steps, rank, size),
        num_workers=workers,
        collate_fn=_as_list,
        pin_memory=pin_memory,
        prefetch_factor=AHEAD if workers else None,
        worker_init_fn=_prepare_worker if workers else None,
        multiprocessing_context=_START if workers else None,
    )
    with _ignored_signals():
        iterator = iter(loader)
    for batch in iterator:
        for loaded in batch:
            if isinstance(loaded, DataError):
                raise loaded
        yield batch


@contextlib.contextmanager
def _ignored_signals() -> Iterator[None]:
    """Processes that start meanwhile ignore Ctrl-C and SIGTERM, which reach all of a group: the training ends them."""
    previous = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError):  # outside of the main thread
            previous[number] = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Answers(Dataset[Loaded | DataError]):
    """Samples, and in place of one that can't be had the error, whose text a worker's traceback would bury."""

    def __init__(self, samples: Dataset[Loaded]) -> None:
        self.samples = samples

    def __getitem__(self, position: int) -> Loaded | DataError:
        try:
            return self.samples[position]
        except DataError as error:
            return error


class _Positions:
    """The positions of each step, for one process."""

    def __init__(self, batch_size: int, steps: range, rank: int, size: int) -> None:
        self.batch_size, self.steps, self.rank, self.size = batch_size, steps, rank, size

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[list[int]]:
        for step in self.steps:
            yield [step * self.batch_size + i for i in range(self.rank, self.batch_size, self.size)]


def _as_list(samples: list[Loaded]) -> list[Loaded]:
    return samples


def _prepare_worker(number: int) -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM):  # torch has just set a handler of its own
        signal.signal(ignored, signal.SIG_IGN)
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
