"""disk-ops match: results, pairs, the cache of descriptors."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from sharing import interrupt
from stored import N, groups

from disk_ops import MutualNearestNeighbor
from disk_ops.cli import main
from disk_ops.io.hdf5 import image_names, read_features
from disk_ops.programs import match as match_program


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


def test_pairs_of_a_sequence_that_returns(features: Path, tmp_path: Path) -> None:
    output = tmp_path / "m.h5"
    assert main(["match", str(features), "-o", str(output), "--sequential", "1", "--loop-closure", "4"]) == 0
    # In natural order a.jpg, a.png, sub dir/b 9.png, sub dir/b 10.png, sub/a.jpg: the first and the last with all.
    missing = {("a.png", "sub dir-b 10.png")}
    assert len(groups(output)) == 9 and not groups(output) & missing


def test_pairs_by_pattern(features: Path, tmp_path: Path) -> None:
    output = tmp_path / "m.h5"
    assert main(["match", str(features), "-o", str(output), "--pair-pattern", "a.* sub*"]) == 0
    assert groups(output) == {
        (first, second)
        for first in ("a.jpg", "a.png")
        for second in ("sub dir-b 9.png", "sub dir-b 10.png", "sub-a.jpg")
    }
    arguments = ["--pair-pattern", r"re:(?:^|/)([^/]*)\.", "--overwrite"]
    assert main(["match", str(features), "-o", str(output), *arguments]) == 0
    assert groups(output) == {("a.jpg", "a.png"), ("a.jpg", "sub-a.jpg"), ("a.png", "sub-a.jpg")}


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


@pytest.fixture
def changing(tmp_path: Path) -> Path:
    """Features of another maker, without settings: three images a, b and c."""
    path = tmp_path / "f.h5"
    for seed, name in enumerate("abc"):
        change(path, name, seed)
    return path


def change(path: Path, name: str, seed: int, count: int = 8) -> None:
    generator = np.random.default_rng(seed)
    descriptors = generator.normal(size=(16, count)).astype(np.float32)
    with h5py.File(path, "a") as file:
        if name in file:
            del file[name]
        file[f"{name}/keypoints"] = generator.uniform(0, 60, (count, 2)).astype(np.float32)
        file[f"{name}/descriptors"] = descriptors / np.linalg.norm(descriptors, axis=0)


def stored_matches(path: Path) -> dict[str, list[int]]:
    with h5py.File(path) as file:
        pairs = {f"{first}/{second}": file[first][second] for first, second in groups(path)}
        return {
            name: np.asarray(item["matches0"] if isinstance(item, h5py.Group) else item).tolist()
            for name, item in pairs.items()
        }


@pytest.mark.parametrize("layout", ["hloc", "deep-image-matching"])
def test_resume_matches_changed_features_again(
    changing: Path, tmp_path: Path, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output, fresh = tmp_path / "m.h5", tmp_path / "fresh.h5"
    command = ["match", str(changing), "--layout", layout, "--quiet"]
    assert main([*command, "-o", str(output)]) == 0
    change(changing, "b", 7, count=5)
    capsys.readouterr()
    assert main([*command, "-o", str(output), "--resume"]) == 0
    told = capsys.readouterr()
    assert "2 pairs" in told.out and "1 done before" in told.out
    assert "2 pairs matched again: the features changed since" in told.err
    assert main([*command, "-o", str(fresh)]) == 0
    assert stored_matches(output) == stored_matches(fresh)
    capsys.readouterr()
    assert main([*command, "-o", str(output), "--resume"]) == 0
    told = capsys.readouterr()
    assert "0 pairs" in told.out and "3 done before" in told.out and told.err == ""


def test_changed_features_are_matched_again_in_the_stored_order_and_if_not_asked_for(
    changing: Path, tmp_path: Path
) -> None:
    """No file holds matches of two kinds of features, and no pair is in it twice."""
    output, pairs = tmp_path / "m.h5", tmp_path / "pairs.txt"
    pairs.write_text("b a\nc b\n")
    command = ["match", str(changing), "-o", str(output), "--quiet"]
    assert main([*command, "--pairs", str(pairs)]) == 0
    before = stored_matches(output)
    change(changing, "b", 7)
    pairs.write_text("a b\n")
    assert main([*command, "--pairs", str(pairs), "--resume"]) == 0
    after = stored_matches(output)
    assert after.keys() == before.keys() == {"b/a", "c/b"} and all(after[name] != before[name] for name in after)


def test_an_interrupted_run_tells_changed_features_as_well(
    changing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "m.h5"
    command = ["match", str(changing), "-o", str(output), "--quiet"]
    interrupt(0, 1, 2, *command)
    change(changing, "a", 7)
    capsys.readouterr()
    assert main([*command, "--resume"]) == 0
    assert "3 pairs" in (told := capsys.readouterr()).out and "2 pairs matched again" in told.err


def test_matches_of_earlier_versions_are_kept(
    changing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "m.h5"
    command = ["match", str(changing), "-o", str(output), "--quiet"]
    assert main(command) == 0
    with h5py.File(output, "r+") as file:
        for first, second in groups(output):
            del file[first][second].attrs["disk_ops_features"]
    change(changing, "d", 9)
    capsys.readouterr()
    assert main([*command, "--resume"]) == 0
    told = capsys.readouterr()
    assert "3 pairs" in told.out and "3 done before" in told.out
    assert "3 pairs stored by an earlier version, which didn't tell of which features: kept as good" in told.err


def test_features_that_are_none_are_named(changing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with h5py.File(changing, "r+") as file:
        del file["b/descriptors"]
        file["b/descriptors"] = np.array([[b"x"] * 8] * 16)
    assert main(["match", str(changing), "-o", str(tmp_path / "m.h5"), "--quiet"]) == 1
    told = capsys.readouterr()
    assert "1 pair" in told.out and "2 failed" in told.out
    assert f"failed: a - b: b: descriptors in {changing}: numbers are needed, got the type |S1" in told.err
