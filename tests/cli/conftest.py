"""Photographs, their features and matches: made once for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sharing import EXTRACT, files, processes
from stored import N, save

from disk_ops import DISKDetector
from disk_ops.cli import main


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


@pytest.fixture(scope="module")
def matches(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("h5") / "matches.h5"
    assert main(["match", str(features), "-o", str(path)]) == 0
    return path


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "out" / "f.h5"
    path.parent.mkdir()
    yield path
    assert not [name for name in files(path.parent) if "tmp" in name]


@pytest.fixture(scope="module")
def sharded(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The features of two processes. To be left as they are."""
    path = tmp_path_factory.mktemp("sharded") / "features.h5"
    assert processes(2, "extract", photos, "-o", path, *EXTRACT) == [0, 0]
    return path
