"""Small data and configurations for tests of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from disk_ops.scenes.errors import SampleError
from disk_ops.training.config import TrainingConfig, config_from_mapping
from disk_ops.training.data.sample import Frame, Sample


def make_photos(folder: Path, number: int = 4, size: tuple[int, int] = (160, 120)) -> Path:
    """Photographs of random blobs, different in each file."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(number):
        rng = np.random.default_rng(index)
        picture = cv2.resize(rng.integers(0, 256, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8), size)
        cv2.imwrite(str(folder / f"photo{index}.png"), picture)
    return folder


def make_config(folder: Path, **tables: Any) -> TrainingConfig:
    """A training of a minute's fraction on the photographs in ``folder``."""
    values: dict[str, Any] = {
        "steps": 6,
        "data": {"width": 64, "height": 64, "images": 2, "batch_size": 2, "workers": 0},
        "model": {"desc_dim": 16},
        "schedule": {"ramp_steps": 4, "theta_steps": 6},
        "optimizer": {"learning_rate": 1e-3, "ema": 0.9, "clip": 100.0, "warmup_steps": 2},
        "validation": {"every": 3, "samples": 1, "n": 64},
        "checkpoint": {"every": 2, "keep": 2, "log_every": 2},
        "compute": {"device": "cpu"},
        "source": [{"kind": "photos", "path": str(folder), "holdout": 0.25}],
    }
    for name, table in tables.items():
        values[name] = {**values[name], **table} if isinstance(table, dict) and name in values else table
    return config_from_mapping(values)


class ListSource:
    """A source of given items; those that are None are broken files."""

    def __init__(self, name: str, items: list[int | None], size: int = 16) -> None:
        self.name, self.items, self.frame, self.notes = name, items, Frame(size, size, 2), ()

    def order(self, epoch: int, seed: int) -> np.ndarray:
        return np.random.default_rng((seed, epoch)).permutation(len(self.items))

    def load(self, item: int, rng: np.random.Generator) -> Sample:
        if self.items[item] is None:
            raise SampleError(f"{self.name}/{item}.jpg", "is broken")
        shape = (self.frame.images, 3, self.frame.height, self.frame.width)
        images = torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8))
        mask = torch.ones(shape[0], 1, *shape[2:], dtype=torch.bool)
        homographies = torch.eye(3, dtype=torch.float64).repeat(shape[0], 1, 1)
        return Sample(f"{self.name}/{self.items[item]}", images, mask, homographies)
