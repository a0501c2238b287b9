"""Data parallel training: several processes compute what one computes, and none waits in vain."""

from __future__ import annotations

import csv
import os
import socket
import subprocess
import sys
import time

import pytest
import torch
from making import make_config, make_photos

from disk_ops import DISKDetector
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
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment)


def output(folder):
    """What the trained network makes of an image.

    Not its weights: the biases before an instance norm have no effect and a gradient of 0 but for rounding, which Adam
    makes into steps of full size.
    """
    detector = DISKDetector(16)
    detector.load_state_dict(load_checkpoint(folder, pytest.fail)["detector"])
    with torch.no_grad():
        return detector.heatmap_and_dense_descriptors(
            torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
        )


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [2, 3, 1], ids=["even", "uneven", "one process without samples"])
def test_two_processes_are_one(tmp_path, batch_size):
    photos = make_photos(tmp_path / "photos")
    config = make_config(photos, steps=3, data={"batch_size": batch_size}, validation={"every": 3})
    train(config, tmp_path / "one", quiet=True)
    result = run_in_parallel(config, tmp_path / "two")
    assert result.returncode == 0, result.stderr
    for one, two in zip(output(tmp_path / "one"), output(tmp_path / "two"), strict=True):
        # Where a value lies at the kink of PReLU, rounding errors turn its gradient into another one: single weights of
        # so small a network then differ by 1e-3. One step changes the output by more than half.
        assert float((two - one).norm() / one.norm()) < 2e-3
    assert (tmp_path / "two" / "best.safetensors").exists()
    # Weights alone wouldn't show a gradient of another size: Adam divides by it.
    with (tmp_path / "one" / "history.csv").open() as first, (tmp_path / "two" / "history.csv").open() as second:
        rows = list(zip(csv.DictReader(first), csv.DictReader(second), strict=True))
    assert len(rows) == 2
    for row, other in rows:
        for name in ("loss", "reward", "matches", "keypoints", "correct", "grad_norm"):
            # "correct" is a difference of float32 sums over their size: nothing below 1e-6 of it is known.
            rounding = 1e-6 if name == "correct" else 0
            assert float(other[name]) == pytest.approx(float(row[name]), rel=2e-3, abs=rounding), name
    assert ("have work" in result.stderr) == (batch_size == 1)


@pytest.mark.slow
def test_an_error_on_one_process_ends_all(tmp_path):
    photos = make_photos(tmp_path / "photos")
    for path in photos.iterdir():
        path.write_bytes(b"broken")
    config = make_config(photos, steps=3, data={"batch_size": 1}, validation={"every": 0})
    result = run_in_parallel(config, tmp_path / "two")
    assert result.returncode != 0
    assert "could be used" in result.stderr  # told by the one that has samples; the other waited for it


@pytest.mark.slow
def test_what_both_processes_meet_is_told_once_and_a_taken_folder_ends_both(tmp_path):
    photos = make_photos(tmp_path / "photos")
    (photos / "broken.png").write_bytes(b"no image")
    source = [{"kind": "photos", "path": str(photos), "use": "train"}]
    config = make_config(photos, steps=8, source=source, validation={"every": 0})  # each process meets it in each pass
    first = run_in_parallel(config, tmp_path / "two")
    assert first.returncode == 0, first.stderr
    assert first.stderr.count("broken.png can't be used") == 1
    second = run_in_parallel(config, tmp_path / "two")
    assert second.returncode != 0 and "holds a training" in second.stderr


@pytest.mark.slow
def test_a_process_that_was_killed_is_told_in_one_line(tmp_path):
    config = make_config(make_photos(tmp_path / "photos"), steps=100_000)
    (tmp_path / "c.toml").write_text(config_to_toml(config), encoding="utf-8")
    command = [sys.executable, "-m", "disk_ops.cli", "train", str(tmp_path / "c.toml"), "-o", str(tmp_path / "run")]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    first, second = (
        subprocess.Popen(
            [*command, "--quiet"],
            env={**environment, "WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    )
    try:
        history = tmp_path / "run" / "history.csv"
        end = time.monotonic() + 600
        while not history.exists() or len(history.read_text().splitlines()) < 2:
            assert first.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        second.kill()
        _, told = first.communicate(timeout=300)
        assert first.returncode == 2 and "another process of this training has ended" in told
        assert "Traceback" not in told
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
