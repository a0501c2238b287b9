"""extract and match by real processes, one of them killed, under torchrun or any other launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sharing import EXTRACT, assert_same, environment, files, process, processes
from stored import N, load, save

from disk_ops.cli import main

_KILLED = """
import os, signal, sys
from disk_ops.cli import main
from disk_ops.io import journal
append = journal.Journal.append
def stop(self, *arguments):
    append(self, *arguments)
    if os.environ["RANK"] == "1" and not os.path.exists({mark!r}):
        open({mark!r}, "w").close()
        self._file.truncate(self._end - 100)  # as if the last write had not been finished
        os.kill(os.getpid(), signal.SIGKILL)
journal.Journal.append = stop
sys.exit(main(sys.argv[1:]))
"""


def start(rank: int, size: int, *command: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env={**os.environ, **environment(rank, size)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def many(folder: Path, count: int = 12) -> Path:
    for seed in range(count):
        save(folder / f"{seed}.png", seed, 64 + seed, 96)
    return folder


@pytest.mark.slow
def test_one_of_two_processes_killed_in_the_middle(tmp_path: Path, output: Path) -> None:
    folder, program = many(tmp_path / "photos"), tmp_path / "killed.py"
    program.write_text(_KILLED.format(mark=str(tmp_path / "mark")))
    arguments = ["extract", folder, "-o", output, *EXTRACT]
    assert main([str(item) for item in [*arguments[:3], tmp_path / "one.h5", *EXTRACT]]) == 0
    both = [start(rank, 2, program, *arguments) for rank in (0, 1)]
    assert [one.wait(timeout=600) for one in both] == [0, -signal.SIGKILL]  # nobody waits for the lost one
    both[0].communicate(), both[1].communicate()
    names = {"f.h5.shards/00000-of-00002.h5", "f.h5.shards/00001-of-00002.h5.part"}
    assert files(output.parent) == names
    both = [start(rank, 2, program, *arguments, "--resume") for rank in (0, 1)]
    told = [one.communicate(timeout=600) for one in both]
    assert [one.returncode for one in both] == [0, 0], told
    assert "0 images, 0 features, 6 done before" in told[0][0]
    assert "6 images" in told[1][0] and "only half written" in told[1][1]
    assert_same(output, tmp_path / "one.h5")


def torchrun(*arguments: object) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("torch.distributed.run")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_torchrun_starts_all_again_after_one_was_killed(tmp_path: Path, output: Path) -> None:
    folder, program = many(tmp_path / "photos"), tmp_path / "killed.py"
    program.write_text(_KILLED.format(mark=str(tmp_path / "mark")))
    arguments = ["extract", folder, "-o", output, *EXTRACT]
    assert main([str(item) for item in [*arguments[:3], tmp_path / "one.h5", *EXTRACT]]) == 0
    result = torchrun("--max-restarts", "1", "--", program, *arguments)
    assert result.returncode == 0 and (tmp_path / "mark").exists(), result.stderr
    assert_same(output, tmp_path / "one.h5")


@pytest.mark.slow
def test_torchrun_on_images_and_pairs(tmp_path: Path, output: Path) -> None:
    folder = many(tmp_path / "photos", 6)
    broken = folder / "broken.png"
    broken.write_text("no image")
    result = torchrun("-m", "--", "disk_ops.cli", "extract", folder, "-o", output, "--n", N)
    assert result.returncode == 1 and result.stderr.count("failed: broken.png: ") == 1, result.stderr
    assert "complete, 6 images in 2 files, 1 failed" in result.stdout
    matches = output.with_name("m.h5")
    result = torchrun("-m", "--", "disk_ops.cli", "match", output, "-o", matches)
    assert result.returncode == 0 and "complete, 15 pairs in 2 files" in result.stdout, result.stderr
    assert result.stderr.count("15/15") == 0  # no bar where there is no terminal
    main(["match", str(output), "-o", str(tmp_path / "one.h5"), "--quiet"])
    assert_same(matches, tmp_path / "one.h5")


@pytest.mark.slow
def test_a_second_run_on_the_same_file_is_refused(tmp_path: Path, output: Path) -> None:
    pytest.importorskip("fcntl")
    folder, program = many(tmp_path / "photos", 4), tmp_path / "slow.py"
    mark = tmp_path / "mark"
    program.write_text(
        "import sys, time\nfrom disk_ops.cli import main\nfrom disk_ops.io import journal\n"
        "append = journal.Journal.append\n"
        f"def slow(self, *record):\n    append(self, *record)\n    open({str(mark)!r}, 'w').close()\n"
        "    time.sleep(3600)\n"  # it is stopped before
        "journal.Journal.append = slow\nsys.exit(main(sys.argv[1:]))\n"
    )
    command = ["extract", folder, "-o", output, *EXTRACT]
    running = start(1, 2, program, *command)
    try:
        end = time.monotonic() + 600
        while not mark.exists():
            assert running.poll() is None and time.monotonic() < end
            time.sleep(0.1)
        part = output.with_name("f.h5.shards") / "00001-of-00002.h5.part"
        size = part.stat().st_size
        statuses = [process(1, 2, *command, "--resume"), process(0, 3, *command, "--resume")]
        single = [str(item) for item in command]
        statuses += [main([*single, "--resume"]), main([*single, "--overwrite"])]
        assert statuses == [2, 2, 2, 2] and part.stat().st_size == size
        running.terminate()
        assert running.wait(timeout=300) == 128 + signal.SIGTERM
        assert "interrupted: the images done so far are kept in" in running.communicate()[1]
    finally:
        running.kill()
        running.communicate()
    assert processes(3, *command, "--resume") == [0, 0, 0]
    assert len(load(output)) == 4
