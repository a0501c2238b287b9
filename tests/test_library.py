"""Loading the compiled ops, doing without them, and the environment report."""

from __future__ import annotations

import importlib.machinery
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import disk_ops
from disk_ops import __main__ as report
from disk_ops import _library

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(disk_ops.__file__).resolve().parent
SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
OTHER_DEVICES = ("CUDA", "MPS", "XPU", "HPU", "PrivateUse1")

# Both ops through the dispatcher and through the public functions, against values that are known or brute force.
USE_OPS = """
import torch, disk_ops
from disk_ops._library import library_status
heatmap = torch.zeros(1, 1, 20, 20)
heatmap[0, 0, 3, 7], heatmap[0, 0, 3, 8], heatmap[0, 0, 15, 2] = 2.0, 1.0, 3.0
for xy, scores, valid in (
    torch.ops.disk_ops.nms_topk(heatmap, 3, 5, 0.0, 0, None),
    disk_ops.ops.nms_topk(heatmap, 3),
):
    assert xy.tolist() == [[[2, 15], [7, 3], [0, 0]]], xy
    assert scores.tolist() == [[3.0, 2.0, 0.0]] and valid.tolist() == [[True, True, False]]
a, b = torch.randn(1, 33, 16), torch.randn(1, 21, 16)
best, index = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").topk(2, dim=2, largest=False)
best2, index2 = torch.cdist(b, a, compute_mode="donot_use_mm_for_euclid_dist").topk(2, dim=2, largest=False)
for found in (torch.ops.disk_ops.nearest_neighbors(a, b, None, None), disk_ops.ops.nearest_neighbors(a, b)):
    torch.testing.assert_close(found[0], best)
    torch.testing.assert_close(found[2], best2)
    assert torch.equal(found[1], index) and torch.equal(found[3], index2)
"""
# What torch.compile, export and autograd need of an op.
CHECK_OPS = """
torch.library.opcheck(torch.ops.disk_ops.nms_topk.default, (torch.rand(1, 1, 9, 9), 4, 3, 0.0, 0, None))
torch.library.opcheck(torch.ops.disk_ops.nearest_neighbors.default, (a, b, None, None))
weights = torch.rand(1, 1, 9, 9, requires_grad=True)
disk_ops.ops.nms_topk(weights, 2).scores.sum().backward()
assert weights.grad.sum() == 2
"""
SAY = "print(library_status().loaded, library_status().reason, sep='|')"


def run(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the copy of the package that lies in `package`."""
    environ = {**os.environ, "PYTHONPATH": str(package)}
    command = [sys.executable, "-W", "always::RuntimeWarning", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=package, env=environ)


def use(package: Path, code: str = "") -> subprocess.CompletedProcess[str]:
    result = run(package, "-c", f"{USE_OPS}\n{code}\n{SAY}")
    assert result.returncode == 0, result.stderr
    return result


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with a copy of the package without its compiled library."""
    ignore = shutil.ignore_patterns("_C.*", "_build_info.json", "__pycache__", "demo")
    shutil.copytree(PACKAGE, tmp_path / "disk_ops", ignore=ignore)
    return tmp_path


def add_library(copy: Path, torch_version: str, content: bytes | None = None) -> None:
    """Put a library for `torch_version` into the copy: with `content`, or the real one."""
    (source,) = [path for path in PACKAGE.glob("_C.*") if path.name.endswith(SUFFIX)]
    target = copy / "disk_ops" / source.name
    if content is None:
        shutil.copy(source, target)
    else:
        target.write_bytes(content)
    record = {"torch": torch_version, "with_cuda": "0", "decision": "disk_ops: building CPU ops only: for a test"}
    (copy / "disk_ops" / "_build_info.json").write_text(json.dumps(record))


class TestCompiled:
    def test_is_loaded(self):
        status = _library.library_status()
        assert status.loaded, status.reason
        assert status.reason is None
        assert status.build_info["torch"] == torch.__version__
        assert all(isinstance(value, str) for value in status.build_info.values())
        assert {"torch", "cuda", "archs", "compiler", "flags", "with_cuda"} <= set(status.build_info)

    def test_record_agrees_with_the_library(self):
        assert _library._read_build_info(PACKAGE / "_build_info.json") == _library.library_status().build_info

    @pytest.mark.parametrize("op", _library.OPS)
    def test_cpu_kernel_is_native(self, op):
        assert _library.has_native_kernel(op, "CPU")
        table = torch._C._dispatch_dump_table(f"disk_ops::{op}")
        (cpu,) = re.findall(r"(?m)^CPU: .*$", table)
        assert "_cpu.cpp" in cpu and "[kernel]" in cpu  # not shadowed by the reference

    @pytest.mark.parametrize("op", _library.OPS)
    @pytest.mark.parametrize("key", OTHER_DEVICES)
    def test_every_other_device_has_a_kernel(self, op, key):
        assert torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"disk_ops::{op}", key)
        if not _library.has_native_kernel(op, key):
            table = torch._C._dispatch_dump_table(f"disk_ops::{op}")
            assert re.search(rf"(?m)^{key}: .*_library\.py.*default backend kernel", table)

    def test_loading_twice_is_harmless(self):
        assert _library.load() is _library.load()

    def test_no_warning(self, copy):
        add_library(copy, torch.__version__)
        result = use(copy)
        assert result.stdout.startswith("True|None")
        assert "RuntimeWarning" not in result.stderr

    @pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc/self/maps")
    def test_threads_are_those_of_torch(self):
        """at::parallel_for runs in parallel only if compiled with OpenMP, and on torch's pool with torch's runtime."""
        assert "-fopenmp" in _library.library_status().build_info["flags"]
        torch.ops.disk_ops.nearest_neighbors(torch.rand(1, 64, 8), torch.rand(1, 64, 8), None, None)
        maps = Path("/proc/self/maps").read_text()
        library = next(PACKAGE.glob(f"_C*{SUFFIX}"))
        needed = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=False).stdout
        assert library.name in maps
        assert not re.search(r"libgomp.*/(usr/)?lib/", needed)

    @pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc/self/task")
    def test_as_many_threads_as_torch_is_told(self):
        """Also where the environment asks for one: tests of several threads set their number themselves."""
        code = (
            "import os, torch, disk_ops\n"
            "def threads(number):\n"
            "    torch.set_num_threads(number)  # which starts threads for other libraries\n"
            "    before = len(os.listdir('/proc/self/task'))\n"
            "    torch.ops.disk_ops.nearest_neighbors(torch.rand(1, 999, 64), torch.rand(1, 999, 64), None, None)\n"
            "    return len(os.listdir('/proc/self/task')) - before\n"
            "print(threads(1), threads(3))"
        )
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        assert result.stdout.split() == ["0", "2"], result.stderr


class TestSchemas:
    def test_one_list(self):
        """csrc/ops.cpp, _library.SCHEMAS and what is registered say the same."""
        text = (ROOT / "csrc" / "ops.cpp").read_text()
        definitions = re.findall(r'm\.def\(\s*((?:"[^"]*"\s*)+)', text)
        native = ["".join(re.findall(r'"([^"]*)"', definition)) for definition in definitions]
        assert tuple(native) == _library.SCHEMAS
        for op, schema in zip(_library.OPS, _library.SCHEMAS, strict=True):
            assert str(getattr(torch.ops.disk_ops, op).default._schema) == f"disk_ops::{schema}"

    def test_every_op_has_a_reference(self):
        from disk_ops import reference

        assert all(callable(getattr(reference, op)) for op in _library.OPS)


class TestFallback:
    def test_no_compiled_library(self, copy):
        code = "print([str(getattr(torch.ops.disk_ops, op).default._schema) for op in disk_ops._library.OPS])"
        result = use(copy, CHECK_OPS + code)
        schemas, status = result.stdout.splitlines()
        assert schemas == str([f"disk_ops::{schema}" for schema in _library.SCHEMAS])
        assert status.startswith("False|disk_ops has no compiled library here: install with pip install")
        assert result.stderr.count("RuntimeWarning") == 1
        assert "pure-PyTorch" in result.stderr

    def test_another_torch_version(self, copy):
        """The library is whole and would load: it must not, as nobody knows what would happen then."""
        add_library(copy, "1.99.0")
        message = f"disk_ops was built for torch 1.99.0 (you have {torch.__version__}): "
        message += "reinstall with pip install --no-build-isolation ."
        result = use(copy, CHECK_OPS + "import sys; assert 'disk_ops._C' not in sys.modules")
        assert message in result.stdout
        assert message in result.stderr
        assert result.stderr.count("RuntimeWarning") == 1

    def test_library_that_does_not_load(self, copy):
        add_library(copy, torch.__version__, b"not a library")
        result = use(copy)
        assert result.stdout.startswith("False|")
        assert "does not load" in result.stdout and "reinstall" in result.stderr

    def test_compiled_for_another_python(self, tmp_path):
        (tmp_path / "_C.cpython-38-x86_64-linux-gnu.so").touch()
        status = _library._load_compiled(tmp_path)
        assert not status.loaded
        assert "(only _C.cpython-38-x86_64-linux-gnu.so, for another Python)" in status.reason

    @pytest.mark.parametrize("record", [None, "", "[]", '{"cuda": "13.0"}', "{"])
    def test_no_record_of_what_it_was_built_for(self, tmp_path, record):
        (tmp_path / f"_C{SUFFIX}").touch()
        if record is not None:
            (tmp_path / "_build_info.json").write_text(record)
        status = _library._load_compiled(tmp_path)
        assert not status.loaded
        assert "no _build_info.json" in status.reason and "reinstall" in status.reason

    @pytest.mark.filterwarnings("error")
    def test_device_without_kernels_is_told_once(self, monkeypatch):
        from disk_ops import reference

        class Elsewhere:
            device = torch.device("mps")

        monkeypatch.setattr(_library, "_warned", set())
        monkeypatch.setattr(reference, "nms_topk", lambda *args: "result")
        kernel = _library._reference_kernel("nms_topk")
        with pytest.warns(RuntimeWarning, match="no compiled kernels for mps tensors"):
            assert kernel(Elsewhere()) == "result"
        assert kernel(Elsewhere()) == "result"  # a second warning would be an error

    def test_cuda_message_says_why(self, monkeypatch):
        status = _library.LibraryStatus(True, None, {"decision": "disk_ops: building CPU ops only: no nvcc"})
        monkeypatch.setattr(_library, "_status", status)
        assert "building CPU ops only: no nvcc" in _library._no_native_kernels("cuda")


class TestReport:
    def test_runs(self, copy):
        add_library(copy, torch.__version__)
        result = run(copy, "-m", "disk_ops")
        assert result.returncode == 0, result.stderr
        for text in ("disk_ops", torch.__version__, "compiler", "threads", "SIMD level", "advice"):
            assert text in result.stdout
        for op in _library.OPS:
            assert re.search(rf"(?m)^  {op} +cpu: native +cuda: (native|reference) +other: reference$", result.stdout)

    def test_with_arguments_is_the_command(self, copy):
        add_library(copy, torch.__version__)
        result = run(copy, "-m", "disk_ops", "extract", "nowhere", "-o", "features.h5")
        assert result.returncode == 2 and "disk-ops extract: error:" in result.stderr and "nowhere" in result.stderr
        result = run(copy, "-m", "disk_ops", "trian")
        assert result.returncode == 2 and "trian" in result.stderr and not result.stdout

    def test_without_the_library(self, copy):
        result = run(copy, "-m", "disk_ops")
        assert result.returncode == 0, result.stderr
        assert re.search(r"loaded +no", result.stdout)
        for op in _library.OPS:
            assert re.search(rf"(?m)^  {op} +cpu: reference +cuda: reference +other: reference$", result.stdout)
        assert "install with pip install --no-build-isolation ." in result.stdout.partition("advice")[2]

    def test_advises_cuda_torch_without_cuda_ops(self, monkeypatch):
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(_library, "has_native_kernel", lambda op, key: key == "CPU")
        assert any("DISK_OPS_CUDA=1 pip install" in note and "CUDA 13.x" in note for note in report.advice())

    def test_advises_gpu_that_was_not_built_for(self, monkeypatch):
        status = _library.LibraryStatus(True, None, {"with_cuda": "1", "archs": "8.0;8.6"})
        monkeypatch.setattr(_library, "library_status", lambda: status)
        monkeypatch.setattr(_library, "has_native_kernel", lambda op, key: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
        assert any("TORCH_CUDA_ARCH_LIST=9.0" in note for note in report.advice())

    @pytest.mark.parametrize(
        ("archs", "capability", "covered"),
        [
            ("8.0;9.0", (8, 0), True),
            ("8.0;9.0", (8, 9), True),  # machine code runs on later minor versions
            ("8.6;9.0", (8, 0), False),
            ("8.0;9.0", (10, 0), False),
            ("8.0;9.0+PTX", (12, 0), True),
            ("8.0 9.0", (9, 0), True),
            ("9.0+PTX", (8, 0), False),
            ("Hopper", (9, 0), True),  # names are not judged
        ],
    )
    def test_covers(self, archs, capability, covered):
        assert report.covers(archs, capability) == covered
