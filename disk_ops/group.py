"""Several processes that do one piece of work together and exchange what they find, as ``torchrun`` starts them.

Those of :mod:`disk_ops.workers` share work without talking to each other.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from disk_ops.workers import this_worker

T = TypeVar("T")

_PATIENCE = timedelta(hours=6)  # all wait while the first process validates; torchrun notices lost ones by itself


_joined: list[bool] = []  # not empty in a process that was in a group


class DeviceError(Exception):
    """A device that can't be used. The message goes after the name of the option: ``must be auto, ...``."""


class GroupError(Exception):
    """Another process couldn't do its part. The message names it and says why."""


class Group(NamedTuple):
    """This process among those that work together."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")

    @property
    def is_main(self) -> bool:
        """Whether this process writes the results."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all processes."""
        if self.size > 1:
            dist.all_reduce(tensor)

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def broadcast(self, value: Any) -> Any:
        """The value of the main process."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]

    def all_or_none(self, action: Callable[[], T]) -> T:
        """Do something in each process; where one fails, none goes on to wait for it."""
        try:
            result, error = action(), None
        except Exception as raised:
            if self.size == 1:
                raise
            error = raised
        errors = self.gather(None if error is None else str(error))
        if error is not None:
            raise error
        failed = [f"process {rank}: {text}" for rank, text in enumerate(errors) if text is not None]
        if failed:
            raise GroupError("; ".join(failed))
        return result

    def wait(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()

    def leave(self) -> None:
        """End the processes' connection."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def end_process(status: int) -> None:
    """End a process that was in a group, with this exit status; return in any other.

    What is registered for the exit is done, but the interpreter isn't taken down: threads of torch.distributed may run
    on meanwhile, and every now and then abort the process, whereupon torchrun ends the others.
    """
    if not _joined:
        return
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it any more
            stream.flush()
    os._exit(status)


def is_lost_process(error: BaseException) -> bool:
    """Whether an error means that another process of the group has ended."""
    if dist.is_available() and isinstance(error, dist.DistError):  # of NCCL
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("gloo" in text or "connection closed by peer" in text)


def join(device: str) -> Group:
    """Join the other processes where ``torchrun`` started several: NCCL on CUDA, else gloo.

    Args:
        device: ``auto`` (CUDA if there is a GPU), ``cpu``, ``cuda``, or a GPU such as ``cuda:1``; of several processes
            on a machine, each takes the GPU of its number.

    Raises:
        DeviceError: the device can't be used.
        WorkerError: the environment variables of ``torchrun`` contradict each other.
    """
    worker = this_worker()
    chosen = _pick(device, worker.local_rank if worker.size > 1 else None)
    if worker.size == 1:
        return Group(device=chosen)
    if not dist.is_initialized():
        store, rank, _ = next(rendezvous("env://", timeout=_PATIENCE))
        # Processes that torchrun started again use the store of those before them, and would find their addresses.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        dist.init_process_group(
            "nccl" if chosen.type == "cuda" else "gloo",
            store=dist.PrefixStore(f"attempt {attempt}", store),
            rank=rank,
            world_size=worker.size,
            timeout=_PATIENCE,
        )
        _joined.append(True)
    return Group(dist.get_rank(), dist.get_world_size(), chosen)


def _pick(name: str, number: int | None) -> torch.device:
    """The device of that name; with a number, the GPU of that number."""
    wanted = f"must be auto, cpu, cuda or cuda:NUMBER, got {name!r}"
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(wanted) from error
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(wanted)
    if device.type == "cpu":
        return device
    if number is not None and device.index is not None:
        raise DeviceError(f"must be cuda for several processes, got {name!r}")
    index = device.index if number is None else number
    if (index or 0) >= torch.cuda.device_count():
        raise DeviceError(f"{name} needs GPU {index or 0}; {torch.cuda.device_count()} are here")
    device = torch.device("cuda", index or 0)
    torch.cuda.set_device(device)
    return device
