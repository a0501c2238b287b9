"""Checkpoints: atomic, the last few kept, damaged ones passed over, nothing executed."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from disk_ops.io.output import OutputError
from disk_ops.training.state import StateError, checkpoint_folder, load_checkpoint, save_checkpoint


def kept(folder):
    return sorted(path.name for path in checkpoint_folder(folder).iterdir())


def test_round_trip_and_the_last_are_kept(tmp_path):
    for step in (1, 2, 10, 3000):
        save_checkpoint(tmp_path, step, {"weights": torch.full((2,), float(step))}, keep=2)
    assert kept(tmp_path) == ["step-000000010.pt", "step-000003000.pt"]
    content = load_checkpoint(tmp_path, pytest.fail)
    assert content["step"] == 3000 and content["weights"].tolist() == [3000.0, 3000.0]


def test_no_checkpoint(tmp_path):
    assert load_checkpoint(tmp_path, pytest.fail) is None


def test_an_interrupted_write_is_no_checkpoint(tmp_path):
    save_checkpoint(tmp_path, 1, {}, keep=3)
    (checkpoint_folder(tmp_path) / "step-000000002.part").write_bytes(b"half")
    assert load_checkpoint(tmp_path, pytest.fail)["step"] == 1
    save_checkpoint(tmp_path, 3, {}, keep=3)
    assert kept(tmp_path) == ["step-000000001.pt", "step-000000003.pt"]  # what was left is cleared away


def test_a_damaged_checkpoint_is_passed_over_with_a_message(tmp_path):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, {"weights": torch.zeros(1000)}, keep=3)
    last = checkpoint_folder(tmp_path) / "step-000000002.pt"
    last.write_bytes(last.read_bytes()[:1000])
    messages = []
    assert load_checkpoint(tmp_path, messages.append)["step"] == 1
    assert len(messages) == 1 and "step-000000002.pt can't be read" in messages[0]
    assert kept(tmp_path) == ["step-000000001.pt", "step-000000002.damaged"]
    save_checkpoint(tmp_path, 1, {}, keep=1)  # what is written now is kept, whatever else is there
    assert load_checkpoint(tmp_path, pytest.fail)["step"] == 1


def test_who_only_looks_renames_nothing(tmp_path):
    """Without the lock of the folder another process may be at work there."""
    for step in (1, 2):
        save_checkpoint(tmp_path, step, {"a": step}, keep=3)
    newest = checkpoint_folder(tmp_path) / "step-000000002.pt"
    newest.write_bytes(b"half")
    before = kept(tmp_path)
    assert load_checkpoint(tmp_path, pytest.fail, only_look=True)["a"] == 1
    assert kept(tmp_path) == before
    (checkpoint_folder(tmp_path) / "step-000000001.pt").write_bytes(b"half")
    with pytest.raises(StateError, match="none of the 2 checkpoints"):
        load_checkpoint(tmp_path, pytest.fail, only_look=True)
    assert kept(tmp_path) == before


def test_damaged_checkpoints_alone_are_refused_each_time(tmp_path):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, {}, keep=3).write_bytes(b"x")
    for _ in range(2):  # the first renames them
        with pytest.raises(StateError, match=r"none of the 2 checkpoints in .* can be read: use --overwrite"):
            load_checkpoint(tmp_path, lambda message: None)


@pytest.mark.parametrize("content", [[1, 2], {"weights": torch.zeros(1)}, {"format": 1}])
def test_other_files_of_torch_are_damaged_checkpoints(tmp_path, content):
    save_checkpoint(tmp_path, 1, {}, keep=3)
    torch.save(content, save_checkpoint(tmp_path, 2, {}, keep=3))
    messages = []
    assert load_checkpoint(tmp_path, messages.append)["step"] == 1
    assert "it holds no state of a training" in messages[0]


def test_a_checkpoint_without_what_is_needed_is_damaged(tmp_path):
    save_checkpoint(tmp_path, 1, {"best": 1.0, "config": {}}, keep=3)
    save_checkpoint(tmp_path, 2, {"best": 1.0}, keep=3)
    messages = []
    assert load_checkpoint(tmp_path, messages.append, ("best", "config"))["step"] == 1
    assert "it lacks config" in messages[0]


@pytest.mark.parametrize(
    "error", [OSError(116, "Stale file handle"), MemoryError(), RuntimeError("can't allocate memory")]
)
def test_a_failure_that_is_not_the_files_leaves_it_alone(tmp_path, monkeypatch, error):
    save_checkpoint(tmp_path, 1, {}, keep=3)

    def fail(*arguments, **named):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(*((Path, "read_bytes") if isinstance(error, OSError) else (torch, "load")), fail)
        with pytest.raises(StateError, match=r"step-000000001\.pt can't be read: (Stale file handle|memory is short)"):
            load_checkpoint(tmp_path, pytest.fail)
    assert load_checkpoint(tmp_path, pytest.fail)["step"] == 1


def test_a_message_has_no_advice_of_torch(tmp_path):
    save_checkpoint(tmp_path, 1, {}, keep=3)
    save_checkpoint(tmp_path, 2, {}, keep=3).write_bytes(pickle.dumps(Path))
    messages = []
    load_checkpoint(tmp_path, messages.append)
    assert len(messages) == 1 and "weights_only" not in messages[0] and "\n" not in messages[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, {}, keep=3)
    open_file = Path.open
    monkeypatch.setattr(
        Path, "open", lambda path, *mode: open_file(path, *mode) and open_file(Path("/dev/full"), *mode, buffering=0)
    )
    with pytest.raises(OutputError, match=r"step-000000002\.pt can't be written: .*No space left"):
        save_checkpoint(tmp_path, 2, {"weights": torch.zeros(1000)}, keep=3)
    assert kept(tmp_path) == ["step-000000001.pt"]


def test_nothing_is_executed(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    checkpoint_folder(tmp_path).mkdir()
    (checkpoint_folder(tmp_path) / "step-000000001.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(StateError):
        load_checkpoint(tmp_path, lambda message: None)
    assert not (tmp_path / "executed").exists()


def test_another_format_is_refused(tmp_path):
    path = save_checkpoint(tmp_path, 1, {}, keep=1)
    torch.save({"format": 999, "step": 1}, path)
    with pytest.raises(StateError, match="another version of disk_ops"):
        load_checkpoint(tmp_path, pytest.fail)
