"""Makes one JSON of what gpu_check.sh left in a folder: machine, versions, each step's outcome, benchmark rows.

    python python/benchmarks/gpu_report.py OUT

Works without the package, and without torch: what can't be found out is null, what is not installed is listed.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "python" / "benchmarks" / "results" / "gpu_check.json"
# Distribution name and module of what the package, its tests and its benchmarks use.
PACKAGES = {
    "torch": "torch",
    "kornia": "kornia",
    "numpy": "numpy",
    "opencv-python": "cv2",
    "h5py": "h5py",
    "safetensors": "safetensors",
    "tqdm": "tqdm",
    "pytest": "pytest",
    "ninja": "ninja",
    "pybind11": "pybind11",
    "setuptools": "setuptools",
    "faiss-cpu": "faiss",
}
TAIL_LINES = 60


def output_of(*command: str) -> str | None:
    """What a command prints; None if it can't be run or fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def package_version(distribution: str, module: str) -> str | None:
    """Its version, "unknown" where it is there but does not say, None where it is not there."""
    if importlib.util.find_spec(module) is None:
        return None
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"


def machine() -> dict[str, Any]:
    """The computer and its GPU."""
    query = "--query-gpu=name,driver_version,memory.total,compute_cap"
    nvcc = output_of("nvcc", "--version")
    found: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "gpu": output_of("nvidia-smi", query, "--format=csv,noheader"),
        "nvcc": nvcc.splitlines()[-1] if nvcc else None,
        "python": platform.python_version(),
        "torch_cuda": None,
        "cuda_device": None,
    }
    try:
        import torch

        found["torch_cuda"] = torch.version.cuda
        found["cuda_device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    except (ImportError, RuntimeError) as error:
        found["torch_error"] = str(error)
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def commit() -> dict[str, Any]:
    """The commit, and whether files differ from it; null outside of a repository."""
    changes = output_of("git", "status", "--porcelain", "--untracked-files=no")
    return {
        "commit": output_of("git", "rev-parse", "HEAD"),
        "changed_files": None if changes is None else bool(changes),
    }


def without_folders(text: str, folder: Path) -> str:
    """The report is for others: where things lay on this machine is left out."""
    return text.replace(f"{folder}/", "OUT/").replace(f"{ROOT}/", "").replace(str(Path.home()), "~")


def steps(folder: Path) -> list[dict[str, Any]]:
    """Each step's command, exit status and seconds; the end of its log where it failed, else the last line."""
    found = []
    for line in (folder / "steps.tsv").read_text().splitlines():
        name, status, started, ended, command = line.split("\t", 4)
        log = (folder / f"{name}.log").read_text(errors="replace").splitlines()
        shown = log[-TAIL_LINES:] if status != "0" else [text for text in log if text.strip()][-1:]
        found.append(
            {
                "name": name,
                "status": int(status),
                "outcome": {"0": "passed", "124": "out of time", "127": "not found"}.get(status, "failed"),
                "seconds": round(float(ended) - float(started), 1),
                "command": without_folders(command, folder),
                "tail": [without_folders(text, folder) for text in shown],
            }
        )
    return found


def benchmarks(folder: Path) -> dict[str, Any]:
    """What each benchmark wrote."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("bench_*.json")):
        try:
            found[path.stem] = json.loads(path.read_text())
        except ValueError as error:
            found[path.stem] = {"unreadable": str(error)}
    return found


def main() -> int:
    """Write the report into the folder and beside the committed results."""
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    folder = Path(sys.argv[1])
    versions = {name: package_version(name, module) for name, module in PACKAGES.items()}
    report = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **commit(),
        "machine": machine(),
        "versions": versions,
        "not_installed": [name for name, installed in versions.items() if installed is None],
        "steps": steps(folder),
        "benchmarks": benchmarks(folder),
    }
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    for path in (folder / REPORT.name, REPORT):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(f"wrote {path}")
    for step in report["steps"]:
        print(f"{step['outcome']:12} {step['seconds']:8.1f} s  {step['name']}")
    if report["not_installed"]:
        print(f"not installed: {', '.join(report['not_installed'])}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
