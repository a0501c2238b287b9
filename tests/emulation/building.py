"""Compiles the emulated kernels with the host's C++ compiler, once: later runs find the result under ``build/``."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[2]
EMULATION = ROOT / "tests" / "emulation"


def host_compiler() -> str:
    """The C++ compiler, or a skip that says why."""
    if platform.system() != "Linux":
        pytest.skip(f"the CUDA emulator runs on Linux, this is {platform.system()}")
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler.split()[0]) is None:
        pytest.skip(f"no C++ compiler: {compiler} is not on PATH")
    return compiler


def has_fma() -> bool:
    """Whether fused multiply-adds are one instruction here; without, they are calls, exact but slow."""
    try:
        return " fma " in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def compile_cached(source: Path, flags: Iterable[str], suffix: str) -> Path:
    """Compile and link ``source`` unless that was done before with these flags and these sources."""
    inputs = sorted([source, *ROOT.glob("csrc/*.*"), *ROOT.glob("csrc/cuda/*.*"), *EMULATION.glob("*.h")])
    command = [*host_compiler().split(), "-DDISK_EMULATED", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
    command += [f"-I{EMULATION}", *(["-mfma"] if has_fma() else []), *flags]
    state = hashlib.sha256("\0".join(command).encode())
    for path in inputs:
        state.update(path.read_bytes())
    target = ROOT / "build" / "emulation" / f"{source.stem}-{state.hexdigest()[:16]}{suffix}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):  # the tests may run in several processes
        if not target.exists():
            compile_to(target, [command[0], str(source), *command[1:]])  # libraries come after what needs them
    return target


def compile_to(target: Path, command: list[str]) -> None:
    partial = target.with_name(f"{target.name}.partial")  # renamed when complete
    result = subprocess.run([*command, "-o", str(partial)], capture_output=True, text=True)
    if result.returncode != 0:
        pytest.fail(f"{target.name} doesn't compile:\n{result.stderr[-4000:]}", pytrace=False)
    partial.rename(target)


def emulated_ops() -> Path:
    """The library that registers ``torch.ops.disk_ops_emu``."""
    import torch
    from torch.utils import cpp_extension

    libraries = Path(torch.__file__).parent / "lib"
    flags = ["-std=c++20", "-O2", "-g0", "-fPIC", "-shared", "-U_FORTIFY_SOURCE"]  # fortified longjmp stops at fibers
    flags += [f"-isystem{path}" for path in cpp_extension.include_paths()]
    flags += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    flags += [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lc10", "-ltorch_cpu", "-ltorch"]
    return compile_cached(EMULATION / "emulated_ops.cpp", flags, ".so")


def sanitized_kernels(sanitizer: str, *defines: str) -> Path:
    """The stand-alone program, which needs no torch, under a sanitizer."""
    optimised = "-O0" if "undefined" in sanitizer or defines else "-O1"  # what compiles and runs faster as a whole
    flags = ["-std=c++17", optimised, "-g1", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", *defines]
    return compile_cached(EMULATION / "test_kernels.cpp", flags, "")
