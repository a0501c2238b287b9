"""The README: its example runs, its commands exist, its figures are those of the committed results."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="module")
def readme(repository: Path) -> str:
    return (repository / "README.md").read_text()


def test_examples_run(readme, capsys, monkeypatch):
    cv2 = pytest.importorskip("cv2")
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    blocks = [block for block in blocks if "onnxruntime" not in block]
    assert len(blocks) == 3
    read = cv2.imread
    # A quarter of the pixels tells the same in a quarter of the time.
    monkeypatch.setattr(cv2, "imread", lambda path: cv2.resize(read(path), None, fx=0.5, fy=0.5))
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    found = re.search(r"(\d+) and (\d+) keypoints, (\d+) matches", capsys.readouterr().out)
    assert found is not None and all(int(number) > 100 for number in found.groups())
    assert isinstance(names["local_matcher"], torch.nn.Module)


def test_onnx_example_runs(readme, tmp_path, monkeypatch):
    pytest.importorskip("onnx", reason="onnx is not installed")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    from disk_ops import demo
    from disk_ops.cli import main

    (block,) = (text for text in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "onnxruntime" in text)
    monkeypatch.chdir(tmp_path)
    assert main(["export-onnx", "-o", "disk.onnx"]) == 0
    shutil.copy(demo.IMAGES[0], "photo.jpg")
    names: dict[str, object] = {}  # nothing of the other examples, nor of disk_ops
    assert "disk_ops" not in block
    exec(compile(block, "README.md", "exec"), names)
    assert names["keypoints"].shape == (2048, 2) and names["descriptors"].shape == (2048, 128)


def test_example_is_short(readme):
    block = re.search(r"## Example\n\n```python\n(.*?)```", readme, re.DOTALL)
    assert block is not None
    assert len([line for line in block[1].splitlines() if line.strip()]) <= 10


def test_tables_show_the_committed_results(repository):
    tables = repository / "python" / "benchmarks" / "tables.py"
    result = subprocess.run([sys.executable, tables, "--check"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_commands_exist(readme):
    from disk_ops.arguments import build_parser

    joined = re.sub(r"\\\n\s*", "", readme)
    commands = re.findall(r"^(?:torchrun [^\n]*)?disk-ops (.*?)(?:\s+#.*)?$", joined, re.MULTILINE)
    assert len(commands) == 25
    for command in commands:
        build_parser().parse_args(command.split())


def test_links_lead_somewhere(readme, repository):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", readme):
        assert (repository / target).exists(), target


def test_op_table_is_complete(readme):
    from disk_ops import ops

    for name in ops.__all__:
        if name.islower():
            assert f"`ops.{name}(" in readme, name
