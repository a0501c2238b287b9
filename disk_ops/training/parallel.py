"""Data parallel training under ``torchrun``: the processes of a training and what they share."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

_PATIENCE = timedelta(hours=6)  # all wait while the first process validates; torchrun notices lost ones by itself


class Group(NamedTuple):
    """This process among those of a training."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes logs and checkpoints."""
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

    def wait(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()

    def leave(self) -> None:
        """End the processes' connection."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def join(device: torch.device) -> Group:
    """Join the other processes where ``torchrun`` started several: NCCL on CUDA, else gloo."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Group(0, 1, device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_PATIENCE)
    return Group(dist.get_rank(), dist.get_world_size(), device)
