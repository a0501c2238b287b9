"""Reading weights: bundled, from a file, or given as tensors. Nothing in a checkpoint is ever executed."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

WEIGHTS_FOLDER = Path(__file__).parent / "weights"
DEFAULT_CHECKPOINT = "general"
"""The bundled weights that are taken where none are named."""
_NESTING_KEYS = ("extractor", "disk")  # released checkpoints; those written by the released training code
_LAST_WEIGHT = "unet.path_up.3.conv.3.weight"


def bundled_checkpoints() -> list[str]:
    """Names that ``DISKDetector.from_pretrained`` takes without a file."""
    return sorted(path.stem for path in WEIGHTS_FOLDER.glob("*.safetensors"))


def read_state_dict(checkpoint: str | Path | Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the network's weights by name.

    Args:
        checkpoint: the name of a bundled checkpoint, the path of a ``.safetensors`` or PyTorch file, or a mapping.
            The weights may lie under the key ``extractor`` or ``disk``.

    Raises:
        FileNotFoundError: neither a bundled name nor a file.
        ValueError: the file or mapping is no DISK checkpoint; the message says what is wrong with it.
    """
    if isinstance(checkpoint, Mapping):
        return _find_weights(checkpoint, "the given mapping")
    path = find_checkpoint(checkpoint)
    return _find_weights(_read(path), str(path))


def descriptor_dimension(state_dict: Mapping[str, Tensor]) -> int:
    """Descriptor dimension of the network that ``state_dict`` belongs to."""
    return state_dict[_LAST_WEIGHT].shape[0] - 1


def working_dtype(state_dict: Mapping[str, Tensor]) -> torch.dtype:
    """What a network with these weights computes in: float64 if one is float64, else float32."""
    return torch.float64 if any(value.dtype == torch.float64 for value in state_dict.values()) else torch.float32


def weights_digest(state_dict: Mapping[str, Tensor]) -> str:
    """A hash of the names and values of weights, not of the file that they come from."""
    digest = hashlib.sha256()
    for key, value in sorted(state_dict.items()):
        digest.update(key.encode() + value.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def find_checkpoint(checkpoint: str | Path) -> Path:
    """The file of a bundled name or a path; raises as :func:`read_state_dict` does where there is none."""
    bundled = WEIGHTS_FOLDER / f"{checkpoint}.safetensors"
    if isinstance(checkpoint, str) and checkpoint in bundled_checkpoints():
        return bundled
    if not isinstance(checkpoint, str | Path):
        raise TypeError(f"checkpoint must be a name, a path or a mapping, got {type(checkpoint).__name__}")
    try:
        path = Path(checkpoint).expanduser()
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        raise FileNotFoundError(f"checkpoint {str(checkpoint)!r} is no path: {error}") from error
    if is_file:
        return path
    if is_folder:
        raise ValueError(f"checkpoint {str(checkpoint)!r} is a folder; give the file in it")
    if str(checkpoint) in bundled_checkpoints():
        raise FileNotFoundError(
            f"checkpoint {checkpoint!r} is no file; the bundled weights of that name are {str(checkpoint)!r}, as a str"
        )
    raise FileNotFoundError(
        f"checkpoint {str(checkpoint)!r} is neither a bundled name ({', '.join(bundled_checkpoints())}) nor a file. "
        "Nothing is downloaded: of a released checkpoint, give the path of your copy (depth-save.pth, ...)"
    )


def _read(path: Path) -> Mapping[str, Any]:
    # Damaged files make the readers fail in every way there is: zip, pickle, struct, unicode errors and more.
    try:
        if path.suffix.lower() == ".safetensors":
            content = load(path.read_bytes())  # its own reader takes no path that isn't UTF-8
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = "it is no PyTorch file, or it holds more than tensors, which is never executed"
        raise ValueError(f"{path} is not a readable checkpoint: {reason}") from error
    except Exception as error:
        raise ValueError(f"{path} is not a readable checkpoint: {type(error).__name__} {error}".rstrip()) from error
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} is not a DISK checkpoint: it holds a {type(content).__name__}, not a state dict")
    return content


def _find_weights(content: Mapping[str, Any], source: str) -> dict[str, Tensor]:
    for key in _NESTING_KEYS:
        if isinstance(content.get(key), Mapping):
            content = content[key]
            break
    weights = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if _LAST_WEIGHT not in weights:
        shown = ", ".join(str(name) for name in list(content)[:4]) or "nothing"
        raise ValueError(
            f"{source} is not a DISK checkpoint: expected weights such as {_LAST_WEIGHT!r}, bare or under "
            f"{' or '.join(map(repr, _NESTING_KEYS))}; found {shown}{', ...' if len(content) > 4 else ''}"
        )
    if weights[_LAST_WEIGHT].ndim != 4 or weights[_LAST_WEIGHT].shape[0] < 2:
        raise ValueError(f"{source} does not fit: {_LAST_WEIGHT} has shape {list(weights[_LAST_WEIGHT].shape)}")
    for name, value in weights.items():
        if value.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            raise ValueError(f"{source} is not a DISK checkpoint: {name} is of dtype {value.dtype}")
    return weights
