"""pycolmap, which is optional: whether it is there, and how much it prints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


class SfmError(Exception):
    """What can't be written for COLMAP or reconstructed. The message names it."""


def require_pycolmap() -> ModuleType:
    """The module.

    Raises:
        SfmError: it is not installed, or too old.
    """
    try:
        import pycolmap
    except ImportError as error:
        raise SfmError(
            f"COLMAP's databases and reconstructions need pycolmap: pip install 'pycolmap>=3.13' ({error})"
        ) from error
    if not hasattr(getattr(pycolmap, "Database", None), "open"):
        raise SfmError(f"pycolmap 3.13 or newer is needed, this is {pycolmap.__version__}: pip install -U pycolmap")
    module: ModuleType = pycolmap
    return module


@contextmanager
def quiet_colmap() -> Iterator[None]:
    """Keep what COLMAP logs off the terminal, which has progress bars."""
    logging = require_pycolmap().logging
    before = logging.minloglevel
    logging.minloglevel = int(logging.FATAL)
    try:
        yield
    finally:
        logging.minloglevel = before
