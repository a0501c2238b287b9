"""What compiled CUDA kernels take of a multiprocessor, read from the compiler's report, and whether that is too much.

`-Xptxas -v` makes nvcc report it. `make cuda-build` checks the report of the build that it installs and keeps a record
of the sources that passed; tests/test_nvcc.py compiles these sources by itself where there is no such record.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "build" / "cuda-build.json"
KERNELS = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
NVCC_FLAGS = ("-Xptxas", "-v", "-Werror", "all-warnings")  # as the Makefile has them in NVCC_APPEND_FLAGS
STATIC_SHARED_LIMIT = 48 << 10  # bytes of a block without asking for more
REGISTER_FILE = 65536
THREADS_THAT_FIT = 512  # at least, of every kernel on a multiprocessor: two blocks of 256
WARNING = re.compile(r"(csrc/|nvcc|ptxas|nvlink).*\bwarning\s*[#:]")  # not those of setuptools in the same log


class KernelUse(NamedTuple):
    """What ptxas says that a kernel takes."""

    name: str
    arch: str
    registers: int
    spilled: int  # bytes stored
    shared: int  # bytes, static


def kernel_uses(log: str) -> Iterator[KernelUse]:
    """Read the report of `-Xptxas -v`."""
    for part in log.split("Compiling entry function '")[1:]:
        registers, spilled = re.search(r"Used (\d+) registers", part), re.search(r"(\d+) bytes spill stores", part)
        shared = re.search(r"(\d+) bytes smem", part)
        if registers is None or spilled is None:
            raise ValueError(f"ptxas reports in another form:\n{part}")
        name, _, arch, _ = part.split("'", maxsplit=3)
        yield KernelUse(name, arch, int(registers[1]), int(spilled[1]), int(shared[1]) if shared else 0)


def faults(log: str, archs: Iterable[str]) -> list[str]:
    """What is wrong with the kernels of one source, compiled for `archs` ("8.0", ...); empty if nothing is."""
    found = [line.strip() for line in log.splitlines() if WARNING.search(line)]
    uses = list(kernel_uses(log))
    compiled, wanted = {use.arch for use in uses}, {f"sm_{arch.replace('.', '')}" for arch in archs}
    if compiled != wanted:
        found.append(f"compiled for {sorted(compiled)}, not for {sorted(wanted)}")
    for use in uses:
        kernel = f"{use.name} for {use.arch}"
        if use.spilled:
            found.append(f"{kernel} spills {use.spilled} bytes of registers")
        if use.shared > STATIC_SHARED_LIMIT:
            found.append(f"{kernel} takes {use.shared} bytes of shared memory, more than {STATIC_SHARED_LIMIT}")
        if use.registers * THREADS_THAT_FIT > REGISTER_FILE:
            found.append(f"{kernel} takes {use.registers} registers: fewer than {THREADS_THAT_FIT} threads fit")
    return found


def steps_of_build(log: str) -> dict[str, str]:
    """What the compiler said of each CUDA source, by its name, in the log of a build by ninja."""
    steps = {}
    for step in re.split(r"(?m)^\s*\[\d+/\d+\] ", log)[1:]:
        command, _, output = step.partition("\n")
        source = re.search(r"(?:^|\s)-c \S*/(\w+\.cu)\s", command)
        if source is not None:
            steps[source[1]] = output
    return steps


def faults_of_build(log: str, archs: Iterable[str], kernels: Iterable[Path] = tuple(KERNELS)) -> list[str]:
    """What is wrong with the kernels of a whole build; a source that the log doesn't show is wrong too."""
    steps, archs = steps_of_build(log), list(archs)
    found = []
    for kernel in kernels:
        told = faults(steps[kernel.name], archs) if kernel.name in steps else ["isn't compiled in the log of the build"]
        found += [f"{kernel.name}: {fault}" for fault in told]
    return found


def digest() -> str:
    """Of all that the outcome of these checks depends on, but for the toolkit."""
    state = hashlib.sha256()
    for path in sorted([*ROOT.glob("csrc/**/*"), ROOT / "setup.py", ROOT / "Makefile", Path(__file__)]):
        if path.is_file():
            state.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return state.hexdigest()


def record(archs: Iterable[str]) -> None:
    """Keep that the sources as they are passed for `archs`."""
    RECORD.parent.mkdir(exist_ok=True)
    partial = RECORD.with_suffix(".partial")
    partial.write_text(json.dumps({"sources": digest(), "archs": list(archs)}), encoding="utf-8")
    partial.replace(RECORD)


def have_passed(archs: Iterable[str]) -> bool:
    """Whether these very sources passed for `archs` in a build."""
    try:
        passed = json.loads(RECORD.read_text(encoding="utf-8"))
        return passed["sources"] == digest() and set(archs) <= set(passed["archs"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
