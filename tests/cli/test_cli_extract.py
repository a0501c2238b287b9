"""disk-ops extract: results, odd images, interruptions, resuming."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
import torch
from stored import N, equal, groups, load, save

from disk_ops import DISKDetector, MultiscaleDetector
from disk_ops.cli import main
from disk_ops.io.hdf5 import stored_settings
from disk_ops.io.journal import Journal
from disk_ops.programs import extract as extract_program


def test_extract_stores_what_the_detector_finds(photos: Path, features: Path, detector: DISKDetector) -> None:
    stored = load(features)
    assert set(stored) == {"a.jpg", "a.png", "sub/a.jpg", "sub dir/b 10.png", "sub dir/b 9.png"}
    for name, arrays in stored.items():
        rgb = np.ascontiguousarray(cv2.imread(str(photos / name))[..., ::-1])
        with torch.inference_mode():
            image = torch.from_numpy(rgb).permute(2, 0, 1)[None] / 255
            expected = detector(image, n=N)[0]
        np.testing.assert_array_equal(arrays["keypoints"], expected.keypoints.numpy())
        np.testing.assert_allclose(arrays["scores"], expected.detection_scores.numpy(), atol=1e-5)
        np.testing.assert_allclose(arrays["descriptors"], expected.descriptors.numpy().T, atol=1e-5)
        assert arrays["image_size"].tolist() == [96, 64]
        assert len(arrays["scores"]) > 20


def test_batches_and_threads_change_nothing(photos: Path, features: Path, tmp_path: Path) -> None:
    output = tmp_path / "f.h5"
    odd = save(tmp_path / "odd.png", 9, 40, 50)  # of another size than the others
    arguments = ["--n", str(N), "--batch-size", "3", "--num-workers", "3", "--quiet"]
    assert main(["extract", str(photos), str(odd), "-o", str(output), *arguments]) == 0
    batched, alone = load(output), load(features)
    assert batched.pop("odd.png")["image_size"].tolist() == [50, 40]
    assert batched.keys() == alone.keys()
    for name in alone:
        np.testing.assert_array_equal(batched[name]["keypoints"], alone[name]["keypoints"])
        np.testing.assert_allclose(batched[name]["descriptors"], alone[name]["descriptors"], atol=1e-4)


def test_keypoints_between_pixels(tmp_path: Path) -> None:
    image = save(tmp_path / "a.png", 3, 80, 96)
    output = tmp_path / "f.h5"
    arguments = ["extract", str(image), "-o", str(output), "--n", "20"]
    assert main([*arguments, "--subpixel"]) == 0
    with torch.inference_mode():
        pixels = torch.from_numpy(cv2.imread(str(image))[..., ::-1].copy()).permute(2, 0, 1)[None] / 255
        expected = DISKDetector.from_pretrained(subpixel=True)(pixels, n=20)[0].keypoints.numpy()
    np.testing.assert_array_equal(load(output)["a.png"]["keypoints"], expected)
    assert (expected != expected.round()).any()
    assert main([*arguments, "--resume"]) == 2  # a file holds features that were found alike


def test_scales(tmp_path: Path, detector: DISKDetector, capsys) -> None:
    image = save(tmp_path / "a.png", 3, 80, 96)
    output = tmp_path / "f.h5"
    arguments = ["extract", str(image), "-o", str(output), "--n", "20"]
    assert main([*arguments, "--scales", "1,0.5"]) == 0
    with torch.inference_mode():
        pixels = torch.from_numpy(cv2.imread(str(image))[..., ::-1].copy()).permute(2, 0, 1)[None] / 255
        expected = MultiscaleDetector(detector, (1, 0.5))(pixels, n=20)[0].keypoints.numpy()
    np.testing.assert_array_equal(load(output)["a.png"]["keypoints"], expected)
    assert (expected % 1 == 0.5).any() and (expected % 1 == 0).any()
    assert main([*arguments, "--resume"]) == 2  # a file holds features that were found alike
    assert "scales was [1.0, 0.5] and is [1.0] now" in capsys.readouterr().err
    assert main([*arguments, "--scales", "0.5,1", "--resume"]) == 0


def test_max_size_gives_keypoints_in_the_original_image(tmp_path: Path, detector: DISKDetector) -> None:
    image = save(tmp_path / "a.png", 3, 150, 202)
    output = tmp_path / "f.h5"
    assert main(["extract", str(image), "-o", str(output), "--max-size", "100", "--n", "all"]) == 0
    stored = load(output)["a.png"]
    small = cv2.resize(cv2.imread(str(image)), (100, 74), interpolation=cv2.INTER_AREA)[..., ::-1].copy()
    with torch.inference_mode():
        expected = detector(torch.from_numpy(small).permute(2, 0, 1)[None] / 255)[0].keypoints.numpy()
    np.testing.assert_allclose(stored["keypoints"], (expected + 0.5) * [202 / 100, 150 / 74] - 0.5, atol=1e-4)
    assert stored["image_size"].tolist() == [202, 150]
    with h5py.File(output) as file:
        assert file["a.png/keypoints"].attrs["uncertainty"] == pytest.approx((202 / 100 + 150 / 74) / 2)


def test_masked_regions_get_no_keypoints(photos: Path, tmp_path: Path) -> None:
    masks = tmp_path / "masks"
    (masks / "sub").mkdir(parents=True)
    left = np.zeros((64, 96), np.uint8)
    left[:, :48] = 255
    cv2.imwrite(str(masks / "a.jpg.png"), left)
    cv2.imwrite(str(masks / "sub" / "a.png"), cv2.resize(255 - left, (48, 32), interpolation=cv2.INTER_NEAREST))
    output = tmp_path / "f.h5"
    images = [str(photos / "a.jpg"), str(photos / "a.png"), str(photos)]
    assert main(["extract", *images, "-o", str(output), "--mask-dir", str(masks), "--max-size", "80"]) == 0
    stored = load(output)
    assert len(stored["a.jpg"]["scores"]) > 0 and (stored["a.jpg"]["keypoints"][:, 0] < 47.5).all()
    assert len(stored["sub/a.jpg"]["scores"]) > 0 and (stored["sub/a.jpg"]["keypoints"][:, 0] > 47.5).all()
    assert np.ptp(stored["sub dir/b 9.png"]["keypoints"][:, 0]) > 60  # no mask: the whole image


def test_odd_images_are_handled_or_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "odd"
    whole = save(folder / "fine.jpg").read_bytes()
    grey = cv2.imread(str(folder / "fine.jpg"), cv2.IMREAD_GRAYSCALE)
    cv2.imwrite(str(folder / "grey.png"), grey)
    cv2.imwrite(str(folder / "grey16.png"), grey.astype(np.uint16) * 257)
    cv2.imwrite(str(folder / "alpha.png"), np.dstack([grey] * 4))
    cv2.imwrite(str(folder / "pixel.png"), grey[:1, :1])
    cv2.imwrite(str(folder / "flat.png"), np.zeros((40, 40), np.uint8))
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "text.jpg").write_text("hello")
    (folder / "empty.png").touch()
    (folder / "broken.jpg").symlink_to("nowhere")
    (folder / "notes.txt").touch()
    output = tmp_path / "f.h5"
    assert main(["extract", str(folder), "-o", str(output), "--n", "50"]) == 1
    told = capsys.readouterr()
    for name, reason in (("cut", "truncated"), ("text", "not an image"), ("empty", "empty"), ("broken", "broken link")):
        line = next(line for line in told.err.splitlines() if line.startswith(f"failed: {name}."))
        assert reason in line
    assert "1 file without an image extension left out" in told.err and "Traceback" not in told.err
    assert "6 images" in told.out and "4 failed" in told.out
    stored = load(output)
    assert set(stored) == {"fine.jpg", "grey.png", "grey16.png", "alpha.png", "pixel.png", "flat.png"}
    assert stored["pixel.png"]["keypoints"].shape == (0, 2) and stored["pixel.png"]["descriptors"].shape == (128, 0)
    np.testing.assert_array_equal(stored["grey.png"]["keypoints"], stored["grey16.png"]["keypoints"])
    np.testing.assert_array_equal(stored["grey.png"]["keypoints"], stored["alpha.png"]["keypoints"])


def test_nothing_is_written_if_all_images_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.jpg").write_text("hello")
    assert main(["extract", str(tmp_path / "text.jpg"), "-o", str(tmp_path / "f.h5")]) == 1
    assert "nothing written" in capsys.readouterr().out
    assert [item.name for item in tmp_path.iterdir()] == ["text.jpg"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(tmp_path: Path, dtype: str) -> None:
    image, output = save(tmp_path / "a.png", 0, 16, 32), tmp_path / "f.h5"  # small: CPUs are slow at this
    assert main(["extract", str(image), "-o", str(output), "--dtype", dtype, "--n", "20"]) == 0
    arrays = load(output)["a.png"]
    assert len(arrays["scores"]) > 0 and arrays["descriptors"].dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(arrays["descriptors"], axis=0), 1, atol=1e-2)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_cuda_finds_what_the_cpu_finds(photos: Path, features: Path, tmp_path: Path, dtype: str) -> None:
    output = tmp_path / "f.h5"
    arguments = ["--n", str(N), "--device", "cuda", "--dtype", dtype, "--batch-size", "4"]
    assert main(["extract", str(photos), "-o", str(output), *arguments]) == 0
    found, expected = load(output), load(features)
    assert found.keys() == expected.keys()
    for name in expected:
        places, expected_places = (set(map(tuple, arrays[name]["keypoints"])) for arrays in (found, expected))
        assert len(places & expected_places) >= 0.8 * N
    assert main(["match", str(output), "-o", str(tmp_path / "m.h5"), "--device", "cuda"]) == 0
    assert len(groups(tmp_path / "m.h5")) == 10


def test_short_memory_takes_tiles(photos: Path, features: Path, tmp_path: Path) -> None:
    """The same keypoints, but for those that rounding puts on the other side of the n-th best."""
    output = tmp_path / "f.h5"
    arguments = ["-o", str(output), "--batch-size", "5", "--n", str(N), "--max-memory", "0.0001"]
    assert main(["extract", str(photos), *arguments]) == 0
    found, expected = load(output), load(features)
    assert found.keys() == expected.keys()
    for name in expected:
        places, expected_places = (set(map(tuple, arrays[name]["keypoints"])) for arrays in (found, expected))
        assert len(places ^ expected_places) <= 2


@pytest.mark.parametrize("threshold", [["-inf"], ["-1e9"], ["=-inf"]])
def test_thresholds_below_all_scores(photos: Path, tmp_path: Path, threshold: list[str]) -> None:
    """Argparse would take -inf for an option."""
    output = tmp_path / "f.h5"
    option = ["--score-threshold" + threshold[0]] if "=" in threshold[0] else ["--score-threshold", *threshold]
    arguments = ["extract", str(photos / "a.jpg"), "-o", str(output), "--n", "5", "--max-memory", "inf"]
    assert main([*arguments, *option]) == 0
    with h5py.File(output) as file:
        assert (stored_settings(file) or {})["score_threshold"] < -1e8


def test_a_gpu_out_of_memory_is_reported_alike(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(extract_program.Extractor, "__call__", call)
    assert main(["extract", str(photos / "a.jpg"), "-o", str(tmp_path / "f.h5")]) == 1
    assert "not enough memory on cpu for 96x64 pixels; try a smaller --max-size" in capsys.readouterr().err


def test_ctrl_c_keeps_what_is_done(
    photos: Path,
    features: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "f.h5"
    append = Journal.append

    def stop(journal: Journal, *arguments: object) -> None:
        if len(journal) == 2:
            raise KeyboardInterrupt
        append(journal, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", stop)
        assert main(["extract", str(photos), "-o", str(output), "--n", str(N)]) == 130
    told = capsys.readouterr().err
    assert "are kept in" in told and "f.h5.part" in told and "--resume" in told
    assert not output.exists()
    assert main(["extract", str(photos), "-o", str(output), "--n", str(N)]) == 2
    assert main(["extract", str(photos), "-o", str(output), "--n", "5", "--resume"]) == 2
    assert f"n was {N} and is 5 now" in capsys.readouterr().err
    assert main(["extract", str(photos), "-o", str(output), "--n", str(N), "--resume"]) == 0
    assert "3 images" in (told := capsys.readouterr().out) and "2 done before" in told
    assert equal(load(output), load(features))
    assert [item.name for item in tmp_path.iterdir()] == ["f.h5"]


def test_kill_in_the_middle_of_writing_keeps_what_is_done(photos: Path, features: Path, tmp_path: Path) -> None:
    output = tmp_path / "f.h5"
    code = f"""
import os, signal
from disk_ops.cli import main
from disk_ops.io import journal
append = journal.Journal.append
def stop(self, *arguments):
    append(self, *arguments)
    if len(self) == 3:
        self._file.truncate(self._end - 100)  # as if the last write had not been finished
        os.kill(os.getpid(), signal.SIGKILL)
journal.Journal.append = stop
main(["extract", {str(photos)!r}, "-o", {str(output)!r}, "--n", "{N}"])
"""
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert [item.name for item in tmp_path.iterdir()] == ["f.h5.part"]
    assert main(["extract", str(photos), "-o", str(output), "--n", str(N), "--resume"]) == 0
    assert equal(load(output), load(features))


def test_resume_adds_new_and_changed_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, output = tmp_path / "images", tmp_path / "f.h5"
    command = ["extract", str(folder), "-o", str(output), "--n", "20"]
    save(folder / "a.png", 1)
    save(folder / "b.png", 2)
    assert main(command) == 0
    before = load(output)
    assert main(command) == 2
    assert "exists already: use --resume" in capsys.readouterr().err
    save(folder / "b.png", 3, 48, 80)
    save(folder / "c.png", 4)
    assert main([*command, "--resume"]) == 0
    told = capsys.readouterr()
    assert "1 image changed since" in told.err and "2 images" in told.out and "1 done before" in told.out
    after = load(output)
    assert set(after) == {"a.png", "b.png", "c.png"} and after["b.png"]["image_size"].tolist() == [80, 48]
    assert equal({"a.png": after["a.png"]}, {"a.png": before["a.png"]})
    assert main([*command[:-1], "10", "--overwrite"]) == 0
    with h5py.File(output) as file:
        assert (stored_settings(file) or {})["n"] == 10


def bitmap(path: Path, value: int) -> Path:
    """A picture whose file has the same length whatever is in it."""
    image = np.full((48, 64, 3), 90, np.uint8)
    image[10:30, 20:40] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image)
    return path


def test_resume_tells_pictures_and_masks_of_the_same_length_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, masks, output = tmp_path / "images", tmp_path / "masks", tmp_path / "f.h5"
    command = ["extract", str(folder), "-o", str(output), "--n", "9", "--mask-dir", str(masks), "--quiet"]
    for name in "abc":
        bitmap(folder / f"{name}.bmp", 200)
    masks.mkdir()
    masks_file = masks / "a.bmp.png"
    cv2.imwrite(str(masks_file), np.full((48, 64), 255, np.uint8))
    assert main(command) == 0

    def resumed() -> str:
        capsys.readouterr()
        assert main([*command, "--resume"]) == 0
        return capsys.readouterr().out

    assert "0 images" in resumed()
    bitmap(folder / "b.bmp", 201)
    assert "1 image," in (told := resumed()) and "2 done before" in told
    cv2.imwrite(str(masks_file), np.zeros((48, 64), np.uint8))
    assert "1 image," in resumed() and len(load(output)["a.bmp"]["scores"]) == 0
    cv2.imwrite(str(masks / "c.png"), np.zeros((48, 64), np.uint8))  # a new one
    masks_file.unlink()
    assert "2 images" in resumed() and len(load(output)["a.bmp"]["scores"]) > 0
    for path in (folder / "a.bmp", folder / "b.bmp", masks / "c.png"):
        os.utime(path, (0, 0))  # copied: the content is the same
    assert "0 images" in resumed()


def test_files_of_earlier_versions_are_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They tell images apart by the length of the file, and nothing of masks."""
    folder, masks, output = tmp_path / "images", tmp_path / "masks", tmp_path / "f.h5"
    masks.mkdir()
    command = ["extract", str(folder), "-o", str(output), "--n", "9", "--mask-dir", str(masks), "--quiet"]
    for name in "ab":
        save(folder / f"{name}.png", ord(name))
    assert main(command) == 0
    with h5py.File(output, "r+") as file:
        for name in ("a.png", "b.png"):
            del file[name].attrs["disk_ops_source"]
    save(folder / "b.png", 3, 48, 80)
    capsys.readouterr()
    assert main([*command, "--resume"]) == 0
    assert "1 image," in (told := capsys.readouterr().out) and "1 done before" in told
