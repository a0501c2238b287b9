"""python/examples/lightglue.py: kornia's LightGlue with weights from a file, here random ones."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import kornia.feature as KF
import pytest
import torch

from disk_ops import DISKDetector, demo

if not hasattr(KF, "LightGlueMatcher"):
    pytest.skip("this kornia has no LightGlue", allow_module_level=True)


@pytest.fixture(scope="module")
def example(repository: Path) -> dict[str, Any]:
    return runpy.run_path(str(repository / "python" / "examples" / "lightglue.py"))


@pytest.fixture(autouse=True)
def no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a download was tried")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", refuse)
    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    """Random ones, under the names of the release."""
    torch.manual_seed(0)
    renamed = {}
    for key, value in KF.LightGlue(None, input_dim=128).state_dict().items():
        parts = key.split(".")
        if parts[0] == "transformers":
            key = ".".join([parts[2], parts[1], *parts[3:]])  # transformers.3.self_attn.x -> self_attn.3.x
        renamed[key] = value
    return renamed


def test_weights_are_loaded(example: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    matcher = example["LocalLightGlueMatcher"](weights)
    assert isinstance(matcher, KF.LightGlueMatcher) and not matcher.training
    loaded = matcher.matcher.state_dict()
    torch.testing.assert_close(loaded["transformers.4.cross_attn.to_qk.weight"], weights["cross_attn.4.to_qk.weight"])
    with pytest.raises(ValueError, match="these are no weights of LightGlue for DISK"):
        example["LocalLightGlueMatcher"]({"x": torch.ones(1)})


def test_features_of_disk_go_through(example: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    matcher = example["LocalLightGlueMatcher"](weights, filter_threshold=0.0)
    detector = DISKDetector.from_pretrained()
    torch.manual_seed(0)
    image = torch.rand(1, 3, 64, 96)
    with torch.inference_mode():
        features = detector(image, n=50)[0]
    scores, pairs = example["match"](matcher, features, features, (64, 96), (64, 96))
    assert features.n == 50 and len(pairs) > 0
    assert (
        pairs.shape[1] == 2 and pairs.dtype == torch.int64 and int(pairs.max()) < 50 and scores.shape == (len(pairs), 1)
    )


def test_the_whole_example(
    example: dict[str, Any],
    weights: dict[str, torch.Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.save(weights, tmp_path / "weights.pth")
    images = [str(path) for path in demo.IMAGES]
    options = ["--lightglue", str(tmp_path / "weights.pth"), "--n", "64", "--save", str(tmp_path / "out.png")]
    monkeypatch.setattr("sys.argv", ["lightglue.py", *images, *options])
    example["main"]()
    assert "64 and 64 keypoints" in capsys.readouterr().out and (tmp_path / "out.png").is_file()
