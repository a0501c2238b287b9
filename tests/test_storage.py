"""Results on disk: the crash-safe journal, the HDF5 layouts as other programs read them, resumable outputs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from disk_ops.io.hdf5 import (
    StorageError,
    feature_writer,
    image_names,
    match_writer,
    open_h5,
    pair_name,
    read_features,
    read_matches,
    source_of_size,
    stored_pairs,
    stored_settings,
    stored_sources,
    write_atomically,
)
from disk_ops.io.journal import Journal, JournalError
from disk_ops.io.output import OutputError, ResumableOutput

SETTINGS = {"n": 100, "weights": "abc"}


def record(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    count = int(generator.integers(0, 7))
    descriptors = generator.normal(size=(count, 4)).astype(np.float32)
    return {
        "keypoints": generator.uniform(0, 99, (count, 2)).astype(np.float32),
        "descriptors": descriptors / np.linalg.norm(descriptors, axis=1, keepdims=True),
        "scores": generator.normal(size=count).astype(np.float32),
        "image_size": np.array([640, 480], np.int64),
        "uncertainty": np.float64(2.5),
        "source_bytes": np.int64(1000 + seed),
    }


def same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[key], second[key]) for key in first)


# -------------------------------------------------------------------------------------------------------- journal


def test_journal_returns_what_was_appended(tmp_path: Path) -> None:
    path = tmp_path / "x.part"
    journal = Journal(path, SETTINGS, keep=False)
    names = ["a.jpg", "sub/größe.jpg", "c d.png"]
    for seed, name in enumerate(names):
        journal.append(name, record(seed))
    journal.close()
    journal = Journal(path, {"other": 1}, keep=True)
    assert list(journal) == names and len(journal) == 3 and "a.jpg" in journal and "b.jpg" not in journal
    assert journal.settings == SETTINGS and journal.dropped_bytes == 0
    assert all(same(journal.read(name), record(seed)) for seed, name in enumerate(names))
    journal.append("a.jpg", record(9))
    assert same(journal.read("a.jpg"), record(9)) and len(journal) == 3
    journal.close()
    journal = Journal(path, SETTINGS, keep=False)
    assert len(journal) == 0
    journal.remove()
    assert not path.exists()


def test_a_journal_cut_off_anywhere_keeps_all_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "x.part"
    journal = Journal(path, SETTINGS, keep=False)
    ends = [path.stat().st_size]
    for seed in range(3):
        journal.append(f"{seed}.jpg", record(seed))
        ends.append(path.stat().st_size)
    journal.close()
    data = path.read_bytes()
    for length in [*range(0, ends[-1], 37), *ends, *(end - 1 for end in ends), *(end + 1 for end in ends[:-1])]:
        path.write_bytes(data[:length])
        journal = Journal(path, SETTINGS, keep=True)
        whole = sum(end <= length for end in ends[1:])
        assert list(journal) == [f"{seed}.jpg" for seed in range(whole)]
        journal.append("new.jpg", record(7))  # and it can be gone on with
        journal.close()
        journal = Journal(path, SETTINGS, keep=True)
        assert len(journal) == whole + 1 and journal.dropped_bytes == 0
        assert all(same(journal.read(f"{seed}.jpg"), record(seed)) for seed in range(whole))
        assert same(journal.read("new.jpg"), record(7))
        journal.close()


def test_a_damaged_record_ends_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "x.part"
    journal = Journal(path, SETTINGS, keep=False)
    journal.append("0.jpg", record(0))
    middle = path.stat().st_size + 60
    journal.append("1.jpg", record(1))
    journal.close()
    data = bytearray(path.read_bytes())
    data[middle] ^= 1
    path.write_bytes(data)
    journal = Journal(path, SETTINGS, keep=True)
    assert list(journal) == ["0.jpg"] and journal.dropped_bytes > 0
    journal.close()


def test_a_foreign_file_is_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "x.part"
    for content in (b"something else\n", b"\x89HDF\r\n\x1a\n" + bytes(100)):
        path.write_bytes(content)
        with pytest.raises(JournalError, match=r"x\.part is not a journal of disk-ops"):
            Journal(path, SETTINGS, keep=True)
        assert path.read_bytes() == content


def test_only_one_program_writes_a_journal(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    path = tmp_path / "x.part"
    journal = Journal(path, SETTINGS, keep=False)
    journal.append("a.jpg", record(0))
    code = f"from disk_ops.io.journal import *\nJournal(Path({str(path)!r}), {{}}, keep=False)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert other.returncode != 0 and "is being written by another disk-ops" in other.stderr
    assert same(journal.read("a.jpg"), record(0))
    journal.close()


# --------------------------------------------------------------------------------- HDF5, as other programs read it


def write_features(path: Path, layout: str = "hloc") -> dict[str, dict[str, np.ndarray]]:
    records = {"a.jpg": record(1), "a.png": record(2), "sub/dir/a.jpg": record(3), "empty.jpg": record(0)}
    for key in ("keypoints", "descriptors", "scores"):
        records["empty.jpg"][key] = records["empty.jpg"][key][:0]
    write_atomically(path, {"layout": layout}, iter(records.items()), feature_writer(layout), extend=False)
    return records


def test_features_as_hloc_reads_them(tmp_path: Path) -> None:
    """Hloc: ``group[key].__array__()`` for each dataset; descriptors D x N; image_size w, h; names by visiting."""
    path = tmp_path / "features.h5"
    records = write_features(path)
    with h5py.File(path, "r", libver="latest") as file:
        names = set()
        file.visititems(
            lambda _, item: names.add(item.parent.name.strip("/")) if isinstance(item, h5py.Dataset) else None
        )
        assert names == set(records)
        for name, expected in records.items():
            group = file[name]
            assert set(group) == {"keypoints", "descriptors", "scores", "keypoint_scores", "image_size"}
            arrays = {key: item.__array__() for key, item in group.items()}
            count = len(expected["scores"])
            assert arrays["keypoints"].dtype == arrays["descriptors"].dtype == arrays["scores"].dtype == np.float32
            assert arrays["keypoints"].shape == (count, 2) and arrays["descriptors"].shape == (4, count)
            np.testing.assert_array_equal(arrays["keypoints"], expected["keypoints"])  # pixel centres at integers
            np.testing.assert_array_equal(arrays["descriptors"], expected["descriptors"].T)
            np.testing.assert_array_equal(arrays["scores"], arrays["keypoint_scores"])
            assert tuple(arrays["image_size"])[::-1] == (480, 640)
            assert np.issubdtype(arrays["image_size"].dtype, np.integer)  # hloc gives it to torch.empty
            assert group["keypoints"].attrs.get("uncertainty") == 2.5


def test_features_as_deep_image_matching_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "features.h5"
    expected = write_features(path)["a.jpg"]
    with h5py.File(path, "r") as file:
        assert np.array(file["a.jpg"]["keypoints"]).astype(np.float32).shape == expected["keypoints"].shape
        assert np.array(file["a.jpg"]["descriptors"]).shape[::-1] == expected["descriptors"].shape
        assert np.array(file["a.jpg"]["scores"]).shape == expected["scores"].shape


def test_features_as_glue_factory_reads_them(tmp_path: Path) -> None:
    """Glue-factory: descriptors N x D, ``keypoint_scores``, and the corner of the first pixel is the origin."""
    path = tmp_path / "features.h5"
    records = write_features(path, "glue-factory")
    with h5py.File(path, "r") as file:
        for name, expected in records.items():
            np.testing.assert_array_equal(file[name]["descriptors"].__array__(), expected["descriptors"])
            np.testing.assert_array_equal(file[name]["keypoints"].__array__(), expected["keypoints"] + np.float32(0.5))
            np.testing.assert_array_equal(file[name]["keypoint_scores"].__array__(), expected["scores"])


@pytest.mark.parametrize("layout", ["hloc", "glue-factory"])
def test_our_reader_gives_the_same_whatever_the_layout(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "features.h5"
    records = write_features(path, layout)
    with open_h5(path) as file:
        assert set(image_names(file)) == set(records)
        assert stored_sources(file) == {
            name: source_of_size(int(arrays["source_bytes"])) for name, arrays in records.items()
        }
        for name, expected in records.items():
            found = read_features(file, name)
            np.testing.assert_allclose(found.keypoints, expected["keypoints"], atol=1e-5)
            np.testing.assert_array_equal(found.descriptors, expected["descriptors"])
            np.testing.assert_array_equal(found.scores, expected["scores"])
            assert found.image_size == (640, 480)


def test_features_that_hloc_wrote_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "hloc.h5"
    keypoints, descriptors = np.float16([[1, 2], [3, 4], [5, 6]]), np.ones((4, 3), np.float16)
    with h5py.File(path, "a", libver="latest") as file:
        group = file.create_group("db/1.jpg")
        for key, value in (("keypoints", keypoints), ("descriptors", descriptors), ("image_size", np.array([9, 8]))):
            group.create_dataset(key, data=value)
        broken = file.create_group("db/2.jpg")
        broken.create_dataset("keypoints", data=keypoints)
        broken.create_dataset("descriptors", data=descriptors.T)
    with open_h5(path) as file:
        found = read_features(file, "db/1.jpg")
        np.testing.assert_array_equal(found.keypoints, keypoints)
        assert found.descriptors.shape == (3, 4) and found.descriptors.dtype == np.float32
        np.testing.assert_array_equal(found.scores, [1, 1, 1])
        assert stored_settings(file) is None and stored_sources(file)["db/1.jpg"] is None
        with pytest.raises(StorageError, match=r"db/2\.jpg: keypoints \(3, 2\) and descriptors \(3, 4\)"):
            read_features(file, "db/2.jpg")
        for name in ("db/3.jpg", "db", "db/1.jpg/keypoints"):
            with pytest.raises(StorageError, match="no features"):
                read_features(file, name)


def hloc_matches(path: Path, name0: str, name1: str) -> tuple[np.ndarray, np.ndarray]:
    """What hloc's reader does: the pair in either order, pairs of indices where matches0 isn't -1."""
    with h5py.File(path, "r", libver="latest") as file:
        pair, swapped = "/".join(name.replace("/", "-") for name in (name0, name1)), False
        if pair not in file:
            pair, swapped = "/".join(name.replace("/", "-") for name in (name1, name0)), True
        matches = file[pair]["matches0"].__array__()
        scores = file[pair]["matching_scores0"].__array__()
    index = np.where(matches != -1)[0]
    pairs = np.stack([index, matches[index]], axis=-1)
    return (np.flip(pairs, -1) if swapped else pairs), scores[index]


MATCHES = {"matches0": np.array([-1, 4, -1, 0], np.int16), "matching_scores0": np.float16([0, 0.5, 0, 1])}


def test_matches_as_hloc_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "matches.h5"
    pairs = [("db/a.jpg", "q/b.jpg"), ("db/a.jpg", "c.jpg")]
    records = ((pair_name(*pair), MATCHES) for pair in pairs)
    write_atomically(path, SETTINGS, records, match_writer("hloc"), extend=False)
    with h5py.File(path) as file:
        assert set(file["db-a.jpg"]) == {"q-b.jpg", "c.jpg"}
        assert stored_pairs(file) == {"db-a.jpg/q-b.jpg", "db-a.jpg/c.jpg"}
    for name0, name1 in pairs:
        for order, expected in (((name0, name1), [[1, 4], [3, 0]]), ((name1, name0), [[4, 1], [0, 3]])):
            found, scores = hloc_matches(path, *order)
            np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(scores, [0.5, 1])
            with open_h5(path) as file:
                ours, our_scores = read_matches(file, *order)
            np.testing.assert_array_equal(ours, expected)
            np.testing.assert_array_equal(our_scores, scores)
    with open_h5(path) as file, pytest.raises(StorageError, match=r"q/b\.jpg and c\.jpg: not a pair in"):
        read_matches(file, "q/b.jpg", "c.jpg")


def test_matches_as_deep_image_matching_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "matches.h5"
    records = iter([(pair_name("a.jpg", "b.jpg"), MATCHES)])
    write_atomically(path, SETTINGS, records, match_writer("deep-image-matching"), extend=False)
    with h5py.File(path, "r", libver="latest") as file:
        np.testing.assert_array_equal(file["a.jpg"]["b.jpg"][()], [[1, 4], [3, 0]])
        np.testing.assert_array_equal(read_matches(file, "b.jpg", "a.jpg")[0], [[4, 1], [0, 3]])


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "features.h5"
    write_features(path)
    before = path.read_bytes()

    def records():
        yield "x.jpg", record(1)
        raise KeyboardInterrupt

    for extend in (False, True):
        with pytest.raises(KeyboardInterrupt):
            write_atomically(path, SETTINGS, records(), feature_writer("hloc"), extend=extend)
        assert path.read_bytes() == before and [item.name for item in tmp_path.iterdir()] == ["features.h5"]


def test_wrong_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("no HDF5")
    for name, reason in (("gone.h5", "no such file"), ("text.h5", "not an HDF5 file"), (".", "is a folder")):
        with pytest.raises(StorageError, match=reason), open_h5(tmp_path / name):
            pass


# ------------------------------------------------------------------------------------------------ resumable output


def names_in(path: Path) -> set[str]:
    with h5py.File(path) as file:
        return set(image_names(file))


def run(output: Path, *names: str, settings: dict = SETTINGS, finish: bool = True, **mode: bool) -> set[str]:
    """One run that makes the named images; returns what was there already."""
    with ResumableOutput(
        output, settings, resume=mode.get("resume", False), overwrite=mode.get("overwrite", False)
    ) as result:
        done = set(result.already_stored(image_names) or ()) | set(result.journal)
        for name in names:
            result.journal.append(name, record(len(name)))
        if finish:
            result.finish(feature_writer("hloc"))
    return done


def test_an_output_is_never_replaced_unasked(tmp_path: Path) -> None:
    output = tmp_path / "f.h5"
    assert run(output, "a", "b") == set()
    assert names_in(output) == {"a", "b"} and [item.name for item in tmp_path.iterdir()] == ["f.h5"]
    with pytest.raises(OutputError, match=r"f\.h5 exists already: use --resume .* or --overwrite"):
        run(output, "c")
    assert run(output, "c", resume=True) == {"a", "b"}
    assert names_in(output) == {"a", "b", "c"}
    assert run(output, resume=True) == {"a", "b", "c"}
    assert run(output, "d", overwrite=True) == set()
    assert names_in(output) == {"d"}


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    output, part = tmp_path / "f.h5", tmp_path / "f.h5.part"
    run(output, "a", finish=False)
    assert part.exists() and not output.exists()
    with pytest.raises(OutputError, match=r"f\.h5\.part is left of an interrupted run: use --resume"):
        run(output, "b")
    assert run(output, "b", resume=True, finish=False) == {"a"}
    assert run(output, "c", resume=True) == {"a", "b"}
    assert names_in(output) == {"a", "b", "c"} and not part.exists()
    run(output, "x", overwrite=True, finish=False)
    run(output, "y", overwrite=True)
    assert names_in(output) == {"y"}


def test_a_run_that_did_nothing_leaves_nothing(tmp_path: Path) -> None:
    run(tmp_path / "f.h5", finish=False)
    run(tmp_path / "f.h5")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_overwrite_goes_on_as_one(tmp_path: Path) -> None:
    """The old output stays until the new one is complete, and doesn't get into it."""
    output = tmp_path / "f.h5"
    run(output, "old")
    other = {**SETTINGS, "n": 5}
    run(output, "a", settings=other, overwrite=True, finish=False)
    assert names_in(output) == {"old"}
    assert run(output, "b", settings=other, resume=True) == {"a"}
    assert names_in(output) == {"a", "b"}


def test_resuming_with_other_settings_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "f.h5"
    other = {**SETTINGS, "n": 5}
    run(output, "a", finish=False)
    with pytest.raises(OutputError, match=r"f\.h5\.part was made with other settings \(n was 100 and is 5 now\)"):
        run(output, "b", settings=other, resume=True)
    run(output, resume=True)
    with pytest.raises(OutputError, match=r"f\.h5 was made with other settings"):
        run(output, "b", settings=other, resume=True)
    assert names_in(output) == {"a"} and not (tmp_path / "f.h5.part").exists()
    with h5py.File(tmp_path / "foreign.h5", "w"):
        pass
    with pytest.raises(OutputError, match=r"foreign\.h5 was not written by disk-ops"):
        run(tmp_path / "foreign.h5", "a", resume=True)


def test_impossible_outputs_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is a folder"):
        run(tmp_path, "a", overwrite=True)
    with pytest.raises(OutputError, match="there is no folder"):
        run(tmp_path / "nowhere" / "f.h5", "a")
