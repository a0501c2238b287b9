"""The paper's ablation: ways to detect keypoints with the same network, and checkpoints, side by side.

The network gives each pixel a score. One keypoint for each cell of a grid is how it is trained, without chance: the
cell's highest pixel, if its score is above 0. Non-maximum suppression takes pixels with scores above 0 that are the
highest in a window around them, so it can place keypoints closer where there is more to see, and never two side by side
across the edge of a cell. Of either the n best by score are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.features import Matcher
from disk_ops.evaluation.methods import Method, MethodSpec
from disk_ops.evaluation.protocol import Cell, Item, Picture, Plot, Protocol, Record, Table, by_method, comparable, mean
from disk_ops.evaluation.variants import Detection, Variants


class Ablation(Protocol):
    """A protocol whose results are shown in one table, with a row for each variant and number of keypoints.

    Records are those of the protocol itself, and so is what is kept of them.

    Args:
        protocol: what is measured, of which each record has ``features``, the numbers in both images.
        chosen: ways to detect.
    """

    def __init__(self, protocol: Protocol, chosen: Sequence[Detection]) -> None:
        self.protocol, self.detections = protocol, list(chosen)
        self.name, self.settings = protocol.name, protocol.settings
        self._variants: dict[str, tuple[str, str]] = {}  # checkpoint and detection by the name of a method

    def methods(self, specs: Sequence[MethodSpec], device: str | torch.device = "cpu") -> list[Method]:
        """All ways to detect with all checkpoints.

        Raises:
            EvaluationError: weights can't be used, or a method isn't DISK.
        """
        for spec in specs:
            if spec.kind != "disk":
                raise EvaluationError(f"--method {spec.name} has no variants: only disk[:CHECKPOINT] has")
            if spec.multiscale:
                raise EvaluationError(f"--method {spec.name} has no variants: they are of a single scale")
        methods = []
        for spec in specs:
            variants = Variants(spec.load_detector(device), self.detections)
            for detection in self.detections:
                name = f"{spec.name}, {detection}"
                self._variants[name] = (spec.name, str(detection))
                methods.append(variants.method(detection, name))
        return methods

    def items(self) -> list[Item]:
        """Those of the protocol."""
        return self.protocol.items()

    def evaluate(self, item: Item, method: Method, n: int, matcher: Matcher) -> list[Record]:
        """As the protocol does."""
        return self.protocol.evaluate(item, method, n, matcher)

    def score(self, records: Sequence[Record]) -> float:
        """That of the protocol."""
        return self.protocol.score(records)

    def tables(self, records: Sequence[Record]) -> list[Table]:
        """The protocol's first table, that over all pairs, with what tells variants apart in columns of its own.

        Budgets come one after the other, with all variants in each. ``keypoints`` is the mean of those found in an
        image: cells, and wide windows, may give fewer than n.
        """
        table = self.protocol.tables(records)[0]
        if table.columns[:2] != ("method", "n"):
            raise ValueError(f"the table of {self.name} must begin with method and n, got {table.columns}")
        found = {(method, n): _keypoints(group) for method, n, group in by_method(comparable(records)[0])}
        several = len({checkpoint for checkpoint, _ in self._variants.values()}) > 1
        rows: list[tuple[Cell, ...]] = []
        for method, n, *values in sorted(table.rows, key=_budget):
            checkpoint, detection = self._variants[str(method)]
            names = (checkpoint, detection) if several else (detection,)
            rows.append((*names, n, found[str(method), int(str(n))], *values))
        heading = ("checkpoint", "detection") if several else ("detection",)
        note = f"{table.note} Keypoints: mean of an image.".strip()
        title = f"Ablation: {table.title[0].lower()}{table.title[1:]}"
        return [
            replace(table, title=title, columns=(*heading, "n", "keypoints", *table.columns[2:]), rows=rows, note=note)
        ]

    def plots(self, records: Sequence[Record]) -> list[Plot]:
        """The protocol's first plot, that over all pairs."""
        return self.protocol.plots(records)[:1]

    def pictures(self, records: Sequence[Record], methods: Sequence[Method]) -> Iterable[tuple[str, Picture]]:
        """Those of the protocol, of one item only: there are many variants."""
        items = list(dict.fromkeys(record["item"] for record in records))
        middle = items[len(items) // 2] if items else None
        return self.protocol.pictures([record for record in records if record["item"] == middle], methods)


def _budget(row: tuple[Cell, ...]) -> int:
    return int(str(row[1]))


def _keypoints(records: Sequence[Record]) -> float | None:
    return mean(count for record in records for count in record["features"])
