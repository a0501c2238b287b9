"""Whether image and mask files are what features were made of: by size, time and content."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from disk_ops.io.hdf5 import source_of_size
from disk_ops.io.sources import FileState, Source, state_of


def write(path: Path, content: bytes, seconds: int = 0) -> Path:
    path.write_bytes(content)
    os.utime(path, (seconds, seconds))
    return path


def state(path: Path) -> FileState:
    found = state_of(path)
    assert found is not None
    return found


def test_a_file_of_the_same_size_is_another_by_its_content(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"one")
    before = state(path)
    assert before.holds(path) and before.size == 3
    assert before.holds(write(path, b"one", 5))  # copied, or touched
    assert not before.holds(write(path, b"two", 5))
    assert not before.holds(write(path, b"three"))
    with pytest.raises(OSError):
        before.holds(tmp_path / "gone")


def test_no_regular_file_has_a_state(tmp_path: Path) -> None:
    assert state_of(tmp_path) is None and state_of(tmp_path / "gone") is None
    os.mkfifo(tmp_path / "pipe")
    assert state_of(tmp_path / "pipe") is None  # and isn't waited for


def test_an_image_is_used_with_its_mask(tmp_path: Path) -> None:
    image, mask = write(tmp_path / "a", b"image"), write(tmp_path / "m", b"mask")
    masked, whole = Source(state(image), state(mask)), Source(state(image))
    assert masked.is_current(image, mask) and whole.is_current(image, None)
    assert not masked.is_current(image, None) and not whole.is_current(image, mask)
    assert masked.is_current(image, write(tmp_path / "other", b"mask", 9))  # an equal one of another folder
    assert not masked.is_current(image, write(tmp_path / "other", b"ksam", 9))
    assert not masked.is_current(image, tmp_path / "gone") and not masked.is_current(tmp_path / "gone", mask)


def test_what_is_stored_is_read_back(tmp_path: Path) -> None:
    image = write(tmp_path / "a", b"image", 7)
    for source in (Source(state(image)), Source(state(image), state(image)), Source(FileState(5), None, False)):
        assert Source.of_text(source.to_text()) == source
    for text in ("", "{", "[]", "{}", '{"image": 3}', '{"image": [1, 2, 3, 4]}', "null"):
        assert Source.of_text(text) is None


def test_of_earlier_versions_only_the_size_is_known(tmp_path: Path) -> None:
    image, mask = write(tmp_path / "a", b"image"), write(tmp_path / "m", b"mask")
    source = Source.of_text(source_of_size(5))
    assert source is not None
    assert source.is_current(image, None) and source.is_current(image, mask)
    assert source.is_current(write(image, b"imaGe", 9), None) and not source.is_current(write(image, b"images"), None)
