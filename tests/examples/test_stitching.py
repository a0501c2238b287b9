"""python/examples/stitching.py, on views of one photograph by homographies that are known."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from disk_ops import DISKDetector, demo
from disk_ops.evaluation.homography import warp

# Where the corners of each view (width, height) lie in the photograph: top left, top right, bottom right, bottom left.
VIEWS = [
    ((440, 480), [(20, 60), (460, 50), (470, 540), (30, 510)]),
    ((480, 440), [(270, 110), (760, 100), (750, 540), (280, 560)]),
    ((420, 500), [(560, 90), (990, 70), (980, 590), (550, 560)]),
]


@pytest.fixture(scope="module")
def example(repository: Path) -> dict[str, Any]:
    return runpy.run_path(str(repository / "python" / "examples" / "stitching.py"))


@pytest.fixture(scope="module")
def photograph() -> np.ndarray:
    return cv2.imread(str(demo.IMAGES[0]))


@pytest.fixture(scope="module")
def truth() -> list[np.ndarray]:
    """From the photograph to each view."""
    found = []
    for (width, height), corners in VIEWS:
        edges = np.array([(0, 0), (width - 1, 0), (width - 1, height - 1), (0, height - 1)], np.float32)
        found.append(cv2.getPerspectiveTransform(np.array(corners, np.float32), edges))
    return found


@pytest.fixture(scope="module")
def files(photograph: np.ndarray, truth: list[np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("views")
    paths = [folder / f"{number}.png" for number in range(len(VIEWS))]
    for path, matrix, (size, _) in zip(paths, truth, VIEWS, strict=True):
        cv2.imwrite(str(path), cv2.warpPerspective(photograph, matrix, size, flags=cv2.INTER_AREA))
    return paths


@pytest.fixture(scope="module")
def images(example: dict[str, Any], files: list[Path]) -> list[torch.Tensor]:
    return [example["read_photograph"](path, 1600) for path in files]


@pytest.fixture(scope="module")
def homographies(example: dict[str, Any], images: list[torch.Tensor]) -> list[np.ndarray]:
    return example["homographies_to_middle"](images, DISKDetector.from_pretrained(subpixel=True))


def run(example: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["stitching.py", *map(str, arguments)])
    return example["main"]()


def test_photographs_are_read_upright_and_of_any_type(
    example: dict[str, Any], images: list[torch.Tensor], files: list[Path], tmp_path: Path
) -> None:
    image = pytest.importorskip("PIL.Image").open(files[0])
    exif = image.getexif()
    exif[0x0112] = 6  # what is stored has to be turned clockwise
    image.rotate(90, expand=True).save(tmp_path / "turned.png", exif=exif)
    torch.testing.assert_close(example["read_photograph"](tmp_path / "turned.png", 1600), images[0])
    grey = cv2.imread(str(files[0]), cv2.IMREAD_GRAYSCALE)
    cv2.imwrite(str(tmp_path / "grey.png"), grey.astype(np.uint16) * 257)
    read = example["read_photograph"](tmp_path / "grey.png", 1600)
    torch.testing.assert_close(read, torch.from_numpy(grey / np.float32(255)).expand(3, -1, -1))
    assert example["read_photograph"](files[0], 240).shape == (3, 240, 220)


def test_homographies_are_right_to_a_pixel(homographies: list[np.ndarray], truth: list[np.ndarray]) -> None:
    np.testing.assert_allclose(homographies[1] / homographies[1][2, 2], np.eye(3), atol=1e-9)
    for matrix, to_view, ((width, height), _) in zip(homographies, truth, VIEWS, strict=True):
        corners = torch.tensor([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]])
        expected = warp(corners, truth[1] @ np.linalg.inv(to_view))
        assert (warp(corners, matrix) - expected).norm(dim=1).max() < 1


def test_panorama_shows_the_photograph(
    example: dict[str, Any],
    images: list[torch.Tensor],
    homographies: list[np.ndarray],
    photograph: np.ndarray,
    truth: list[np.ndarray],
) -> None:
    panorama, covered = example["blend"](images, homographies)
    height, width = covered.shape
    middle = images[1].permute(1, 2, 0).numpy()  # lies in the panorama as it is, at whole pixels
    found = cv2.minMaxLoc(cv2.matchTemplate(panorama.permute(1, 2, 0).numpy(), middle, cv2.TM_SQDIFF))
    shift = np.array([[1, 0, found[2][0]], [0, 1, found[2][1]], [0, 0, 1]])
    expected = cv2.warpPerspective(photograph, shift @ truth[1], (width, height))[:, :, ::-1] / 255
    inner = cv2.erode(covered.numpy().astype(np.uint8), np.ones((5, 5))) > 0
    assert inner.mean() > 0.75
    difference = np.abs(panorama.permute(1, 2, 0).numpy() - expected)[inner]
    moved = np.abs(np.roll(panorama.permute(1, 2, 0).numpy(), 1, axis=1) - expected)[inner]
    assert difference.mean() < 0.015 < moved.mean()


def test_images_that_cover_a_plane_alike_are_blended(example: dict[str, Any]) -> None:
    """In the overlap a mean weighted by the distance to the edges, elsewhere each image alone, up to its border."""
    black, white = torch.zeros(3, 6, 9), torch.ones(3, 6, 9)
    right = np.array([[1.0, 0, 6], [0, 1, 0], [0, 0, 1]])
    panorama, covered = example["blend"]([black, white], [np.eye(3), right])
    assert panorama.shape == (3, 6, 15) and covered.all()
    row = panorama[0, 3]
    assert (row[:6] == 0).all() and row[9:].allclose(torch.ones(6))
    assert 0 < row[6] < row[7] < row[8] < 1 and abs(float(row[7]) - 0.5) < 1e-5


def test_box_inside_what_is_covered(example: dict[str, Any]) -> None:
    covered = torch.ones(8, 10, dtype=torch.bool)
    covered[0, 3:] = covered[:2, 0] = covered[5:, 9] = False
    assert example["inner_box"](covered) == (slice(1, 8), slice(1, 9))
    assert covered[1:8, 1:9].all()


def test_whole_program(
    example: dict[str, Any],
    files: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(example, monkeypatch, *files, "-o", tmp_path / "all.png", "--crop") == 0
    assert "agree with one homography" in capsys.readouterr().out
    picture = cv2.imread(str(tmp_path / "all.png"))
    assert picture.shape[1] > 800 and picture.shape[0] > 300
    assert (picture.max(2) > 0).mean() > 0.999  # no black border is left


@pytest.mark.parametrize("what", ["one", "missing", "no image", "no overlap", "output"])
def test_what_can_not_be_stitched(
    example: dict[str, Any],
    files: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    what: str,
) -> None:
    text = tmp_path / "text.jpg"
    text.write_text("no image")
    output = tmp_path / "out.png"
    given, message = {
        "one": (files[:1], "at least two photographs are needed"),
        "missing": ([files[0], tmp_path / "gone.jpg"], "No such file or directory: '" + str(tmp_path / "gone.jpg")),
        "no image": ([files[0], text], "text.jpg is no image that can be decoded"),
        "no overlap": ([files[0], files[2]], "photographs 1 and 2 don't overlap, or not enough"),
        "output": (files[:2], "nowhere"),
    }[what]
    if what == "output":
        output = tmp_path / "nowhere" / "out.png"
    try:
        status = run(example, monkeypatch, *given, "-o", output)
    except SystemExit as exit:
        status = exit.code
    assert status in (1, 2) and message in capsys.readouterr().err and not output.exists()


def test_views_of_too_wide_an_angle(example: dict[str, Any]) -> None:
    images = [torch.zeros(3, 40, 60)] * 2
    turned = np.array([[0.2, 0, 30], [0, 1, 0], [-0.02, 0, 1]])  # its right edge lies behind the picture
    with pytest.raises(example["StitchingError"], match="the angle is too wide"):
        example["blend"](images, [np.eye(3), turned])
