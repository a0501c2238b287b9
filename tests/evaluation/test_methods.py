"""disk_ops.evaluation.methods and .kornia_methods: names of methods, their weights, and their features."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from disk_ops import DISKDetector, MultiscaleDetector
from disk_ops.checkpoint import DEFAULT_CHECKPOINT
from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.features import Features, Matcher, mutual_matches
from disk_ops.evaluation.kornia_methods import KORNIA_MODELS
from disk_ops.evaluation.methods import detector_method, parse_method, parse_methods


@pytest.fixture(scope="module")
def image() -> torch.Tensor:
    """Blobs of several sizes, [3, 96, 128]."""
    generator = np.random.default_rng(0)
    noise = sum(cv2.resize(generator.random((96 // s, 128 // s)), (128, 96)) for s in (2, 4, 8, 16))
    grey = ((noise - noise.min()) / (noise.max() - noise.min())).astype(np.float32)
    return torch.from_numpy(grey).expand(3, -1, -1)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of torch hub's cached weights: empty, and downloads would fail."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("nothing may be downloaded")

    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


class TestNames:
    def test_methods_are_named_as_given(self) -> None:
        assert [spec.name for spec in parse_methods(["disk", "sift", "rootsift"])] == ["disk", "sift", "rootsift"]

    def test_a_checkpoint_is_named_by_its_file(self, tmp_path) -> None:
        (tmp_path / "my.safetensors").write_bytes(b"")
        spec = parse_method(f"disk:{tmp_path}/my.safetensors")
        assert (spec.name, spec.kind, spec.checkpoint) == ("disk:my.safetensors", "disk", f"{tmp_path}/my.safetensors")
        assert parse_method(f"disk:{DEFAULT_CHECKPOINT}").name == f"disk:{DEFAULT_CHECKPOINT}"

    def test_equal_names_become_whole_paths(self, tmp_path) -> None:
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "my.pth").write_bytes(b"")
        texts = [f"disk:{tmp_path}/{folder}/my.pth" for folder in "ab"]
        assert [spec.name for spec in parse_methods([*texts, "sift"])] == [*texts, "sift"]

    def test_a_method_is_named_once(self) -> None:
        with pytest.raises(EvaluationError, match="--method sift is given twice"):
            parse_methods(["sift", "disk", "sift"])

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (
                "surf",
                r"--method must be one of disk\[\+subpixel\]\[\+multiscale\]\[:CHECKPOINT\], sift, .*; got 'surf'",
            ),
            ("", "got ''"),
            ("disk+", r"got 'disk\+'"),
            ("disk+multiscale+multiscale", r"got 'disk\+multiscale\+multiscale'"),
            ("sift+multiscale", r"got 'sift\+multiscale'"),
            ("sift:a.pth", "got 'sift:a.pth'"),
            ("disk:gone.pth", "--method disk:gone.pth: checkpoint 'gone.pth' is neither a bundled name"),
            ("kornia", "--method kornia: kornia's methods are aliked-n16, .*, got ''"),
            ("kornia:surf", "kornia's methods are aliked-n16, .*, got 'surf'"),
            ("kornia:xfeat:gone.pt", "kornia:xfeat: there is no file or folder gone.pt"),
        ],
    )
    def test_what_is_wrong_is_named(self, text, reason) -> None:
        with pytest.raises(EvaluationError, match=reason):
            parse_method(text)

    def test_kornia_without_weights_says_what_to_give(self, hub) -> None:
        with pytest.raises(EvaluationError) as raised:
            parse_method("kornia:aliked-n16")
        message = str(raised.value)
        assert "has no aliked-n16.pth. Nothing is downloaded: give the weight file as kornia:aliked-n16:PATH" in message
        (hub / "dedode_descriptor_B.pth").write_bytes(b"")
        with pytest.raises(EvaluationError, match=r"has no dedode_detector_L_v2\.pth\. Nothing .* a folder with"):
            parse_method("kornia:dedode")
        with pytest.raises(EvaluationError, match=r"needs a folder with dedode_detector_L_v2\.pth and dedode_desc"):
            parse_method(f"kornia:dedode:{hub}/dedode_descriptor_B.pth")


class TestClassical:
    def test_sift_and_rootsift_find_the_same_and_describe_it_otherwise(self, image) -> None:
        sift, rootsift = (parse_method(name).load().extract(image, 50) for name in ("sift", "rootsift"))
        torch.testing.assert_close(sift.keypoints, rootsift.keypoints)
        expected = (sift.descriptors / sift.descriptors.sum(1, keepdim=True)).sqrt()
        torch.testing.assert_close(rootsift.descriptors, expected)
        torch.testing.assert_close(rootsift.descriptors.norm(dim=1), torch.ones(len(sift.keypoints)))

    @pytest.mark.parametrize("name", ["disk", "rootsift", "sift"])
    def test_the_best_come_first_and_fewer_are_the_first_of_more(self, name, image) -> None:
        method = parse_method(name).load()
        many, one = method.extract(image, 40), method.extract(image, 1)
        assert len(many.keypoints) == 40 and len(one.keypoints) == 1
        assert many.scores is not None and (many.scores.diff() <= 0).all()
        torch.testing.assert_close(one.scores, many.scores[:1])

    def test_a_grey_wall_has_no_sift(self) -> None:
        found = parse_method("sift").load().extract(torch.full((3, 40, 50), 0.5), 10)
        assert [list(part.shape) for part in found] == [[0, 2], [0, 128], [0]]


class TestDisk:
    def test_the_fingerprint_is_of_the_weights_not_of_the_file(self, tmp_path) -> None:
        weights = DISKDetector.from_pretrained().state_dict()
        save_file(weights, tmp_path / "same.safetensors")
        first = next(iter(weights))
        save_file({**weights, first: weights[first] + 1}, tmp_path / "other.safetensors")
        start, same, other = (
            parse_method(text).load().fingerprint
            for text in ("disk", f"disk:{tmp_path}/same.safetensors", f"disk:{tmp_path}/other.safetensors")
        )
        assert start == same != other

    def test_the_window_is_part_of_it(self, image) -> None:
        detector = DISKDetector.from_pretrained().eval()
        narrow, wide = (detector_method(detector, "disk", window) for window in (3, 15))
        assert narrow.fingerprint != wide.fingerprint
        assert len(narrow.extract(image, 500).keypoints) > len(wide.extract(image, 500).keypoints)

    def test_the_order_of_options_does_not_matter(self) -> None:
        assert parse_method("disk+multiscale+subpixel").name == "disk+subpixel+multiscale"
        with pytest.raises(EvaluationError, match=r"--method disk\+subpixel\+multiscale is given twice"):
            parse_methods(["disk+subpixel+multiscale", "disk+multiscale+subpixel"])

    @pytest.mark.parametrize(
        "text", ["disk+multiscale", "disk+subpixel+multiscale", "disk+subpixel+multiscale:general"]
    )
    def test_several_scales(self, text, image) -> None:
        method = parse_method(text).load()
        single = parse_method(text.replace("+multiscale", "")).load()
        assert method.name == text and method.fingerprint != single.fingerprint
        detector = MultiscaleDetector(DISKDetector.from_pretrained(subpixel="subpixel" in text))
        with torch.inference_mode():
            expected = detector(image[None], n=200)[0]
        found = method.extract(image, 200)
        torch.testing.assert_close(found.keypoints, expected.keypoints)
        assert not torch.equal(found.keypoints, single.extract(image, 200).keypoints)

    def test_a_broken_file_is_named(self, tmp_path) -> None:
        (tmp_path / "broken.pth").write_bytes(b"nothing")
        with pytest.raises(EvaluationError, match=r"--method disk:broken\.pth: .*broken\.pth is not a readable"):
            parse_method(f"disk:{tmp_path}/broken.pth").load()


class TestKornia:
    """With random weights: what is loaded is what is computed with."""

    @staticmethod
    def state_dicts(name: str) -> dict[str, dict[str, object]]:
        """Weights by file, in the form in which kornia downloads them."""
        import kornia.feature as KF

        if name == "xfeat":
            state = KF.XFeat().net.state_dict()
            state["keypoint_head.3.weight"] *= 100  # so that the heatmap has values above the threshold
            return {"xfeat.pt": state}
        if name == "disk":
            return {"depth-save.pth": {"extractor": KF.DISK().state_dict()}}
        if name == "dedode":
            model = KF.DeDoDe("L", "B")
            return {
                "dedode_detector_L_v2.pth": model.detector.state_dict(),
                "dedode_descriptor_B.pth": model.descriptor.state_dict(),
            }
        if name == "keynet-affnet-hardnet":
            parts = {
                "keynet_pytorch.pth": KF.KeyNet(False),
                "AffNet.pth": KF.LAFAffNetShapeEstimator(False),
                "OriNet.pth": KF.OriNet(False),
                "checkpoint_liberty_with_aug.pth": KF.HardNet(False),
            }
            states = {file: {"state_dict": part.state_dict()} for file, part in parts.items()}
            states["keynet_pytorch.pth"]["state_dict"]["last_conv.0.bias"] += 1  # the response is cut off at 0
            return states
        state = KF.ALIKED(name).state_dict()
        del state["dkd.hw_grid"]  # as in the published files
        return {f"{name}.pth": state}

    @pytest.mark.parametrize("name", ["aliked-t16", "xfeat", "disk", "keynet-affnet-hardnet"])
    def test_features_from_cached_weights(self, name, hub, image) -> None:
        pytest.importorskip("kornia")
        for file, state in self.state_dicts(name).items():
            torch.save(state, hub / file)
        method = parse_method(f"kornia:{name}").load()
        assert method.name == f"kornia:{name}" and name in method.fingerprint
        many, few = method.extract(image, 30), method.extract(image, 5)
        assert 5 <= len(many.keypoints) <= 30 and len(few.keypoints) == 5
        assert len(many.descriptors) == len(many.keypoints) == len(many.scores)
        assert (many.scores.diff() <= 0).all()
        assert (many.keypoints >= -1).all() and (many.keypoints <= torch.tensor([128.0, 96.0])).all()
        assert method.extract(image, 30).keypoints.equal(many.keypoints)

    def test_weights_given_by_path(self, hub, tmp_path, image) -> None:
        pytest.importorskip("kornia")
        torch.save(self.state_dicts("aliked-t16")["aliked-t16.pth"], tmp_path / "mine.pth")
        spec = parse_method(f"kornia:aliked-t16:{tmp_path}/mine.pth")
        assert spec.name == "kornia:aliked-t16"
        first = spec.load()
        torch.save(self.state_dicts("aliked-t16")["aliked-t16.pth"], tmp_path / "mine.pth")  # other random weights
        assert spec.load().fingerprint != first.fingerprint

    def test_weights_of_another_model_are_refused(self, tmp_path) -> None:
        pytest.importorskip("kornia")
        torch.save(self.state_dicts("xfeat")["xfeat.pt"], tmp_path / "wrong.pth")
        torch.save([1, 2], tmp_path / "list.pth")
        (tmp_path / "text.pth").write_text("nothing")
        for model in ("aliked-t16", "disk"):
            with pytest.raises(EvaluationError, match=rf"wrong\.pth doesn't fit kornia's {model}: "):
                parse_method(f"kornia:{model}:{tmp_path}/wrong.pth").load()
        with pytest.raises(EvaluationError, match=r"text\.pth is not a readable checkpoint"):
            parse_method(f"kornia:xfeat:{tmp_path}/text.pth").load()
        with pytest.raises(EvaluationError, match=r"list\.pth is not a checkpoint: it holds a list"):
            parse_method(f"kornia:xfeat:{tmp_path}/list.pth").load()

    def test_all_models_name_their_files(self) -> None:
        for name, model in KORNIA_MODELS.items():
            assert model.files and all("/" not in file for file in model.files), name


class TestMatcher:
    def test_mutual_neighbours_by_hand(self) -> None:
        first = Features(torch.zeros(2, 2), torch.tensor([[0.0, 0.0], [4.0, 0.0]]))
        second = Features(torch.zeros(3, 2), torch.tensor([[1.0, 0.0], [4.0, 0.0], [4.5, 0.0]]))
        assert mutual_matches(first, second).tolist() == [[0, 0], [1, 1]]
        # Best and second best of the first match: 1 and 4 one way, 1 and 3 the other; of the second: 0 and more.
        assert Matcher(0.3)(first, second).tolist() == [[1, 1]]
        assert Matcher(0.34)(first, second).tolist() == [[0, 0], [1, 1]]
