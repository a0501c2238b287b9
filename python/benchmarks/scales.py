"""Which scales to detect at: the bundled weights on held-out photographs, ``python python/benchmarks/scales.py``.

Views are those of experiments.py: they differ moderately, or in one way more than that. So are the figures: F-scores of
correct matches at 1 to 5 pixels, and the mean share of correct matches.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments import CONDITIONS, PHOTOS, accuracy, validator
from harness import RESULTS, environment, write_json
from tqdm import tqdm

from disk_ops import DISKDetector
from disk_ops.multiscale import at_scales
from disk_ops.scenes.errors import DataError

WEIGHTS = ("general", "rotation")
CHOICES = (
    (1.0,),
    (1.0, 0.5),
    (1.0, 0.5, 0.25),
    (1.0, 0.71, 0.5, 0.35, 0.25),
)


def main() -> int:
    """Measure all, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=PHOTOS, help="photographs (default: ../shared/data/photos)")
    parser.add_argument("--json", type=Path, default=RESULTS / "scales.json", help="where the result goes")
    arguments = parser.parse_args()
    try:
        validators = {name: validator(arguments.photos, changes) for name, changes in CONDITIONS.items()}
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = []
    for weights, scales in tqdm([(name, scales) for name in WEIGHTS for scales in CHOICES], disable=None):
        detector = at_scales(DISKDetector.from_pretrained(weights), scales)
        rows.append({"weights": weights, "scales": list(scales), **accuracy(detector, validators)})
    command = "python python/benchmarks/scales.py"
    write_json({"benchmark": "scales", "command": command, **environment(), "rows": rows}, arguments.json)
    for row in rows:
        print(" ".join(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
