"""The CUDA sources compile without a GPU: kernels by nvcc, without warnings and spills; glue by the host's compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from torch.utils import cpp_extension

ROOT = Path(__file__).resolve().parents[1]
KERNELS = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
GLUE = sorted((ROOT / "csrc" / "cuda").glob("*_cuda.cpp"))
STATIC_SHARED_LIMIT = 48 << 10  # bytes of a block without asking for more
REGISTER_FILE = 65536
THREADS_THAT_FIT = 512  # at least, of every kernel on a multiprocessor: two blocks of 256
ARCHS = ("80", "90")


class KernelUse(NamedTuple):
    """What ptxas says that a kernel takes."""

    name: str
    arch: str
    registers: int
    spilled: int  # bytes stored
    shared: int  # bytes, static


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


def kernel_uses(log: str) -> Iterator[KernelUse]:
    """Read the report of `-Xptxas -v`."""
    for part in log.split("Compiling entry function '")[1:]:
        registers, spilled = re.search(r"Used (\d+) registers", part), re.search(r"(\d+) bytes spill stores", part)
        shared = re.search(r"(\d+) bytes smem", part)
        assert registers and spilled, f"ptxas reports in another form:\n{part}"
        name, _, arch, _ = part.split("'", maxsplit=3)
        yield KernelUse(name, arch, int(registers[1]), int(spilled[1]), int(shared[1]) if shared else 0)


def kernel_command(source: Path, output: Path) -> list[str]:
    command = [find_nvcc(), "-std=c++17", "-O3", "--expt-relaxed-constexpr", "-Xptxas", "-v", "-Werror", "all-warnings"]
    for arch in ARCHS:
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


@pytest.fixture(scope="module")
def compilations(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, subprocess.CompletedProcess[str]]:
    """All sources, as many at a time as there are cores."""
    folder = tmp_path_factory.mktemp("nvcc")
    commands = {source: kernel_command(source, folder / f"{source.stem}.o") for source in KERNELS}
    commands.update({source: glue_command(source) for source in GLUE})
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {
            source: pool.submit(subprocess.run, command, capture_output=True, text=True)
            for source, command in commands.items()
        }
        return {source: result.result() for source, result in running.items()}


@pytest.mark.parametrize("source", KERNELS, ids=lambda path: path.stem)
def test_kernels_compile_without_warnings_or_spills(
    source: Path, compilations: dict[Path, subprocess.CompletedProcess[str]]
) -> None:
    result = compilations[source]
    log = result.stdout + result.stderr
    assert result.returncode == 0, log[-4000:]
    assert "warning" not in log, log[-4000:]
    uses = list(kernel_uses(log))
    assert {use.arch for use in uses} == {f"sm_{arch}" for arch in ARCHS}
    assert [use for use in uses if use.spilled] == []
    assert [use for use in uses if use.shared > STATIC_SHARED_LIMIT] == []
    assert [use for use in uses if use.registers * THREADS_THAT_FIT > REGISTER_FILE] == []


@pytest.mark.parametrize("source", GLUE, ids=lambda path: path.stem)
def test_glue_compiles(source: Path, compilations: dict[Path, subprocess.CompletedProcess[str]]) -> None:
    result = compilations[source]
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
