"""disk-ops export-onnx: the file, what is told, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from disk_ops.checkpoint import DEFAULT_CHECKPOINT, find_checkpoint
from disk_ops.cli import main
from disk_ops.training.export import export_weights, read_record

onnx = pytest.importorskip("onnx", reason="onnx is not installed")


def properties(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def shape(path: Path) -> list[int | str]:
    return [d.dim_param or d.dim_value for d in onnx.load(path).graph.input[0].type.tensor_type.shape.dim]


def test_any_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    path = tmp_path / "disk.onnx"
    assert main(["export-onnx", "-o", str(path), "--n", "300"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"wrote {path}: images of any size, opset 17, 4.4 MB"
    assert told[1].startswith(
        "checked in onnxruntime: 300 of the detector's 300 keypoints on a photograph of 500 x 375"
    )
    assert shape(path) == [1, 3, "height", "width"]
    stored = properties(path)
    assert stored["weights"] == DEFAULT_CHECKPOINT and stored["licence"] == "Apache-2.0" and stored["n"] == "300"
    assert json.loads(stored["record"]) == read_record(DEFAULT_CHECKPOINT)
    assert list(tmp_path.iterdir()) == [path]


def test_own_weights_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights, path = tmp_path / "mine.safetensors", tmp_path / "disk.onnx"
    export_weights(load_file(find_checkpoint(DEFAULT_CHECKPOINT)), weights, {"steps": 7})
    options = ["--weights", str(weights), "--size", "96x80", "--window-size", "3", "--score-threshold", "-1.5"]
    assert main(["export-onnx", "-o", str(path), *options]) == 0
    assert "images of 96 x 80 pixels" in capsys.readouterr().out
    assert shape(path) == [1, 3, 80, 96]
    stored = properties(path)
    assert stored["weights"] == "mine.safetensors" and "licence" not in stored and stored["record"] == '{"steps": 7}'
    assert (stored["window_size"], stored["score_threshold"], stored["border"]) == ("3", "-1.5", "1")
    assert not any(str(tmp_path) in value for value in stored.values())

    before = path.read_bytes()
    assert main(["export-onnx", "-o", str(path), "--size", "any"]) == 2
    assert "exists already: use --overwrite to replace it" in capsys.readouterr().err and path.read_bytes() == before
    assert main(["export-onnx", "-o", str(path), "--size", "any", "--overwrite"]) == 0
    assert shape(path) == [1, 3, "height", "width"]


def test_a_model_that_differs_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from disk_ops.onnx import check

    different = check.Agreement(detected=100, exported=100, common=60, scores=0.0, descriptors=0.0)
    monkeypatch.setattr(check, "compare_with_detector", lambda *_: different)
    assert main(["export-onnx", "-o", str(tmp_path / "disk.onnx"), "--size", "96x80"]) == 2
    assert "differs from the detector by more than rounding" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_short_memory_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from disk_ops.onnx import check

    def fail(*_: object) -> None:
        raise Exception("[ONNXRuntimeError] : Failed to allocate memory for requested buffer of size 4294967296")

    monkeypatch.setattr(check, "compare_with_detector", fail)
    assert main(["export-onnx", "-o", str(tmp_path / "disk.onnx"), "--size", "96x80"]) == 2
    assert "--size 96x80, --n 2048: not enough memory to compare" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_onnxruntime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["export-onnx", "-o", str(tmp_path / "disk.onnx"), "--size", "32x32"]) == 0
    told = capsys.readouterr()
    assert "note: the model was not run" in told.err and "pip install onnxruntime" in told.err
    assert "checked: the graph only" in told.out and (tmp_path / "disk.onnx").is_file()


def test_without_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [name for name in sys.modules if name.startswith("disk_ops.onnx")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["export-onnx", "-o", str(tmp_path / "disk.onnx")]) == 2
    told = capsys.readouterr().err
    assert "exporting needs the package onnx (pip install 'disk_ops[onnx]')" in told and told.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["-o", "no/disk.onnx"], "there is no folder no"),
        (["-o", "."], "is a folder, a file name is needed"),
        (["-o", "disk.onnx", "--weights", "gone"], "--weights gone: "),
        (["-o", "w.safetensors", "--weights", "w.safetensors", "--overwrite"], "is the weights and the output as well"),
    ],
)
def test_what_is_impossible_is_said_in_one_line(
    arguments: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    content = find_checkpoint(DEFAULT_CHECKPOINT).read_bytes()
    Path("w.safetensors").write_bytes(content)
    assert main(["export-onnx", *arguments]) == 2
    told = capsys.readouterr().err
    assert reason in told and told.startswith("disk-ops export-onnx: error: ") and told.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]
    assert Path("w.safetensors").read_bytes() == content


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--size", "640"], "--size: a width and a height such as 1024x768 are needed, or any, got '640'"),
        (["--size", "0x5"], "are needed, or any, got '0x5'"),
        (["--size", "9999999999x99999999999"], "--size: a width and a height of at most 32768 are needed"),
        (["--n", "9" * 21], "--n: a positive integer is needed, at most 100000, got '999"),
        (["--window-size", "99999999999999999999"], "--window-size: an odd positive integer is needed, at most 1023"),
        (["--n", "all"], "--n: a positive integer is needed, got 'all'"),
        (["--window-size", "2"], "an odd positive integer is needed, got '2'"),
    ],
)
def test_wrong_options(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["export-onnx", "-o", "disk.onnx", *arguments])
    assert stop.value.code == 2 and reason in capsys.readouterr().err
