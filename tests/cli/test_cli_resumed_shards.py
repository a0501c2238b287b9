"""Shards of runs that were interrupted, gone on with by any number of processes, moved, lost or damaged."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from sharing import EXTRACT, assert_same, files, interrupt, process, processes
from stored import N, load, save

from disk_ops.cli import main
from disk_ops.io.hdf5 import open_h5, stored_shards
from disk_ops.io.journal import Journal
from disk_ops.workers import Worker


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("interrupted", [1, 2])
def test_another_number_of_processes_goes_on(
    photos: Path, features: Path, output: Path, interrupted: int, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["extract", photos, "-o", output, *EXTRACT]
    interrupt(0, interrupted, 1, *command)
    if interrupted == 2:
        assert process(1, 2, *command) == 0
    told = capsys.readouterr().err
    assert "interrupted: the images done so far are kept in" in told and "--resume" in told
    done = 1 if interrupted == 1 else 1 + len(Worker(1, 2).share(range(5)))
    command.append("--resume")
    assert (processes(size, *command) if size > 1 else [main([str(item) for item in command])]) == [0] * size
    out = capsys.readouterr().out
    made = sum(int(line.split(": ")[1].split()[0]) for line in out.splitlines() if "complete" not in line)
    assert made == 5 - done
    assert_same(output, features)
    assert not [name for name in files(output.parent) if name.endswith(("part", "failed"))]


def test_a_finished_file_of_one_process_is_added_to(photos: Path, output: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    save(folder / "0.png", 0)
    command = ["extract", str(folder), "-o", str(output), *EXTRACT]
    assert main(command) == 0
    for seed in range(1, 4):
        save(folder / f"{seed}.png", seed)
    interrupt(0, 2, 1, *command, "--resume")
    assert set(load(output)) == {"0.png"}  # stays as it is until all is done
    assert processes(2, *command, "--resume") == [0, 0]
    assert set(load(output)) == {f"{seed}.png" for seed in range(4)}
    save(folder / "9.png", 9)
    assert main([*command, "--resume"]) == 0
    assert len(load(output)) == 5 and stored_shards_of(output) == 3
    assert main([*command, "--overwrite"]) == 0
    assert len(load(output)) == 5 and files(output.parent) == {"f.h5"}  # a plain file of one process


def stored_shards_of(path: Path) -> int:
    with open_h5(path) as file:
        return len(stored_shards(file))


def test_a_changed_image_is_taken_from_the_shard_that_has_it_as_it_is(output: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for seed in range(4):
        save(folder / f"{seed}.png", seed)
    command = ["extract", folder, "-o", output, *EXTRACT]
    assert processes(2, *command) == [0, 0]
    for seed in range(4):
        save(folder / f"{seed}.png", seed + 10, 48, 80)
    assert processes(3, *command, "--resume") == [0, 0, 0]
    assert all(arrays["image_size"].tolist() == [80, 48] for arrays in load(output).values())
    assert main(["merge", str(output), "--quiet"]) == 0
    assert all(arrays["image_size"].tolist() == [80, 48] for arrays in load(output).values())


def test_a_run_is_only_gone_on_with_when_asked(photos: Path, output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["extract", photos, "-o", output, *EXTRACT]
    single = [str(item) for item in command]
    interrupt(1, 2, 1, *command)
    capsys.readouterr()
    assert [process(1, 2, *command), process(0, 3, *command), main(single)] == [2, 2, 2]
    told = capsys.readouterr().err.splitlines()
    assert all("f.h5.shards" in line and "is left of an interrupted run" in line for line in told) and len(told) == 3
    assert processes(2, *command, "--overwrite") == [2, 2]
    assert "several processes can't --overwrite: delete" in capsys.readouterr().err
    assert processes(2, *command, "--resume") == [0, 0]
    assert processes(2, *command) == [2, 2]
    assert "f.h5 exists already: use --resume" in capsys.readouterr().err
    assert main(single) == 2
    changed = [*single[:-2], "5", "--quiet"]
    assert processes(2, *changed, "--resume") == [2, 2] and main([*changed, "--resume"]) == 2
    assert capsys.readouterr().err.count(f"n was {N} and is 5 now") == 3
    assert main([*changed, "--overwrite"]) == 0 and files(output.parent) == {"f.h5"}
    # A shard of a run with other settings that was interrupted before it wrote an index.
    interrupt(1, 2, 1, *[*command[:3], output.with_name("g.h5"), *EXTRACT])
    capsys.readouterr()
    assert processes(2, *[*changed[:3], output.with_name("g.h5"), *changed[4:]], "--resume") == [2, 2]
    assert capsys.readouterr().err.count("g.h5.shards/00001-of-00002.h5.part was made with other settings") == 2


def test_an_interrupted_overwrite_by_one_process_goes_on_as_one(photos: Path, output: Path) -> None:
    command = ["extract", photos, "-o", output, *EXTRACT]
    single = [str(item) for item in command]
    assert processes(2, *command) == [0, 0]
    other = [*single[:-2], "7", "--quiet"]
    append = Journal.append

    def stop(journal: Journal, *record: object) -> None:
        if len(journal) == 1:
            raise KeyboardInterrupt
        append(journal, *record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "append", stop)
        assert main([*other, "--overwrite"]) == 130
    assert len(load(output)) == 5
    assert main([*other, "--resume"]) == 0
    assert files(output.parent) == {"f.h5"} and all(len(item["scores"]) == 7 for item in load(output).values())


def test_a_lost_shard_is_named_and_made_again(
    photos: Path, sharded: Path, features: Path, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sharded.parent, output.parent, dirs_exist_ok=True)
    moved = output.with_name("features.h5")  # the folder was moved
    assert_same(moved, features)
    lost = output.with_name("features.h5.shards") / "00001-of-00002.h5"
    lost.unlink()
    assert main(["match", str(moved), "-o", str(output), "--quiet"]) == 2
    assert f"{moved} is an index of several files, of which {lost} is missing" in capsys.readouterr().err
    assert main(["merge", str(moved), "--quiet"]) == 2
    assert str(lost) in capsys.readouterr().err
    assert processes(3, "extract", photos, "-o", moved, *EXTRACT, "--resume") == [0, 0, 0]
    assert f"{lost} is missing: what was in it is made again" in capsys.readouterr().err
    assert_same(moved, features)
    shutil.rmtree(lost.parent)
    assert main(["extract", str(photos), "-o", str(moved), *EXTRACT, "--resume"]) == 0
    assert_same(moved, features)


def test_a_damaged_shard_is_named(sharded: Path, output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(sharded.parent, output.parent, dirs_exist_ok=True)
    shard = output.with_name("features.h5.shards") / "00000-of-00002.h5"
    shard.write_bytes(shard.read_bytes()[:100])
    assert main(["match", str(output.with_name("features.h5")), "-o", str(output)]) == 2
    assert f"{shard}: not an HDF5 file, or a damaged one" in capsys.readouterr().err


@pytest.mark.parametrize("step", ["append", "shard", "index"])
def test_a_full_disk_loses_nothing(photos: Path, features: Path, output: Path, step: str) -> None:
    from disk_ops.io import output as output_module
    from disk_ops.io import sharded_output

    command = ["extract", photos, "-o", output, *EXTRACT]
    assert process(1, 2, *command) == 0
    target, name = {
        "append": (Journal, "append"),
        "shard": (output_module, "write_atomically"),
        "index": (sharded_output, "write_index"),
    }[step]

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28), "somewhere")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, fail)
        assert process(0, 2, *command) == 1
    assert not output.exists()
    assert processes(2, *command, "--resume") == [0, 0]
    assert_same(output, features)


def test_what_a_killed_process_has_left_is_no_result(photos: Path, output: Path) -> None:
    """A name that an earlier run couldn't do, and whose process is not there yet, doesn't make the file complete."""
    command = ["extract", photos, "-o", output, *EXTRACT]
    assert process(0, 2, *command) == 0
    stale = output.with_name("f.h5.shards") / "00001-of-00002.failed"
    names = Worker(1, 2).share(sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.*")))
    stale.write_text(json.dumps(names[:1]))
    assert process(0, 2, *command, "--resume") == 0 and not output.exists()
    remnant = stale.with_name("00001-of-00002.h5.tmp")  # it was killed while it wrote its shard
    remnant.write_text("half")
    assert process(1, 2, *command) == 0
    assert len(load(output)) == 5
