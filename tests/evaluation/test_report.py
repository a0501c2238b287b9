"""disk_ops.evaluation.report: files that are whole, tables that fit, and texts that can't do harm."""

from __future__ import annotations

import base64
import csv
import json
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest

from disk_ops.evaluation.protocol import Plot, Table
from disk_ops.evaluation.report import print_tables, write_report
from disk_ops.evaluation.report.cells import cells
from disk_ops.evaluation.report.console import table_text
from disk_ops.evaluation.report.plots import plot_svg
from disk_ops.io.output import OutputError

TABLE = Table(
    "Poses",
    ("method", "pairs", "mAA", "error"),
    [("disk", 1200, 0.5, 12.25), ("sift", 80, 0.25, None), ("aliked", 80, 0.5, 3.5)],
    note="A note.",
    best={"mAA": "max", "error": "min"},
)
NASTY = "<script>alert('x')</script> & \"$a_1^2$\""


class Page(HTMLParser):
    """What a browser would see."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []
        self.strong: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.links: list[str] = []
        self.feed(file.read_text(encoding="utf-8"))
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "img":
            self.images.append(dict(attrs))
        self.links += [value for key, value in attrs if key in ("src", "href") and value]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if self.open and self.open[-1] == "strong":
            self.strong.append(data)


def decoded(image: dict[str, str | None]) -> tuple[str, bytes]:
    kind, data = re.fullmatch(r"data:image/([a-z+]+);base64,(.*)", str(image["src"])).groups()
    return kind, base64.b64decode(data)


class TestCells:
    def test_numbers_of_a_column_have_equal_decimals(self):
        texts = [[cell.text for cell in row] for row in cells(TABLE)]
        assert texts == [
            ["disk", "1,200", "0.500", "12.25"],
            ["sift", "80", "0.250", "–"],
            ["aliked", "80", "0.500", "3.50"],
        ]

    def test_best_values_are_marked_all_of_them(self):
        best = [[cell.best for cell in row] for row in cells(TABLE)]
        assert best == [[False, False, True, False], [False] * 4, [False, False, True, True]]

    def test_nothing_is_best_among_equals(self):
        table = Table("", ("a",), [(1.0,), (1.0,), (None,)], best={"a": "max"})
        assert not any(cell.best for row in cells(table) for cell in row)

    def test_what_is_not_finite(self):
        table = Table("", ("a",), [(math.nan,), (math.inf,), (-math.inf,), (1.5,)], best={"a": "max"})
        assert [row[0].text for row in cells(table)] == ["–", "∞", "−∞", "1.500"]
        assert not any(row[0].best for row in cells(table))

    def test_numpy_numbers_and_truth_values(self):
        table = Table("", ("a", "b"), [(np.float32(0.5), True), (np.int64(123), False)])
        assert [[cell.text for cell in row] for row in cells(table)] == [["0.5", "yes"], ["123.0", "no"]]

    def test_wrong_tables_are_named(self):
        with pytest.raises(ValueError, match="table 'T': a row has 1 values for 2 columns"):
            cells(Table("T", ("a", "b"), [(1,)]))
        with pytest.raises(ValueError, match="table 'T': best must map columns to min or max, got 'c': 'max'"):
            cells(Table("T", ("a",), [(1,)], best={"c": "max"}))


class TestConsole:
    def test_a_table(self):
        assert table_text(TABLE) == (
            "Poses\n\n"
            "method  pairs    mAA   error\n"
            "──────  ─────  ──────  ──────\n"
            "disk    1,200  0.500*  12.25\n"
            "sift       80  0.250       –\n"
            "aliked     80  0.500*   3.50*\n\n"
            "A note.\n* best\n"
        )

    def test_wide_tables_are_broken_and_their_rows_named_again(self, capsys):
        columns = ("method", *(f"column {index}" for index in range(30)))
        table = Table("Wide", columns, [("disk", *range(30)), ("sift", *range(30))], note="long " * 60)
        print_tables([table, TABLE])
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 120
        heads = [line for line in lines if line.startswith("method") and "column" in line]
        assert len(heads) > 1
        assert [int(number) for head in heads for number in re.findall(r"column (\d+)", head)] == list(range(30))
        assert sum(line.startswith("sift") for line in lines) == len(heads) + 1

    def test_the_parts_of_a_wide_table_name_the_number_that_tells_rows_apart(self):
        columns = ("method", "n", *(f"column {index}" for index in range(30)))
        table = Table("Wide", columns, [("disk", n, *range(30)) for n in (2048, 8000)])
        lines = table_text(table).splitlines()
        heads = sum(line.startswith("method") for line in lines)
        assert heads > 1 and sum(line.split()[:2] == ["disk", "8,000"] for line in lines) == heads
        once = table_text(Table("Wide", columns, table.rows[:1])).splitlines()
        assert sum(line.split()[:2] == ["disk", "2,048"] for line in once) == 1

    def test_long_names_and_control_characters(self):
        table = Table("T", ("method", "x"), [("disk:" + "a" * 300, 1), ("b\x1b[31m\n", 2)])
        text = table_text(table)
        assert max(map(len, text.splitlines())) <= 120
        assert "\x1b" not in text and "…" in text

    def test_wide_letters_are_aligned(self):
        lines = table_text(Table("T", ("method", "x"), [("漢字", 1), ("ab", 2)])).splitlines()
        assert lines[4].endswith("漢字    1") and lines[5].endswith("ab      2")

    def test_no_rows_and_no_columns(self):
        assert "(nothing)" in table_text(Table("Empty", ("method", "x"), []))
        assert "Empty" in table_text(Table("Empty", (), []))


class TestFiles:
    def write(self, folder: Path, **changes) -> Path:
        records = [
            {"method": "disk", "n": 8, "item": "a b", "matches": 3, "features": [4, 5]},
            {"method": "sift", "n": 8, "item": 'c,"d"\n', "matches": math.nan, "error": np.float64(0.5)},
        ]
        picture = np.zeros((30, 40, 3), np.uint8)
        picture[:, :20, 0] = 255
        arguments = {
            "tables": [TABLE],
            "plots": [Plot("P", "x", "y", "lines", {"disk": ([1, 2], [0.5, math.nan]), "_hidden": ([1], [1.0])})],
            "pictures": [("A picture", picture)],
            "environment": {"torch": "2.0", "settings": {"max_size": 1024}},
        }
        return write_report(folder, "Title", records, **(arguments | changes))

    def test_everything_is_there(self, tmp_path):
        page = Page(self.write(tmp_path / "new" / "folder"))
        text = "".join(page.text)
        for part in ("Title", "Poses", "A note.", "mAA", "A picture", "torch", '{"max_size": 1024}'):
            assert part in text
        assert page.strong == ["0.500", "0.500", "3.50"]
        assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [
            "report.html",
            "results.csv",
            "results.json",
        ]

    def test_the_page_needs_no_other_file_and_runs_nothing(self, tmp_path):
        page = Page(self.write(tmp_path))
        assert "script" not in page.tags and "link" not in page.tags
        assert page.links and all(link.startswith("data:") for link in page.links)

    def test_pictures_and_plots_can_be_decoded(self, tmp_path):
        pytest.importorskip("matplotlib")
        plot, picture = (decoded(image) for image in Page(self.write(tmp_path)).images)
        assert plot[0] == "svg+xml" and plot[1].lstrip().startswith(b"<?xml") and b"</svg>" in plot[1]
        assert picture[0] == "jpeg"
        pixels = cv2.imdecode(np.frombuffer(picture[1], np.uint8), cv2.IMREAD_COLOR)
        assert pixels.shape == (30, 40, 3)
        assert pixels[15, 5, 2] > 240 and pixels[15, 5, 0] < 15  # red, not blue

    def test_json(self, tmp_path):
        self.write(tmp_path)
        content = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
        assert content["records"][0]["features"] == [4, 5]
        assert content["records"][1]["matches"] is None and content["records"][1]["error"] == 0.5
        assert content["tables"][0]["rows"][1] == ["sift", 80, 0.25, None]
        assert content["environment"]["settings"] == {"max_size": 1024}

    def test_csv(self, tmp_path):
        self.write(tmp_path)
        with (tmp_path / "results.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
        assert rows[0] == ["method", "n", "item", "matches", "features", "error"]
        assert rows[1] == ["disk", "8", "a b", "3", "[4, 5]", ""]
        assert rows[2] == ["sift", "8", 'c,"d"\n', "", "", "0.5"]

    def test_texts_are_shown_as_they_are(self, tmp_path):
        table = Table(NASTY, (NASTY, "x"), [(NASTY, 1)], note=NASTY)
        plot = Plot(NASTY, NASTY, NASTY, "bars", {NASTY: ([NASTY, "$b", "\\$c"], [1.0, 2.0, 3.0])})
        picture = (NASTY, np.zeros((8, 8, 3), np.uint8))
        changes = {"tables": [table], "plots": [plot], "pictures": [picture], "environment": {NASTY: NASTY}}
        page = Page(self.write(tmp_path, **changes))
        assert "script" not in page.tags
        assert sum(NASTY in text for text in page.text) >= 6
        assert all(NASTY in str(image["alt"]) for image in page.images)

    def test_file_names_that_are_not_utf8(self, tmp_path):
        name = b"caf\xe9.jpg".decode("utf-8", "surrogateescape")
        table = Table(name, ("x",), [(name,)])
        write_report(tmp_path, name, [{"method": "disk", "n": 1, "item": name}], [table])
        assert "caf\\udce9.jpg" in (tmp_path / "report.html").read_text(encoding="utf-8")
        assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))

    def test_without_matplotlib_there_is_a_note(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        page = Page(self.write(tmp_path))
        assert "pip install matplotlib" in "".join(page.text)
        assert len(page.images) == 1

    def test_nothing_at_all(self, tmp_path):
        page = Page(write_report(tmp_path, "Empty", [], []))
        assert "Empty" in "".join(page.text)
        assert (tmp_path / "results.csv").read_text() == ""

    def test_equal_results_give_equal_files(self, tmp_path):
        for name in ("a", "b"):
            self.write(tmp_path / name)
        for file in ("results.json", "results.csv", "report.html"):
            assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()

    def test_an_old_report_stays_when_a_new_one_fails(self, tmp_path):
        self.write(tmp_path)
        old = (tmp_path / "report.html").read_bytes()
        with pytest.raises(ValueError, match="picture 'bad' must be uint8"):
            self.write(tmp_path, pictures=[("bad", np.zeros((8, 8), np.float32))])
        assert (tmp_path / "report.html").read_bytes() == old
        assert not list(tmp_path.glob("*.part"))

    def test_a_folder_that_cannot_be_made(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(OutputError, match="file/folder can't be made"):
            write_report(tmp_path / "file" / "folder", "T", [], [])


class TestPlots:
    @pytest.fixture(autouse=True)
    def needs_matplotlib(self) -> None:
        pytest.importorskip("matplotlib")

    @pytest.mark.parametrize("kind", ["lines", "bars", "points"])
    @pytest.mark.parametrize(
        "series",
        [
            {},
            {"a": ([], [])},
            {"a": ([1], [math.nan])},
            {"a": (["x", "y"], [1, None])},
            {f"method {index}": ([f"scene {number}" for number in range(40)], [index] * 40) for index in range(13)},
        ],
        ids=["no series", "no values", "NaN", "missing", "many"],
    )
    def test_any_values_give_a_plot(self, kind, series):
        assert b"</svg>" in plot_svg(Plot("T", "x", "y", kind, series))

    @pytest.mark.parametrize(("categories", "series", "lies"), [(12, 5, False), (13, 1, True), (10, 7, True)])
    def test_many_bars_lie_and_make_the_plot_taller(self, categories, series, lies):
        values = (list(map(str, range(categories))), [1.0] * categories)
        drawn = plot_svg(Plot("T", "x", "y", "bars", {f"series {i}": values for i in range(series)})).decode()
        height = float(re.search(r'height="([\d.]+)pt"', drawn)[1])
        assert height == pytest.approx(72 * (1.2 + categories * (0.12 + 0.11 * series) if lies else 4.0), abs=0.1)

    def test_bars_stand_over_their_names_though_a_series_lacks_some(self):
        both = plot_svg(Plot("T", "x", "y", "bars", {"a": (["p", "q"], [1, 2]), "b": (["q"], [2])}))
        swapped = plot_svg(Plot("T", "x", "y", "bars", {"a": (["p", "q"], [1, 2]), "b": (["p"], [2])}))
        assert both != swapped

    def test_wrong_plots_are_named(self):
        with pytest.raises(ValueError, match="plot 'T': kind must be one of lines, bars, points, got 'pie'"):
            plot_svg(Plot("T", "x", "y", "pie", {}))
        with pytest.raises(ValueError, match="plot 'T': series 'a' has 2 x for 1 y"):
            plot_svg(Plot("T", "x", "y", "lines", {"a": ([1, 2], [1])}))

    def test_settings_of_the_user_are_neither_used_nor_changed(self):
        import matplotlib as mpl

        plot = Plot("T", "x", "y", "lines", {"a": ([1, 2], [1, 2])})
        before = plot_svg(plot)
        with mpl.rc_context({"font.size": 30, "text.usetex": True}):
            assert plot_svg(plot) == before
            assert mpl.rcParams["font.size"] == 30
