"""What image and mask files were like when features were made of them, to tell whether they still are."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CHUNK = 1 << 20


@dataclass(frozen=True)
class FileState:
    """The state of a file.

    Attributes:
        size: in bytes.
        modified: time of the last change in ns; None where only the size is known.
        digest: of the content; None where only the size is known.
    """

    size: int
    modified: int | None = None
    digest: str | None = None

    def holds(self, path: Path) -> bool:
        """Whether a file has the content that this state is of. It is read only if its time is another.

        Raises:
            OSError: the file isn't there, or can't be read.
        """
        status = path.stat()
        if status.st_size != self.size:
            return False
        return self.digest is None or status.st_mtime_ns == self.modified or _digest(path) == self.digest


@dataclass(frozen=True)
class Source:
    """What the features of an image were made of.

    Attributes:
        image: the image file.
        mask: its mask; None if it had none.
        is_mask_known: False for features of earlier versions, which didn't store anything of masks.
    """

    image: FileState
    mask: FileState | None = None
    is_mask_known: bool = True

    def is_current(self, image: Path, mask: Path | None) -> bool:
        """Whether the files have the same contents still; ``mask`` is None if there is none now."""
        try:
            if not self.image.holds(image):
                return False
            if not self.is_mask_known:
                return True
            if self.mask is None or mask is None:
                return self.mask is None and mask is None
            return self.mask.holds(mask)
        except OSError:
            return False

    def to_text(self) -> str:
        """As it is stored: JSON."""
        record: dict[str, Any] = {"image": _to_list(self.image)}
        if self.is_mask_known:
            record["mask"] = None if self.mask is None else _to_list(self.mask)
        return json.dumps(record, separators=(",", ":"))

    @classmethod
    def of_text(cls, text: str) -> Source | None:
        """What was stored; None if it can't be read."""
        try:
            record = json.loads(text)
            mask = record.get("mask")
            return cls(FileState(*record["image"]), None if mask is None else FileState(*mask), "mask" in record)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def state_of(path: Path) -> FileState | None:
    """The state of a file; None if it isn't there, can't be read or is no regular file."""
    try:
        if not path.is_file():  # a pipe would block for ever
            return None
        status = path.stat()
        return FileState(status.st_size, status.st_mtime_ns, _digest(path))
    except OSError:
        return None


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=8)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _to_list(state: FileState) -> list[int | str | None]:
    return [state.size, state.modified, state.digest]
