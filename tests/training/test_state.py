"""Checkpoints: atomic, the last few kept, damaged ones passed over, nothing executed."""

from __future__ import annotations

import pickle

import pytest
import torch

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
    (checkpoint_folder(tmp_path) / "step-000000001.pt").write_bytes(b"")
    with pytest.raises(StateError, match="none of the 1 checkpoints"):
        load_checkpoint(tmp_path, messages.append)


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
    torch.save({"format": 999}, path)
    with pytest.raises(StateError, match="another version of disk_ops"):
        load_checkpoint(tmp_path, pytest.fail)
