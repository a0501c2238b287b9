"""disk_ops.buffers: memory that is kept between calls."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from disk_ops import _library, buffers
from disk_ops.ops import block_convolution

pytestmark = pytest.mark.skipif(not _library.load().loaded, reason="no compiled library")
BYTES = 16 * 256 * 128 * 4  # of a result


@pytest.fixture(autouse=True)
def nothing_kept():
    limit = buffers.limit()
    buffers.release()
    yield
    buffers.set_limit(limit)
    buffers.release()


def convolved(value: float = 1.0) -> Tensor:
    """Two MiB, all of this value inside."""
    weight = torch.zeros(16, 16, 5, 5)
    weight[:, :, 2, 2] = torch.eye(16)
    return block_convolution(torch.full((1, 16, 256, 128), value), weight, torch.zeros(16))


def test_memory_is_used_again():
    first = convolved()
    place = first.data_ptr()
    assert buffers.kept() == 0
    del first
    assert buffers.kept() == BYTES
    assert convolved().data_ptr() == place
    assert buffers.kept() == BYTES


def test_a_view_holds_it():
    view = convolved(3.0)[..., 5:6]
    assert buffers.kept() == 0
    others = [convolved(4.0) for _ in range(3)]
    assert torch.allclose(view, torch.full_like(view, 3.0)) and len(others) == 3


def test_release():
    convolved()
    assert buffers.kept() > 0
    buffers.release()
    assert buffers.kept() == 0


def test_is_bounded():
    assert buffers.limit() == 2**29
    buffers.set_limit(2 * BYTES)
    results = [convolved() for _ in range(4)]
    del results
    assert buffers.kept() == 2 * BYTES
    buffers.set_limit(BYTES)
    assert buffers.kept() == BYTES
    buffers.set_limit(0)
    convolved()
    assert buffers.kept() == 0


def test_a_much_smaller_tensor_does_not_take_it():
    convolved()
    small = block_convolution(torch.rand(1, 16, 128, 128), torch.rand(16, 16, 5, 5), torch.zeros(16))
    assert buffers.kept() == BYTES and small.shape[3] == 128


def test_threads_do_not_share():
    """Each result keeps its own value while others come and go."""

    def work(value: int) -> bool:
        held = [convolved(float(value + i)) for i in range(3)]
        return all(torch.allclose(each, torch.full_like(each, float(value + i))) for i, each in enumerate(held))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(0, 400, 10)))


def test_at_most_holds_meanwhile():
    """The least of several, whatever the limit, which stays."""
    results = [convolved() for _ in range(4)]
    del results
    with buffers.at_most(3 * BYTES):
        assert buffers.kept() == 3 * BYTES
        with buffers.at_most(BYTES), buffers.at_most(2 * BYTES):
            assert buffers.kept() == BYTES
            buffers.set_limit(4 * BYTES)
            results = [convolved() for _ in range(4)]
            del results
            assert buffers.kept() == BYTES
        results = [convolved() for _ in range(4)]
        del results
        assert buffers.kept() == 3 * BYTES
    results = [convolved() for _ in range(5)]
    del results
    assert buffers.kept() == buffers.limit() == 4 * BYTES


def test_at_most_ends_with_an_error():
    with pytest.raises(KeyError), buffers.at_most(0):
        raise KeyError
    convolved()
    assert buffers.kept() == BYTES


@pytest.mark.parametrize("bytes", ["4", 1e6, None, True])
def test_a_limit_that_is_no_integer(bytes):
    with pytest.raises(TypeError, match="bytes must be an integer, got "):
        buffers.set_limit(bytes)
    with pytest.raises(TypeError, match="bytes must be an integer, got "), buffers.at_most(bytes):
        pass


def test_negative_limit():
    with pytest.raises(ValueError, match="bytes must be at least 0, got -1"):
        buffers.set_limit(-1)
    with pytest.raises(ValueError, match="bytes must be at least 0, got -1"), buffers.at_most(-1):
        pass
