"""Trained weights as a file for users, with a record of how they were made."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

import disk_ops
from disk_ops.checkpoint import find_checkpoint, read_state_dict
from disk_ops.io.inputs import printable
from disk_ops.io.output import OutputError, check_writable, whole_file
from disk_ops.provenance import source_commit

_RECORD = "record"
_SAFETENSORS, _PYTORCH = (".safetensors",), (".pth", ".pt")


def export_weights(
    state_dict: Mapping[str, Tensor],
    path: Path,
    record: Mapping[str, Any],
    *,
    overwrite: bool = False,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write the weights of a detector so that ``DISKDetector.from_pretrained``, kornia and others can load them.

    ``.safetensors`` holds the tensors and in its metadata the record as JSON; ``.pth`` and ``.pt`` have the layout of
    the released checkpoints, ``{"extractor": weights}``, and hold plain types only. Weights are under the names of the
    network (``unet.path_down...``). The file appears when it is complete.

    Args:
        state_dict: of a :class:`disk_ops.DISKDetector`.
        path: the file.
        record: how the weights were made, see :func:`training_record`.
        overwrite: replace an existing file.
        dtype: of the weights in the file: float32, or float16 for half the size. What loads them computes in float32
            all the same.

    Raises:
        OutputError: the file exists, or can't be written there, or is of no known type.
        ValueError: the weights are not those of the network, or not finite (in ``dtype``); the tensor is named. Or
            ``dtype`` is another one.
        TypeError: the record holds something that has no plain form.
    """
    if dtype not in (torch.float32, torch.float16):
        raise ValueError(f"dtype must be torch.float32 or torch.float16, got {dtype}")
    check_export(path, overwrite=overwrite)
    weights = {}
    for name, value in read_state_dict(state_dict).items():
        value = value.detach().to("cpu", dtype, copy=True).contiguous()
        if not bool(value.isfinite().all()):
            raise ValueError(f"weights must be finite, but {name} holds {_not_finite(value)}")
        weights[name] = value
    plain = _plain(record, _RECORD)
    if path.suffix.lower() in _SAFETENSORS:
        content = _safetensors(weights, json.dumps(plain, ensure_ascii=False, allow_nan=False))
    else:
        buffer = io.BytesIO()  # as torch's own writer tells nothing useful of a full disk
        torch.save({"extractor": weights, _RECORD: plain}, buffer)
        content = buffer.getvalue()
    with whole_file(path) as file:
        file.write(content)


def _safetensors(weights: Mapping[str, Tensor], record: str) -> bytes:
    """The content of the file; the same weights and record give the same bytes."""
    content = save(dict(weights), {"format": "pt", _RECORD: record})
    # The library writes metadata in an arbitrary order: write the header (8 bytes length, JSON) again.
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[end:]


def check_export(path: Path, *, overwrite: bool = False) -> None:
    """Raise `OutputError` if :func:`export_weights` would, before hours of work are spent."""
    if path.suffix.lower() not in (*_SAFETENSORS, *_PYTORCH):
        raise OutputError(f"{path}: weights of type {path.suffix!r} can't be written; use .safetensors or .pth")
    check_writable(path)
    if path.exists() and not overwrite:
        raise OutputError(f"{path} exists already: use --overwrite to replace it")


def read_record(path: str | Path) -> dict[str, Any] | None:
    """The record of weights that :func:`export_weights` wrote; None where the file has none.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it can't be read.
    """
    file = find_checkpoint(path)
    try:
        if file.suffix.lower() in _SAFETENSORS:
            # The library takes no path that isn't UTF-8; the header is a length (8 bytes) and JSON.
            with file.open("rb") as stream:
                length = int.from_bytes(stream.read(8), "little")
                header = json.loads(stream.read(min(length, file.stat().st_size)))
            record = json.loads((header.get("__metadata__") or {}).get(_RECORD, "null"))
        else:
            content = torch.load(file, map_location="cpu", weights_only=True)
            record = content.get(_RECORD) if isinstance(content, Mapping) else None
    except Exception as error:  # damaged files fail in every way there is
        raise ValueError(f"{file}: its record can't be read: {type(error).__name__} {error}".rstrip()) from error
    return dict(record) if isinstance(record, Mapping) else None


def training_record(
    config: Mapping[str, Any],
    steps: int,
    seconds: float,
    metrics: Mapping[str, float],
    sources: Iterable[tuple[str, int]],
    origin: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """How weights were made, in plain types. Paths stay as they are given.

    Args:
        config: all settings, as :func:`disk_ops.training.settings.to_mapping` gives them.
        steps: optimiser steps.
        seconds: of training.
        metrics: of the last validation.
        sources: name and number of items of each source of data.
        origin: the weights that it began with: their digest, and their own record if they have one; None: random ones.
    """
    record = {
        "disk_ops": disk_ops.__version__,
        "commit": source_commit(),
        "torch": str(torch.__version__),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "steps": steps,
        "hours": round(seconds / 3600, 3),
        "metrics": metrics,
        "sources": [{"name": name, "items": items} for name, items in sources],
        "config": config,
        **({} if origin is None else {"origin": origin}),
    }
    return dict(_plain(record, _RECORD))


def _plain(value: Any, name: str) -> Any:
    """The value in types that JSON has; a number that isn't finite becomes None, bytes that aren't UTF-8 escapes."""
    if isinstance(value, Mapping):
        return {printable(str(key)): _plain(entry, f"{name}.{key}") for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, f"{name}[{index}]") for index, entry in enumerate(value)]
    if isinstance(value, Path | str):
        return printable(str(value))
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # of NumPy or torch
        value = value.item()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    raise TypeError(f"{name} must be of a plain type, got {type(value).__name__}")


def _not_finite(values: Tensor) -> str:
    wrong = int((~values.isfinite()).sum())
    return f"NaN or infinity in {wrong} of {values.numel()} places"
