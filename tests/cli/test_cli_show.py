"""disk-ops show and disk-ops demo: the pictures and what is told."""

from __future__ import annotations

from pathlib import Path

import cv2
import h5py
import pytest
from stored import save

from disk_ops import demo
from disk_ops.cli import main


def test_show(photos: Path, features: Path, matches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, output = str(photos / "a.jpg"), str(photos / "sub" / "a.jpg"), tmp_path / "out.png"
    stored = ["--features", str(features)]
    for arguments, width in (
        ([first, *stored], 96),
        ([first, "--n", "30", "--max-size", "80"], 96),
        ([first, second, *stored, "--matches", str(matches)], 2 * 96 + 12),
        ([second, first, *stored, "--ratio", "0.9"], 2 * 96 + 12),
        ([first, first, "--n", "30", "--verify", "--max-width", "150"], None),
    ):
        assert main(["show", *arguments, "-o", str(output)]) == 0, arguments
        picture = cv2.imread(str(output))
        assert picture.shape[1] == width if width else 140 <= picture.shape[1] <= 150
        output.unlink()
    told = capsys.readouterr().out
    with h5py.File(features) as file:
        count = len(file["a.jpg"]["keypoints"])
    assert f"{count} keypoints of a.jpg" in told and "matches of a.jpg and sub/a.jpg" in told


def test_show_needs_the_right_image(
    photos: Path, features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (other := tmp_path / "a.png").write_bytes(save(tmp_path / "x.png", 1, 20, 30).read_bytes())
    out = ["-o", str(tmp_path / "out.png")]
    for arguments, reason in (
        ([str(other), "--features", str(features)], "has 30x20 pixels, but the features of a.png"),
        ([str(tmp_path / "x.png"), "--features", str(features)], "no features of this image"),
        ([str(other), "--matches", str(features)], "--matches needs two images"),
        ([str(other)] * 3, "one image (keypoints) or two images (matches)"),
        ([str(features)], "not an image"),
        ([str(other), "--features", str(other)], "not an HDF5 file"),
    ):
        assert main(["show", *arguments, *out]) == 2, arguments
        assert reason in capsys.readouterr().err
    assert main(["show", str(other), "-o", str(other)]) == 2
    assert main(["show", str(other), "-o", str(tmp_path / "out.xyz"), "--n", "5"]) == 2


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for image in demo.IMAGES:  # smaller ones, for speed
        small = cv2.resize(cv2.imread(str(image)), (384, 288), interpolation=cv2.INTER_AREA)
        cv2.imwrite(str(tmp_path / image.name), small)
    monkeypatch.setattr(demo, "IMAGES", tuple(tmp_path / image.name for image in demo.IMAGES))
    assert main(["demo", "-o", str(tmp_path / "new" / "folder"), "--n", "512"]) == 0
    told = capsys.readouterr().out
    assert "512 and 512 keypoints" in told and "mutual nearest neighbours" in told
    line = next(line for line in told.splitlines() if line.startswith("verified"))
    assert int(line.split()[1]) > 60  # matches that agree with one fundamental matrix
    picture = cv2.imread(str(tmp_path / "new" / "folder" / "demo.png"))
    assert picture.shape == (288, 2 * 384 + 12, 3) and picture.std() > 30


@pytest.mark.parametrize(
    ("count", "options", "reason"),
    [
        (1, ["--features", "FEATURES", "--n", "2048"], "--n does nothing with --features"),
        (1, ["--features", "FEATURES", "--max-s", "1600"], "--max-size does nothing with --features"),
        (1, ["--features", "FEATURES", "--window-size=5"], "--window-size does nothing with --features"),
        (1, ["--features", "FEATURES", "--subpixel"], "--subpixel does nothing with --features"),
        (1, ["--features", "FEATURES", "--scales", "1"], "--scales does nothing with --features"),
        (1, ["--features", "FEATURES", "--weights", "general"], "--weights does nothing with --features"),
        (1, ["--features", "FEATURES", "--device", "cpu"], "--device does nothing with --features"),
        (1, ["--features", "FEATURES", "--score-threshold", "-1"], "--score-threshold does nothing with --features"),
        (2, ["--features", "FEATURES", "--matches", "MATCHES", "--ratio", "1"], "--ratio does nothing with --matches"),
        (1, ["--ratio", "0.9"], "--ratio does nothing with one image"),
        (1, ["--verify"], "--verify does nothing with one image"),
        (1, ["--max-lines", "150"], "--max-lines does nothing with one image"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    photos: Path,
    features: Path,
    matches: Path,
    tmp_path: Path,
    count: int,
    options: list[str],
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also with the value that is the default: the user expects an effect."""
    images = [str(photos / "a.jpg"), str(photos / "sub" / "a.jpg")][:count]
    given = [{"FEATURES": str(features), "MATCHES": str(matches)}.get(option, option) for option in options]
    assert main(["show", *images, *given, "-o", str(tmp_path / "out.png")]) == 2
    assert reason in capsys.readouterr().err and not (tmp_path / "out.png").exists()


def test_damaged_features_are_named(
    photos: Path, features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "f.h5", tmp_path / "out.png"
    for key, value in (("image_size", [96]), ("keypoints", [[float("nan"), 1.0]]), ("keypoints", [[1e30, 1.0]])):
        with h5py.File(features) as file, h5py.File(source, "w") as copy:
            file.copy("a.jpg", copy)
            del copy["a.jpg"][key]
            copy["a.jpg"][key] = value
        assert main(["show", str(photos / "a.jpg"), "--features", str(source), "-o", str(output)]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"disk-ops show: error: a.jpg: {key} in {source}: ") and told.count("\n") == 1
