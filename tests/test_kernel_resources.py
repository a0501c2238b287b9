"""What a build says of its CUDA kernels, and what counts as wrong in it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import kernel_resources
from kernel_resources import KernelUse, faults, faults_of_build, kernel_uses


def entry(arch: str = "sm_80", registers: int = 40, spilled: int = 0, shared: str = ", 2048 bytes smem") -> str:
    """As ptxas writes it."""
    return (
        f"ptxas info    : Compiling entry function '_Z3sumPf' for '{arch}'\n"
        f"ptxas info    : Function properties for _Z3sumPf\n"
        f"    0 bytes stack frame, {spilled} bytes spill stores, {spilled} bytes spill loads\n"
        f"ptxas info    : Used {registers} registers, used 1 barriers{shared}, 400 bytes cmem[0]\n"
    )


def step(number: int, name: str, output: str) -> str:
    """As ninja writes it, and pip indents it."""
    command = f"  [{number}/2] nvcc -DX -c -c /src/csrc/cuda/{name} -o /build/{name}.o -O3\n"
    return command + "".join(f"  {line}\n" for line in output.splitlines())


def test_what_ptxas_reports_is_read() -> None:
    log = entry() + entry("sm_90", registers=128, spilled=16, shared="")
    assert list(kernel_uses(log)) == [
        KernelUse("_Z3sumPf", "sm_80", 40, 0, 2048),
        KernelUse("_Z3sumPf", "sm_90", 128, 16, 0),
    ]


def test_another_form_of_report_is_an_error() -> None:
    with pytest.raises(ValueError, match="another form"):
        list(kernel_uses("ptxas info : Compiling entry function 'f' for 'sm_80'\n40 registers\n"))


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (entry(), None),
        (entry(registers=128, shared=f", {48 << 10} bytes smem"), None),
        (entry(spilled=4), "spills 4 bytes"),
        (entry(registers=129), "takes 129 registers"),
        (entry(shared=f", {(48 << 10) + 1} bytes smem"), "of shared memory"),
        (entry("sm_90"), r"compiled for \['sm_90'\], not for \['sm_80'\]"),
        ("", r"compiled for \[\], not for"),
        (entry() + "csrc/cuda/sum.cuh(7): warning #177-D: unused\n", "warning #177-D"),
        (entry() + "ptxas /tmp/sum.ptx, line 7; warning : slow\n", "warning : slow"),
        (entry() + "warning: no files found matching '*.txt'\n", None),
    ],
)
def test_faults_are_named(log: str, message: str | None) -> None:
    found = faults(log, ["8.0"])
    if message is None:
        assert found == []
    else:
        assert len(found) == 1 and re.search(message, found[0]), found


def test_every_source_must_be_in_the_log_of_the_build() -> None:
    kernels = [Path("sum.cu"), Path("product.cu")]
    first = step(1, "sum.cu", entry())
    assert faults_of_build(first + step(2, "product.cu", entry()), ["8.0"], kernels) == []
    assert faults_of_build(first, ["8.0"], kernels) == ["product.cu: isn't compiled in the log of the build"]
    (found,) = faults_of_build(first + step(2, "product.cu", entry(spilled=8)), ["8.0"], kernels)
    assert found.startswith("product.cu: _Z3sumPf for sm_80 spills 8 bytes")
    (found,) = faults_of_build(first + step(2, "product.cu", ""), ["8.0"], kernels)  # without ptxas -v
    assert found.startswith("product.cu: compiled for []")


def test_a_record_is_of_these_sources_and_architectures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_resources, "RECORD", tmp_path / "build" / "cuda-build.json")
    assert not kernel_resources.have_passed(["8.0"])
    kernel_resources.record(["8.0", "9.0"])
    assert kernel_resources.have_passed(["9.0"]) and not kernel_resources.have_passed(["10.0"])
    monkeypatch.setattr(kernel_resources, "digest", lambda: "other sources")
    assert not kernel_resources.have_passed(["9.0"])
    kernel_resources.RECORD.write_text("")
    assert not kernel_resources.have_passed(["9.0"])


def test_the_build_is_asked_for_the_report() -> None:
    makefile = (kernel_resources.ROOT / "Makefile").read_text()
    assert f"NVCC_APPEND_FLAGS := {' '.join(kernel_resources.NVCC_FLAGS)}\n" in makefile
