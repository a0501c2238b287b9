"""Decoded images kept in memory, so that a photograph that is needed again isn't read and decoded again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

import numpy as np

Value = TypeVar("Value", bound="np.ndarray | tuple[np.ndarray, ...]")


class ImageCache:
    """The arrays used last, up to a number of bytes.

    A pickled cache is empty: each worker process fills its own. Threads may share one.

    Args:
        limit_mb: how much to keep, in MB of 10^6 bytes; 0 keeps nothing.

    Example:
        >>> cache = ImageCache(limit_mb=100)
        >>> pixels = cache.get(("a.jpg", 1024), lambda: np.zeros((4, 4, 3), np.uint8))
        >>> cache.get(("a.jpg", 1024), lambda: np.ones((4, 4, 3), np.uint8)) is pixels
        True
    """

    def __init__(self, limit_mb: float) -> None:
        if not limit_mb >= 0:
            raise ValueError(f"limit_mb must be at least 0, got {limit_mb}")
        self.limit_mb = limit_mb
        self.nbytes = 0
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def __getstate__(self) -> float:
        return self.limit_mb

    def __setstate__(self, limit_mb: float) -> None:
        self.__init__(limit_mb)  # type: ignore[misc]

    def get(self, key: Hashable, load: Callable[[], Value]) -> Value:
        """Return the value of ``key``, which is made by ``load()`` if it isn't here; what that raises passes.

        Args:
            key: what the value depends on, such as ``(path, size)``.
            load: makes an array or a tuple of arrays. They are read-only from then on, as others get the same ones.
        """
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return cast(Value, self._values[key])
        value = load()
        for array in _arrays(value):
            array.setflags(write=False)
        self._put(key, value)
        return value

    def _put(self, key: Hashable, value: Any) -> None:
        size, limit = _nbytes(value), self.limit_mb * 1e6
        if size > limit:  # it would push out everything and then itself
            return
        with self._lock:
            if key in self._values:  # another thread was faster
                return
            self._values[key] = value
            self.nbytes += size
            while self.nbytes > limit:
                self.nbytes -= _nbytes(self._values.popitem(last=False)[1])


def _arrays(value: Any) -> tuple[np.ndarray, ...]:
    return value if isinstance(value, tuple) else (value,)


def _nbytes(value: Any) -> int:
    # A view keeps alive all that it is a view of.
    return sum(
        array.nbytes if array.base is None else max(array.nbytes, _base_nbytes(array)) for array in _arrays(value)
    )


def _base_nbytes(array: np.ndarray) -> int:
    return array.base.nbytes if isinstance(array.base, np.ndarray) else 0
