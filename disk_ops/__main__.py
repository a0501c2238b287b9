"""`python -m disk_ops`: what is installed, what it was built for, which op runs where, and what to do about it.

With arguments it is the `disk-ops` command.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
from importlib import metadata

import torch

from disk_ops import _library


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def covers(archs: str, capability: tuple[int, int]) -> bool:
    """Whether code for `archs` ("8.0;9.0+PTX") runs on a GPU of this compute capability."""
    for arch in archs.replace(" ", ";").split(";"):
        number, _, ptx = arch.partition("+")
        try:
            major, minor = (int(part) for part in number.split("."))
        except ValueError:  # a name such as "Hopper", or an arch-specific "9.0a"
            continue
        if (major == capability[0] and minor <= capability[1]) or (ptx and (major, minor) <= capability):
            return True
    return not any(character.isdigit() for character in archs)


def versions() -> list[tuple[str, str]]:
    """Name and version of what matters."""
    rows = [("disk_ops", _version("disk_ops")), ("python", f"{platform.python_version()} ({platform.platform()})")]
    cuda = torch.version.cuda or getattr(torch.version, "hip", None) or "none"
    rows.append(("torch", f"{torch.__version__} (CUDA: {cuda})"))
    rows += [(name, _version(name)) for name in ("kornia", "numpy", "opencv-python", "h5py", "safetensors")]
    return rows


def library() -> list[tuple[str, str]]:
    """The compiled library and what it was built for."""
    status = _library.library_status()
    rows = [("loaded", "yes" if status.loaded else "no"), *([("reason", status.reason)] if status.reason else [])]
    info = status.build_info or {}
    labels = (("torch", "built for torch"), ("cuda", "CUDA toolkit"), ("archs", "architectures"))
    rows += [(label, info[key]) for key, label in labels if key in info]
    rows += [(key, info[key]) for key in ("compiler", "flags", "decision") if key in info]
    return rows


def devices() -> list[tuple[str, str]]:
    """Processor and GPUs."""
    threads = f"{torch.get_num_threads()} of {os.cpu_count()} processors"
    rows = [("threads", threads), ("SIMD level", torch.backends.cpu.get_cpu_capability())]
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        rows.append((f"GPU {index}", f"{torch.cuda.get_device_name(index)} (compute capability {major}.{minor})"))
    if torch.cuda.device_count() == 0:
        rows.append(("GPU", "none visible to torch"))
    return rows


def ops() -> list[tuple[str, str]]:
    """Where each op has a compiled kernel, and where the pure-PyTorch reference runs."""
    keys = (("cpu", "CPU"), ("cuda", "CUDA"), ("other", ""))
    rows = []
    for op in _library.OPS:
        kinds = [(name, "native" if key and _library.has_native_kernel(op, key) else "reference") for name, key in keys]
        rows.append((op, "  ".join(f"{name}: {kind:<9}" for name, kind in kinds).rstrip()))
    return rows


def advice() -> list[str]:
    """What is off and how to mend it; empty when all is well."""
    status = _library.library_status()
    notes = []
    if not status.loaded:
        notes.append(f"{status.reason} {_library.UNTIL_THEN}")
    elif torch.version.cuda and _library.missing_kernels("CUDA"):
        notes.append(
            "torch has CUDA but disk_ops was built without CUDA ops, so they run there as slower pure-PyTorch code: "
            f"with a CUDA {torch.version.cuda.split('.')[0]}.x toolkit (nvcc), "
            f"reinstall with DISK_OPS_CUDA=1 {_library.REINSTALL}"
        )
    elif status.build_info is not None and status.build_info.get("with_cuda") == "1":
        archs = status.build_info.get("archs", "")
        for index in range(torch.cuda.device_count()):
            major, minor = torch.cuda.get_device_capability(index)
            if not covers(archs, (major, minor)):
                notes.append(
                    f"GPU {index} has compute capability {major}.{minor}, but the CUDA ops were built for {archs}: "
                    f"reinstall with TORCH_CUDA_ARCH_LIST={major}.{minor} {_library.REINSTALL}"
                )
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None and shutil.which("nvidia-smi"):
        notes.append("this machine has NVIDIA's driver, but torch is a CPU-only build: install a CUDA build of torch")
    if torch.get_num_threads() == 1 and (os.cpu_count() or 1) > 1:
        notes.append("torch uses one thread (OMP_NUM_THREADS or torch.set_num_threads): the CPU ops do the same")
    return notes


def report() -> str:
    """The whole report as text."""
    lines = []
    sections = (("versions", versions()), ("compiled library", library()), ("machine", devices()), ("ops", ops()))
    for title, rows in sections:
        lines.append(f"{title}")
        lines += [f"  {name:<21} {value}" for name, value in rows]
    lines.append("advice")
    lines += [f"  - {note}" for note in advice()] or ["  nothing to do"]
    return "\n".join(lines)


def main() -> int:
    """Print the report, or run a program of the command line; return the exit status."""
    if len(sys.argv) > 1:
        return int(importlib.import_module("disk_ops.cli").main())  # which the report doesn't need
    print(report())
    return 0


if __name__ == "__main__":
    sys.exit(main())
