"""disk_ops.evaluation.runs: what is kept, made again, divided and chosen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.features import Features
from disk_ops.evaluation.methods import Method
from disk_ops.evaluation.protocol import Item, Protocol, Record
from disk_ops.evaluation.runs import CACHE, RATIOS, Run, _shares, _Unit, run


class Counting(Protocol):
    """Reads a number from an item's file, and remembers what it was asked for."""

    name = "counting"

    def __init__(self, files: list[Path], **settings: Any) -> None:
        self.files, self.settings = files, settings
        self.asked: list[tuple[str, str, int, float | None]] = []

    def items(self) -> list[Item]:
        return [Item(path.stem, (path,)) for path in self.files]

    def evaluate(self, item, method, n, matcher) -> list[Record]:
        self.asked.append((item.name, method.name, n, matcher.ratio))
        method.extract(torch.zeros(3, 4, 4), n)
        text = item.files[0].read_text()
        if text == "stop":
            raise KeyboardInterrupt
        if text == "broken":
            raise EvaluationError(f"{item.files[0]}: is broken")
        return [{"value": float(text), "part": part} for part in range(2)]

    def tables(self, records):
        return []

    def score(self, records) -> float:
        # Best at the ratio that the records' mean value names.
        mean = sum(record["value"] for record in records) / len(records)
        return -abs((records[0]["ratio"] or 1.0) - mean)


class Extracting:
    """A method that counts how often it is asked."""

    def __init__(self, name: str = "m", fingerprint: str = "f") -> None:
        self.calls = 0
        self.method = Method(name, fingerprint, self)

    def __call__(self, image, n) -> Features:
        self.calls += 1
        return Features(torch.zeros(0, 2), torch.zeros(0, 8))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{name}.txt" for name in "abc"]
    for number, path in enumerate(paths):
        path.write_text(str(number))
    return paths


class TestCache:
    def test_records_say_what_they_are_of(self, files, tmp_path) -> None:
        records = run(Counting(files[:1]), [Extracting().method], [8], tmp_path / "out", 0.9)
        common = {"method": "m", "n": 8, "ratio": 0.9, "item": "a", "value": 0.0}
        assert records == [{**common, "part": 0}, {**common, "part": 1}]

    def test_what_is_done_is_not_done_again(self, files, tmp_path) -> None:
        first, again = Counting(files), Counting(files)
        method = Extracting().method
        records = run(first, [method], [8, 4], tmp_path / "out")
        assert run(again, [method], [8, 4], tmp_path / "out") == records
        assert len(first.asked) == 6 and again.asked == []
        assert [record["item"] for record in records[::2]] == ["a", "b", "c"] * 2
        assert [record["n"] for record in records] == [8] * 6 + [4] * 6

    @pytest.mark.parametrize("change", ["file", "settings", "method", "n", "ratio", "item", "damage"])
    def test_what_changed_is_done_again(self, change, files, tmp_path) -> None:
        out = tmp_path / "out"
        run(Counting(files[:1], size=1), [Extracting().method], [8], out, 0.9)
        protocol = Counting(files[:1], size=2 if change == "settings" else 1)
        method = Extracting(fingerprint="g" if change == "method" else "f").method
        if change == "file":
            files[0].write_text("5.5")
        if change == "damage":
            (path,) = (out / CACHE).iterdir()
            path.write_bytes(path.read_bytes()[:-5])
        if change == "item":
            files[0] = files[0].rename(tmp_path / "d.txt")
            protocol.files = files[:1]
        n, ratio = 4 if change == "n" else 8, None if change == "ratio" else 0.9
        records = run(protocol, [method], [n], out, ratio)
        assert len(protocol.asked) == 1
        assert records[0]["value"] == (5.5 if change == "file" else 0)

    def test_the_name_of_a_method_is_no_reason(self, files, tmp_path) -> None:
        run(Counting(files), [Extracting("long").method], [8], tmp_path / "out")
        protocol = Counting(files)
        assert run(protocol, [Extracting("short").method], [8], tmp_path / "out")[0]["method"] == "short"
        assert protocol.asked == []

    def test_an_interruption_loses_the_item_in_hand_only(self, files, tmp_path) -> None:
        files[1].write_text("stop")
        with pytest.raises(KeyboardInterrupt):
            run(Counting(files), [Extracting().method], [8], tmp_path / "out")
        files[1].write_text("1")
        protocol = Counting(files)
        assert len(run(protocol, [Extracting().method], [8], tmp_path / "out")) == 6
        assert [asked[0] for asked in protocol.asked] == ["b", "c"]
        assert all(path.suffix == ".json" for path in (tmp_path / "out" / CACHE).iterdir())

    def test_a_failure_is_named_the_rest_goes_on_and_it_is_tried_again(self, files, tmp_path) -> None:
        files[1].write_text("broken")
        told: list[tuple[str, str]] = []
        measuring = Run(Counting(files), tmp_path / "out", report=lambda *failure: told.append(failure))
        assert [record["item"] for record in measuring.records([Extracting().method], [8])] == list("aacc")
        assert told == [("b (m, n 8)", f"{files[1]}: is broken")] and measuring.failed == ["b (m, n 8)"]
        files[1].write_text("7")
        protocol = Counting(files)
        assert len(run(protocol, [Extracting().method], [8], tmp_path / "out")) == 6
        assert [asked[0] for asked in protocol.asked] == ["b"]

    def test_an_unexpected_error_is_told_with_its_type(self, files, tmp_path) -> None:
        files[1].write_text("no number")
        told = []
        run(Counting(files), [Extracting().method], [8], tmp_path / "out", report=lambda _, reason: told.append(reason))
        assert told == ["ValueError: could not convert string to float: 'no number'"]


class TestRatio:
    def test_the_best_of_each_method_and_number(self, files, tmp_path) -> None:
        for path, value in zip(files, ("0.8", "0.9", "0.85"), strict=True):
            path.write_text(value)
        protocol = Counting(files)
        items = protocol.items()
        measuring = Run(protocol, tmp_path / "out")
        methods = [Extracting("x", "x").method, Extracting("y", "y").method]
        choices = measuring.choose_ratios(methods, [8], items[:2])
        assert {key: choice.ratio for key, choice in choices.items()} == {("x", 8): 0.85, ("y", 8): 0.85}
        assert choices["x", 8].scores["0.85"] == 0 and choices["x", 8].scores["none"] == pytest.approx(-0.15)
        assert {asked[0] for asked in protocol.asked} == {"a", "b"}, "the test's items play no part"
        records = measuring.records(methods, [8], {key: choice.ratio for key, choice in choices.items()}, items[2:])
        assert {record["ratio"] for record in records} == {0.85} and {record["item"] for record in records} == {"c"}

    def test_features_are_made_once_for_all_thresholds(self, files, tmp_path) -> None:
        extracting = Extracting()
        Run(Counting(files), tmp_path / "out").choose_ratios([extracting.method], [8], Counting(files).items())
        assert extracting.calls == 3
        assert len(list((tmp_path / "out" / CACHE).iterdir())) == 3 * len(RATIOS)

    def test_of_equal_scores_the_loosest_threshold(self, files, tmp_path) -> None:
        class Constant(Counting):
            def score(self, records) -> float:
                return 0.5

        choices = Run(Constant(files), tmp_path / "out").choose_ratios(
            [Extracting().method], [8], Counting(files).items()
        )
        assert choices["m", 8].ratio is None

    def test_without_any_result_there_is_no_choice(self, files, tmp_path) -> None:
        files[0].write_text("broken")
        protocol = Counting(files)
        with pytest.raises(EvaluationError, match="--ratio auto: no validation item could be evaluated with m, n 8"):
            Run(protocol, tmp_path / "out").choose_ratios([Extracting().method], [8], protocol.items()[:1])


def test_processes_share_what_is_missing_and_keep_an_image_together() -> None:
    method = Extracting().method
    units = [_Unit(method, 8, Item(name, ()), ratio) for name in "abc" for ratio in (None, 0.9)]
    assert _shares([0, 1, 2, 3, 5], units, 2) == [[0, 1, 5], [2, 3]]
    assert _shares([], units, 3) == [[], [], []]


WORKER = """
import os, sys, time
from pathlib import Path
from disk_ops.evaluation.runs import Run
from disk_ops.group import join
sys.path.insert(0, sys.argv[3])
from test_runs import Counting, Extracting

class Slow(Counting):
    def evaluate(self, item, method, n, matcher):
        records = super().evaluate(item, method, n, matcher)
        if os.environ["RANK"] == "1" and item.name == "d" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if len(sys.argv) > 4:
                os.kill(os.getpid(), 9)
        with (Path(sys.argv[2]) / f"asked{os.getpid()}").open("a") as file:
            file.write(item.name)
        return records

group = join("cpu")
protocol = Slow(sorted(Path(sys.argv[1]).glob("*.txt")))
records = Run(protocol, Path(sys.argv[2]), group).records([Extracting().method], [8])
if group.is_main:
    print("found", "".join(record["item"] for record in records))
group.leave()
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_two_processes_divide_the_work_and_one_may_be_lost(killed, tmp_path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    out.mkdir()
    for number, name in enumerate("abcdef"):
        (data / f"{name}.txt").write_text(str(number))
    (tmp_path / "worker.py").write_text(WORKER)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("--max-restarts", "1", str(tmp_path / "worker.py"), str(data), str(out), str(Path(__file__).parent)),
        *(["kill"] if killed else []),
    ]
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "found aabbccddeeff" in result.stdout
    asked = sorted("".join(path.read_text() for path in out.glob("asked*")))
    assert len(list((out / CACHE).glob("*.json"))) == 6
    if not killed:
        assert asked == list("abcdef") and len(list(out.glob("asked*"))) == 2
    else:
        assert set(asked) == set("abcdef")
        assert asked.count("b") == 1, "what the lost process had done before is not done again"


def test_cache_files_are_json_with_their_key(files, tmp_path) -> None:
    run(Counting(files[:1], size=3), [Extracting().method], [8], tmp_path / "out")
    (path,) = (tmp_path / "out" / CACHE).iterdir()
    content = json.loads(path.read_text())
    assert content["key"]["settings"] == {"size": 3} and content["key"]["method"] == "f"
    assert content["records"] == [{"value": 0.0, "part": 0}, {"value": 0.0, "part": 1}]
