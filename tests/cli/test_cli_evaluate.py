"""disk-ops evaluate: results side by side, their files, and what is said when something can't be done."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from disk_ops.cli import main
from disk_ops.evaluation.homography_protocol import HomographyProtocol
from disk_ops.provenance import source_commit

SHIFT = (8, 5)
FEW = ["--max-size", "160", "--n", "100"]


def write_set(folder: Path, seed: int = 0, grey: bool = False) -> Path:
    """A picture of blobs, and the same moved by SHIFT, as in HPatches."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(seed)
    layers = [cv2.resize(generator.random((120 // s, 160 // s, 3)), (176, 136)) for s in (2, 4, 8)]
    large = np.rint(255 * sum(layers) / 3).astype(np.uint8)
    for number, (x, y) in ((1, (0, 0)), (2, SHIFT)):
        pixels = large[y : y + 120, x : x + 160]
        cv2.imwrite(str(folder / f"{number}.png"), pixels[:, :, 0] if grey else pixels)
    np.savetxt(folder / "H_1_2", np.array([[1, 0, -SHIFT[0]], [0, 1, -SHIFT[1]], [0, 0, 1]]))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for number, name in enumerate(("v_one", "i_two")):
        write_set(tmp_path / "data" / name, number)
    return tmp_path / "data"


def evaluate(data: Path, out: Path, *more: str) -> int:
    return main(["evaluate", "homography", str(data), "-o", str(out), *FEW, *more])


def results(out: Path) -> dict:
    return json.loads((out / "results.json").read_text())


class TestResults:
    def test_two_methods_side_by_side(self, data, tmp_path, capsys) -> None:
        assert evaluate(data, tmp_path / "out", "--method", "rootsift", "sift") == 0
        told = capsys.readouterr()
        assert "All pairs" in told.out and "By change" in told.out and "By set" in told.out
        assert told.out.endswith("report.html: 4 records, 0 failed\n")
        found = results(tmp_path / "out")
        assert [(record["item"], record["method"]) for record in found["records"]] == [
            ("i_two", "rootsift"),
            ("v_one", "rootsift"),
            ("i_two", "sift"),
            ("v_one", "sift"),
        ]
        for record in found["records"]:
            assert record["auc5"] > 0.8 and record["corner_error"] < 1 and record["repeatability"] > 0.5
            assert (record["n"], record["ratio"]) == (100, None)
        assert found["environment"]["settings"]["max_size"] == 160
        with (tmp_path / "out" / "results.csv").open() as file:
            assert len(list(csv.DictReader(file))) == 4
        assert "data:image/jpeg" in (tmp_path / "out" / "report.html").read_text()

    def test_a_report_without_pictures(self, data, tmp_path) -> None:
        assert evaluate(data, tmp_path / "out", "--method", "sift", "--no-pictures") == 0
        page = (tmp_path / "out" / "report.html").read_text()
        assert "All pairs" in page and "data:image/jpeg" not in page and "<h2>Pictures" not in page

    def test_repeated_runs_are_equal_and_take_what_is_there(self, data, tmp_path, monkeypatch) -> None:
        found = []
        for place in ("one", "other"):
            (tmp_path / place).mkdir()
            monkeypatch.chdir(tmp_path / place)
            assert evaluate(data, Path("out"), "--method", "rootsift") == 0
            found.append(Path("out/results.json").read_bytes())
        first = found[0]
        assert found[1] == first

        def never(*arguments: object) -> None:
            raise AssertionError("all is in the cache")

        monkeypatch.setattr(HomographyProtocol, "evaluate", never)
        assert evaluate(data, Path("out"), "--method", "rootsift") == 0
        assert Path("out/results.json").read_bytes() == first

    def test_they_say_how_they_came_about(self, data, tmp_path, monkeypatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert evaluate(data, Path("out put"), "--method", "sift") == 0
        told = results(Path("out put"))["environment"]
        assert told["command"] == (
            f"disk-ops evaluate homography {data} -o 'out put' --max-size 160 --n 100 --method sift"
        )
        assert told["commit"] == source_commit()
        assert told["packages"]["opencv"] == cv2.__version__ and told["packages"]["numpy"] == np.__version__

    def test_disk_on_grey_images_at_two_numbers(self, tmp_path) -> None:
        write_set(tmp_path / "data" / "grey", grey=True)
        assert evaluate(tmp_path / "data", tmp_path / "out", "--method", "disk", "--n", "1", "50", "50") == 0
        assert [record["n"] for record in results(tmp_path / "out")["records"]] == [1, 50]

    def test_the_ratio_is_chosen_on_other_sets(self, data, tmp_path, capsys) -> None:
        write_set(data / "v_three", 3)
        assert evaluate(data, tmp_path / "out", "--method", "rootsift", "--ratio", "auto") == 0
        told = capsys.readouterr()
        assert "Ratio thresholds" in told.out
        tested = {record["item"] for record in results(tmp_path / "out")["records"]}
        assert len(tested) == 2
        (left_out,) = {"v_one", "i_two", "v_three"} - tested
        assert f"note: ratio thresholds chosen on {left_out}, not in the test" in told.err

    def test_the_ratio_is_chosen_on_given_data(self, data, tmp_path) -> None:
        write_set(tmp_path / "validation" / "v_four", 4)
        more = ("--method", "rootsift", "--ratio", "auto", "--validation", str(tmp_path / "validation"))
        assert evaluate(data, tmp_path / "out", *more) == 0
        assert {record["item"] for record in results(tmp_path / "out")["records"]} == {"v_one", "i_two"}
        assert evaluate(data, tmp_path / "out", *more[:-1], str(data)) == 2

    def test_the_papers_scenes(self, data, tmp_path, capsys) -> None:
        write_set(data / "i_dc", 5)
        assert evaluate(data, tmp_path / "out", "--method", "sift") == 0
        assert "left out as in the paper (--all-scenes takes them): i_dc" in capsys.readouterr().err
        assert len(results(tmp_path / "out")["records"]) == 2
        assert evaluate(data, tmp_path / "out", "--method", "sift", "--all-scenes") == 0
        assert len(results(tmp_path / "out")["records"]) == 3


class TestTrouble:
    def test_a_broken_image_is_named_and_the_rest_goes_on(self, data, tmp_path, capsys) -> None:
        (data / "v_one" / "2.png").write_bytes(b"no image")
        assert evaluate(data, tmp_path / "out", "--method", "sift") == 1
        told = capsys.readouterr()
        assert "failed: v_one (sift, n 100): " in told.err and "2.png: is not an image" in told.err
        assert told.out.endswith("report.html: 1 record, 1 failed\n")
        assert [record["item"] for record in results(tmp_path / "out")["records"]] == ["i_two"]
        (data / "v_one" / "2.png").write_bytes((data / "v_one" / "1.png").read_bytes())
        assert evaluate(data, tmp_path / "out", "--method", "sift") == 0
        assert len(results(tmp_path / "out")["records"]) == 2

    def test_a_missing_image_is_named_and_the_rest_goes_on(self, data, tmp_path, capsys) -> None:
        (data / "v_one" / "2.png").unlink()
        assert evaluate(data, tmp_path / "out", "--method", "sift") == 1
        assert "v_one: has a homography for the image 2.*, but not the image" in capsys.readouterr().err

    def test_nothing_that_can_be_used(self, data, tmp_path, capsys) -> None:
        for path in data.rglob("1.png"):
            path.write_bytes(b"")
        assert evaluate(data, tmp_path / "out", "--method", "sift") == 2
        assert capsys.readouterr().err.endswith("disk-ops evaluate: error: nothing could be evaluated\n")

    @pytest.mark.parametrize("name", ["results.json", "results.csv", "report.html"])
    def test_files_of_something_else_are_not_replaced(self, name, data, tmp_path, capsys) -> None:
        (tmp_path / name).write_text('{"mine": 1}')
        assert evaluate(data, tmp_path, "--method", "sift") == 2
        assert f"{tmp_path / name} was not made by disk-ops evaluate: use another folder" in capsys.readouterr().err
        assert (tmp_path / name).read_text() == '{"mine": 1}' and not (tmp_path / "cache").exists()

    def test_results_of_another_protocol_are_not_replaced(self, data, tmp_path, capsys) -> None:
        assert evaluate(data, tmp_path / "out", "--method", "sift") == 0
        assert main(["evaluate", "rotation", str(data), "-o", str(tmp_path / "out"), *FEW]) == 2
        assert "holds the results of disk-ops evaluate homography: use another folder" in capsys.readouterr().err

    def test_an_interruption_says_how_to_go_on(self, data, tmp_path, capsys, monkeypatch) -> None:
        original = HomographyProtocol.evaluate

        def stop(self, item, *more):
            if item.name == "v_one":
                raise KeyboardInterrupt
            return original(self, item, *more)

        monkeypatch.setattr(HomographyProtocol, "evaluate", stop)
        assert evaluate(data, tmp_path / "out", "--method", "sift") == 130
        assert "interrupted: what is done is kept in" in capsys.readouterr().err
        monkeypatch.setattr(HomographyProtocol, "evaluate", original)
        assert evaluate(data, tmp_path / "out", "--method", "sift") == 0

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (["gone", "-o", "out"], "gone: no such folder"),
            (["empty", "-o", "out"], "empty: no homography set: looked for "),
            (["file", "-o", "out"], "file: no such folder"),
            (["data", "-o", "file"], "-o file is a file, a folder is needed"),
            (["data", "-o", "out", "--method", "sift", "sift"], "--method sift is given twice"),
            (["data", "-o", "out", "--method", "surf"], "--method must be one of disk"),
            (["data", "-o", "out", "--method", "disk:gone"], "--method disk:gone: checkpoint 'gone'"),
            (["data", "-o", "out", "--device", "abc"], "--device abc can't be used"),
            (["data", "-o", "out", "--validation", "data"], "--validation is of use with --ratio auto only"),
            (["data/v_one", "-o", "out", "--ratio", "auto"], "--ratio auto needs items for validation"),
            (["data", "-o", "out", "--ratio", "auto", "--validation", "data"], "data shares files with the test"),
            (["data", "-o", "out", "--ratio", "auto", "--validation", "gone"], "gone: no such folder"),
        ],
    )
    def test_what_is_impossible_is_said_in_one_line(
        self, arguments, reason, data, tmp_path, monkeypatch, capsys
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "empty").mkdir()
        (tmp_path / "file").write_text("")
        assert main(["evaluate", "homography", *arguments]) == 2
        told = capsys.readouterr().err
        assert reason in told and told.count("\n") == 1 and told.startswith("disk-ops evaluate: error: ")
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        "arguments",
        [["--n", "0"], ["--n"], ["--ratio", "2"], ["--ransac", "guess"], ["--method"], ["--ransac-threshold", "inf"]],
    )
    def test_wrong_usage(self, arguments, data, tmp_path) -> None:
        with pytest.raises(SystemExit) as raised:
            main(["evaluate", "homography", str(data), "-o", str(tmp_path / "out"), *arguments])
        assert raised.value.code == 2
