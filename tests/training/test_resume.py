"""A training that is interrupted, in whatever way, ends as if it had not been."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from making import make_config, make_photos
from safetensors.torch import load_file

from disk_ops.io.output import OutputError
from disk_ops.scenes.errors import DataError
from disk_ops.training.config import TrainingConfig, config_to_mapping, config_to_toml, read_config
from disk_ops.training.folder import is_same_training, locked, stored_config
from disk_ops.training.run import train
from disk_ops.training.settings import SettingsError
from disk_ops.training.state import StateError, load_checkpoint
from disk_ops.training.trainer import Trainer


@pytest.fixture
def photos(tmp_path):
    return make_photos(tmp_path / "photos")


def flatten(content, prefix=""):
    if isinstance(content, dict):
        for key, value in content.items():
            yield from flatten(value, f"{prefix}.{key}")
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from flatten(value, f"{prefix}.{index}")
    else:
        yield prefix, content


def assert_same_end(first, second):
    """The last checkpoints agree bit for bit: weights, moments of Adam, averaged weights, best score."""
    one, other = (dict(flatten(load_checkpoint(folder, pytest.fail))) for folder in (first, second))
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other[name]), name
        elif not name.startswith(".config."):
            assert value == other[name], name
    for name in ("best.safetensors", "last.safetensors"):
        assert (first / name).exists() == (second / name).exists()
        if (first / name).exists():
            weights, others = load_file(first / name), load_file(second / name)
            assert all(torch.equal(value, others[key]) for key, value in weights.items()), name


def rows(folder, name="history.csv"):
    with (folder / name).open() as file:
        return [{key: row[key] for key in row if "second" not in key} for row in csv.DictReader(file)]


def command(photos, folder, config):
    path = folder.with_suffix(".toml")
    path.write_text(config_to_toml(config), encoding="utf-8")
    return [sys.executable, "-m", "disk_ops.cli", "train", str(path), "-o", str(folder), "--resume", "--quiet"]


def wait_for(condition, process, seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the training ended too early"
        assert time.monotonic() < end, "the training doesn't get there"
        time.sleep(0.01)


_KILLED = """
import os, signal, sys
from disk_ops.cli import main
checkpoint, calls = sys.argv[1], int(sys.argv[2])
def counted(call):
    def until_killed(*arguments, **options):
        global calls
        calls -= os.path.exists(checkpoint)
        if calls < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return until_killed
if __name__ == "__main__":
    os.fsync, os.replace = counted(os.fsync), counted(os.replace)
    sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.slow
def test_killed_while_it_writes(photos, tmp_path):
    config = make_config(photos, steps=12, data={"workers": 1}, checkpoint={"every": 3})
    train(config, tmp_path / "whole", quiet=True)
    folder = tmp_path / "killed"
    (tmp_path / "killed.py").write_text(_KILLED)
    for moment, calls in ((3, 0), (9, 3)):  # killed after these checkpoints, before a file is complete or has its name
        checkpoint = folder / "checkpoints" / f"step-{moment:09}.pt"
        program = [sys.executable, tmp_path / "killed.py", checkpoint, str(calls)]
        process = subprocess.run([*program, *command(photos, folder, config)[3:]], check=False)
        assert process.returncode == -signal.SIGKILL and checkpoint.exists()
    finished = subprocess.run(command(photos, folder, config), capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert_same_end(tmp_path / "whole", folder)
    assert rows(folder, "validation.csv") == rows(tmp_path / "whole", "validation.csv")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "terminated"])
def test_a_signal_saves_and_exits(photos, tmp_path, number):
    config = make_config(photos, steps=16, data={"workers": 1}, checkpoint={"every": 100}, validation={"every": 0})
    train(config, tmp_path / "whole", quiet=True)
    folder = tmp_path / "stopped"
    process = subprocess.Popen(
        command(photos, folder, config), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    history = folder / "history.csv"
    wait_for(lambda: history.exists() and len(history.read_text().splitlines()) > 2, process)
    os.killpg(process.pid, number)  # to the workers too, as a terminal does, or timeout and batch systems
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "--resume goes on" in errors and "Traceback" not in errors
    assert load_checkpoint(folder, pytest.fail)["step"] < 16
    finished = subprocess.run(command(photos, folder, config), capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert_same_end(tmp_path / "whole", folder)


def test_steps_can_be_added(photos, tmp_path):
    train(make_config(photos, steps=8), tmp_path / "whole", quiet=True)
    train(make_config(photos, steps=4), tmp_path / "parts", quiet=True)
    train(make_config(photos, steps=8), tmp_path / "parts", quiet=True, existing="resume")
    # The first part validated at its own end, step 4, which the whole did not.
    one, other = (load_checkpoint(tmp_path / name, pytest.fail)["detector"] for name in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")


def test_resuming_a_finished_training_changes_nothing(photos, tmp_path):
    config = make_config(photos)
    train(config, tmp_path / "run", quiet=True)
    before = rows(tmp_path / "run")
    assert train(config, tmp_path / "run", quiet=True, existing="resume").finished
    assert rows(tmp_path / "run") == before


@pytest.mark.parametrize("moment", [3, 6], ids=["in between", "at the end"])
def test_no_step_is_lost_where_validation_fails(photos, tmp_path, monkeypatch, moment):
    config = make_config(photos, checkpoint={"every": 100})
    train(config, tmp_path / "whole", quiet=True)
    validate = Trainer.validate

    def fail(trainer, step):
        if step == moment:
            raise DataError("the disk is gone")
        validate(trainer, step)

    with monkeypatch.context() as patch, pytest.raises(DataError, match="is gone"):
        patch.setattr(Trainer, "validate", fail)
        train(config, tmp_path / "run", quiet=True)
    assert load_checkpoint(tmp_path / "run", pytest.fail)["step"] == moment
    train(config, tmp_path / "run", quiet=True, existing="resume")
    assert_same_end(tmp_path / "whole", tmp_path / "run")
    assert rows(tmp_path / "run", "validation.csv") == rows(tmp_path / "whole", "validation.csv")


def test_fewer_steps_than_were_done_are_refused(photos, tmp_path):
    train(make_config(photos, steps=4, optimizer={"decay": "constant"}), tmp_path / "run", quiet=True)
    with pytest.raises(SettingsError, match=r"steps is 2, but the training in .* has done 4"):
        train(make_config(photos, steps=2), tmp_path / "run", quiet=True, existing="resume")


def test_other_validation_begins_a_new_best(photos, tmp_path, capsys):
    train(make_config(photos, steps=4), tmp_path / "run", quiet=True)
    config = make_config(photos, steps=6, validation={"n": 32})
    outcome = train(config, tmp_path / "run", quiet=True, existing="resume")
    assert "the best score so far doesn't count any more" in capsys.readouterr().err
    with (tmp_path / "run" / "validation.csv").open() as file:
        scores = {row["step"]: float(row["score"]) for row in csv.DictReader(file)}
    assert outcome.best == pytest.approx(scores["6"], abs=1e-5)


def test_settings_survive_a_damaged_file(photos, tmp_path):
    train(make_config(photos, steps=4), tmp_path / "run", quiet=True)
    (tmp_path / "run" / "config.toml").write_text("")
    assert stored_config(tmp_path / "run", pytest.fail) == make_config(photos, steps=4)


def test_a_training_without_readable_checkpoints_is_not_begun_again(photos, tmp_path):
    folder = tmp_path / "run"
    train(make_config(photos), folder, quiet=True)
    best = (folder / "best.safetensors").read_bytes()
    for path in (folder / "checkpoints").iterdir():
        path.write_bytes(b"x")
    for _ in range(2):
        with pytest.raises(StateError, match="none of the 2 checkpoints"):
            train(make_config(photos), folder, quiet=True, existing="resume")
    for path in (folder / "checkpoints").iterdir():
        path.unlink()
    with pytest.raises(StateError, match=r"has best\.safetensors, but no checkpoint to go on from"):
        train(make_config(photos), folder, quiet=True, existing="resume")
    assert (folder / "best.safetensors").read_bytes() == best
    for name in ("best.safetensors", "last.safetensors"):
        (folder / name).unlink()
    with pytest.raises(StateError, match=r"has 6 steps in history\.csv, but no checkpoint"):
        train(make_config(photos), folder, quiet=True, existing="resume")


def test_one_that_was_killed_before_its_first_checkpoint_begins_again(photos, tmp_path):
    config = make_config(photos, steps=4, checkpoint={"every": 4})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "history.csv").write_text("step,seconds\n2,1.0\n")
    assert train(config, tmp_path / "run", quiet=True, existing="resume").finished
    assert [row["step"] for row in rows(tmp_path / "run")] == ["2", "4"]


def test_one_process_at_a_time(photos, tmp_path):
    train(make_config(photos, steps=4), tmp_path / "run", quiet=True)
    with locked(tmp_path / "run"), pytest.raises(OutputError, match="another process is training in"):
        train(make_config(photos, steps=6), tmp_path / "run", quiet=True, existing="resume")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"optimizer": {"learning_rate": 2e-3}}, r"optimizer\.learning_rate was 0\.001 and is 0\.002 now"),
        ({"seed": 1}, "seed was 0 and is 1 now"),
        ({"data": {"batch_size": 3}}, r"data\.batch_size was 2 and is 3 now"),
    ],
)
def test_another_training_is_refused(photos, tmp_path, change, named):
    train(make_config(photos), tmp_path / "run", quiet=True)
    with pytest.raises(OutputError, match=f"other settings .*{named}"):
        train(make_config(photos, **change), tmp_path / "run", quiet=True, existing="resume")


def test_depth_maps_may_move_but_not_appear():
    """Whether there are any decides on the reward and on which images are used."""

    def with_depth(folder: str) -> TrainingConfig:
        return read_config("paper", ["scenes:places"], [f"source.0.depth={folder}"])

    stored = config_to_mapping(with_depth("stereo/depth_maps"))
    assert is_same_training(with_depth("elsewhere"), stored)
    assert not is_same_training(with_depth(""), stored)


def test_what_does_not_change_the_result_may_differ(photos, tmp_path):
    train(make_config(photos, steps=6), tmp_path / "whole", quiet=True)
    train(make_config(photos, steps=4), tmp_path / "run", quiet=True)
    moved = photos.rename(photos.with_name("moved"))
    config = make_config(moved, steps=6, data={"workers": 1}, checkpoint={"every": 1, "log_every": 3})
    assert train(config, tmp_path / "run", quiet=True, existing="resume").finished
    one, other = (load_checkpoint(tmp_path / name, pytest.fail)["detector"] for name in ("whole", "run"))
    assert all(torch.equal(one[name], other[name]) for name in one)
