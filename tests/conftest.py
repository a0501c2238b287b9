"""Options, fixtures and tolerances that all tests share."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
WORKER_MEMORY = 2 << 30  # bytes, about what a worker of pytest-xdist and the programs that its tests start take
DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}
# How far a result of one dtype may be from the same result in float64.
TOLERANCES = {
    torch.float16: {"rtol": 1e-3, "atol": 1e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1e-2},
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.float64: {"rtol": 1e-9, "atol": 1e-9},
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="device of the tests: cpu (default), cuda, cuda:1, mps")
    parser.addoption("--dtype", default="float32", choices=sorted(DTYPES), help="dtype of the `dtype` fixture")


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int | None:
    """Bytes that programs can still take; None where the system doesn't say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: a worker for each core, as far as there is memory."""
    memory = free_memory()
    return cores() if memory is None else max(1, min(cores(), memory // WORKER_MEMORY))


def pytest_configure(config: pytest.Config) -> None:
    workers = getattr(config.option, "numprocesses", None)
    if workers:  # they and what their tests start share the cores: threads beyond these would only wait for each other
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // workers)))
    device = torch.device(config.getoption("--device"))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise pytest.UsageError(f"--device {device}: torch {torch.__version__} sees no CUDA device")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `cuda` run with --device cuda only."""
    if torch.device(config.getoption("--device")).type == "cuda":
        return
    skip = pytest.mark.skip(reason="needs a CUDA device: run with --device cuda")
    for item in items:
        if item.get_closest_marker("cuda") is not None:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same random numbers whichever tests run before."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of --device."""
    return torch.device(request.config.getoption("--device"))


@pytest.fixture(scope="session")
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """The dtype of --dtype; a test that is parametrised over `dtype` uses its own."""
    return DTYPES[request.config.getoption("--dtype")]


@pytest.fixture
def tolerance(dtype: torch.dtype) -> dict[str, float]:
    """`rtol` and `atol` for `torch.testing.assert_close` in this test's dtype."""
    return TOLERANCES[dtype]


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the source tree."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real photographs with ground truth beside the source tree."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("real images are not here: ../shared/data does not exist")
    return path


@pytest.fixture(scope="session")
def emulated_ops() -> None:
    """The CUDA side as `torch.ops.disk_ops_emu`, compiled unless that was done before."""
    sys.path.insert(0, str(ROOT / "tests"))
    from emulation import building

    torch.ops.load_library(str(building.emulated_ops()))


@pytest.fixture(params=[0, 1, 2], ids=["ascending", "shuffled-1", "shuffled-2"])
def schedule(request: pytest.FixtureRequest, emulated_ops: None) -> Iterator[int]:
    """The order in which the emulated threads of a block run between barriers."""
    torch.ops.disk_ops_emu.set_seed(request.param)
    yield request.param
    torch.ops.disk_ops_emu.set_seed(0)
