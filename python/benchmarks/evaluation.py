"""Features on all sets beside the source tree, by the commands of ``disk-ops evaluate``: tables, records and reports.

``python python/benchmarks/evaluation.py [NAME ...]`` with NAME among homography, pose and reconstruct (default: all).
Work is kept in runs/evaluation, so that it can be interrupted; results/evaluation gets the JSON and the report, without
pictures, as the sets' images may not be passed on.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from harness import RESULTS, ROOT

from disk_ops.cli import main as disk_ops

DATA = "../shared/data"  # relative, for the command that reports show
ALIKED = "kornia:aliked-n16:../shared/weights/other_features/aliked-n16.pth"
OURS = [
    *("disk", "disk+subpixel", "disk+multiscale", "disk+subpixel+multiscale"),
    *("disk:rotation", "disk+subpixel+multiscale:rotation"),
]
METHODS = ["--method", *OURS, "sift", "rootsift", ALIKED]
PROTOCOLS = {
    "homography": [f"{DATA}/homography", *METHODS],
    "pose": [f"{DATA}/pose", "--pairs-per-scene", "40", *METHODS],
    "reconstruct": [f"{DATA}/pose/strecha", "--method", "disk", "disk+subpixel+multiscale", "rootsift"],
}
KEPT = ("results.json", "report.html")


def main() -> int:
    """Run the protocols and copy what is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"among {', '.join(PROTOCOLS)} (default: all)")
    names = parser.parse_args().names or list(PROTOCOLS)
    if unknown := [name for name in names if name not in PROTOCOLS]:
        parser.error(f"NAME must be among {', '.join(PROTOCOLS)}, got {' '.join(unknown)}")
    os.chdir(ROOT)
    for name in names:
        output = Path("runs", "evaluation", name)
        status = disk_ops(["evaluate", name, *PROTOCOLS[name], "-o", str(output), "--no-pictures"])
        if status != 0:
            return status
        target = RESULTS / "evaluation" / name
        target.mkdir(parents=True, exist_ok=True)
        for file in KEPT:
            shutil.copyfile(output / file, target / f"{file}.part")
            os.replace(target / f"{file}.part", target / file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
