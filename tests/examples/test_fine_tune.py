"""python/examples/fine_tune.py: it trains from the weights that are named, and measures on other photographs."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import cv2
import pytest
import torch
from safetensors.torch import save_file

from disk_ops import DISKDetector, demo
from disk_ops.checkpoint import DEFAULT_CHECKPOINT
from disk_ops.training import read_config
from disk_ops.training.config import SourceConfig

SMALL = [
    *("--set", "steps=2", "--set", "data.width=96", "--set", "data.height=96", "--set", "validation.every=0"),
    *("--set", "compute.device=cpu", "--quiet"),
]
RESULT = re.compile(r"(\S+), (\d+) photographs: accuracy (\S+) before, (\S+) after, (\S+) \(standard error (\S+)\)")


@pytest.fixture(scope="module")
def example(repository: Path) -> dict[str, Any]:
    return runpy.run_path(str(repository / "python" / "examples" / "fine_tune.py"))


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten parts of the bundled photographs."""
    folder = tmp_path_factory.mktemp("photographs")
    for path in demo.IMAGES:
        photograph = cv2.imread(str(path))
        for number in range(5):
            cv2.imwrite(
                str(folder / f"{path.stem}_{number}.png"), photograph[200:500, 180 * number : 180 * number + 300]
            )
    return folder


def run(example: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["fine_tune.py", *map(str, arguments)])
    return example["main"]()


def test_training_begins_with_the_weights_and_both_are_measured(
    example: dict[str, Any],
    photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a learning rate of almost nothing all stays as it was: good with trained weights, bad with random ones."""
    torch.manual_seed(0)
    save_file(
        {name: value.contiguous() for name, value in DISKDetector().state_dict().items()},
        tmp_path / "random.safetensors",
    )
    before = {}
    for init in (DEFAULT_CHECKPOINT, str(tmp_path / "random.safetensors")):
        output = tmp_path / Path(init).stem
        options = [*SMALL, "--set", f"model.init={init}", "--set", "optimizer.learning_rate=1e-12"]
        assert run(example, monkeypatch, photographs, "-o", output, "--others", photographs, *options) == 0
        results = RESULT.findall(capsys.readouterr().out)
        held_out = len(example["held_out"](read_config(output / "config.toml")).files)
        assert [(path, int(number)) for path, number, *_ in results] == [
            (str(photographs), held_out),
            (str(photographs), 10),
        ]
        assert all(change == "+0.000" or change == "-0.000" for *_, change, _ in results)
        before[init] = float(results[1][2])
        first = DISKDetector.from_pretrained(init).state_dict()
        for name, value in DISKDetector.from_pretrained(output / "last.safetensors").state_dict().items():
            torch.testing.assert_close(value, first[name], rtol=0, atol=1e-8)
    good, bad = before.values()
    assert good > 0.3 > bad + 0.1


def test_weights_change(
    example: dict[str, Any], photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(example, monkeypatch, photographs, "-o", tmp_path / "run", *SMALL) == 0
    first = DISKDetector.from_pretrained().state_dict()
    last = DISKDetector.from_pretrained(tmp_path / "run" / "last.safetensors").state_dict()
    changes = [(last[name] - value).abs().max() for name, value in first.items()]
    assert 1e-6 < max(changes) < 1e-2  # by a small learning rate


def test_held_out_photographs_are_not_trained_on(example: dict[str, Any], photographs: Path, repository: Path) -> None:
    config = read_config(repository / "python" / "examples" / "fine_tune.toml", [str(photographs)])
    held_out = {file.name for file in example["held_out"](config).files}
    (source,) = config.source
    assert isinstance(source, SourceConfig) and source.options.holdout == 0.2
    trained = {
        file.name
        for file in type(example["held_out"](config))(source.options, example["Frame"](96, 96, 3), "train").files
    }
    assert held_out and trained and not held_out & trained and len(held_out | trained) == 10


def test_accuracy_needs_no_luck(example: dict[str, Any], photographs: Path, repository: Path) -> None:
    """The same photographs give the same views each time, other ones than validation has."""
    settings = ["data.width=96", "data.height=96"]
    config = read_config(repository / "python" / "examples" / "fine_tune.toml", [str(photographs)], settings)
    one, two = (example["accuracies"](example["held_out"](config), DEFAULT_CHECKPOINT, config) for _ in range(2))
    assert one == two and len(one) == len(example["held_out"](config).files)


@pytest.mark.parametrize("what", ["no photographs", "one photograph", "others", "weights", "no weights", "output"])
def test_what_can_not_be_used(
    example: dict[str, Any],
    photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    what: str,
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    if what == "one photograph":
        cv2.imwrite(str(folder / "one.png"), cv2.imread(str(demo.IMAGES[0]))[:300, :300])
    output = tmp_path / "run"
    if what == "output":
        output.mkdir()
        (output / "text.txt").write_text("mine")
    arguments, message = {
        "no photographs": ([folder, *SMALL], "no images found"),
        "one photograph": ([folder, *SMALL], "has no photos for val: 1 in all, holdout is 0.2"),
        "others": ([photographs, "--others", tmp_path / "gone", *SMALL], "no such folder"),
        "weights": ([photographs, *SMALL, "--set", "model.init=gone"], "model.init: checkpoint 'gone' is neither"),
        "no weights": ([photographs, *SMALL, "--set", "model.init="], "model.init must name the weights to begin with"),
        "output": ([photographs, *SMALL], "is not empty and holds no training"),
    }[what]
    assert run(example, monkeypatch, *arguments, "-o", output) in (1, 2)
    assert message in capsys.readouterr().err and not (output / "last.safetensors").exists()
