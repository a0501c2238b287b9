"""Relative poses by networks trained from random weights on posed images, with depth and by epipolar geometry alone.

``python python/benchmarks/posed_training.py NAME=FOLDER ... [--data FOLDER]``

FOLDER is that of a training, whose last weights are used and whose validation scores are told. Beside them: random
weights, as trainings begin with, and OpenCV's RootSIFT. The protocol is that of ``disk-ops evaluate pose`` on the
Strecha sets, whose images no training used; README.md tells how the trainings were run.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from pathlib import Path

import torch
from harness import RESULTS, ROOT, Row, environment, write_json

from disk_ops import DISKDetector
from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.methods import Method, detector_method, parse_method
from disk_ops.evaluation.pose import mean_average_accuracy
from disk_ops.evaluation.pose_protocol import PoseProtocol
from disk_ops.evaluation.posed import Selection
from disk_ops.evaluation.protocol import by_method, mean
from disk_ops.evaluation.runs import Run
from disk_ops.training.folder import LAST

DATA = ROOT.parent / "shared" / "data" / "pose" / "strecha"
N, MAX_SIZE, PAIRS = 1024, 512, 15
LIMITS = (5, 10, 20)  # degrees


def main() -> int:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainings", nargs="+", metavar="NAME=FOLDER", help="trainings and what they are called")
    parser.add_argument("--data", type=Path, default=DATA, help="posed images (default: ../shared/data/pose/strecha)")
    parser.add_argument("--json", type=Path, default=RESULTS / "posed_training.json", help="where the result goes")
    arguments = parser.parse_args()
    if any("=" not in text for text in arguments.trainings):
        parser.error(f"NAME=FOLDER is needed, got {' '.join(arguments.trainings)}")
    try:
        rows = measure(arguments.data, dict(text.split("=", 1) for text in arguments.trainings))
    except (EvaluationError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for row in rows:
        print(row)
    command = f"python python/benchmarks/posed_training.py {' '.join(repr(text) for text in arguments.trainings)}"
    write_json({"benchmark": "posed_training", "command": command, **environment(), "rows": rows}, arguments.json)
    return 0


def measure(data: Path, trainings: dict[str, str]) -> list[Row]:
    """A row for each method."""
    torch.manual_seed(0)
    methods: list[Method] = [detector_method(DISKDetector().eval(), "random weights")]
    for name, folder in trainings.items():
        methods.append(detector_method(DISKDetector.from_pretrained(Path(folder) / LAST), name))
    methods.append(parse_method("rootsift").load())
    protocol = PoseProtocol(data, max_size=MAX_SIZE, selection=Selection(limit=PAIRS))
    with tempfile.TemporaryDirectory() as cache:
        records = Run(protocol, Path(cache)).records(methods, [N])
    rows = []
    for method, _, group in by_method(records):
        errors = [float("inf") if record["error"] is None else record["error"] for record in group]
        rows.append({
            "method": method,
            "pairs": len(group),
            **{f"maa_{limit}": mean_average_accuracy(errors, limit) for limit in LIMITS},
            "inliers": mean(record["inliers"] for record in group),
            "validation": validation_scores(Path(trainings[method])) if method in trainings else {},
        })  # fmt: skip
    return rows


def validation_scores(folder: Path) -> dict[str, float]:
    """The mAA(10°) of each validation of a training, by step."""
    with open(folder / "validation.csv", newline="") as file:
        return {row["step"]: round(float(row["mAA10"]), 4) for row in csv.DictReader(file)}


if __name__ == "__main__":
    sys.exit(main())
