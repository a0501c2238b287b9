"""A picture of how trainings went: validation score and reward against minutes of training.

    python python/benchmarks/learning_curve.py RUN [RUN ...] --output curve.png --baseline 0.485 RootSIFT

A RUN is the folder of a training, with history.csv and validation.csv; several are drawn in one picture. Needs
matplotlib (the extra `benchmark`).
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

Curve = tuple[list[float], list[float]]  # minutes, values
COLORS = ("#1f6fd0", "#e07b1a", "#3a9a55", "#a54fc0", "#c23b3b", "#4d4d4d")


def read_curve(path: Path, column: str) -> Curve:
    """A column of a log against minutes; rows without a number in it are left out."""
    minutes, values = [], []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                time, value = float(row["seconds"]) / 60, float(row[column])
            except (KeyError, TypeError, ValueError):
                continue
            if math.isfinite(time) and math.isfinite(value):
                minutes.append(time)
                values.append(value)
    return minutes, values


def smoothed(curve: Curve, points: int = 60) -> Curve:
    """Means over as many equal spans of rows, at the middle of each span."""
    minutes, values = curve
    if len(values) <= points:
        return curve
    edges = [round(index * len(values) / points) for index in range(points + 1)]
    spans = [slice(first, last) for first, last in pairwise(edges)]
    return [fmean(minutes[span]) for span in spans], [fmean(values[span]) for span in spans]


def learning_curve(
    histories: Sequence[Path],
    validations: Sequence[Path],
    output: Path,
    labels: Sequence[str] = (),
    baselines: Sequence[tuple[float, str]] = (),
    title: str = "",
    score_label: str = "validation score",
) -> None:
    """Draw the picture; one history and one validation file for each run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings: Any = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#e4e4e4",
    }
    with pyplot.rc_context(settings):
        figure, axes = pyplot.subplots(
            2, 1, sharex=True, figsize=(7.2, 5.4), height_ratios=(3, 2), layout="constrained"
        )
        for index, (history, validation) in enumerate(zip(histories, validations, strict=True)):
            color, label = COLORS[index % len(COLORS)], labels[index] if labels else None
            axes[0].plot(*read_curve(validation, "score"), "o-", color=color, markersize=3.5, label=label)
            rewards = read_curve(history, "reward")
            if len(rewards[0]) > 60:
                axes[1].plot(*rewards, color=color, alpha=0.2, linewidth=0.7)
            axes[1].plot(*smoothed(rewards), color=color, label=label)
        for value, name in baselines:
            axes[0].axhline(value, color="#606060", linestyle="--", linewidth=1)
            axes[0].annotate(
                f"{name} {value:.3f}",
                (0, value),
                xytext=(4, 3),
                xycoords=axes[0].get_yaxis_transform(),
                textcoords="offset points",
                color="#606060",
            )
        axes[0].set_ylabel(score_label)
        axes[1].set_ylabel("reward per pair")
        axes[1].set_xlabel("minutes of training")
        axes[1].set_xlim(left=0)
        if title:
            axes[0].set_title(title, loc="left")
        if labels and len(histories) > 1:
            axes[0].legend(loc="best", frameon=False)
        figure.savefig(output, dpi=150)
        pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a training")
    parser.add_argument("--output", type=Path, default=Path("learning_curve.png"), help="default: %(default)s")
    parser.add_argument("--labels", nargs="+", default=[], help="names of the runs (default: of their folders)")
    parser.add_argument(
        *("--baseline",), nargs=2, action="append", default=[], metavar=("SCORE", "LABEL"), help="a horizontal line"
    )
    parser.add_argument("--title", default="")
    parser.add_argument("--score", default="validation score", help="what the score is (default: %(default)s)")
    options = parser.parse_args()
    if options.labels and len(options.labels) != len(options.runs):
        parser.error(f"--labels must name all {len(options.runs)} runs, got {len(options.labels)}")
    try:
        baselines = [(float(score), label) for score, label in options.baseline]
    except ValueError as error:
        parser.error(f"--baseline: {error}")
    try:
        learning_curve(
            [run / "history.csv" for run in options.runs],
            [run / "validation.csv" for run in options.runs],
            options.output,
            options.labels or [run.resolve().name for run in options.runs],
            baselines,
            options.title,
            options.score,
        )
    except ModuleNotFoundError as error:
        sys.exit(f"learning_curve.py needs matplotlib: {error}")
    except OSError as error:
        sys.exit(f"learning_curve.py: {error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
