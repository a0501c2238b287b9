"""The programs as a user runs them: results, odd inputs, interruptions, messages and exit statuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
import torch

from disk_ops import DISKDetector, MutualNearestNeighbor, demo
from disk_ops.cli import main
from disk_ops.io.hdf5 import image_names, read_features, stored_settings
from disk_ops.io.journal import Journal
from disk_ops.programs import extract as extract_program
from disk_ops.programs import match as match_program
from disk_ops.programs.common import UserError

N = 60


def save(path: Path, seed: int = 0, height: int = 64, width: int = 96) -> Path:
    """A random picture with structures that the detector finds."""
    generator = np.random.default_rng(seed)
    image = np.full((height, width, 3), 90, np.uint8)
    for _ in range(40):
        corner = generator.integers(0, (width, height))
        color = generator.integers(0, 256, 3).tolist()
        cv2.rectangle(image, corner.tolist(), (corner + generator.integers(4, 20, 2)).tolist(), color, cv2.FILLED)
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image)
    return path


@pytest.fixture(autouse=True, scope="module")
def cpu_is_chosen() -> Iterator[None]:
    """``--device auto`` means the CPU in these tests, whatever the machine has, so that results can be compared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        yield


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for seed, name in enumerate(("a.jpg", "a.png", "sub/a.jpg", "sub dir/b 10.png", "sub dir/b 9.png")):
        save(folder / name, seed)
    return folder


@pytest.fixture(scope="module")
def features(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("h5") / "features.h5"
    assert main(["extract", str(photos), "-o", str(path), "--n", str(N)]) == 0
    return path


@pytest.fixture(scope="module")
def detector() -> DISKDetector:
    return DISKDetector.from_pretrained()


def load(path: Path) -> dict[str, dict[str, np.ndarray]]:
    with h5py.File(path) as file:
        return {name: {key: np.asarray(item) for key, item in file[name].items()} for name in image_names(file)}


def equal(first: dict[str, dict[str, np.ndarray]], second: dict[str, dict[str, np.ndarray]]) -> bool:
    return first.keys() == second.keys() and all(
        np.array_equal(first[name][key], second[name][key]) for name in first for key in first[name]
    )


# -------------------------------------------------------------------------------------------------------- extract


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


def test_short_memory_costs_only_the_image(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    big = save(tmp_path / "big.png", 1, 128, 160)
    monkeypatch.setattr(extract_program, "available_memory", lambda: 2000 * 100 * 100)
    output = tmp_path / "f.h5"
    arguments = ["-o", str(output), "--batch-size", "5", "--n", "20"]
    assert main(["extract", str(photos), str(big), *arguments]) == 1  # five small ones don't fit in one batch either
    assert "failed: big.png: not enough memory on cpu for 160x128 pixels" in capsys.readouterr().err
    assert len(load(output)) == 5


def test_a_gpu_out_of_memory_is_reported_alike(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(extract_program.Extractor, "__call__", call)
    assert main(["extract", str(photos / "a.jpg"), "-o", str(tmp_path / "f.h5")]) == 1
    assert "not enough memory on cpu for 96x64 pixels; try a smaller --max-size" in capsys.readouterr().err


# -------------------------------------------------------------------------------------- interruptions and resuming


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


# ---------------------------------------------------------------------------------------------------------- match


@pytest.fixture(scope="module")
def matches(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("h5") / "matches.h5"
    assert main(["match", str(features), "-o", str(path)]) == 0
    return path


def groups(path: Path) -> set[tuple[str, str]]:
    with h5py.File(path) as file:
        return {(first, second) for first in file for second in file[first]}


def test_match_stores_what_the_matcher_finds(features: Path, matches: Path) -> None:
    assert len(groups(matches)) == 10  # all pairs of five
    with h5py.File(features) as file, h5py.File(matches) as found:
        first, second = read_features(file, "a.jpg"), read_features(file, "sub/a.jpg")
        stored = found["a.jpg/sub-a.jpg"]
        matches0, scores0 = stored["matches0"][()], stored["matching_scores0"][()]
    distances, indices = MutualNearestNeighbor()(
        torch.from_numpy(first.descriptors), torch.from_numpy(second.descriptors)
    )
    assert matches0.dtype == np.int16 and scores0.dtype == np.float16 and len(matches0) == len(first.scores)
    index0 = np.flatnonzero(matches0 >= 0)
    assert len(index0) > 5
    np.testing.assert_array_equal(np.stack([index0, matches0[index0]], axis=1), indices.numpy())
    cosine = (first.descriptors[index0] * second.descriptors[matches0[index0]]).sum(axis=1)
    np.testing.assert_allclose(scores0[index0], (1 + cosine) / 2, atol=2e-3)
    assert (scores0[matches0 < 0] == 0).all() and distances.shape == (len(index0), 1)


def test_sequential_pairs_follow_the_natural_order(features: Path, tmp_path: Path) -> None:
    output = tmp_path / "m.h5"
    assert main(["match", str(features), "-o", str(output), "--sequential", "1"]) == 0
    expected = {("a.jpg", "a.png"), ("a.png", "sub dir-b 9.png"), ("sub dir-b 9.png", "sub dir-b 10.png")}
    assert groups(output) == {*expected, ("sub dir-b 10.png", "sub-a.jpg")}
    assert main(["match", str(features), "-o", str(output), "--sequential", "2", "--resume"]) == 0
    assert len(groups(output)) == 7


def test_pairs_from_a_file(features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs, output = tmp_path / "pairs.txt", tmp_path / "m.h5"
    pairs.write_text(
        "\ufeffa.jpg sub/a.jpg\n\n# a comment\na.png\tsub dir/b 9.png\n'sub dir/b 10.png' a.jpg\n"
        "sub/a.jpg a.jpg\na.jpg gone.jpg\na.png a.png\n"
    )
    assert main(["match", str(features), "-o", str(output), "--pairs", str(pairs), "--ratio", "0.95"]) == 1
    told = capsys.readouterr()
    assert "failed: a.jpg - gone.jpg: gone.jpg: no features in" in told.err
    assert "failed: a.png - a.png: an image can't be matched with itself" in told.err
    assert "3 pairs" in told.out and "2 failed" in told.out
    assert groups(output) == {("a.jpg", "sub-a.jpg"), ("a.png", "sub dir-b 9.png"), ("sub dir-b 10.png", "a.jpg")}


@pytest.mark.parametrize("line", ["a.jpg", "a.jpg b.jpg c.jpg", "a b.jpg c.jpg", "it's a.jpg b.jpg"])
def test_a_line_that_is_no_pair_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text(f"a.jpg b.jpg\n{line}\n")
    with pytest.raises(UserError, match=r"pairs\.txt, line 2: two image names are expected, got"):
        match_program.read_pairs(path)


def test_the_ratio_test_removes_matches(features: Path, matches: Path, tmp_path: Path) -> None:
    output = tmp_path / "m.h5"
    assert main(["match", str(features), "-o", str(output), "--ratio", "0.8"]) == 0
    with h5py.File(output) as strict, h5py.File(matches) as loose:
        for first, second in groups(output):
            few, many = (file[first][second]["matches0"][()] for file in (strict, loose))
            assert (few[few >= 0] == many[few >= 0]).all()
        assert sum((strict[a][b]["matches0"][()] >= 0).sum() for a, b in groups(output)) < sum(
            (loose[a][b]["matches0"][()] >= 0).sum() for a, b in groups(output)
        )


def test_names_that_match_files_confuse_are_reported(
    features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "f.h5", tmp_path / "m.h5"
    with h5py.File(features) as file, h5py.File(source, "w") as copy:
        for name in ("x/a.jpg", "x-a.jpg", "b.jpg"):
            file.copy("a.jpg", copy.require_group(Path(name).parent.as_posix()), Path(name).name)
    assert main(["match", str(source), "-o", str(output)]) == 1
    assert "x-a.jpg and x/a.jpg have the same name in match files" in (told := capsys.readouterr().err) or (
        "x/a.jpg and x-a.jpg have the same name in match files" in told
    )
    assert len(groups(output)) == 1


def test_indices_beyond_16_bits() -> None:
    desc0 = torch.nn.functional.normalize(torch.randn(3, 4), dim=1)
    desc1 = torch.cat([torch.nn.functional.normalize(torch.randn(33000, 4), dim=1), desc0])
    matches0, scores0 = match_program.match_descriptors(MutualNearestNeighbor(), desc0, desc1)
    assert matches0.dtype == np.int32 and matches0.tolist() == [33000, 33001, 33002]
    np.testing.assert_allclose(scores0, 1, atol=1e-3)
    empty = match_program.match_descriptors(MutualNearestNeighbor(), desc0, desc1[:0])
    assert empty[0].tolist() == [-1, -1, -1] and empty[0].dtype == np.int16


def test_the_cache_of_descriptors_is_bounded(features: Path) -> None:
    with h5py.File(features) as file:
        names = image_names(file)
        cache = match_program.DescriptorCache(file, torch.device("cpu"), max_bytes=2 * N * 128 * 4)
        for name in names * 2:
            np.testing.assert_array_equal(cache[name], read_features(file, name).descriptors)
            assert len(cache._held) <= 2 or cache._bytes <= cache._max_bytes


def test_all_pairs_are_visited_block_by_block() -> None:
    names = [f"{index:03}" for index in range(100)]
    pairs = match_program.exhaustive_pairs(names)
    assert len(pairs) == len(set(pairs)) == 100 * 99 // 2 and all(first < second for first, second in pairs)
    assert len({name for pair in pairs[:400] for name in pair}) <= 2 * 32


# -------------------------------------------------------------------------------------------------- show and demo


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
    assert f"{N} keypoints of a.jpg" in told and "matches of a.jpg and sub/a.jpg" in told


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


# ------------------------------------------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["extract", "gone.jpg", "-o", "f.h5"], "no such file or folder: gone.jpg"),
        (["extract", "empty", "-o", "f.h5"], "no images found in empty"),
        (["extract", "a.png", "-o", "empty"], "empty is a folder, a file name is needed"),
        (["extract", "a.png", "-o", "no/f.h5"], "there is no folder no"),
        (["extract", "a.png", "-o", "a.png", "--overwrite"], "a.png is one of the images and the output as well"),
        (["extract", "a.png", "-o", "f.h5", "--weights", "gone"], "--weights gone: "),
        (["extract", "a.png", "-o", "f.h5", "--weights", "a.png"], "--weights a.png: "),
        (["extract", "a.png", "-o", "f.h5", "--device", "abc"], "--device abc can't be used"),
        (["extract", "a.png", "-o", "f.h5", "--mask-dir", "gone"], "--mask-dir gone is not a folder"),
        (["match", "gone.h5", "-o", "m.h5"], "gone.h5: no such file"),
        (["match", "a.png", "-o", "m.h5"], "a.png: not an HDF5 file"),
        (["match", "empty", "-o", "m.h5"], "empty is a folder"),
        (["match", "one.h5", "-o", "m.h5"], "holds the features of 1 image; two are needed"),
        (["match", "one.h5", "-o", "one.h5", "--overwrite"], "one.h5 is the features file and the output as well"),
        (["match", "one.h5", "-o", "m.h5", "--pairs", "gone.txt"], "--pairs gone.txt: No such file"),
        (["match", "one.h5", "-o", "m.h5", "--pairs", "a.png"], "--pairs a.png: is not UTF-8 text"),
        (["demo", "-o", "a.png"], "the folder a.png can't be made"),
    ],
)
def test_what_is_impossible_is_said_in_one_line(
    arguments: list[str],
    reason: str,
    features: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "a.png")
    (tmp_path / "empty").mkdir()
    with h5py.File(features) as file, h5py.File("one.h5", "w") as copy:
        file.copy("a.jpg", copy)
    before = {item: item.stat().st_size for item in tmp_path.iterdir()}
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert reason in told and told.count("\n") == 1 and told.startswith(f"disk-ops {arguments[0]}: error: ")
    assert {item: item.stat().st_size for item in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "required"),
        (["fly"], "invalid choice: 'fly'"),
        (["extract", "a.png"], "required: -o"),
        (["extract", "a.png", "-o", "f.h5", "--n", "0"], "--n: a positive integer or 'all' is needed, got '0'"),
        (["extract", "a.png", "-o", "f.h5", "--window-size", "4"], "an odd positive integer is needed, got '4'"),
        (["extract", "a.png", "-o", "f.h5", "--max-size", "-1"], "--max-size: a positive integer, or 0 for no limit"),
        (
            ["extract", "a.png", "-o", "f.h5", "--score-threshold", "x"],
            "--score-threshold: a number is needed, got 'x'",
        ),
        (["extract", "a.png", "-o", "f.h5", "--resume", "--overwrite"], "not allowed with"),
        (["match", "f.h5", "-o", "m.h5", "--ratio", "1.5"], "--ratio: a number above 0 and at most 1 is needed"),
        (["match", "f.h5", "-o", "m.h5", "--sequential", "0"], "a positive integer is needed, got '0'"),
        (["match", "f.h5", "-o", "m.h5", "--sequential", "2", "--exhaustive"], "not allowed with"),
    ],
)
def test_wrong_options(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2 and reason in capsys.readouterr().err


def test_a_programming_error_shows_its_traceback(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(extract_program.Extractor, "__call__", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["extract", str(photos / "a.jpg"), "-o", str(tmp_path / "f.h5")])


def test_a_full_disk_is_no_traceback(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, os.strerror(28), "f.h5.part")

    monkeypatch.setattr(Journal, "append", fail)
    assert main(["extract", str(photos / "a.jpg"), "-o", str(tmp_path / "f.h5")]) == 1
    assert "error: [Errno 28] No space left on device" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_without_write_permission(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o555)
    try:
        assert main(["extract", str(photos), "-o", str(tmp_path / "f.h5")]) == 2
        assert "no permission to write" in capsys.readouterr().err
    finally:
        tmp_path.chmod(0o755)
