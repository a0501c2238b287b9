"""Checks of single arguments, one for each kind. Each message names the argument and what came.

Only what Python holds is looked at: reading a tensor's values would make a GPU's queue run empty.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def check_tensor(name: str, value: Any) -> None:
    """Raise TypeError for what is no tensor, arrays of NumPy among it."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")


def check_integer(name: str, value: Any) -> None:
    """Raise TypeError for what is no whole number."""
    if not hasattr(type(value), "__index__") or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__} {value!r}")


def check_positive_integer(name: str, value: Any) -> None:
    """Raise TypeError for what is no whole number, and ValueError for one below 1."""
    check_integer(name, value)
    if value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value}")


def check_number(name: str, value: Any) -> None:
    """Raise TypeError for what is no real number, and ValueError for NaN."""
    if not hasattr(type(value), "__float__") or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {type(value).__name__} {value!r}")
    if value != value:
        raise ValueError(f"{name} must be a number, got {value}")


def check_positive(name: str, value: Any, dtype: torch.dtype = torch.float32) -> None:
    """Raise for what is no number above 0, or not finite in ``dtype``, in which it is computed with."""
    check_number(name, value)
    if not 0 < value <= torch.finfo(dtype).max:
        raise ValueError(f"{name} must be above 0 and finite in {dtype}, got {value}")
