"""python/examples/tracking.py, on frames that are one photograph warped by homographies that are known."""

from __future__ import annotations

import csv
import runpy
import sys
from pathlib import Path
from typing import Any

import cv2
import kornia
import numpy as np
import pytest
import torch

from disk_ops import demo
from disk_ops.evaluation.homography import warp

if not hasattr(kornia, "tracking"):
    pytest.skip("this kornia has no HomographyTracker", allow_module_level=True)

SIZE = (400, 300)
BOX = (110, 60, 180, 170)
HIDDEN = (3, 4)  # frames that show another part of the photograph, as large


def pose(number: int) -> np.ndarray:
    """From the photograph to a frame: it turns by 7 degrees a frame, moves, and shrinks, and is a little tilted."""
    angle, scale = np.deg2rad(7 * number), 0.42 * (1 - 0.02 * number)
    c, s = scale * np.cos(angle), scale * np.sin(angle)
    turn = np.array([[c, -s, 0], [s, c, 0], [2e-5 * number, -1e-5 * number, 1]])
    to_centre, back = np.eye(3), np.eye(3)
    to_centre[:2, 2], back[:2, 2] = (-512, -330), (200 + 3 * number, 150 - 2 * number)
    return back @ turn @ to_centre


def expected_corners(number: int) -> torch.Tensor:
    x, y, width, height = BOX
    corners = torch.tensor([[x, y], [x + width - 1, y], [x + width - 1, y + height - 1], [x, y + height - 1]])
    return warp(corners, pose(number) @ np.linalg.inv(pose(0)))


@pytest.fixture(scope="module")
def example(repository: Path) -> dict[str, Any]:
    return runpy.run_path(str(repository / "python" / "examples" / "tracking.py"))


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight frames, of which two don't show the target, and one is larger than the others."""
    folder = tmp_path_factory.mktemp("frames")
    photograph = cv2.imread(str(demo.IMAGES[0]))
    for number in range(8):
        frame = cv2.warpPerspective(photograph, pose(number), SIZE, flags=cv2.INTER_AREA)
        if number in HIDDEN:
            frame = photograph[440:740, 600:1000]
        if number == 6:
            frame = cv2.copyMakeBorder(frame, 0, 60, 0, 40, cv2.BORDER_CONSTANT)
        cv2.imwrite(str(folder / f"frame{number + 5}.png"), frame)  # 10 comes after 9
    return folder


def run(example: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["tracking.py", *map(str, arguments)])
    try:
        return example["main"]()
    except SystemExit as exit:
        assert isinstance(exit.code, int)
        return exit.code


def read_table(path: Path) -> dict[str, np.ndarray | None]:
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["frame", "h11", "h12", "h13", "h21", "h22", "h23", "h31", "h32", "h33"]
    return {row[0]: np.array(row[1:], float).reshape(3, 3) if row[1] else None for row in rows[1:]}


def read_video(path: Path) -> list[np.ndarray]:
    video, frames = cv2.VideoCapture(str(path)), []
    while (answer := video.read())[0]:
        frames.append(answer[1])
    return frames


def test_target_is_followed(
    example: dict[str, Any],
    frames: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Through a turn of 49 degrees and frames without it, to a pixel; what is drawn lies on its edges."""
    box = ",".join(map(str, BOX))
    assert run(example, monkeypatch, frames, "--box", box, "-o", tmp_path / "out.mp4") == 0
    assert "found in 6 of 8 frames" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "out.mp4"]
    table = read_table(tmp_path / "out.csv")
    assert list(table) == [f"frame{number + 5}.png" for number in range(8)]
    x, y, width, height = BOX
    own = torch.tensor([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]])
    for number, matrix in enumerate(table.values()):
        assert (matrix is None) == (number in HIDDEN)
        if matrix is not None:
            assert (warp(own, matrix) - expected_corners(number)).norm(dim=1).max() < 1, number
    video = read_video(tmp_path / "out.mp4")
    assert len(video) == 8 and video[0].shape == (300, 400, 3)
    middles = (expected_corners(1) + expected_corners(1).roll(1, 0)) / 2  # of the edges
    for x, y in middles.round().int().tolist():
        around = video[1][y - 1 : y + 2, x - 1 : x + 2].reshape(-1, 3).astype(int)
        assert (around[:, 1] - around[:, [0, 2]].max(1)).max() > 60, (x, y)  # green


def test_picture_of_the_target_in_a_video(
    example: dict[str, Any], frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The picture and the frames are larger than what the detector sees, and the frames are compressed."""
    x, y, width, height = BOX
    first = cv2.imread(str(frames / "frame5.png"))
    picture = cv2.resize(first[y : y + height, x : x + width], None, fx=2, fy=2, interpolation=cv2.INTER_CUBIC)
    cv2.imwrite(str(tmp_path / "target.png"), picture)
    writer = cv2.VideoWriter(str(tmp_path / "in.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 10, (800, 600))
    for number in range(3):
        frame = cv2.imread(str(frames / f"frame{number + 5}.png"))
        writer.write(cv2.resize(frame, (800, 600), interpolation=cv2.INTER_CUBIC))
    writer.release()
    given = [tmp_path / "in.mp4", "--target", tmp_path / "target.png", "--max-size", 350]
    assert run(example, monkeypatch, *given, "-o", tmp_path / "out.mp4") == 0
    table = read_table(tmp_path / "out.csv")
    assert list(table) == ["0", "1", "2"] and len(read_video(tmp_path / "out.mp4")) == 3
    assert cv2.VideoCapture(str(tmp_path / "out.mp4")).get(cv2.CAP_PROP_FPS) == 10
    edges = torch.tensor([[-0.5, -0.5], [2 * width - 0.5, 2 * height - 0.5]])
    for number, matrix in enumerate(table.values()):
        corners = torch.tensor([[x - 0.5, y - 0.5], [x + width - 0.5, y + height - 0.5]])
        expected = 2 * warp(corners, pose(number) @ np.linalg.inv(pose(0))) + 0.5
        assert matrix is not None and (warp(edges, matrix) - expected).norm(dim=1).max() < 2  # of 800 x 600


def test_interrupted(example: dict[str, Any], frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done until Ctrl-C is kept."""
    names = iter(range(100))

    def draw(*arguments: Any) -> np.ndarray:
        if next(names) == 2:
            raise KeyboardInterrupt
        return original(*arguments)

    original = example["main"].__globals__["draw"]
    monkeypatch.setitem(example["main"].__globals__, "draw", draw)
    assert run(example, monkeypatch, frames, "--box", "110,60,180,170", "-o", tmp_path / "out.mp4") == 130
    assert len(read_table(tmp_path / "out.csv")) == len(read_video(tmp_path / "out.mp4")) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone", "--box", "1,2,3,4"], "gone: no such folder, or no video that can be decoded"),
        (["text.txt", "--box", "1,2,3,4"], "text.txt: no such folder, or no video that can be decoded"),
        (["empty", "--box", "1,2,3,4"], "no images found in empty"),
        (["frames", "--box", "1,2,3"], "--box must be four integers X,Y,W,H, got '1,2,3'"),
        (["frames", "--box", "300,0,101,100"], "--box 300,0,101,100 doesn't lie in the first frame of 400 x 300"),
        (["frames", "--box", "110,60,8,8"], "keypoints, 20 are needed: take a larger part"),
        (["frames", "--target", "text.txt"], "text.txt is no image that can be decoded"),
        (["frames", "--target", "gone.png"], "No such file or directory: 'gone.png'"),
        (["frames", "--box", "110,60,180,170", "-o", "out.txt"], "out.txt can't be written as a video"),
        (["frames", "--box", "110,60,180,170", "-o", "gone/out.mp4"], "there is no folder gone"),
        (["text.txt", "--box", "1,2,3,4", "-o", "text.txt"], "the output would replace the source"),
        (["frames"], "one of the arguments --box --target is required"),
    ],
)
def test_what_can_not_be_used(
    example: dict[str, Any],
    frames: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("no image")
    (tmp_path / "frames").symlink_to(frames)
    before = sorted(tmp_path.iterdir())
    assert run(example, monkeypatch, *arguments) in (1, 2)
    assert message in capsys.readouterr().err and sorted(tmp_path.iterdir()) == before
