"""What the programs share: errors of the user, choice of device and weights, and the record of failures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import torch
from tqdm import tqdm

from disk_ops import DISKDetector
from disk_ops.checkpoint import weights_digest
from disk_ops.io.hdf5 import StorageError
from disk_ops.io.images import ImageError
from disk_ops.io.inputs import InputError
from disk_ops.io.journal import JournalError
from disk_ops.io.output import OutputError, part_of

OK, SOME_FAILED, USAGE = 0, 1, 2
"""Exit statuses of all the programs."""

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class UserError(Exception):
    """Something that the user asked for is impossible. The message is all that is shown."""


USER_ERRORS = (UserError, InputError, OutputError, StorageError, JournalError, ImageError)


@dataclass
class Failures:
    """Items that could not be done; each is reported when it happens, and the rest go on."""

    names: list[str] = field(default_factory=list)

    def add(self, name: str, reason: object) -> None:
        """Record a failure and print it, above the progress bar."""
        self.names.append(name)
        tqdm.write(printable(f"failed: {name}: {reason}"), file=sys.stderr)

    def __len__(self) -> int:
        return len(self.names)


def note(message: str) -> None:
    """Tell the user something on standard error, above the progress bar."""
    tqdm.write(f"note: {printable(message)}", file=sys.stderr)


def printable(text: str) -> str:
    """The text with bytes that are not UTF-8 (possible in file names) shown as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def counted(number: int, noun: str) -> str:
    """``1 image``, ``1,234 images``, ``2 matches``."""
    plural = noun if number == 1 else noun + ("es" if noun.endswith("ch") else "s")
    return f"{number:,} {plural}"


def pick_device(name: str) -> torch.device:
    """The device of that name; ``auto`` is the first CUDA GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"--device {name} can't be used: {reason}") from error
    return device


def load_detector(weights: str, device: torch.device, dtype: str = "float32") -> tuple[DISKDetector, str]:
    """The detector, ready for inference, and a hash of its weights (of their values, not of the file)."""
    try:
        detector = DISKDetector.from_pretrained(weights)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UserError(f"--weights {weights}: {error}") from error
    digest = weights_digest(detector.state_dict())
    return detector.to(device, DTYPES[dtype]).eval(), digest


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception of torch, NumPy or OpenCV means that memory was short."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError | cv2.error) and (
        "can't allocate memory" in text
        or "not enough memory" in text
        or "out of memory" in text
        or "insufficient memory" in text
    )


@contextmanager
def resume_hint(output: Path, done: str) -> Iterator[None]:
    """When the work is interrupted, or fails unexpectedly, say how to go on with it."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, USER_ERRORS) and part_of(output).exists():
            what = "interrupted" if isinstance(error, KeyboardInterrupt) else "stopped by an error"
            tqdm.write(
                f"{what}: the {done} done so far are kept in {part_of(output)}; "
                "run the same command with --resume to go on",
                file=sys.stderr,
            )
        raise


def quiet_opencv() -> None:
    """OpenCV logs each undecodable file with source lines; the programs report those files themselves."""
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)


def number_of_keypoints(arguments: argparse.Namespace) -> int | None:
    """The value of ``--n``: None for all."""
    return None if arguments.n == "all" else int(arguments.n)
