"""``disk-ops train``: settings, dry run, export, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from stored import save

from disk_ops import DISKDetector
from disk_ops.cli import main
from disk_ops.training.config import read_config

QUICK = [
    *("--set", "steps=2", "--set", "data.width=64", "--set", "data.height=64", "--set", "data.workers=0"),
    *("--set", "model.desc_dim=16", "--set", "validation.samples=1", "--set", "validation.n=32"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        save(tmp_path / "photos" / f"{number}.png", number)
    return tmp_path


def test_dry_run_writes_nothing(folder, capsys):
    assert main(["train", "photos-small", "--data", "photos", *QUICK, "--dry-run"]) == 0
    told = capsys.readouterr().out
    for text in ("steps = 2", "a pass, weight 1", "GiB for a sample's activations", "GiB for decoded images"):
        assert text in told
    assert sorted(path.name for path in folder.iterdir()) == ["photos"]


def test_written_config_is_the_same_training(folder, capsys):
    assert main(["train", "photos-small", "--data", "photos", "--write-config", "mine.toml", "--set", "seed=7"]) == 0
    assert read_config("mine.toml") == read_config("photos-small", ["photos"], ["seed=7"])
    assert main(["train", "paper", "--data", "photos", "--write-config", "mine.toml"]) == 2
    assert "mine.toml exists already" in capsys.readouterr().err


def test_export_loads_everywhere(folder, capsys):
    kornia_feature = pytest.importorskip("kornia.feature")
    for name in ("w.safetensors", "w.pth"):
        output = ["-o", f"run-{name}", "--export", name, "--quiet"]
        assert main(["train", "photos-small", "--data", "photos", *QUICK, *output]) == 0
        assert name in capsys.readouterr().out
    weights = DISKDetector.from_pretrained("w.safetensors").state_dict()
    released = torch.load("w.pth", weights_only=True)["extractor"]
    assert all(torch.equal(weights[key], released[key]) for key in weights)
    kornia_feature.DISK(16).load_state_dict(weights)
    half = ["-o", "run-w.pth", "--resume", "--export", "half.safetensors", "--export-dtype", "float16", "--quiet"]
    assert main(["train", *half]) == 0
    rounded = load_file("half.safetensors")
    assert all(torch.equal(rounded[key], weights[key].half()) for key in weights)


def test_resume_needs_no_configuration(folder, capsys):
    assert main(["train", "photos-small", "--data", "photos", *QUICK, "-o", "run", "--quiet"]) == 0
    assert main(["train", "-o", "run", "--resume", "--set", "checkpoint.keep=1", "--quiet"]) == 0


def test_overwrite_removes_a_training_and_nothing_else(folder, capsys):
    arguments = ["train", "photos-small", "--data", "photos", *QUICK, "-o", "run", "--quiet"]
    assert main(arguments) == 0
    assert main(arguments) == 2
    assert "run holds a training: use --resume" in capsys.readouterr().err
    assert main([*arguments, "--overwrite"]) == 0
    arguments[arguments.index("run")] = "photos"
    assert main([*arguments, "--overwrite"]) == 2
    assert len(list((folder / "photos").iterdir())) == 4


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_an_export_replaces_only_itself(folder, capsys, name):
    begin = ["train", "photos-small", "--data", "photos", *QUICK, "-o", "run", "--quiet"]
    resume = ["train", "-o", "run", "--resume", "--quiet", "--export"]
    for own in ("run/last.safetensors", "./run/../run/checkpoints/step-000000002.pt", "run/best.safetensors"):
        assert main([*begin, "--export", own]) == 2
    assert "is a file of the training itself" in capsys.readouterr().err
    assert main([*begin, "--overwrite", "--export", name]) == 0
    assert main([*resume, name]) == 0
    assert main([*begin, "--set", "seed=1", "--overwrite"]) == 0
    for path in (Path(name), Path("other.pth")):
        path.touch()
        content = path.read_bytes()
        assert main([*resume, str(path)]) == 2
        assert f"{path} exists already and is no export of this training" in capsys.readouterr().err
        assert path.read_bytes() == content


def test_short_memory_is_explained(folder, capsys, monkeypatch):
    def fail(*arguments):
        raise MemoryError

    arguments = ["train", "photos-small", "--data", "photos", *QUICK, "-o", "run", "--quiet"]
    for kept in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr("disk_ops.training.run.open_data", fail)
            assert main([*arguments, "--resume"]) == 2
        told = capsys.readouterr().err
        assert "set compute.memory_gb" in told and ("the last checkpoint is kept" in told) == kept
        assert main([*arguments, "--resume"]) == 0


def test_the_help_tells_how_it_exits(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "0 trained to the end" in told and "some items failed" not in told


def test_a_path_that_is_not_utf_8_is_trained_on(folder, capsys):
    photos = (folder / "photos").rename(folder / os.fsdecode(b"caf\xe9"))
    arguments = ["train", "photos-small", "--data", photos.name, *QUICK]
    assert main([*arguments, "--dry-run"]) == 0
    assert main([*arguments, "-o", "run", "--quiet"]) == 0
    assert main(["train", "-o", "run", "--resume", "--quiet"]) == 0
    capsys.readouterr()
    assert main([*arguments, "-o", os.fsdecode(b"r\xe9"), "--quiet"]) == 2
    assert "its path must be UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["photos-smal", "--data", "photos", "-o", "r"], "photos-smal is neither a file nor a preset"),
        (["photos-small", "--data", "gone", "-o", "r"], "gone"),
        (["photos-small", "--data", "empty", "-o", "r"], "empty"),
        (["photos-small", "--data", "", "-o", "r"], "path must name a folder of photographs, got an empty one"),
        (["photos-small", "--data", "homography:", "-o", "r"], "path must name a folder of homography sets"),
        (["photos-small", "--data", "rgbd:", "-o", "r"], "path must be a folder, got ''"),
        (["photos-small", "--data", "scenes:", "-o", "r"], "path must be a folder, got ''"),
        (["photos-small", "--data", "disk-dataset:", "-o", "r"], "no dataset.json, and no train/dataset.json, in ''"),
        (
            ["photos-small", "--data", "~nobody_x/p", "-o", "r"],
            "path '~nobody_x/p' can't be used: there is no such user",
        ),
        (["photos-small", "-o", "r"], "source must name data to train on"),
        (["photos-small", "--data", "photos"], "-o FOLDER is needed"),
        (["-o", "r"], "a configuration is needed"),
        (["-o", "r", "--resume"], "a configuration is needed"),
        (["photos-small", "--data", "photos", "-o", "r", "--set", "optimizer.lr=1"], "unknown setting optimizer.lr"),
        (["photos-small", "--data", "photos", "-o", "r", "--export", "w.txt"], "w.txt: weights of type '.txt'"),
        (["photos-small", "--data", "photos", "-o", "r", "--set", "compute.device=abc"], "compute.device must be auto"),
        (["photos-small", "--data", "photos", "-o", "r", "--set", "model.init=gone"], "gone"),
        (["photos-small", "--data", "photos", "-o", "photos"], "photos is not empty"),
        (["photos-small", "--data", "photos", "-o", "photos/0.png"], "photos/0.png is no folder"),
        (["photos-small", "--data", "photos", "-o", "photos/0.png", "--resume"], "photos/0.png is no folder"),
        (["photos-small", "--data", "photos", "-o", "photos/0.png/run"], "photos/0.png/run can't be used"),
        (["photos-small", "--data", "photos", "-o", "r", "--set", "preset=paper"], "preset can't be set"),
        (["photos-small", "--data", "photos", "-o", "r", "--set", "compute.device=mps"], "compute.device must be auto"),
        (["photos-small", "--data", "photos", "-o", "r", "--set", "compute.device=cuda:99"], "needs GPU 99"),
    ],
)
def test_what_is_impossible_is_said_in_one_line(folder, arguments, reason, capsys):
    (folder / "empty").mkdir()
    assert main(["train", *arguments, "--quiet"]) == 2
    told = capsys.readouterr().err
    assert reason in told and told.startswith("disk-ops train: error: ") and told.count("\n") == 1
    assert not (folder / "r" / "checkpoints").exists()
