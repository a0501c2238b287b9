"""extract and match by several processes: each its shard, together what one process makes; merging them."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from sharing import EXTRACT, assert_same, files, interrupt, process, processes
from stored import groups, load, save

from disk_ops.cli import main
from disk_ops.io.hdf5 import image_names, open_h5, read_features, read_matches, stored_shards
from disk_ops.programs.common import pick_device
from disk_ops.workers import Worker


def test_the_shards_read_as_the_file_of_one_process(sharded: Path, features: Path) -> None:
    shards = {f"features.h5.shards/0000{rank}-of-00002.h5" for rank in (0, 1)}
    assert files(sharded.parent) == {"features.h5", *shards}
    assert_same(sharded, features)
    with h5py.File(sharded.parent / min(shards)) as file:
        assert len(image_names(file)) in (2, 3)  # of five
    with open_h5(sharded) as index, open_h5(features) as plain:
        assert sorted(image_names(index)) == sorted(image_names(plain)) and set(stored_shards(index)) == shards
        for name in image_names(plain):
            one, other = vars(read_features(index, name)), vars(read_features(plain, name))
            for key in other:
                np.testing.assert_array_equal(one[key], other[key])


def test_pairs_are_shared_too_and_all_programs_read_an_index(
    sharded: Path, photos: Path, matches: Path, output: Path, tmp_path: Path
) -> None:
    assert processes(3, "match", sharded, "-o", output, "--quiet") == [0, 0, 0]
    assert_same(output, matches)
    assert groups(output) == groups(matches)
    with open_h5(output) as file, open_h5(matches) as plain:
        for order in (("a.jpg", "sub/a.jpg"), ("sub/a.jpg", "a.jpg")):
            np.testing.assert_array_equal(read_matches(file, *order)[0], read_matches(plain, *order)[0])
    images = [str(photos / "a.jpg"), str(photos / "sub" / "a.jpg")]
    stored = ["--features", str(sharded), "--matches", str(output)]
    assert main(["show", *images, *stored, "-o", str(tmp_path / "out.png")]) == 0
    assert main(["match", str(sharded), "-o", str(tmp_path / "plain.h5"), "--quiet"]) == 0
    assert_same(tmp_path / "plain.h5", matches)


@pytest.mark.parametrize("layout", ["glue-factory", "deep-image-matching"])
def test_other_layouts(photos: Path, features: Path, output: Path, tmp_path: Path, layout: str) -> None:
    program = ["extract", str(photos)] if layout == "glue-factory" else ["match", str(features)]
    program += ["--layout", layout, "--quiet"]
    assert main([*program, "-o", str(tmp_path / "plain.h5")]) == 0
    assert processes(2, *program, "-o", output) == [0, 0]
    assert_same(output, tmp_path / "plain.h5")
    assert main(["merge", str(output), "--quiet"]) == 0
    assert_same(output, tmp_path / "plain.h5")


def test_failures_are_told_by_name_and_by_the_exit_status_of_the_last(
    output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The launcher would stop the others if a process failed while they are at work."""
    folder = tmp_path / "photos"
    for seed in range(4):
        save(folder / f"{seed}.png", seed)
    broken = [image for rank in (0, 1) for image in Worker(rank, 2).share(sorted(folder.iterdir()))[:1]]
    for path in broken:
        path.write_text("no image")
    command = ["extract", str(folder), "-o", output, *EXTRACT]
    assert process(0, 2, *command) == 0
    told = capsys.readouterr()
    assert f"failed: {broken[0].name}: " in told.err and "rank 0 of 2: 1 image" in told.out and "1 failed" in told.out
    assert "f.h5 is made when all are" in told.err and not output.exists()
    assert process(1, 2, *command) == 1
    told = capsys.readouterr()
    assert f"failed: {broken[1].name}: " in told.err and "complete, 2 images in 2 files, 2 failed" in told.out
    save(broken[0], 1)
    # What failed is tried again, and nothing else.
    assert processes(2, *command, "--resume") == [0, 1]
    assert "complete, 3 images in 2 files, 1 failed" in capsys.readouterr().out
    save(broken[1], 2)
    assert processes(3, *command, "--resume") == [0, 0, 0]
    assert "complete, 4 images" in capsys.readouterr().out
    assert len(load(output)) == 4 and not [name for name in files(output.parent) if name.endswith("failed")]


def test_nothing_is_left_if_all_fail(output: Path, tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_text("no image")
    images = [tmp_path / "a.jpg", tmp_path / "b.jpg"]
    assert processes(2, "extract", *images, "-o", output, *EXTRACT) == [0, 1]
    assert list(output.parent.iterdir()) == []


def test_more_processes_than_images(photos: Path, output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["extract", photos / "a.jpg", photos / "a.png", "-o", output, *EXTRACT]
    assert processes(4, *command) == [0, 0, 0, 0]
    assert capsys.readouterr().err.count("nothing to do: there are fewer images than processes") == 2
    assert set(load(output)) == {"a.jpg", "a.png"}
    assert processes(3, "match", output, "-o", output.with_name("m.h5"), "--quiet") == [0, 0, 0]
    assert groups(output.with_name("m.h5")) == {("a.jpg", "a.png")}


def test_each_process_takes_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert [pick_device("auto", Worker(rank, 8, rank % 4)).index for rank in (0, 3, 5)] == [0, 3, 1]
    assert pick_device("cuda", Worker(2, 8, 2)).index == 2
    assert pick_device("cpu", Worker(2, 8, 2)).type == "cpu"


# ------------------------------------------------------------------------------------------------- merging on request


def test_merge_makes_one_plain_file(
    sharded: Path, features: Path, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sharded.parent, output.parent, dirs_exist_ok=True)
    index = output.with_name("features.h5")
    before = files(output.parent)
    assert main(["merge", str(index), "-o", str(output), "--quiet"]) == 0
    assert files(output.parent) == {*before, "f.h5"}
    assert_same(output, features)
    assert main(["merge", str(index), "-o", str(output)]) == 2
    assert "f.h5 exists already" in capsys.readouterr().err
    assert main(["merge", str(index), "-o", str(output), "--overwrite"]) == 0
    assert main(["merge", str(index), "-o", str(index), "--overwrite"]) == 2
    output.unlink()
    assert main(["merge", str(index)]) == 0
    assert files(output.parent) == {"features.h5"}
    assert_same(index, features)
    with h5py.File(index) as file:
        assert stored_shards(file) == [] and file["a.jpg/scores"] == file["a.jpg/keypoint_scores"]  # one dataset
    assert index.stat().st_size < 1.1 * features.stat().st_size
    assert main(["merge", str(index)]) == 2
    assert "is one file already" in capsys.readouterr().err
    assert main(["merge", str(output)]) == 2 and "no such file" in capsys.readouterr().err


def test_a_symbolic_link_stands_for_the_file(
    sharded: Path, photos: Path, features: Path, matches: Path, output: Path
) -> None:
    shutil.copytree(sharded.parent, output.parent / "real")
    output.symlink_to("real/features.h5")
    assert main(["match", str(output), "-o", str(output.with_name("m.h5")), "--quiet"]) == 0
    assert_same(output.with_name("m.h5"), matches)
    assert processes(2, "extract", photos, "-o", output, *EXTRACT, "--resume") == [0, 0]
    assert output.is_symlink() and not output.with_name("f.h5.shards").exists()
    assert main(["merge", str(output), "--quiet"]) == 0
    assert output.is_symlink() and files(output.parent / "real") == {"features.h5"}
    assert_same(output, features)


def test_merge_keeps_what_an_unfinished_run_has_added(
    sharded: Path, photos: Path, output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sharded.parent, output.parent, dirs_exist_ok=True)
    index = output.with_name("features.h5")
    more = [save(tmp_path / f"more{seed}.png", 20 + seed) for seed in range(6)]
    command = ["extract", photos, *more, "-o", index, *EXTRACT, "--resume"]
    interrupt(0, 2, 1, *command)
    assert process(1, 2, *command) == 0
    before = files(output.parent)
    assert main(["merge", str(index)]) == 2
    assert "holds results that" in (told := capsys.readouterr().err) and "finish it with --resume first" in told
    assert files(output.parent) == before
    assert processes(2, *command) == [0, 0] and main(["merge", str(index)]) == 0
    assert len(load(index)) == 11 and files(output.parent) == {"features.h5"}
