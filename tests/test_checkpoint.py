"""disk_ops.checkpoint: every layout of DISK weights, and clear words about everything else."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import save, save_file

from disk_ops import DISKDetector, DISKLocalFeature, graphs
from disk_ops.checkpoint import DEFAULT_CHECKPOINT, bundled_checkpoints, read_state_dict
from disk_ops.evaluation.methods import parse_method


@pytest.fixture
def weights():
    torch.manual_seed(1)
    return DISKDetector(desc_dim=16).state_dict()


def same(detector, weights):
    return all(torch.equal(value, weights[name]) for name, value in detector.state_dict().items())


def test_bundled_names():
    assert DEFAULT_CHECKPOINT in bundled_checkpoints()
    assert DISKDetector.from_pretrained().desc_dim == 128
    assert same(DISKDetector.from_pretrained(), read_state_dict(DEFAULT_CHECKPOINT))


@pytest.mark.parametrize("key", ["extractor", "disk", None])
@pytest.mark.parametrize("as_path", [str, lambda path: path], ids=["str", "Path"])
def test_pytorch_file(tmp_path, weights, key, as_path):
    path = tmp_path / "save.pth"
    torch.save(weights if key is None else {key: weights, "epoch": 3}, path)
    detector = DISKDetector.from_pretrained(as_path(path))
    assert detector.desc_dim == 16 and not detector.training and same(detector, weights)


def test_safetensors_file(tmp_path, weights):
    save_file(weights, tmp_path / "save.safetensors")
    assert same(DISKDetector.from_pretrained(tmp_path / "save.safetensors"), weights)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_folder_whose_name_is_not_utf_8(tmp_path, weights, suffix):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        folder.mkdir()
    except (OSError, UnicodeError):
        pytest.skip("this file system takes UTF-8 names only")
    content = save(weights) if suffix == ".safetensors" else pytorch_bytes(weights)
    (folder / f"w{suffix}").write_bytes(content)
    assert same(DISKDetector.from_pretrained(folder / f"w{suffix}"), weights)


def pytorch_bytes(weights):
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    return buffer.getvalue()


def test_mapping(weights):
    assert same(DISKDetector.from_pretrained(weights), weights)
    assert same(DISKDetector.from_pretrained({"extractor": weights}), weights)


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=str)
def halves(request, weights):
    return {name: value.to(request.param) for name, value in weights.items()}


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", None])
def test_half_types_are_for_storage(tmp_path, halves, suffix):
    """The detector computes in float32, with the values that the file holds, until it is told to do otherwise."""
    path = tmp_path / f"half{suffix}"
    if suffix is not None:
        save_file(halves, path) if suffix == ".safetensors" else torch.save({"extractor": halves}, path)
    detector = DISKDetector.from_pretrained(halves if suffix is None else path)
    assert {value.dtype for value in detector.state_dict().values()} == {torch.float32}
    assert same(detector, {name: value.float() for name, value in halves.items()})
    assert {value.dtype for value in detector.half().state_dict().values()} == {torch.float16}


@torch.inference_mode()
def test_all_that_load_half_types_take_float32_images(tmp_path, halves, monkeypatch):
    path, images = tmp_path / "half.safetensors", torch.rand(1, 3, 32, 48)
    save_file(halves, path)
    detector = DISKDetector.from_pretrained(path)
    assert detector(images, n=5, score_threshold=-100.0)[0].descriptors.dtype == torch.float32
    assert DISKLocalFeature(detector, n=5)(images)[0].dtype == torch.float32
    assert (
        parse_method(f"disk:{path}").load(torch.device("cpu")).extract(images[0], 5).descriptors.dtype == torch.float32
    )
    monkeypatch.setattr(graphs, "_check_device", lambda name, device: None)
    graphed = graphs.GraphedDetector(detector, 5, capture=lambda function, inputs: Called(function))
    assert graphed(images).descriptors.dtype == torch.float32


class Called(NamedTuple):
    """In place of a CUDA graph."""

    function: Callable

    def replay(self, inputs):
        return self.function(*inputs)


def test_float64_weights_keep_their_digits(weights):
    precise = {name: value.double() * (1 + 1e-12) for name, value in weights.items()}
    assert same(DISKDetector.from_pretrained(precise), precise)
    name = "unet.path_down.0.1.3.bias"
    mixed = DISKDetector.from_pretrained(weights | {name: precise[name]})
    assert same(mixed, {key: value.double() for key, value in weights.items()} | {name: precise[name]})


def test_weights_are_kornias(weights):
    kornia = pytest.importorskip("kornia.feature").DISK(desc_dim=16)
    kornia.load_state_dict(weights)
    assert same(DISKDetector.from_pretrained(kornia.state_dict()), weights)


class Exploit:
    executed = False

    def __reduce__(self):
        return setattr, (Exploit, "executed", True)


@pytest.mark.parametrize("write", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))])
def test_code_is_never_executed(tmp_path, write):
    path = tmp_path / "evil.pth"
    write({"extractor": Exploit()}, path)
    with pytest.raises(ValueError, match=r"evil\.pth is not a readable checkpoint: .*never executed"):
        DISKDetector.from_pretrained(path)
    assert not Exploit.executed


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"\xff\xd8\xff\xe0 not a checkpoint", b"hello\n" * 100, b"PK\x03\x04broken"])
def test_not_a_checkpoint(tmp_path, suffix, content):
    path = tmp_path / f"wrong{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"wrong\{suffix} is not a readable checkpoint: ."):
        DISKDetector.from_pretrained(path)


def test_truncated_file(tmp_path, weights):
    path = tmp_path / "cut.pth"
    torch.save(weights, path)
    path.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(ValueError, match=r"cut\.pth is not a readable checkpoint"):
        DISKDetector.from_pretrained(path)


def test_missing_file():
    with pytest.raises(
        FileNotFoundError,
        match=rf"checkpoint 'depth' is neither a bundled name \(.*{DEFAULT_CHECKPOINT}.*\) nor a file",
    ):
        DISKDetector.from_pretrained("depth")


def test_a_bundled_name_as_a_path(tmp_path, monkeypatch):
    """A path is a file's, whatever its name; the message says how the bundled weights are named."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"is no file; the bundled weights of that name are 'general', as a str"
    ):
        DISKDetector.from_pretrained(Path(DEFAULT_CHECKPOINT))


@pytest.mark.parametrize("checkpoint", ["x" * 5000, "~nobody-of-this-name/x.pth", "a\0b"])
def test_impossible_path(checkpoint):
    with pytest.raises(FileNotFoundError, match="checkpoint '"):
        DISKDetector.from_pretrained(checkpoint)


@pytest.mark.parametrize("checkpoint", [None, 3, b"general", io.BytesIO()])
def test_neither_name_nor_path_nor_mapping(checkpoint):
    with pytest.raises(TypeError, match="checkpoint must be a name, a path or a mapping, got "):
        DISKDetector.from_pretrained(checkpoint)


def test_suffix_in_capitals(tmp_path, weights):
    save_file(weights, tmp_path / "save.SAFETENSORS")
    assert same(DISKDetector.from_pretrained(tmp_path / "save.SAFETENSORS"), weights)


def test_weights_of_other_dtypes_and_shapes(weights):
    with pytest.raises(ValueError, match=r"unet\.path_down\.0\.1\.3\.bias is of dtype torch\.int64"):
        DISKDetector.from_pretrained(weights | {"unet.path_down.0.1.3.bias": torch.ones(16, dtype=torch.int64)})
    with pytest.raises(ValueError, match=r"unet\.path_up\.3\.conv\.3\.weight has shape \[\]"):
        DISKDetector.from_pretrained(weights | {"unet.path_up.3.conv.3.weight": torch.tensor(1.0)})


def test_folder(tmp_path):
    with pytest.raises(ValueError, match="is a folder"):
        DISKDetector.from_pretrained(tmp_path)


def test_other_networks_weights(tmp_path):
    path = tmp_path / "other.pth"
    torch.save({"conv1.weight": torch.rand(3), "conv1.bias": torch.rand(3)}, path)
    with pytest.raises(ValueError, match=r"other\.pth is not a DISK checkpoint.*found conv1\.weight, conv1\.bias"):
        DISKDetector.from_pretrained(path)
    torch.save([1, 2], path)
    with pytest.raises(ValueError, match="holds a list, not a state dict"):
        DISKDetector.from_pretrained(path)


def test_weights_that_do_not_fit(weights):
    missing = dict(weights)
    del missing["unet.path_down.2.1.3.bias"]
    with pytest.raises(ValueError, match=r"does not fit the DISK network.*\n.*Missing key.*path_down\.2\.1\.3\.bias"):
        DISKDetector.from_pretrained(missing)
    wrong = weights | {"unet.path_down.0.1.3.weight": torch.rand(16, 3, 3, 3)}
    with pytest.raises(ValueError, match=r"size mismatch for unet\.path_down\.0\.1\.3\.weight"):
        DISKDetector.from_pretrained(wrong)
