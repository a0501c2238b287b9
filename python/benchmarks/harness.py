"""How the benchmarks measure: all implementations in one process, in turns, medians with quartiles, one JSON.

Each implementation is timed by ``torch.utils.benchmark`` (``blocked_autorange``) in several rounds, one after the other
within a round, so that a machine whose speed drifts does not favour one of them. The ratio of a row is its median over
that of disk_ops in the same run: above 1, disk_ops is faster. Peak memory is what a call needs beyond what the process
(CUDA: the allocator) held before it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch.utils.benchmark import Timer

from disk_ops import buffers

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "python" / "benchmarks" / "results"
OURS = "disk_ops"
ROUNDS = 5
_SLOW = 1.0  # seconds; a call that takes longer is made once in each round
PACKAGES = ("disk_ops", "torch", "kornia", "opencv-python", "faiss-cpu", "numpy")
Row = dict[str, Any]


def parse_arguments(description: str | None, default_json: str) -> argparse.Namespace:
    """Options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--json", type=Path, help=f"where the result goes (default: {default_json} for the CPU)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"turns of every implementation ({ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="one short round: to see that it runs, not to quote")
    arguments = parser.parse_args()
    if arguments.json is None and arguments.device == "cpu" and not arguments.quick:
        arguments.json = RESULTS / default_json
    return arguments


def compare(
    op: str,
    shape: str,
    implementations: dict[str, Callable[[], object]],
    arguments: argparse.Namespace,
) -> list[Row]:
    """Time implementations of the same thing against each other and print a line for each."""
    rounds, seconds = (1, 0.05) if arguments.quick else (arguments.rounds, 0.3)
    timers = {name: Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
              for name, run in implementations.items()}  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in implementations}
    slow = set()
    for name, run in implementations.items():
        started = time.perf_counter()
        run()  # first calls allocate and choose algorithms
        if time.perf_counter() - started > _SLOW:
            slow.add(name)
    for _ in range(rounds):
        for name, timer in timers.items():
            if name not in slow:
                times[name] += timer.blocked_autorange(min_run_time=seconds).times
                continue
            started = time.perf_counter()  # Timer would call it at least three times
            implementations[name]()
            times[name].append(time.perf_counter() - started)
    ours = statistics.median(times[OURS])
    rows = []
    for name, run in implementations.items():
        median = statistics.median(times[name])
        low, _, high = statistics.quantiles(times[name], n=4) if len(times[name]) > 1 else (median,) * 3
        row = {
            "op": op,
            "shape": shape,
            "implementation": name,
            "median_ms": round(median * 1e3, 4),
            "quartiles_ms": [round(low * 1e3, 4), round(high * 1e3, 4)],
            "blocks": len(times[name]),
            "ratio": round(median / ours, 3),
            "peak_mib": round(peak_memory(run, arguments.device) / 2**20, 1),
        }
        print(f"{op:20} {shape:34} {name:26} {row['median_ms']:10.2f} ms  x{row['ratio']:<7} {row['peak_mib']:8} MiB")
        rows.append(row)
    return rows


def peak_memory(run: Callable[[], object], device: str) -> int:
    """Bytes that one call needs at its peak beyond what was there before it; -1 where that can't be read."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    try:
        buffers.release()  # memory kept or freed earlier would serve the call unseen
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        before = _status_bytes("VmRSS")
        run()
        return max(_status_bytes("VmHWM") - before, 0)
    except (OSError, AttributeError):
        return -1


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in /proc/self/status")


def write(rows: list[Row], arguments: argparse.Namespace, benchmark: str) -> None:
    """Write the rows with what they were measured on; to a temporary name first."""
    if arguments.json is None:
        return
    content = {"benchmark": benchmark, "command": _command(arguments, benchmark), **environment(), "rows": rows}
    write_json(content, arguments.json)


def write_json(content: dict[str, Any], path: Path) -> None:
    """Write a result; to a temporary name first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
        json.dump(content, file, indent=1)
        file.write("\n")
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)
    print(f"wrote {path}")


def _command(arguments: argparse.Namespace, benchmark: str) -> str:
    # Settings of glibc's allocator change what a call pays for its memory.
    settings = "".join(f"{name}={value} " for name, value in sorted(os.environ.items()) if name.startswith("MALLOC_"))
    device = "" if arguments.device == "cpu" else f" --device {arguments.device}"
    rounds = "" if arguments.rounds == ROUNDS else f" --rounds {arguments.rounds}"
    return f"{settings}python python/benchmarks/{benchmark}.py{device}{rounds}"


def environment() -> dict[str, Any]:
    """Machine, versions, threads, commit."""
    from disk_ops._library import library_status

    build = library_status().build_info or {}
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "commit": _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "-uno") else ""),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "cuda_device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "compiler": build.get("compiler"),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "versions": {package: _version(package) for package in PACKAGES},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _git(*command: str) -> str:
    try:
        return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def synchronized(run: Callable[[], object], device: str) -> Callable[[], object]:
    """On CUDA, a call that returns when the device is done."""
    if not device.startswith("cuda"):
        return run

    def wait() -> object:
        result = run()
        torch.cuda.synchronize()
        return result

    return wait
