"""The log of a training: what stands in its files, and that it goes on exactly after any interruption."""

from __future__ import annotations

import builtins
import csv
import io
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from disk_ops.training import logs
from disk_ops.training.logs import HISTORY_COLUMNS, NullLog, TrainingLog


class Clock:
    """Time that passes when told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(logs, "monotonic", clock)
    return clock


def new_log(folder: Path, start_step: int = 0, total: int = 100, **options: object) -> TrainingLog:
    return TrainingLog(folder, total, start_step, **{"quiet": True, "tensorboard": False, "every": 10, **options})


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def column(path: Path, name: str) -> list[float]:
    return [float(row[name]) for row in table(path)]


def train(log: TrainingLog, steps: range) -> None:
    for step in steps:
        log.step(step, {"loss": step, "reward": 2.0 * step})


def test_rows_are_means_of_an_interval(tmp_path: Path) -> None:
    with new_log(tmp_path) as log:
        train(log, range(1, 31))
    assert tuple(table(tmp_path / "history.csv")[0]) == HISTORY_COLUMNS
    assert column(tmp_path / "history.csv", "step") == [10, 20, 30]
    assert column(tmp_path / "history.csv", "loss") == [5.5, 15.5, 25.5]
    assert column(tmp_path / "history.csv", "reward") == [11, 31, 51]
    assert {row["grad_norm"] for row in table(tmp_path / "history.csv")} == {""}  # never told


def test_rows_are_on_disk_at_once(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    train(log, range(1, 11))
    assert column(tmp_path / "history.csv", "step") == [10]
    log.validation(10, {"score": 0.5})
    assert column(tmp_path / "validation.csv", "score") == [0.5]
    log.close()


def test_waiting_and_skipped_steps_are_sums(tmp_path: Path) -> None:
    with new_log(tmp_path) as log:
        for step in range(1, 11):
            bad = step in (3, 4)
            log.step(step, {"loss": math.nan if bad else 1.0, "skipped": bad, "data_seconds": 0.25})
    row = table(tmp_path / "history.csv")[0]
    assert (float(row["loss"]), float(row["skipped"]), float(row["data_seconds"])) == (1.0, 2.0, 2.5)


def test_time_and_speed(tmp_path: Path, clock: Clock) -> None:
    with new_log(tmp_path) as log:
        for step in range(1, 21):
            clock.now += 0.5
            log.step(step, {"pairs": 3})
            if step == 10:
                with log.paused(), log.paused():  # a validation
                    clock.now += 1000
        assert log.seconds == 10
    assert column(tmp_path / "history.csv", "seconds") == [5, 10]
    assert column(tmp_path / "history.csv", "pairs_per_second") == [6, 6]


def test_the_clock_goes_on_after_an_error_in_a_pause(tmp_path: Path, clock: Clock) -> None:
    with new_log(tmp_path) as log:
        with pytest.raises(RuntimeError), log.paused():
            raise RuntimeError
        clock.now += 7
        assert log.seconds == 7


def test_training_seconds_accumulate(tmp_path: Path, clock: Clock) -> None:
    with new_log(tmp_path) as log:
        clock.now += 40
        train(log, range(1, 11))
        clock.now += 2
        log.validation(10, {"score": 1})
    clock.now += 1e6
    with new_log(tmp_path, start_step=10) as log:
        clock.now += 8
        train(log, range(11, 21))
    assert column(tmp_path / "history.csv", "seconds") == [40, 50]


def test_resume_forgets_later_steps(tmp_path: Path) -> None:
    with new_log(tmp_path) as log:
        for step in range(1, 51):
            log.step(step, {"loss": 1.0})
            if step % 10 == 0:
                log.validation(step, {"score": step / 100})
    with new_log(tmp_path, start_step=30) as log:
        assert column(tmp_path / "history.csv", "step") == [10, 20, 30]
        assert column(tmp_path / "validation.csv", "score") == [0.1, 0.2, 0.3]
        log.step(31, {"loss": 5.0})
        log.validation(31, {"score": 0.9})
    assert column(tmp_path / "history.csv", "step") == [10, 20, 30, 31]
    assert column(tmp_path / "validation.csv", "step") == [10, 20, 30, 31]


def test_intervals_stay_multiples_after_a_resume(tmp_path: Path) -> None:
    with new_log(tmp_path) as log:
        train(log, range(1, 18))
    assert column(tmp_path / "history.csv", "step") == [10, 17]  # closing writes what was left
    with new_log(tmp_path, start_step=15) as log:
        train(log, range(16, 31))
    assert column(tmp_path / "history.csv", "step") == [10, 20, 30]
    assert column(tmp_path / "history.csv", "loss") == [5.5, 18, 25.5]


def test_the_last_step_ends_an_interval(tmp_path: Path) -> None:
    log = new_log(tmp_path, total=13)
    train(log, range(1, 14))
    assert column(tmp_path / "history.csv", "step") == [10, 13]
    log.close()
    log.close()
    assert column(tmp_path / "history.csv", "step") == [10, 13]


@pytest.mark.parametrize("cut", [1, 5, 40])
@pytest.mark.parametrize("name", ["history.csv", "validation.csv"])
def test_a_torn_line_is_dropped(tmp_path: Path, name: str, cut: int) -> None:
    with new_log(tmp_path) as log:
        for step in range(1, 31):
            log.step(step, dict.fromkeys(HISTORY_COLUMNS[2:], 1.2345))
            if step % 10 == 0:
                log.validation(step, {"score": 0.123456, "auc_1": 0.123456, "auc_2": 0.123456, "mean": 0.123456})
    path = tmp_path / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])
    with new_log(tmp_path, start_step=30):
        pass
    assert path.read_bytes() == whole[: whole[:-1].rfind(b"\n") + 1]


def test_what_a_crash_of_the_machine_leaves(tmp_path: Path) -> None:
    with new_log(tmp_path) as log:
        train(log, range(1, 21))
    path = tmp_path / "history.csv"
    path.write_bytes(path.read_bytes() + b"\0" * 50 + b"\n" + b"\xff\xfe,1\n")
    with new_log(tmp_path, start_step=20):
        assert column(path, "step") == [10, 20]
    path.write_bytes(b"")
    with new_log(tmp_path, start_step=20):
        assert path.read_text() == ",".join(HISTORY_COLUMNS) + "\n"


def test_a_new_training_starts_afresh(tmp_path: Path, clock: Clock) -> None:
    with new_log(tmp_path) as log:
        log.validation(0, {"score": 0.1})
        clock.now += 50
        train(log, range(1, 11))
    with new_log(tmp_path) as log:
        assert log.seconds == 0
        assert table(tmp_path / "history.csv") == table(tmp_path / "validation.csv") == []


def test_validations_may_gain_metrics(tmp_path: Path) -> None:
    with new_log(tmp_path) as log:
        log.validation(10, {"photos": 0.25, "score": 0.5})
    with new_log(tmp_path, start_step=10) as log:
        log.validation(20, {"score": 0.75, "pose": math.nan})
        log.validation(20, {"score": 0.8, "pose": 1})  # done again after a resume
    rows = table(tmp_path / "validation.csv")
    assert list(rows[0]) == ["step", "seconds", "score", "photos", "pose"]
    assert [(row["score"], row["photos"], row["pose"]) for row in rows] == [("0.5", "0.25", ""), ("0.8", "", "1")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history.csv", "validation.csv"]  # no temporary ones


@pytest.mark.parametrize("name", ["history.csv", "validation.csv"])
@pytest.mark.parametrize("content", ["a,b\n1,2\n", "step,seconds\n" + "9" * 200_000 + ",1\n"])
def test_a_damaged_table_is_put_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    with new_log(tmp_path, start_step=10):
        pass
    assert (tmp_path / f"{name}.damaged").read_text() == content
    assert f"it is {name}.damaged now" in capsys.readouterr().err
    assert table(tmp_path / name) == []


def test_steps_must_rise(tmp_path: Path) -> None:
    with new_log(tmp_path, start_step=10) as log, pytest.raises(ValueError, match="step must be above 10, got 10"):
        log.step(10, {})
    with pytest.raises(ValueError, match="every must be a positive number of steps, got 0"):
        new_log(tmp_path, every=0)


def test_files_are_closed_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), new_log(tmp_path) as log:
        train(log, range(1, 6))
        raise KeyboardInterrupt
    assert log._file.closed
    assert column(tmp_path / "history.csv", "loss") == [3]


KILLED = """
import sys
from pathlib import Path
from disk_ops.training.logs import TrainingLog
log = TrainingLog(Path(sys.argv[1]), 10**9, 0, quiet=True, tensorboard=False, every=1)
for step in range(1, 10**9):
    log.step(step, {"loss": step})
    log.validation(step, {"score": step})
    print(step, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_killed_at_any_moment(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.3)
        os.kill(process.pid, signal.SIGKILL)
        last = int((["1", *process.stdout.read().split("\n")[:-1]])[-1])
    with new_log(tmp_path, start_step=last) as log:
        assert column(tmp_path / "history.csv", "loss") == list(range(1, last + 1))
        assert column(tmp_path / "validation.csv", "score") == list(range(1, last + 1))
        log.step(last + 1, {"loss": 1})


# ---------------------------------------------------------------------------------------------- TensorBoard


def events(folder: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = accumulator.EventAccumulator(str(folder / "tensorboard"))
    result.Reload()
    return result


def test_tensorboard_shows_what_the_tables_hold(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with new_log(tmp_path, tensorboard=True) as log:
        train(log, range(1, 21))
        log.step(21, {"gpu_memory": 3.0})
        log.validation(20, {"score": 0.5, "photos": 0.25})
        log.pictures(20, lambda: {"heatmap": np.full((8, 9, 3), 7, np.uint8)})
    shown = events(tmp_path)
    assert [(event.step, event.value) for event in shown.Scalars("train/loss")] == [(10, 5.5), (20, 15.5)]
    assert [(event.step, event.value) for event in shown.Scalars("train/gpu_memory")] == [(21, 3)]
    assert [(event.step, event.value) for event in shown.Scalars("validation/photos")] == [(20, 0.25)]
    image = shown.Images("heatmap")[0]
    assert (image.step, image.width, image.height) == (20, 9, 8)


def test_tensorboard_forgets_later_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    log = new_log(tmp_path, tensorboard=True)
    train(log, range(1, 51))
    log.close()
    time.sleep(1.1)  # files are named by the second, and read in that order
    log = new_log(tmp_path, start_step=30, tensorboard=True)
    log.step(40, {"loss": 400.0})
    log.close()
    shown = events(tmp_path).Scalars("train/loss")
    assert [(event.step, event.value) for event in shown] == [(10, 5.5), (20, 15.5), (30, 25.5), (40, 400)]


def test_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    original = builtins.__import__

    def without(name: str, *arguments: object) -> object:
        if name == "torch.utils.tensorboard":
            raise ModuleNotFoundError("No module named 'tensorboard'")
        return original(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with new_log(tmp_path, tensorboard=True) as log:
        train(log, range(1, 11))
        log.validation(10, {"score": 1})
        log.pictures(10, lambda: {"a": np.zeros((2, 2, 3), np.uint8)})
    assert column(tmp_path / "history.csv", "loss") == [5.5]
    assert capsys.readouterr().err.count("No module named 'tensorboard'") == 1


# ---------------------------------------------------------------------------------------------- what is shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_shows_how_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with new_log(tmp_path, start_step=40, quiet=False) as log:
        clock.now += 2
        log.step(41, {"reward": 12.345, "keypoints": 400, "pairs": 8})
        log.validation(41, {"score": 0.54321})
        log.note("look here")
    text = terminal.getvalue()
    assert "\nlook here\n" in text or "\rlook here\n" in text
    last = text.rstrip().split("\r")[-1]
    assert "41/100" in last and "reward 12.3, keypoints 400, pairs/s 4, score 0.5432" in last
    assert "\n" in text[text.rfind("41/100") :]  # the bar is finished


def test_a_file_gets_lines_now_and_then(tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture) -> None:
    with new_log(tmp_path, quiet=False) as log:
        for step in range(1, 21):
            clock.now += 10
            log.step(step, {"reward": 5.0})
        log.validation(20, {"score": 0.25})
        log.step(21, {"reward": 5.0})
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"step {step}/100" for step in (6, 12, 18, 20, 21)]
    assert lines[0] == "step 6/100: reward 5, 15:40 left"
    assert lines[3] == "step 20/100: validation score 0.2500"


def test_quiet_tells_notes_only(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with new_log(tmp_path) as log:
        train(log, range(1, 11))
        log.validation(10, {"score": 1})
        log.note("a broken image")
    captured = capsys.readouterr()
    assert captured.err == "a broken image\n" and captured.out == ""


def test_a_null_log_tells_nothing(tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture) -> None:
    with NullLog() as log:
        clock.now += 3
        with log.paused():
            clock.now += 5
        assert log.seconds == 3
        log.step(1, {"loss": 1})
        log.step(1, {"loss": 1})
        log.validation(1, {"score": 1})
        log.pictures(1, lambda: {})
        log.note("quiet")
    assert capsys.readouterr() == ("", "") and not list(tmp_path.iterdir())
    assert all(hasattr(NullLog, name) for name in vars(TrainingLog) if not name.startswith("_"))
