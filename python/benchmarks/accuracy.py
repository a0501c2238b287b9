"""Matching accuracy of checkpoints and of OpenCV's RootSIFT on homography sets, in one run with one protocol.

``python python/benchmarks/accuracy.py [--checkpoint NAME|PATH ...] [--data FOLDER] [--sets NAME ...] [--json FILE]``

Mutual nearest neighbours of the best 2048 features per image, images with a longest edge of at most 1024 pixels; MMA at
1 to 10 pixels and its mean over 1 to 5 (AUC). Means are over pairs of images: per set, per collection, and over all.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from harness import ROOT, environment, write_json
from tqdm import tqdm

from disk_ops import DISKDetector
from disk_ops.checkpoint import DEFAULT_CHECKPOINT
from disk_ops.evaluation.features import DetectorExtractor, Extractor, RootSift
from disk_ops.evaluation.homography import THRESHOLDS, PairAccuracy, evaluate_set, summarize
from disk_ops.evaluation.homography_sets import HomographySet, SetError, find_homography_sets

DATA = ROOT.parent / "shared" / "data" / "homography"
Row = dict[str, Any]


def main() -> int:
    """Measure, print a table, write the JSON."""
    arguments = parse()
    try:
        sets = chosen_sets(arguments.data, arguments.sets)
        methods: dict[str, Extractor] = {"rootsift": RootSift(arguments.n), **checkpoints(arguments)}
        rows = measure(sets, methods, arguments.max_size)
    except (SetError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print_table(rows)
    if arguments.json is not None:
        write(rows, arguments)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", nargs="*", default=[DEFAULT_CHECKPOINT], help="bundled names or files")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of sets (default: ../shared/data/homography)")
    parser.add_argument("--sets", nargs="*", default=[], help="only sets with these folder names")
    parser.add_argument("--max-size", type=int, default=1024, help="longest edge in pixels (default 1024)")
    parser.add_argument("--n", type=int, default=2048, help="features per image (default 2048)")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--json", type=Path, help="write the result there")
    arguments = parser.parse_args()
    if arguments.n < 1 or arguments.max_size < 16:
        parser.error("--n must be at least 1 and --max-size at least 16")
    return arguments


def chosen_sets(data: Path, names: list[str]) -> list[HomographySet]:
    sets = find_homography_sets(data)
    unknown = set(names) - {entry.name.rpartition("/")[2] for entry in sets}
    if unknown:
        raise ValueError(f"--sets: {data} has no {', '.join(sorted(unknown))}")
    return [entry for entry in sets if not names or entry.name.rpartition("/")[2] in names]


def checkpoints(arguments: argparse.Namespace) -> dict[str, Extractor]:
    return {
        name: DetectorExtractor(DISKDetector.from_pretrained(name, arguments.device), arguments.n)
        for name in arguments.checkpoint
    }


def measure(sets: list[HomographySet], methods: dict[str, Extractor], max_size: int) -> list[Row]:
    """A row for each method and each set, each collection of several sets, and all sets."""
    rows = []
    progress = tqdm(total=len(sets) * len(methods), unit="set", disable=None)
    for method, extractor in methods.items():
        pairs: list[tuple[HomographySet, PairAccuracy]] = []
        for entry in sets:
            progress.set_description(f"{method} {entry.name}")
            pairs += [(entry, pair) for pair in evaluate_set(entry, extractor, max_size)]
            progress.update()
        rows += rows_of(method, "set", pairs, lambda entry: entry.name)
        rows += rows_of(method, "collection", pairs, lambda entry: entry.collection)
        rows += rows_of(method, "all", pairs, lambda entry: "all")
    progress.close()
    return rows


def rows_of(
    method: str,
    level: str,
    pairs: list[tuple[HomographySet, PairAccuracy]],
    key: Callable[[HomographySet], str],
) -> list[Row]:
    groups: dict[str, list[PairAccuracy]] = {}
    for entry, pair in pairs:
        groups.setdefault(key(entry), []).append(pair)
    return [{"level": level, "name": name, "method": method, **asdict(summarize(group))}
            for name, group in groups.items()]  # fmt: skip


def print_table(rows: list[Row]) -> None:
    """One line for each set, collection and method; AUC is the mean of MMA at 1 to 5 pixels."""
    shown = (1, 3, 5, 10)
    print(f"{'':34} {'':20} {'pairs':>5} {'AUC5':>6} " + " ".join(f"{f'@{t}':>6}" for t in shown) + f" {'matches':>8}")
    sets = {row["name"] for row in rows if row["level"] == "set"}
    for level in ("set", "collection", "all"):
        for name in dict.fromkeys(row["name"] for row in rows if row["level"] == level):
            if level == "collection" and name in sets:  # a set that stands alone
                continue
            title = f"{name}, mean" if level != "set" else name
            for row in (row for row in rows if row["level"] == level and row["name"] == name):
                accuracy = " ".join(f"{row['accuracy'][THRESHOLDS.index(t)]:6.3f}" for t in shown)
                print(f"{title:34} {Path(row['method']).name:20} {row['pairs']:5} {row['auc5']:6.3f} {accuracy} "
                      f"{row['matches']:8.0f}")  # fmt: skip
                title = ""


def write(rows: list[Row], arguments: argparse.Namespace) -> None:
    """Write the result with what it was measured on."""
    content = {
        "benchmark": "accuracy",
        "command": command(arguments),
        "protocol": f"mutual nearest neighbours, {arguments.n} features, longest edge {arguments.max_size}, "
        f"share of matches with an error of at most {THRESHOLDS[0]}..{THRESHOLDS[-1]} px; auc5: mean over 1..5 px",
        **environment(),
        "rows": rows,
    }
    write_json(content, arguments.json)


def command(arguments: argparse.Namespace) -> str:
    """What gives these numbers again where the data lies at its default place."""
    options = [*("--checkpoint", *arguments.checkpoint), *(("--sets", *arguments.sets) if arguments.sets else ())]
    for name, default in (("max_size", 1024), ("n", 2048), ("device", "cpu")):
        if getattr(arguments, name) != default:
            options += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    return " ".join(["python python/benchmarks/accuracy.py", *options])


if __name__ == "__main__":
    torch.manual_seed(0)
    sys.exit(main())
