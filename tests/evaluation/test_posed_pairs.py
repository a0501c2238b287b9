"""disk_ops.evaluation.posed: posed pairs from all kinds of files, and which of them are used."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from known_cameras import (
    POINTS,
    SIZE,
    K,
    camera,
    dots_of,
    evaluate,
    list_line,
    project,
    write_cameras,
    write_colmap,
    write_images,
)
from oracle import oracle

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.pose_protocol import PoseProtocol
from disk_ops.evaluation.posed import Selection, find_pairs, read_pair_list


class TestPairList:
    @pytest.mark.parametrize("turns", [(0, 0), (1, 0), (0, 3), (2, 1)])
    @pytest.mark.parametrize("max_size", [None, 320])
    def test_turned_images_have_the_same_pose(self, tmp_path, turns, max_size):
        write_images(tmp_path, 2)
        (tmp_path / "pairs.txt").write_text(list_line("0.png", "1.png", turns=turns))
        seen = []

        def turned(index, size):
            seen.append(size)
            return project(index, size, turns[index])

        (record,) = evaluate(PoseProtocol(tmp_path / "pairs.txt", max_size=max_size), oracle(turned))
        assert record["error"] < 0.02 and record["inliers"] >= 298
        upright = SIZE if max_size is None else (320, 240)
        assert seen == [upright if turn % 2 == 0 else upright[::-1] for turn in turns]

    def test_comments_repetitions_quotes_and_other_folders(self, tmp_path):
        write_images(tmp_path / "photos" / "my scene", 2)
        write_images(tmp_path / "photos" / "b", 2)
        quoted = list_line('"my scene/0.png"', '"my scene/1.png"')
        lines = [
            "# pairs",
            "",
            quoted,
            quoted,
            list_line("b/0.png", "b/1.png"),
            list_line("b/0.png", "b/1.png", (0, 2)),
        ]
        (tmp_path / "pairs.txt").write_text("\n".join(lines) + "\n")
        pairs = read_pair_list(tmp_path / "pairs.txt", tmp_path / "photos")
        assert [pair.name for pair in pairs] == [
            "my scene/0.png my scene/1.png",
            "b/0.png b/1.png",
            "b/0.png b/1.png (6)",
        ]
        assert [pair.scene for pair in pairs] == ["my scene", "b", "b"]
        assert pairs[0].files[0] == tmp_path / "photos" / "my scene" / "0.png" and pairs[0].files[0].is_file()

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("a.png b.png", "pairs.txt:2: 38 fields are needed .*, got only two images, without ground truth"),
            ("a.png b.png 0 0 1 2 3", "pairs.txt:2: 38 fields are needed .*, got 7"),
            (list_line("a", "b", turns=(0, 4)), "pairs.txt:2: turns must be 0, 1, 2 or 3, got 0 4"),
            (list_line("a", "b").replace("500.0", "x", 1), "pairs.txt:2: could not convert"),
            (list_line("a", "b").replace("500.0", "nan", 1), "pairs.txt:2: first image: K, R or t has numbers that"),
            (list_line("a", "b").replace("500.0", "-500.0"), "pairs.txt:2: first image: K must be"),
        ],
    )
    def test_wrong_lines_are_named(self, tmp_path, line, message):
        (tmp_path / "pairs.txt").write_text(f"# a comment\n{line}\n")
        with pytest.raises(EvaluationError, match=message):
            read_pair_list(tmp_path / "pairs.txt")

    def test_lists_that_cannot_be_used(self, tmp_path):
        (tmp_path / "pairs.txt").write_text("# nothing\n")
        with pytest.raises(EvaluationError, match="holds no pair"):
            read_pair_list(tmp_path / "pairs.txt")
        (tmp_path / "pairs.txt").write_bytes(b"\xff\xfe\x00\xd8")
        with pytest.raises(EvaluationError, match="can't be read as a list"):
            read_pair_list(tmp_path / "pairs.txt")
        with pytest.raises(EvaluationError, match="none: no such folder of images"):
            (tmp_path / "pairs.txt").write_text(list_line("0.png", "1.png"))
            read_pair_list(tmp_path / "pairs.txt", tmp_path / "none")

    def test_a_missing_image_is_named(self, tmp_path):
        (tmp_path / "pairs.txt").write_text(list_line("0.png", "1.png"))
        with pytest.raises(EvaluationError, match=r"0.png: no such file"):
            evaluate(PoseProtocol(tmp_path / "pairs.txt"), oracle(project))


class TestScenes:
    def test_scenes_below_a_folder(self, tmp_path):
        write_cameras(tmp_path / "scene10", 2)
        write_cameras(tmp_path / "more" / "scene9", 3)
        pairs, notes = find_pairs(tmp_path)
        assert [pair.scene for pair in pairs] == ["more/scene9"] * 3 + ["scene10"]
        assert len({pair.name for pair in pairs}) == 4 and not notes

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", "can't be read"),
            ("[]", "must have an object 'cameras'"),
            ('{"cameras": {"0.png": {}}}', "must have R, t, K"),
        ],
    )
    def test_wrong_cameras_are_named(self, tmp_path, content, message):
        (tmp_path / "cameras.json").write_text(content)
        with pytest.raises(EvaluationError, match=f"cameras.json.*{message}"):
            find_pairs(tmp_path)

    def test_folders_without_scenes(self, tmp_path):
        with pytest.raises(EvaluationError, match=r"no images with known poses; looked for cameras.json"):
            find_pairs(tmp_path)
        with pytest.raises(EvaluationError, match="nowhere: no such file or folder"):
            find_pairs(tmp_path / "nowhere")
        write_cameras(tmp_path, 1)
        with pytest.raises(EvaluationError, match="two images with known poses are needed, got 1"):
            find_pairs(tmp_path)
        with pytest.raises(EvaluationError, match=r"cameras.json is not a list of pairs: give the folder of the scene"):
            find_pairs(tmp_path / "cameras.json")
        with pytest.raises(EvaluationError, match="can be given with a list of pairs only"):
            find_pairs(tmp_path, images=tmp_path)

    def test_missing_images_are_noted(self, tmp_path):
        write_cameras(tmp_path, 3)
        (tmp_path / "images" / "1.png").unlink()
        pairs, notes = find_pairs(tmp_path)
        assert len(pairs) == 1 and "1 images not found" in notes[0]

    def test_depth_maps_give_covisibility(self, tmp_path):
        write_cameras(tmp_path, 2)
        for index in range(2):
            (tmp_path / "depth").mkdir(exist_ok=True)
            np.save(tmp_path / "depth" / f"{index}.npy", np.full((48, 64), 10.0, np.float32))
        pairs, _ = find_pairs(tmp_path, Selection(min_covisibility=0.0))
        assert len(pairs) == 1 and 0.3 < pairs[0].covisibility < 1
        assert [path.name for path in pairs[0].files] == ["0.png", "1.png", "cameras.json", "0.npy", "1.npy"]

    def test_colmap_models_give_poses_covisibility_and_undistorted_images(self, tmp_path):
        pytest.importorskip("pycolmap")
        write_colmap(tmp_path, "SIMPLE_RADIAL", [500, 320, 240, -0.15])
        pairs, notes = find_pairs(tmp_path, Selection(min_covisibility=0.0))
        assert len(pairs) == 3 and not notes
        assert pairs[0].covisibility == pytest.approx(100 / 150)  # 0-149 and 50-199
        assert pairs[1].covisibility == pytest.approx(50 / 150)
        R, t = pairs[0].pose
        np.testing.assert_allclose(R, camera(1)[0] @ camera(0)[0].T, atol=1e-9)
        np.testing.assert_allclose(t, camera(1)[1] - R @ camera(0)[1], atol=1e-9)
        view = pairs[0].views[0].load(400)
        assert max(view.image.shape) == 400 and view.mask is not None
        # A point of the scene lies where K says, in the undistorted image.
        dots = dots_of(view.image)
        X = (POINTS[:5] @ camera(0)[0].T + camera(0)[1]) @ view.K.T
        for x, y in X[:, :2] / X[:, 2:]:
            assert np.abs(dots - (x, y)).max(1).min() < 0.35

    def test_a_broken_model_is_named(self, tmp_path):
        pytest.importorskip("pycolmap")
        for part in ("cameras", "images", "points3D"):
            (tmp_path / f"{part}.bin").write_bytes(b"\x01")
        with pytest.raises(EvaluationError, match="can't be read"):
            find_pairs(tmp_path)


class TestImc:
    def write(self, folder: Path, count: int = 3) -> None:
        write_images(folder / "images", count, "im-{}.png")
        (folder / "calibration").mkdir()
        for index in range(count):
            R, t = camera(index)
            with h5py.File(folder / "calibration" / f"calibration_im-{index}.h5", "w") as file:
                corner = [[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]]  # files have the first pixel's corner at 0
                file["K"], file["R"], file["T"] = K + corner, R, t[None]

    def write_lists(self, folder: Path) -> None:
        (folder / "new-vis-pairs").mkdir()
        for threshold, keys in {"0.0": ["im-0-im-1", "im-2-im-0", "im-1-im-9"], "0.3": ["im-0-im-1"]}.items():
            np.save(folder / "new-vis-pairs" / f"keys-th-{threshold}.npy", np.array(keys))
        np.save(folder / "new-vis-pairs" / "keys-th-0.8.npy", np.array([]))

    def test_calibrations(self, tmp_path):
        self.write(tmp_path)
        protocol = PoseProtocol(tmp_path)
        records = evaluate(protocol, oracle(project))
        assert len(records) == 3 and max(record["error"] for record in records) < 0.02
        (pair, *_) = find_pairs(tmp_path)[0]
        assert np.array_equal(pair.views[0].K, K)  # pixel centres are integers here
        files = [path.name for path in protocol.items()[1].files]
        assert files == ["im-0.png", "im-2.png", "calibration_im-0.h5", "calibration_im-2.h5"]

    def test_lists_give_covisibility_and_choose_pairs(self, tmp_path):
        self.write(tmp_path)
        self.write_lists(tmp_path)
        (pair,) = find_pairs(tmp_path)[0]
        assert pair.covisibility == 0.3 and pair.name == f"{tmp_path.name}: im-0.png im-1.png"
        pairs, _ = find_pairs(tmp_path, Selection(min_covisibility=0.0))
        assert [pair.covisibility for pair in pairs] == [0.3, 0.0]

    def test_lists_beside_cameras_json(self, tmp_path):
        write_cameras(tmp_path, 2)
        (tmp_path / "new-vis-pairs").mkdir()
        np.save(tmp_path / "new-vis-pairs" / "keys-th-0.5.npy", np.array(["0-1"]))
        (pair,) = find_pairs(tmp_path)[0]
        assert pair.covisibility == 0.5

    def test_wrong_files_are_named(self, tmp_path):
        self.write(tmp_path)
        self.write_lists(tmp_path)
        np.save(tmp_path / "new-vis-pairs" / "keys-th-0.4.npy", np.zeros(3))
        with pytest.raises(EvaluationError, match=r"keys-th-0.4.npy must hold names of pairs as texts, got float64"):
            find_pairs(tmp_path)
        (tmp_path / "new-vis-pairs" / "keys-th-0.4.npy").write_bytes(b"broken")
        with pytest.raises(EvaluationError, match=r"keys-th-0.4.npy can't be read"):
            find_pairs(tmp_path)
        (tmp_path / "calibration" / "calibration_im-1.h5").write_bytes(b"broken")
        with pytest.raises(EvaluationError, match=r"calibration_im-1.h5 can't be read"):
            find_pairs(tmp_path)

    def test_real_scene(self, shared_data):
        pairs, notes = find_pairs(shared_data / "pose" / "imc_reichstag")
        assert not notes and 30 < len(pairs) <= 45
        assert {pair.covisibility for pair in pairs} <= {0.1, 0.2, 0.3, 0.4}


class TestSelection:
    PAIRS = np.array([(i, j) for i in range(20) for j in range(i + 1, 20)])

    def test_draws_are_equal_sorted_and_differ_between_scenes(self):
        selection = Selection(limit=30)
        chosen = selection.choose("a", self.PAIRS, None)
        np.testing.assert_array_equal(chosen, selection.choose("a", self.PAIRS, None))
        assert len(set(chosen.tolist())) == 30 and sorted(chosen.tolist()) == chosen.tolist()
        assert chosen.tolist() != selection.choose("b", self.PAIRS, None).tolist()
        assert chosen.tolist() != Selection(limit=30, seed=1).choose("a", self.PAIRS, None).tolist()

    def test_covisibility_at_the_edge_counts(self):
        shared = np.linspace(0, 1, len(self.PAIRS))
        shared[7] = np.nextafter(0.1, 0)
        chosen = Selection(limit=None).choose("a", self.PAIRS, shared)
        assert 7 in chosen and all(shared[chosen] > 0.0999)
        assert len(Selection(limit=None).choose("a", self.PAIRS, None)) == len(self.PAIRS)

    def test_nothing_to_choose_from(self):
        assert len(Selection().choose("a", np.zeros((0, 2), int), None)) == 0

    def test_wrong_settings_are_named(self):
        with pytest.raises(ValueError, match="limit must be a positive number of pairs, got 0"):
            Selection(limit=0)
        with pytest.raises(ValueError, match="min_covisibility must be from 0 to 1, got 2"):
            Selection(min_covisibility=2)
