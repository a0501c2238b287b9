"""Write the documents' benchmark tables from the committed results: ``python python/benchmarks/tables.py [--check]``.

The documents are README.md and the card of the bundled weights. Each table stands between ``<!-- benchmark NAME -->``
and ``<!-- /benchmark -->`` and shows results/NAME.json, or between ``<!-- evaluation NAME -->`` and
``<!-- /evaluation -->`` and shows results/evaluation/NAME/results.json.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from disk_ops.evaluation.protocol import Table
from disk_ops.evaluation.report.cells import cells

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).resolve().parent / "results"
DOCUMENTS = (ROOT / "README.md", ROOT / "disk_ops" / "weights" / "README.md")
MARKED = re.compile(r"(<!-- (benchmark|evaluation) (\w+) -->\n).*?(<!-- /\2 -->)", re.DOTALL)
# Of evaluations: what isn't shown, as it is in the report.
CONDITIONS = ("upright", "turned", "zoomed", "degraded", "mean", "correct")  # columns of experiments.py and scales.py
HIDDEN_TABLES = re.compile(r"[Bb]y (set|change|collection|scene|covisibility)")


def table(result: dict[str, Any]) -> str:
    """One result as a Markdown table, with what it was measured on."""
    forms = {
        "what": profile,
        "load_from_files_ms": loading,
        "maa_10": poses,
        "images": parity,
        "auc5": accuracies,
        "change": experiments,
        "scales": scales,
        "implementation": comparison,
    }
    lines = next(form for key, form in forms.items() if key in result["rows"][0])(result["rows"])
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items() if number)
    device = result["cuda_device"] if "--device cuda" in result["command"] else result["processor"]
    lines.append("")
    lines.append(
        f"`{result['command']}` on {result['threads']} threads of {device} "
        f"({result['cpu_capability']}), {result['system']}, {versions}; commit {result['commit']}, {result['date']}."
    )
    return "\n".join(lines) + "\n"


def evaluation(result: dict[str, Any]) -> str:
    """The tables of an evaluation, and how they came about."""
    lines: list[str] = []
    for each in result["tables"]:
        if HIDDEN_TABLES.search(each["title"]):
            continue
        rows = [tuple(row) for row in each["rows"]]
        made = Table(each["title"], tuple(each["columns"]), rows, each["note"], each["best"])
        lines += [f"{made.title}:", "", f"| {' | '.join(made.columns)} |", f"|---{'|---' * (len(made.columns) - 1)}|"]
        for row in cells(made):
            lines.append(f"| {' | '.join(f'**{cell.text}**' if cell.best else cell.text for cell in row)} |")
        lines.append("")
    how = result["environment"]
    versions = ", ".join(f"{name} {number}" for name, number in how["packages"].items())
    lines.append(f"`{how['command']}` with {versions}; commit {how['commit']}.")
    return "\n".join(lines) + "\n"


def comparison(rows: list[dict[str, Any]]) -> list[str]:
    """Implementations of the same thing."""
    lines = [
        "| input | implementation | median | quartiles | against disk_ops | extra memory |",
        "|---|---|---|---|---|---|",
    ]
    last = None
    for row in rows:
        low, high = row["quartiles_ms"]
        memory = "" if row["peak_mib"] < 0 else f"{row['peak_mib']:.0f} MiB"
        ratio = "" if row["implementation"] == "disk_ops" else f"{three_digits(row['ratio'])}× the time"
        shape = row["shape"] if row["shape"] != last else ""
        name = f"**{row['implementation']}**" if row["implementation"] == "disk_ops" else row["implementation"]
        lines.append(
            f"| {shape} | {name} | {milliseconds(row['median_ms'])} | "
            f"{milliseconds(low)} – {milliseconds(high)} | {ratio} | {memory} |"
        )
        last = row["shape"]
    return lines


def accuracies(rows: list[dict[str, Any]]) -> list[str]:
    """Matching accuracy of several methods: a line for each collection of image pairs, and all."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    names = ["RootSIFT" if method == "rootsift" else f"`{Path(method).name}`" for method in methods]
    lines = [f"| pairs of images | {' | '.join(names)} |", f"|---{'|---' * len(methods)}|"]
    for level in ("collection", "all"):
        for name in dict.fromkeys(row["name"] for row in rows if row["level"] == level):
            found = {row["method"]: row for row in rows if row["level"] == level and row["name"] == name}
            best = max(row["auc5"] for row in found.values())
            cells = [f"{found[method]['auc5']:.3f}" for method in methods]
            cells = [f"**{cell}**" if cell == f"{best:.3f}" else cell for cell in cells]
            lines.append(f"| {name} ({found[methods[0]]['pairs']}) | {' | '.join(cells)} |")
    return lines


def parity(rows: list[dict[str, Any]]) -> list[str]:
    """Differences from the first implementation."""
    lines = [
        "| implementation | same keypoints, mean (least) | largest difference of a score | of a descriptor | AUC5 |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        if "same_keypoints" in row:
            keypoints = f"{100 * row['same_keypoints']:.2f} % ({100 * row['least_same_keypoints']:.2f} %)"
            cells = f"{keypoints} | {row['score']:.1e} | {row['descriptor']:.1e}"
        else:
            cells = " | | "
        lines.append(f"| {row['implementation']}, {row['images']} images | {cells} | {row['auc5']:.4f} |")
    return lines


def loading(rows: list[dict[str, Any]]) -> list[str]:
    """Loading beside training."""
    lines = [
        "| data | a sample from files | its images in the cache | a training step | of it waiting for data |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [milliseconds(row[key]) for key in ("load_from_files_ms", "load_from_cache_ms", "step_ms")]
        waiting = f"{100 * row['waiting_ms'] / row['step_ms']:.1f} %"
        lines.append(f"| {row['data']}, {row['images']} | {' | '.join(cells)} | {waiting} |")
    return lines


def poses(rows: list[dict[str, Any]]) -> list[str]:
    """Accuracy of relative poses, in the end and in the course of trainings."""
    limits = [5, 10, 20]
    steps = list(dict.fromkeys(step for row in rows for step in row["validation"]))
    titles = [
        *(f"mAA({limit}°)" for limit in limits),
        "inliers",
        *(f"validation, {int(step):,} steps" for step in steps),
    ]
    lines = [f"| features, {rows[0]['pairs']} pairs of images | {' | '.join(titles)} |", f"|---{'|---' * len(titles)}|"]
    for row in rows:
        name = "RootSIFT" if row["method"] == "rootsift" else row["method"]
        cells = [*(f"{row[f'maa_{limit}']:.3f}" for limit in limits), f"{row['inliers']:.0f}"]
        cells += [f"{row['validation'][step]:.3f}" if step in row["validation"] else "" for step in steps]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def experiments(rows: list[dict[str, Any]]) -> list[str]:
    """Short trainings that differ in one thing."""
    titles = ["change", "steps", "minutes", *CONDITIONS, "kept"]
    lines = [f"| {' | '.join(titles)} |", f"{'|---' * len(titles)}|"]
    for row in rows:
        cells = " | ".join(f"{row[condition]:.3f}" for condition in CONDITIONS)
        lines.append(f"| {row['change']} | {row['steps']} | {row['minutes']:.1f} | {cells} | {row['kept']} |")
    return lines


def scales(rows: list[dict[str, Any]]) -> list[str]:
    """Weights at several sizes of the image."""
    lines = [f"| weights | scales | {' | '.join(CONDITIONS)} |", f"{'|---' * (len(CONDITIONS) + 2)}|"]
    for row in rows:
        sizes = ", ".join(f"{scale:g}" for scale in row["scales"])
        cells = " | ".join(f"{row[condition]:.3f}" for condition in CONDITIONS)
        lines.append(f"| `{row['weights']}` | {sizes} | {cells} |")
    return lines


def profile(rows: list[dict[str, Any]]) -> list[str]:
    """Parts of one thing; where it is known, beside the least time that each could take."""
    floors = any("floor_ms" in row for row in rows)
    lines = (
        ["| part | time | at least | rate |", "|---|---|---|---|"]
        if floors
        else ["| part | time | rate |", "|---|---|---|"]
    )
    for row in rows:
        time = milliseconds(row["ms"]) if "ms" in row else ""
        floor = f" {milliseconds(row['floor_ms']) if 'floor_ms' in row else ''} |" if floors else ""
        rate = f"{row['gflops']:.0f} GFLOP/s" if "gflops" in row else f"{row['gbytes']} GB/s" if "gbytes" in row else ""
        lines.append(f"| {row['what']} | {time} |{floor} {rate} |")
    return lines


def three_digits(value: float) -> str:
    """Three significant digits, never in powers of ten."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def milliseconds(value: float) -> str:
    """A time in milliseconds or seconds."""
    return f"{three_digits(value / 1000)} s" if value >= 1000 else f"{three_digits(value)} ms"


def fill(text: str) -> str:
    """Replace every marked table by that of its result."""

    def replace(match: re.Match[str]) -> str:
        if match[2] == "evaluation":
            shown = evaluation(json.loads((RESULTS / "evaluation" / match[3] / "results.json").read_text()))
        else:
            shown = table(json.loads((RESULTS / f"{match[3]}.json").read_text()))
        return f"{match[1]}{shown}{match[4]}"

    return MARKED.sub(replace, text)


def main() -> int:
    """Update the documents, or with --check say whether they are up to date."""
    status = 0
    for document in DOCUMENTS:
        text = document.read_text()
        filled = fill(text)
        if "--check" not in sys.argv[1:]:
            document.write_text(filled)
        elif filled != text:
            name = document.relative_to(ROOT)
            print(f"{name} does not show the committed results: run python python/benchmarks/tables.py")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
