"""The estimate of a step's memory."""

from __future__ import annotations

import subprocess
import sys

import torch

from disk_ops import DISKDetector
from disk_ops.training.memory import activation_bytes


def test_estimate_is_what_autograd_keeps():
    detector = DISKDetector(16)
    width, height, images = 128, 96, 2
    kept: dict[int, int] = {}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        features = detector.sample(torch.rand(images, 3, height, width), torch.Generator().manual_seed(0))
    weights = sum(p.untyped_storage().nbytes() for p in detector.parameters())
    measured = sum(kept.values()) - weights
    assert features
    assert abs(activation_bytes(detector, width, height, images) / measured - 1) < 0.05


def test_estimate_changes_nothing():
    detector = DISKDetector(16).train()
    before = torch.get_rng_state()
    activation_bytes(detector, 64, 64, 1)
    assert detector.training and torch.equal(before, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in detector.parameters())


def test_keeping_freed_memory_is_harmless():
    code = (
        "import torch\nfrom disk_ops.training.memory import keep_freed_memory\nprint(keep_freed_memory())\n"
        "for _ in range(20): x = torch.ones(1000, 1000)\nassert x.sum() == 1e6"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() in ("True", "False")
