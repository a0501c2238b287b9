"""Wrong arguments and broken places: one line that says what is wrong, and an exit status."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import pytest
from stored import save

from disk_ops.cli import main
from disk_ops.io.journal import Journal
from disk_ops.programs import extract as extract_program


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["extract", "gone.jpg", "-o", "f.h5"], "no such file or folder: gone.jpg"),
        (["extract", "empty", "-o", "f.h5"], "no images found in empty"),
        (["extract", "a.png", "-o", "empty"], "empty is a folder, a file name is needed"),
        (["extract", "a.png", "-o", "no/f.h5"], "there is no folder no"),
        (["extract", "a.png", "-o", "a.png", "--overwrite"], "a.png is one of the images and the output as well"),
        (["extract", "a.png", "-o", "f.h5", "--weights", "gone"], "--weights gone: "),
        (["extract", "a.png", "-o", "f.h5", "--weights", "a.png"], "--weights a.png: "),
        (["extract", "a.png", "-o", "f.h5", "--device", "abc"], "--device abc can't be used"),
        (["extract", "a.png", "-o", "f.h5", "--device", "meta"], "--device meta can't be used"),
        (["extract", "a.png", "-o", "f.h5", "--mask-dir", "gone"], "--mask-dir gone is not a folder"),
        (["extract", ".", "-o", "f.h5", "--mask-dir", "."], "--mask-dir . is the folder of the images: masks need one"),
        (["match", "gone.h5", "-o", "m.h5"], "gone.h5: no such file"),
        (["match", "a.png", "-o", "m.h5"], "a.png: not an HDF5 file"),
        (["match", "empty", "-o", "m.h5"], "empty is a folder"),
        (["match", "one.h5", "-o", "m.h5"], "holds the features of 1 image; two are needed"),
        (["match", "one.h5", "-o", "one.h5", "--overwrite"], "one.h5 is the features file and the output as well"),
        (["match", "one.h5", "-o", "m.h5", "--pairs", "gone.txt"], "--pairs gone.txt: No such file"),
        (["match", "one.h5", "-o", "m.h5", "--pairs", "a.png"], "--pairs a.png: is not UTF-8 text"),
        (["match", "two.h5", "-o", "m.h5", "--loop-closure", "5"], "--loop-closure needs --sequential K"),
        (["match", "two.h5", "-o", "m.h5", "--quadratic-overlap"], "--quadratic-overlap needs --sequential K"),
        (["match", "two.h5", "-o", "m.h5", "--pair-pattern", "x/*"], "--pair-pattern 'x/*': matches none of 2 images"),
        (["match", "two.h5", "-o", "m.h5", "--pair-pattern", "re:("], "is not a regular expression"),
        (["match", "two.h5", "-o", "m.h5", "--pair-pattern", "re:a"], "needs a group in parentheses"),
        (["demo", "-o", "a.png"], "the folder a.png can't be made"),
    ],
)
def test_what_is_impossible_is_said_in_one_line(
    arguments: list[str],
    reason: str,
    features: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "a.png")
    (tmp_path / "empty").mkdir()
    with h5py.File(features) as file, h5py.File("one.h5", "w") as copy:
        file.copy("a.jpg", copy)
        with h5py.File("two.h5", "w") as two:
            file.copy("a.jpg", two)
            file.copy("a.png", two)
    before = {item: item.stat().st_size for item in tmp_path.iterdir()}
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert reason in told and told.count("\n") == 1 and told.startswith(f"disk-ops {arguments[0]}: error: ")
    assert {item: item.stat().st_size for item in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "required"),
        (["fly"], "invalid choice: 'fly'"),
        (["extract", "a.png"], "required: -o"),
        (["extract", "a.png", "-o", "f.h5", "--n", "0"], "--n: a positive integer or 'all' is needed, got '0'"),
        (["extract", "a.png", "-o", "f.h5", "--window-size", "4"], "an odd positive integer is needed, got '4'"),
        (
            ["extract", "a.png", "-o", "f.h5", "--scales", "1,0"],
            "at most 16, such as 1,0.5,0.25 is needed, got '0'",
        ),
        (["extract", "a.png", "-o", "f.h5", "--scales", "1 0.5"], "such as 1,0.5,0.25 is needed, got '1 0.5'"),
        (["extract", "a.png", "-o", "f.h5", "--scales", "100"], "such as 1,0.5,0.25 is needed, got '100'"),
        (
            ["extract", "a.png", "-o", "f.h5", "--scales", "1,1.0"],
            "must be one or more different numbers, got [1.0, 1.0]",
        ),
        (["extract", "a.png", "-o", "f.h5", "--max-size", "-1"], "--max-size: a positive integer, or 0 for no limit"),
        (
            ["extract", "a.png", "-o", "f.h5", "--score-threshold", "x"],
            "--score-threshold: a number is needed, got 'x'",
        ),
        (["extract", "a.png", "-o", "f.h5", "--score-threshold", "-nan"], "--score-threshold: a number is needed"),
        (["extract", "a.png", "-o", "f.h5", "--max-memory", "0"], "--max-memory: a number above 0 (or inf) is needed"),
        (["extract", "a.png", "-o", "f.h5", "--max-memory", "-1"], "is needed, got '-1'"),
        (["reconstruct", "photos", "-o", "out", "--overwrite", "--max-memory", "0"], "--max-memory: a number above 0"),
        (["extract", "a.png", "-o", "f.h5", "--window-size", "9" * 20], "--window-size: an odd positive integer is"),
        (["extract", "a.png", "-o", "f.h5", "--n", "9" * 20], "--n: a positive integer or 'all' is needed, at most"),
        (["extract", "a.png", "-o", "f.h5", "--n", "9" * 5000], "is needed, at most 2147483647, got '999"),
        (
            ["extract", "a.png", "-o", "f.h5", "--num-workers", "9999"],
            "--num-workers: a positive integer is needed, at",
        ),
        (
            ["reconstruct", "photos", "-o", "out", "--mapper-threads", "9" * 10],
            "needed, at most 1024, got '9999999999'",
        ),
        (
            ["show", "a.png", "-o", "b.png", "--max-lines", "9" * 20],
            "--max-lines: a positive integer is needed, at most",
        ),
        (["extract", "a.png", "-o", "f.h5", "--resume", "--overwrite"], "not allowed with"),
        (["match", "f.h5", "-o", "m.h5", "--ratio", "1.5"], "--ratio: a number above 0 and at most 1 is needed"),
        (["match", "f.h5", "-o", "m.h5", "--sequential", "0"], "a positive integer is needed, got '0'"),
        (["match", "f.h5", "-o", "m.h5", "--sequential", "2", "--exhaustive"], "not allowed with"),
    ],
)
def test_wrong_options(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2 and reason in capsys.readouterr().err


def test_a_programming_error_shows_its_traceback(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(extract_program.Extractor, "__call__", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["extract", str(photos / "a.jpg"), "-o", str(tmp_path / "f.h5")])


def test_a_full_disk_is_no_traceback(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, os.strerror(28), "f.h5.part")

    monkeypatch.setattr(Journal, "append", fail)
    assert main(["extract", str(photos / "a.jpg"), "-o", str(tmp_path / "f.h5")]) == 1
    assert "error: [Errno 28] No space left on device" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_without_write_permission(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o555)
    try:
        assert main(["extract", str(photos), "-o", str(tmp_path / "f.h5")]) == 2
        assert "no permission to write" in capsys.readouterr().err
    finally:
        tmp_path.chmod(0o755)
