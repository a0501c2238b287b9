"""disk-ops evaluate reconstruct: from the command line to the results; the protocol itself has tests of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import sfm_scene

from disk_ops.cli import main

pytest.importorskip("pycolmap")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A scene of plain pictures, on which there are no features."""
    return sfm_scene.write_images(sfm_scene.make_scene(3), tmp_path / "data" / "plain").parent


def test_results_are_written_and_kept(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["evaluate", "reconstruct", str(data), "-o", str(out), "--method", "sift", "rootsift", "--n", "100"]
    assert main([*arguments, "--no-known-intrinsics", "--single-camera", "--max-error", "2"]) == 0
    results = json.loads((out / "results.json").read_text())
    assert [(record["item"], record["method"], record["n"]) for record in results["records"]] == [
        ("plain", "sift", 100),
        ("plain", "rootsift", 100),
    ]
    assert all(record["registered"] == 0 and record["images"] == 3 for record in results["records"])
    settings = results["environment"]["settings"]
    assert settings["max_size"] == 1600 and settings["max_error"] == 2 and settings["single_camera"]
    assert settings["known_intrinsics"] is False and "pycolmap" in settings
    assert "plain" in capsys.readouterr().out and "0 of " in (out / "report.html").read_text(encoding="utf-8")


def test_what_is_impossible(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "reconstruct", str(tmp_path / "gone"), "-o", str(tmp_path / "out")]) == 2
    assert "gone is not a folder" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    assert main(["evaluate", "reconstruct", str(data), "-o", str(tmp_path / "out")]) == 2
    assert "need pycolmap: pip install" in capsys.readouterr().err
