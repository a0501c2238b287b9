"""What the programs share: errors of the user, choice of device and weights, and the record of failures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
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
from disk_ops.io.inputs import InputError, printable
from disk_ops.io.journal import JournalError
from disk_ops.io.output import OutputError, ResumableOutput, Whole
from disk_ops.io.shards import ShardsError
from disk_ops.sfm.colmap import SfmError
from disk_ops.workers import ALONE, Worker, WorkerError

OK, SOME_FAILED, USAGE = 0, 1, 2
"""Exit statuses of all the programs."""

DETECTION = ("n", "max_size", "window_size", "score_threshold", "subpixel", "scales", "weights", "device")
"""The arguments of `disk_ops.arguments.shared.add_detector`."""

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class UserError(Exception):
    """Something that the user asked for is impossible. The message is all that is shown."""


USER_ERRORS = (
    *(UserError, InputError, OutputError, StorageError, JournalError, ImageError),
    *(ShardsError, WorkerError, SfmError),
)


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


def counted(number: int, noun: str) -> str:
    """``1 image``, ``1,234 images``, ``2 matches``."""
    plural = noun if number == 1 else noun + ("es" if noun.endswith("ch") else "s")
    return f"{number:,} {plural}"


def refuse_ignored(arguments: argparse.Namespace, names: Iterable[str], because: str) -> None:
    """Raise `UserError` if the user gave an option that does nothing.

    Args:
        arguments: of a parser with `disk_ops.arguments.given.note_given`.
        names: of the options, as attributes of the arguments.
        because: what makes them do nothing, with the option that does.
    """
    given: dict[str, str] = getattr(arguments, "given", {})
    for name in names:
        if name in given:
            raise UserError(f"{given[name]} does nothing {because}")


def pick_device(name: str, worker: Worker = ALONE) -> torch.device:
    """The device of that name; ``auto`` is the first CUDA GPU if there is one, else the CPU.

    Of several processes on a machine each takes the GPU of its number for ``auto`` and ``cuda``.
    """
    if worker.size > 1 and name in ("auto", "cuda") and torch.cuda.is_available():
        return torch.device("cuda", worker.local_rank % torch.cuda.device_count())
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()  # the device meta makes tensors, too, but has no values
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"--device {name} can't be used: {reason}") from error
    return device


def load_detector(
    weights: str, device: torch.device, dtype: str = "float32", subpixel: bool = False
) -> tuple[DISKDetector, str]:
    """The detector, ready for inference, and a hash of its weights (of their values, not of the file)."""
    try:
        detector = DISKDetector.from_pretrained(weights, subpixel=subpixel)
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


def tell_losses(output: ResumableOutput) -> None:
    """Say what of earlier runs is not there any more, and so is made again."""
    if output.journal.dropped_bytes:
        note(f"{output.part}: the last result was only half written when the program was stopped; it is made again")
    for shard in output.lost:
        note(f"{shard} is missing: what was in it is made again")


@contextmanager
def resume_hint(output: ResumableOutput, done: str) -> Iterator[None]:
    """When the work is interrupted, or fails unexpectedly, say how to go on with it."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, USER_ERRORS) and len(output.journal) > 0 and output.part.exists():
            what = "interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else "stopped by an error"
            tqdm.write(
                f"{what}: the {done} done so far are kept in {output.part}; "
                "run the same command with --resume to go on",
                file=sys.stderr,
            )
        raise


@dataclass(frozen=True)
class Summary:
    """What a run, or one of its processes, has done."""

    output: Path
    item: str  # image, pair
    result: str  # feature, match
    made: int
    results: int
    done_before: int
    failures: Failures
    seconds: float

    def conclude(self, worker: Worker, whole: Whole | None) -> int:
        """Print it, and return the exit status."""
        parts = [counted(self.made, self.item), counted(self.results, self.result)]
        if self.done_before:
            parts.append(f"{self.done_before:,} done before")
        parts.append(f"{len(self.failures):,} failed")
        speed = f" ({self.made / self.seconds:.4g} {self.item}s/s)" if self.made else ""
        where = str(self.output) if self.made or self.done_before else "nothing written"
        if worker.size > 1:
            where = f"{self.output}, {worker}"
        print(f"{where}: {', '.join(parts)}, {self.seconds:.1f} s{speed}", flush=True)
        failed = self.failures.names if worker.size == 1 else []
        if whole is not None:
            failed = whole.failed
            if whole.records:
                places = f"{counted(whole.records, self.item)} in {counted(whole.shards, 'file')}"
                print(f"{self.output}: complete, {places}, {len(failed):,} failed", flush=True)
        elif worker.size > 1 and not self.output.exists():
            note(
                f"{worker} is done; {self.output} is made when all are. "
                "If one was lost, run the same command with --resume"
            )
        return SOME_FAILED if failed else OK


def quiet_opencv() -> None:
    """OpenCV logs each undecodable file with source lines; the programs report those files themselves."""
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)


def number_of_keypoints(arguments: argparse.Namespace) -> int | None:
    """The value of ``--n``: None for all."""
    return None if arguments.n == "all" else int(arguments.n)
