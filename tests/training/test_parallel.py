"""Data parallel training: several processes compute what one computes, and none waits in vain."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from making import make_config, make_photos

from disk_ops.training.config import config_to_toml
from disk_ops.training.run import train
from disk_ops.training.state import load_checkpoint

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no distributed package")


def run_in_parallel(config, folder, processes=2):
    path = folder.with_suffix(".toml")
    path.write_text(config_to_toml(config), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--standalone"]
    command += ["-m", "disk_ops.cli", "train", str(path), "-o", str(folder), "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)


def weights(folder):
    return load_checkpoint(folder, pytest.fail)["detector"]


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [2, 3, 1], ids=["even", "uneven", "one process without samples"])
def test_two_processes_are_one(tmp_path, batch_size):
    photos = make_photos(tmp_path / "photos")
    config = make_config(photos, steps=3, data={"batch_size": batch_size}, validation={"every": 3})
    train(config, tmp_path / "one", quiet=True)
    result = run_in_parallel(config, tmp_path / "two")
    assert result.returncode == 0, result.stderr
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-3, atol=2e-5)
    assert (tmp_path / "two" / "best.safetensors").exists()
    assert len((tmp_path / "two" / "history.csv").read_text().splitlines()) == 3


@pytest.mark.slow
def test_an_error_on_one_process_ends_all(tmp_path):
    photos = make_photos(tmp_path / "photos")
    for path in photos.iterdir():
        path.write_bytes(b"broken")
    result = run_in_parallel(make_config(photos, steps=3), tmp_path / "two")
    assert result.returncode != 0
    assert "could be used" in result.stderr
