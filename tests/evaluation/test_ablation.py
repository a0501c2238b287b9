"""disk_ops.evaluation.ablation: variants find what they say, and one table shows them side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from disk_ops import DISKDetector, DISKFeatures
from disk_ops.evaluation.ablation import Ablation
from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.features import Matcher
from disk_ops.evaluation.methods import Method, cell_method, detector_method, parse_methods
from disk_ops.evaluation.protocol import Item, Plot, Protocol, Record, Table, by_method
from disk_ops.evaluation.runs import run
from disk_ops.evaluation.variants import Detection, Variants, detections


class HeatmapOfRed(torch.nn.Module):
    """A network whose heatmap is the red channel, 0 to 1, times 2 minus 1; descriptors tell x and y."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        batch, _, height, width = images.shape
        y, x = torch.meshgrid(torch.arange(1.0, height + 1), torch.arange(1.0, width + 1), indexing="ij")
        places = torch.stack([x, y]).expand(batch, -1, -1, -1)
        return torch.cat([places, images[:, :1] * self.scale - 1], 1)


@pytest.fixture
def detector() -> DISKDetector:
    return DISKDetector(2, unet=HeatmapOfRed()).eval()


def image_with(scores: dict[tuple[int, int], float], size: tuple[int, int] = (20, 32)) -> torch.Tensor:
    """An image [3, H, W] with these scores at (x, y), and a score of -1 elsewhere."""
    image = torch.zeros(3, *size)
    for (x, y), score in scores.items():
        image[:, y, x] = (score + 1) / 2
    return image


def found(method: Method, image: torch.Tensor, n: int = 100) -> list[list[float]]:
    return method.extract(image, n).keypoints.tolist()


# Two peaks side by side across the edge of cells of 8, two in one cell four pixels apart, and one below 0.
PEAKS = {(7, 4): 0.8, (8, 4): 0.6, (18, 10): 0.9, (22, 10): 0.5, (28, 4): -0.5}


class TestCells:
    def test_one_for_each_cell_the_best_first(self, detector: DISKDetector) -> None:
        features = cell_method(detector, "cells", 8).extract(image_with(PEAKS), 100)
        assert features.keypoints.tolist() == [[18, 10], [7, 4], [8, 4]]
        torch.testing.assert_close(features.scores, torch.tensor([0.9, 0.8, 0.6]))
        expected = torch.nn.functional.normalize(features.keypoints + 1, dim=1)
        torch.testing.assert_close(features.descriptors, expected)

    def test_smaller_cells_find_more(self, detector: DISKDetector) -> None:
        assert found(cell_method(detector, "cells", 4), image_with(PEAKS)) == [[18, 10], [7, 4], [8, 4], [22, 10]]

    def test_windows_find_no_neighbours_but_more_in_a_cell(self, detector: DISKDetector) -> None:
        image = image_with(PEAKS)
        assert found(detector_method(detector, "narrow", 3), image) == [[18, 10], [7, 4], [22, 10]]
        assert found(detector_method(detector, "wide", 9), image) == [[18, 10], [7, 4]]

    def test_at_most_n_are_found(self, detector: DISKDetector) -> None:
        assert found(cell_method(detector, "cells", 4), image_with(PEAKS), 2) == [[18, 10], [7, 4]]

    def test_partial_cells_and_the_edge_have_features(self, detector: DISKDetector) -> None:
        image = image_with({(0, 0): 0.5, (30, 18): 0.7}, (19, 31))
        assert found(cell_method(detector, "cells", 8), image) == [[30, 18], [0, 0]]

    def test_nothing_above_zero(self, detector: DISKDetector) -> None:
        features = cell_method(detector, "cells", 8).extract(image_with({(3, 3): -0.1}), 10)
        assert [list(part.shape) for part in features if part is not None] == [[0, 2], [0, 2], [0]]

    def test_the_networks_own_maps_are_read(self) -> None:
        detector, image = DISKDetector.from_pretrained(), torch.rand(3, 40, 52)
        features = cell_method(detector, "cells", 8).extract(image, 10)
        with torch.inference_mode():
            heatmap, _ = detector.heatmap_and_dense_descriptors(image[None])
            described = detector.describe(image[None], features.keypoints[None])[0]
        x, y = features.keypoints.long().T
        torch.testing.assert_close(features.scores, heatmap[0, 0, y, x], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(features.descriptors, described, atol=1e-4, rtol=1e-4)
        assert len({(a // 8, b // 8) for a, b in zip(x.tolist(), y.tolist(), strict=True)}) == len(x) > 0

    def test_the_fingerprint_tells_variants_apart(self, detector: DISKDetector) -> None:
        variants = [*(cell_method(detector, "a", cell) for cell in (5, 8)), detector_method(detector, "a", 5)]
        assert len({variant.fingerprint for variant in variants}) == 3
        assert cell_method(detector, "other name", 8).fingerprint == variants[1].fingerprint


class TestDetections:
    def test_each_once_in_order(self) -> None:
        chosen = detections([8, 4, 8], [5, 3])
        assert [str(each) for each in chosen] == ["one per cell 8", "one per cell 4", "NMS 5", "NMS 3"]

    @pytest.mark.parametrize(
        ("cells", "windows", "reason"),
        [
            ([], [], "neither --cells nor --windows"),
            ([65], [], "--cells must be from 1 to 64 pixels, got 65"),
            ([], [4], "--windows must be odd, got 4"),
        ],
    )
    def test_what_can_not_be(self, cells: list[int], windows: list[int], reason: str) -> None:
        with pytest.raises(EvaluationError, match=reason):
            detections(cells, windows)


class Counting(Protocol):
    """Counts the features of random images."""

    name, settings = "counting", {"size": 64}

    def items(self) -> list[Item]:
        return [Item(name, ()) for name in "abc"]

    def evaluate(self, item: Item, method: Method, n: int, matcher: Matcher) -> list[Record]:
        image = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(ord(item.name)))
        count = len(method.extract(image, n).keypoints)
        return [{"features": [count, count], "value": 1.0}]

    def tables(self, records: Any) -> list[Table]:
        rows = [(method, n, len(group)) for method, n, group in by_method(records)]
        return [
            Table("All pairs", ("method", "n", "pairs"), list(rows), "Counted.", {"pairs": "max"}),
            Table("B", (), []),
        ]

    def plots(self, records: Any) -> list[Plot]:
        return [Plot(title, "", "", "lines", {}) for title in "ab"]

    def pictures(self, records: Any, methods: Any) -> list[Any]:
        return [record["item"] for record in records]

    def score(self, records: Any) -> float:
        return float(len(records))


class TestVariants:
    DETECTIONS = detections([8, 4], [3, 5])

    def test_features_are_those_of_each_alone(self) -> None:
        detector, image = DISKDetector.from_pretrained(), torch.rand(3, 40, 52)
        variants = Variants(detector, self.DETECTIONS)
        for detection in self.DETECTIONS:
            for n in (5, 10_000):
                shared = variants.method(detection, "m").extract(image, n)
                alone = detection.method(detector, "m").extract(image, n)
                assert len(shared.keypoints) > 0
                for one, other in zip(shared, alone, strict=True):
                    torch.testing.assert_close(one, other, rtol=0, atol=0)

    def test_results_kept_of_one_alone_serve_the_shared_one(self, detector: DISKDetector) -> None:
        for detection in self.DETECTIONS:
            shared = Variants(detector, self.DETECTIONS).method(detection, "m")
            assert shared.fingerprint == detection.method(detector, "m").fingerprint

    def test_an_image_passes_the_network_once_for_all(self, detector: DISKDetector, tmp_path: Path) -> None:
        passes = []
        detector.unet.register_forward_hook(lambda *_: passes.append(1))
        variants = Variants(detector, self.DETECTIONS)
        methods = [variants.method(detection, str(detection)) for detection in self.DETECTIONS]
        records = run(Counting(), methods, [8, 4], tmp_path)
        assert len(passes) == 3 * 2, "three images, two numbers of keypoints"
        order = [(record["method"], record["n"], record["item"]) for record in records]
        assert order == [(method.name, n, item) for method in methods for n in (8, 4) for item in "abc"]

    def test_an_image_that_is_computed_in_tiles_has_the_features_of_each_alone(self, monkeypatch) -> None:
        detector, image = DISKDetector.from_pretrained(), torch.rand(3, 40, 52)
        shared = Variants(detector, self.DETECTIONS).method(self.DETECTIONS[2], "m")
        monkeypatch.setattr("disk_ops.evaluation.variants.limit_for", lambda *_: 10**9)
        monkeypatch.setattr(detector, "heatmap_and_reader", None)
        monkeypatch.setattr(detector, "forward", lambda *_, **__: [DISKFeatures(*(torch.ones(1, 2),) * 3)])
        assert shared.extract(image, 5).keypoints.tolist() == [[1, 1]]


class TestTable:
    def records(self, ablation: Ablation, methods: list[Method], ns: tuple[int, ...]) -> list[Record]:
        return [
            {"method": method.name, "n": n, "ratio": None, "item": item.name, **record}
            for method in methods
            for n in ns
            for item in ablation.items()
            for record in ablation.evaluate(item, method, n, Matcher())
        ]

    def test_a_row_for_each_variant_and_budget(self) -> None:
        ablation = Ablation(Counting(), detections([32], [3]))
        methods = ablation.methods(parse_methods(["disk"]))
        assert [method.name for method in methods] == ["disk, one per cell 32", "disk, NMS 3"]
        records = self.records(ablation, methods, (2, 8))
        (table,) = ablation.tables(records)
        assert (table.title, table.columns) == ("Ablation: all pairs", ("detection", "n", "keypoints", "pairs"))
        assert [row[:2] for row in table.rows] == [
            *(("one per cell 32", 2), ("NMS 3", 2)),
            *(("one per cell 32", 8), ("NMS 3", 8)),
        ]
        cells2, windows2, cells8, windows8 = (row[2] for row in table.rows)
        assert cells2 == windows2 == 2 and cells8 <= 4 < windows8  # there are only four cells
        assert all(row[3] == 3 for row in table.rows) and table.best == {"pairs": "max"}

    def test_checkpoints_have_a_column_where_there_are_several(self, tmp_path: Path) -> None:
        torch.save(DISKDetector().state_dict(), tmp_path / "mine.pth")
        ablation = Ablation(Counting(), [Detection("window", 5)])
        methods = ablation.methods(parse_methods(["disk", f"disk:{tmp_path}/mine.pth"]))
        assert methods[0].fingerprint != methods[1].fingerprint
        (table,) = ablation.tables(self.records(ablation, methods, (4,)))
        assert [row[:3] for row in table.rows] == [("disk", "NMS 5", 4), ("disk:mine.pth", "NMS 5", 4)]

    def test_what_is_kept_and_chosen_by_is_the_protocols(self) -> None:
        ablation = Ablation(Counting(), [Detection("cell", 8)])
        assert (ablation.name, ablation.settings, ablation.score([{}])) == ("counting", {"size": 64}, 1)
        records = [{"item": item} for item in "abc"]
        assert len(ablation.plots(records)) == 1 and ablation.pictures(records, []) == ["b"]

    def test_only_disk_has_variants(self) -> None:
        with pytest.raises(EvaluationError, match=r"--method sift has no variants: only disk\[:CHECKPOINT\] has"):
            Ablation(Counting(), [Detection("cell", 8)]).methods(parse_methods(["disk", "sift"]))
        with pytest.raises(
            EvaluationError, match=r"--method disk\+multiscale has no variants: they are of a single scale"
        ):
            Ablation(Counting(), [Detection("cell", 8)]).methods(parse_methods(["disk+multiscale"]))
        with pytest.raises(EvaluationError, match="--method sift has no detector of DISK"):
            parse_methods(["sift"])[0].load_detector()
