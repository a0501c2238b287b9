"""Memory that the CPU kernels keep between calls.

The network's large tensors are freed and needed again at each call. The C library would give their memory back to the
system each time, and writing to fresh pages takes as long as the arithmetic of a cheap layer. So up to 512 MiB are
kept, for all threads and detectors together.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from disk_ops import _library
from disk_ops.ops._arguments import check_integer


def kept() -> int:
    """Bytes that are kept now.

    Example:
        >>> release()
        >>> kept()
        0
    """
    compiled = _compiled()
    return 0 if compiled is None else int(compiled.kept_bytes())


def limit() -> int:
    """The most bytes that may be kept; 0 without compiled kernels.

    Example:
        >>> limit() >= 0
        True
    """
    compiled = _compiled()
    return 0 if compiled is None else int(compiled.kept_limit())


def set_limit(bytes: int) -> None:
    """Set the most bytes that may be kept, and give back what is above; 0 keeps nothing.

    Raises:
        ValueError, TypeError: ``bytes`` is negative, or no integer.

    Example:
        >>> before = limit()
        >>> set_limit(0)
        >>> kept()
        0
        >>> set_limit(before)
    """
    _check(bytes)
    compiled = _compiled()
    if compiled is not None:
        compiled.set_kept_limit(bytes)


@contextmanager
def at_most(bytes: int) -> Iterator[None]:
    """Keep no more than this meanwhile, whatever the limit, and give back what is above.

    It holds for all threads and detectors, as they share what is kept; of several the least counts.

    Raises:
        ValueError, TypeError: ``bytes`` is negative, or no integer.

    Example:
        >>> with at_most(0):
        ...     kept()
        0
    """
    _check(bytes)
    compiled = _compiled()
    if compiled is None:
        yield
        return
    compiled.add_kept_bound(bytes)
    try:
        yield
    finally:
        compiled.remove_kept_bound(bytes)


def release() -> None:
    """Give back to the system what is kept.

    Example:
        >>> release()
        >>> kept()
        0
    """
    compiled = _compiled()
    if compiled is not None:
        compiled.release_kept()


def _check(bytes: int) -> None:
    check_integer("bytes", bytes)
    if bytes < 0:
        raise ValueError(f"bytes must be at least 0, got {bytes}")


def _compiled() -> Any:
    return importlib.import_module("disk_ops._C") if _library.load().loaded else None
