"""Exported weights: they load wherever DISK's weights do, tell how they were made, and never stand half-written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import disk_ops
from disk_ops import DISKDetector
from disk_ops.io.output import OutputError
from disk_ops.training.export import check_export, export_weights, read_record, training_record
from disk_ops.training.schedule import ScheduleConfig
from disk_ops.training.settings import to_mapping

RECORD = {"steps": 3, "metrics": {"score": 0.5}, "sources": ["fotos/Größe"], "commit": None}
SUFFIXES = pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt", ".SafeTensors"])


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return DISKDetector(desc_dim=16).state_dict()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@SUFFIXES
def test_the_detector_loads_them(tmp_path: Path, weights: dict[str, torch.Tensor], suffix: str) -> None:
    path = tmp_path / f"weights{suffix}"
    export_weights(weights, path, RECORD)
    assert files(tmp_path) == [path.name]
    loaded = DISKDetector.from_pretrained(path)
    assert loaded.desc_dim == 16
    assert all(torch.equal(value, weights[name]) for name, value in loaded.state_dict().items())
    assert read_record(path) == RECORD


def test_kornia_loads_them(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    kornia = pytest.importorskip("kornia.feature").DISK(desc_dim=16)
    export_weights(weights, tmp_path / "a.safetensors", RECORD)
    export_weights(weights, tmp_path / "a.pth", RECORD)
    kornia.load_state_dict(load_file(tmp_path / "a.safetensors"))
    assert all(torch.equal(value, weights[name]) for name, value in kornia.state_dict().items())
    kornia.load_state_dict(torch.load(tmp_path / "a.pth", weights_only=True)["extractor"])


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_of_a_training_become_plain_float32(tmp_path: Path, suffix: str) -> None:
    """Parameters with gradients, in another precision, not contiguous."""
    detector = DISKDetector(desc_dim=16).double()
    name = "unet.path_up.3.conv.3.weight"  # [17, C, 5, 5]
    scattered = detector.get_parameter(name).permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
    assert not scattered.is_contiguous()
    export_weights({**dict(detector.named_parameters()), name: scattered}, tmp_path / f"a{suffix}", {})
    loaded = DISKDetector.from_pretrained(tmp_path / f"a{suffix}").state_dict()
    assert all(value.dtype == torch.float32 and value.is_contiguous() for value in loaded.values())
    assert all(torch.equal(loaded[key], value.float()) for key, value in detector.state_dict().items())


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_half_precision_halves_the_file(tmp_path: Path, weights: dict[str, torch.Tensor], suffix: str) -> None:
    export_weights(weights, tmp_path / f"a{suffix}", RECORD)
    export_weights(weights, tmp_path / f"b{suffix}", RECORD, dtype=torch.float16)
    whole, half = ((tmp_path / f"{name}{suffix}").stat().st_size for name in "ab")
    assert half < 0.53 * whole
    loaded = DISKDetector.from_pretrained(tmp_path / f"b{suffix}").state_dict()
    assert all(torch.equal(loaded[key], value.half().float()) for key, value in weights.items())


def test_weights_beyond_the_range_of_float16_are_refused(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    name = "unet.path_up.0.conv.3.bias"
    weights[name] = weights[name].clone()
    weights[name][0] = 1e5
    with pytest.raises(ValueError, match=rf"{name} holds NaN or infinity in 1 of"):
        export_weights(weights, tmp_path / "a.pth", RECORD, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"dtype must be torch\.float32 or torch\.float16, got torch\.bfloat16"):
        export_weights(weights, tmp_path / "a.pth", RECORD, dtype=torch.bfloat16)
    assert files(tmp_path) == []


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_shared_memory_is_no_obstacle(tmp_path: Path, weights: dict[str, torch.Tensor], suffix: str) -> None:
    size = max(value.numel() for value in weights.values())
    shared = torch.rand(size)
    views = {name: shared[: value.numel()].view(value.shape) for name, value in weights.items()}
    export_weights(views, tmp_path / f"a{suffix}", {})
    loaded = DISKDetector.from_pretrained(tmp_path / f"a{suffix}").state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in views.items())
    assert (tmp_path / f"a{suffix}").stat().st_size > 4 * sum(value.numel() for value in weights.values())


def test_format_of_the_files(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    export_weights(weights, tmp_path / "a.safetensors", RECORD)
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert set(file.keys()) == set(weights)
        assert file.metadata() == {"format": "pt", "record": json.dumps(RECORD, ensure_ascii=False)}
    export_weights(weights, tmp_path / "a.pth", RECORD)
    content = torch.load(tmp_path / "a.pth", weights_only=True)
    assert set(content) == {"extractor", "record"} and content["record"] == RECORD


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_the_same_weights_give_the_same_bytes(tmp_path: Path, weights: dict[str, torch.Tensor], suffix: str) -> None:
    contents = set()
    for _ in range(8):
        export_weights(weights, tmp_path / f"a{suffix}", RECORD, overwrite=True)
        contents.add((tmp_path / f"a{suffix}").read_bytes())
    assert len(contents) == 1


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_permissions_are_those_of_any_new_file(tmp_path: Path, weights: dict[str, torch.Tensor], suffix: str) -> None:
    before = os.umask(0o027)
    try:
        export_weights(weights, tmp_path / f"a{suffix}", RECORD)
    finally:
        os.umask(before)
    assert (tmp_path / f"a{suffix}").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(
    tmp_path: Path, weights: dict[str, torch.Tensor], value: float
) -> None:
    weights["unet.path_up.0.conv.3.bias"][3] = value
    with pytest.raises(
        ValueError, match=r"weights must be finite, but unet\.path_up\.0\.conv\.3\.bias holds NaN or infinity in 1 of"
    ):
        export_weights(weights, tmp_path / "a.safetensors", RECORD)
    assert files(tmp_path) == []


def test_other_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a DISK checkpoint"):
        export_weights({"conv.weight": torch.ones(3)}, tmp_path / "a.safetensors", RECORD)
    assert files(tmp_path) == []


def test_an_existing_file_is_replaced_only_on_request(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    path = tmp_path / "a.safetensors"
    path.write_text("precious")
    for call in (lambda: export_weights(weights, path, RECORD), lambda: check_export(path)):
        with pytest.raises(OutputError, match=r"a\.safetensors exists already: use --overwrite to replace it"):
            call()
    assert path.read_text() == "precious"
    check_export(path, overwrite=True)
    export_weights(weights, path, RECORD, overwrite=True)
    assert read_record(path) == RECORD and files(tmp_path) == ["a.safetensors"]


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_failure_leaves_what_was_there(
    tmp_path: Path, weights: dict[str, torch.Tensor], suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / f"a{suffix}"
    path.write_text("precious")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputError, match=rf"a\{suffix} can't be written: .*No space left"):
        export_weights(weights, path, RECORD, overwrite=True)
    assert path.read_text() == "precious" and files(tmp_path) == [path.name]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_disk_that_is_full_is_told(
    tmp_path: Path, weights: dict[str, torch.Tensor], suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = Path.open
    monkeypatch.setattr(Path, "open", lambda path, *mode: open_file(Path("/dev/full"), *mode, buffering=0))
    with pytest.raises(OutputError, match=rf"a\{suffix} can't be written: .*No space left"):
        export_weights(weights, tmp_path / f"a{suffix}", RECORD)
    assert files(tmp_path) == []


def test_places_that_no_file_can_be_written_to(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    for path, message in (
        (tmp_path / "a.bin", r"a\.bin: weights of type '\.bin' can't be written; use \.safetensors or \.pth"),
        (tmp_path / "none" / "a.pth", "there is no folder"),
    ):
        with pytest.raises(OutputError, match=message):
            export_weights(weights, path, RECORD)
    (tmp_path / "folder.pth").mkdir()
    with pytest.raises(OutputError, match="is a folder"):
        export_weights(weights, tmp_path / "folder.pth", RECORD, overwrite=True)


def test_files_without_a_record_have_none(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    save_file(weights, tmp_path / "a.safetensors")
    torch.save({"extractor": weights}, tmp_path / "b.pth")
    torch.save(weights, tmp_path / "c.pth")
    assert [read_record(tmp_path / name) for name in files(tmp_path)] == [None] * 3
    save_file(weights, tmp_path / "d.safetensors", {"record": "not JSON"})
    with pytest.raises(ValueError, match=r"d\.safetensors: its record can't be read"):
        read_record(tmp_path / "d.safetensors")
    (tmp_path / "e.pth").write_text("no checkpoint")
    with pytest.raises(ValueError, match=r"e\.pth: its record can't be read"):
        read_record(tmp_path / "e.pth")
    with pytest.raises(FileNotFoundError):
        read_record(tmp_path / "f.pth")


def test_a_record_tells_how_weights_were_made(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    config = {"steps": 5000, "schedule": to_mapping(ScheduleConfig()), "source": [{"kind": "photos", "path": "photos"}]}
    metrics = {"score": np.float32(0.5), "photos": torch.tensor(0.25), "pose": float("nan")}
    record = training_record(config, 5000, 5400.0, metrics, [("photos photos/", 900), ("photos other", 3)])
    assert record["steps"] == 5000 and record["hours"] == 1.5
    assert record["metrics"] == {"score": 0.5, "photos": 0.25, "pose": None}
    assert record["sources"] == [{"name": "photos photos/", "items": 900}, {"name": "photos other", "items": 3}]
    assert record["config"] == json.loads(json.dumps(config))
    assert record["disk_ops"] == disk_ops.__version__ and record["torch"] == str(torch.__version__)
    assert set(record) == {
        *("disk_ops", "commit", "torch", "date", "steps", "hours", "metrics", "sources", "config"),
    }
    assert training_record(config, 1, 1, {}, [], {"weights": "0a", "record": record})["origin"]["record"] == record
    for path in (tmp_path / "a.safetensors", tmp_path / "a.pth"):
        export_weights(weights, path, record)
        assert read_record(path) == record


def test_a_record_of_plain_types_only(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    export_weights(weights, tmp_path / "a.pth", {"path": Path("photos"), "range": (1, np.int64(2)), 3: True})
    assert read_record(tmp_path / "a.pth") == {"path": "photos", "range": [1, 2], "3": True}
    with pytest.raises(TypeError, match=r"record\.source\[0\]\.options must be of a plain type, got object"):
        export_weights(weights, tmp_path / "b.pth", {"source": [{"options": object()}]})
    assert files(tmp_path) == ["a.pth"]


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_paths_that_are_not_utf_8_are_escaped(tmp_path: Path, weights: dict[str, torch.Tensor], name: str) -> None:
    place = os.fsdecode(b"caf\xe9")
    export_weights(weights, tmp_path / name, {"path": place, place: [Path(place)]})
    assert read_record(tmp_path / name) == {"path": "caf\\udce9", "caf\\udce9": ["caf\\udce9"]}


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_a_record_in_a_folder_whose_name_is_not_utf_8(
    tmp_path: Path, weights: dict[str, torch.Tensor], name: str
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        folder.mkdir()
    except (OSError, UnicodeError):
        pytest.skip("this file system takes UTF-8 names only")
    export_weights(weights, folder / name, {"steps": 7})
    assert read_record(folder / name) == {"steps": 7}


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 40, (2).to_bytes(8, "little") + b"[]", b"\0" * 8])
def test_a_damaged_header_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"w\.safetensors: its record can't be read"):
        read_record(tmp_path / "w.safetensors")


def test_the_commit_is_named_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_ops, "__file__", str(tmp_path / "disk_ops" / "__init__.py"))
    assert training_record({}, 1, 1, {}, [])["commit"] is None
    (tmp_path / ".git").mkdir()  # no repository that git could read
    assert training_record({}, 1, 1, {}, [])["commit"] is None
