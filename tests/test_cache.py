"""ImageCache: the arrays used last, up to a number of bytes."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from disk_ops.io.cache import ImageCache


def megabyte(value: int = 0) -> np.ndarray:
    return np.full(1_000_000, value, np.uint8)


class Loader:
    """Counts how often it is called."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def __call__(self, cache: ImageCache, key: object) -> np.ndarray:
        def load() -> np.ndarray:
            self.calls.append(key)
            return megabyte(len(self.calls))

        return cache.get(key, load)


def test_loads_once() -> None:
    cache, load = ImageCache(10), Loader()
    first = load(cache, "a")
    assert load(cache, "a") is first
    assert load.calls == ["a"]
    assert (len(cache), cache.nbytes) == (1, 1_000_000)


def test_keys_are_told_apart() -> None:
    cache, load = ImageCache(10), Loader()
    assert load(cache, ("a", 1024))[0] != load(cache, ("a", 512))[0]


def test_drops_what_was_used_longest_ago() -> None:
    cache, load = ImageCache(3), Loader()
    for key in "abc":
        load(cache, key)
    load(cache, "a")  # now b is the oldest
    load(cache, "d")
    assert cache.nbytes == 3_000_000
    for key in "acd":
        load(cache, key)
    assert load.calls == ["a", "b", "c", "d"]
    load(cache, "b")
    assert load.calls[-1] == "b"


def test_larger_than_the_limit_is_not_kept_and_displaces_nothing() -> None:
    cache, load = ImageCache(2), Loader()
    load(cache, "a")
    big = cache.get("big", lambda: np.zeros(2_000_001, np.uint8))
    assert big.nbytes == 2_000_001
    load(cache, "a")
    assert load.calls == ["a"]
    assert len(cache) == 1


def test_zero_keeps_nothing() -> None:
    cache, load = ImageCache(0), Loader()
    load(cache, "a")
    load(cache, "a")
    assert load.calls == ["a", "a"]
    assert cache.nbytes == 0


def test_tuples_of_arrays() -> None:
    cache = ImageCache(10)
    pair = cache.get("pair", lambda: (megabyte(1), megabyte(2)))
    assert cache.get("pair", lambda: (megabyte(3), megabyte(4))) is pair
    assert cache.nbytes == 2_000_000


def test_a_view_counts_as_what_it_keeps_alive() -> None:
    cache = ImageCache(10)
    cache.get("corner", lambda: megabyte()[:10])
    assert cache.nbytes == 1_000_000


def test_values_are_read_only() -> None:
    for value in ImageCache(10).get("pair", lambda: (megabyte(), megabyte())):
        with pytest.raises(ValueError, match="read-only"):
            value[0] = 1


def test_what_can_not_be_loaded_is_tried_again() -> None:
    cache, load = ImageCache(10), Loader()

    def fail() -> np.ndarray:
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        cache.get("a", fail)
    assert load(cache, "a")[0] == 1


def test_pickled_cache_is_empty_and_keeps_its_limit() -> None:
    cache, load = ImageCache(2.5), Loader()
    load(cache, "a")
    data = pickle.dumps(cache)
    assert len(data) < 1000
    other = pickle.loads(data)
    assert (len(other), other.nbytes, other.limit_mb) == (0, 0, 2.5)
    load(other, "a")
    assert load.calls == ["a", "a"]


def test_threads_share_one() -> None:
    cache = ImageCache(5)
    with ThreadPoolExecutor(4) as pool:
        values = list(pool.map(lambda i: int(cache.get(i % 8, lambda: megabyte(i % 8))[0]), range(400)))
    assert values == [i % 8 for i in range(400)]
    assert cache.nbytes == 1_000_000 * len(cache) <= 5_000_000


@pytest.mark.parametrize("limit", [-1, float("nan")])
def test_refuses_a_negative_limit(limit: float) -> None:
    with pytest.raises(ValueError, match="limit_mb must be at least 0, got"):
        ImageCache(limit)
