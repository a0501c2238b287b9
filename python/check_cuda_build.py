"""Checks an installed CUDA build of disk_ops, without a GPU: it loads, and every op has its CUDA kernel, but for those
that are declared to have none. From the log of the build, where it is given: no kernel spills or takes too much.

python python/check_cuda_build.py [--archs "8.0;9.0" [--log build.log]]
"""

from __future__ import annotations

import argparse
import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import kernel_resources
import torch

import disk_ops
from disk_ops import _library


def archs_in_library(library: Path) -> set[str] | None:
    """Architectures whose machine code is in the library; None if the toolkit's cuobjdump is not there."""
    tools = [shutil.which("cuobjdump"), "/usr/local/cuda/bin/cuobjdump"]
    tool = next((tool for tool in tools if tool and Path(tool).is_file()), None)
    if tool is None:
        return None
    listing = subprocess.run([tool, "--list-elf", str(library)], capture_output=True, text=True, check=True).stdout
    return {f"{major}.{minor}" for major, minor in re.findall(r"\.sm_(\d+)(\d)\.", listing)}


def problems(archs: str) -> list[str]:
    """What is wrong with the installed build; empty if it is complete."""
    status = _library.library_status()
    info = status.build_info or {}
    found = [] if status.loaded else [f"the compiled library is not in use: {status.reason}"]
    if not torch.version.cuda:
        found.append(f"torch {torch.__version__} is not a CUDA build")
    found += [f"op {op} has no {key} kernel" for key in ("CPU", "CUDA") for op in _library.missing_kernels(key)]
    if archs and info.get("archs") != archs:
        found.append(f"built for architectures {info.get('archs')}, not for {archs}")
    if status.loaded and archs:
        inside = archs_in_library(Path(str(importlib.import_module("disk_ops._C").__file__)))
        missing = set(archs.replace("+PTX", "").split(";")) - (inside or set())
        if inside is not None and missing:
            found.append(f"no machine code for {', '.join(sorted(missing))} in the library")
    return found


def main() -> int:
    """Print the outcome; 0 if the build is complete."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archs", default="", help="architectures that must be in the library, e.g. '8.0;9.0'")
    parser.add_argument("--log", type=Path, help="what was printed while it was built, with ptxas -v")
    arguments = parser.parse_args()
    found = problems(arguments.archs)
    archs = arguments.archs.replace("+PTX", "").split(";")
    if arguments.log is not None:
        found += kernel_resources.faults_of_build(arguments.log.read_text(encoding="utf-8", errors="replace"), archs)
    for problem in found:
        print(f"cuda-build: {problem}", file=sys.stderr)
    if not found:
        if arguments.log is not None:
            kernel_resources.record(archs)
        info = _library.library_status().build_info or {}
        both = [op for op in _library.OPS if op not in _library.CPU_ONLY]
        print(
            f"cuda-build: disk_ops {disk_ops.__version__} with torch {torch.__version__}, CUDA {info.get('cuda')}, "
            f"architectures {info.get('archs')}: CPU and CUDA kernels of {', '.join(both)}, and CPU kernels of "
            f"{', '.join(_library.CPU_ONLY)} are registered"
        )
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
