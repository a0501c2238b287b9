"""The CUDA sources compile without a GPU: kernels by nvcc, without warnings and spills; glue by the host's compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import cpp_extension

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import kernel_resources

ROOT = kernel_resources.ROOT
KERNELS = kernel_resources.KERNELS
GLUE = sorted((ROOT / "csrc" / "cuda").glob("*_cuda.cpp"))
ARCHS = ("8.0", "9.0")


def find_nvcc() -> str:
    home = os.environ.get("CUDA_HOME")
    nvcc = (home and shutil.which("nvcc", path=f"{home}/bin")) or shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc: neither in CUDA_HOME nor on PATH")
    return nvcc


def toolkit_include(nvcc: str) -> Path:
    """The toolkit's headers; nvcc on PATH can be a wrapper script elsewhere, so it is asked."""
    dry_run = subprocess.run([nvcc, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True)
    top = re.search(r"(?m)^#\$ TOP=(.+?)\s*$", dry_run.stdout + dry_run.stderr)
    home = Path(top.group(1)).resolve() if top else Path(nvcc).resolve().parents[1]
    for include in (home / "include", *home.glob("targets/*/include")):
        if (include / "cuda_runtime_api.h").is_file():
            return include
    pytest.skip(f"no cuda_runtime_api.h in {home}")


def kernel_command(source: Path, output: Path) -> list[str]:
    command = [find_nvcc(), "-std=c++17", "-O3", "--expt-relaxed-constexpr", *kernel_resources.NVCC_FLAGS]
    for arch in (arch.replace(".", "") for arch in ARCHS):
        command += ["-gencode", f"arch=compute_{arch},code=sm_{arch}"]
    return [*command, "-c", str(source), "-o", str(output)]


def glue_command(source: Path) -> list[str]:
    """A CPU build of torch ships c10/cuda, but not the header with its build options: the define leaves that out."""
    compiler = (os.environ.get("CXX") or "g++").split()
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"no C++ compiler: {compiler[0]} is not on PATH")
    command = [*compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    command += ["-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE", f"-isystem{toolkit_include(find_nvcc())}"]
    return [*command, *(f"-isystem{path}" for path in cpp_extension.include_paths()), str(source)]


@pytest.mark.parametrize("source", KERNELS, ids=lambda path: path.stem)
def test_kernels_compile_without_warnings_or_spills(source: Path, tmp_path: Path) -> None:
    if kernel_resources.have_passed(ARCHS):
        pytest.skip("compiled and checked by make cuda-build")
    result = subprocess.run(kernel_command(source, tmp_path / "kernel.o"), capture_output=True, text=True)
    log = result.stdout + result.stderr
    assert result.returncode == 0, log[-4000:]
    assert kernel_resources.faults(log, ARCHS) == []


@pytest.mark.parametrize("source", GLUE, ids=lambda path: path.stem)
def test_glue_compiles(source: Path) -> None:
    result = subprocess.run(glue_command(source), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]


def test_every_kernel_has_its_triad() -> None:
    """<op>_kernel.{h,cuh,cu} and <op>_cuda.cpp: object files are named by stem, so these must not clash."""
    operations = {path.stem.removesuffix("_kernel") for path in KERNELS}
    assert operations == {path.stem.removesuffix("_cuda") for path in GLUE}
    for operation in operations:
        for suffix in ("_kernel.h", "_kernel.cuh"):
            assert (ROOT / "csrc" / "cuda" / f"{operation}{suffix}").is_file()


@pytest.mark.parametrize("source", sorted((ROOT / "csrc" / "cuda").glob("*_kernel*")), ids=lambda path: path.name)
def test_kernels_know_nothing_of_torch(source: Path) -> None:
    assert not re.search(r"#include\s*[<\"](ATen|torch|c10)/", source.read_text())
