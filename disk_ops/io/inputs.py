"""Which image files the user means, and the name each gets in the HDF5 file."""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from disk_ops.io.images import IMAGE_EXTENSIONS


class InputError(Exception):
    """Inputs that can't be worked on at all. The message names them."""


@dataclass(frozen=True)
class ImageFile:
    """An image file and its name in the HDF5 file: a relative path with ``/``, extension included."""

    path: Path
    name: str


@dataclass
class ImageList:
    """All the images to work on, in the order given (natural order inside a folder)."""

    images: list[ImageFile]
    notes: list[str] = field(default_factory=list)


@dataclass
class _Source:
    """One argument of the user: a folder or a single file."""

    argument: Path
    root: Path  # absolute; names are relative to it
    files: list[Path]  # absolute
    parents: int = 0  # how many folder names of the root are put in front of the names

    def name(self, file: Path) -> str:
        prefix = self.root.parts[len(self.root.parts) - self.parents :] if self.parents else ()
        return utf8_name("/".join((*prefix, *file.relative_to(self.root).parts)))

    @property
    def can_grow(self) -> bool:
        return self.parents < len(self.root.parts) - 1


def utf8_name(text: str) -> str:
    """A path as HDF5 stores it: UTF-8, also where the locale made Python decode it as something else."""
    return os.fsencode(text).decode("utf-8", "surrogateescape")


def printable(text: str) -> str:
    """The text with bytes that are not UTF-8 (possible in file names) shown as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which ``frame2`` comes before ``frame10``."""
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name))


def stable_number(name: str) -> float:
    """A number from 0 to 1 that depends on nothing but the name."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def list_images(arguments: Sequence[Path], exclude: Iterable[Path] = ()) -> ImageList:
    """Collect the images of files and folders (searched recursively) and give each a name of its own.

    An image of a folder is named by its path relative to that folder, a single file by its file name. Where two
    names are equal, the arguments concerned get the names of their parent folders in front, as few as needed.

    Args:
        arguments: what the user gave.
        exclude: files, and folders with all that is in them, which are left out when they lie in a given folder.

    Raises:
        InputError: when an argument doesn't exist, or there is no image at all.
    """
    missing = [str(argument) for argument in arguments if not os.path.lexists(argument)]
    if missing:
        raise InputError(f"no such file or folder: {', '.join(missing)}")
    notes: list[str] = []
    excluded = {Path(os.path.abspath(path)) for path in exclude}
    sources = [_make_source(argument, excluded, notes) for argument in arguments]
    _drop_duplicates(sources, notes)
    if not any(source.files for source in sources):
        raise InputError(f"no images found in {', '.join(map(str, arguments))}")
    _separate_names(sources, notes)
    images = [ImageFile(file, source.name(file)) for source in sources for file in source.files]
    _note_flattened_names(images, notes)
    return ImageList(images, notes)


def _make_source(argument: Path, excluded: set[Path], notes: list[str]) -> _Source:
    path = Path(os.path.abspath(argument))
    if not path.is_dir():
        return _Source(argument, path.parent, [path])
    files, others = [], 0
    excluded = {place for place in excluded if path in place.parents}
    for file in walk_files(path):
        if file.name.startswith(".") or not excluded.isdisjoint((file, *file.parents)):
            continue
        if file.suffix.lower() in IMAGE_EXTENSIONS:
            files.append(file)
        else:
            others += 1
    if others:
        notes.append(f"{argument}: {others} file{'s' * (others > 1)} without an image extension left out")
    if not files:
        notes.append(f"{argument}: no images in this folder")
    files.sort(key=lambda file: natural_key(file.relative_to(path).as_posix()))
    return _Source(argument, path, files)


def walk_files(folder: Path) -> Iterator[Path]:
    """All the files below a folder but those in hidden ones; links are followed, but no folder is visited twice.

    Raises `InputError` where a folder can't be read.
    """
    visited: set[str] = set()
    for current, folders, files in os.walk(folder, followlinks=True, onerror=_refuse_folder):
        real = os.path.realpath(current)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(current, name) for name in files)


def _refuse_folder(error: OSError) -> None:
    raise InputError(f"{error.filename}: folder can't be read: {error.strerror}")


def _drop_duplicates(sources: list[_Source], notes: list[str]) -> None:
    """Keep the first of files that were given twice (as such, or inside a folder)."""
    seen: set[Path] = set()
    dropped = 0
    for source in sources:
        kept = [file for file in dict.fromkeys(source.files) if file not in seen]
        dropped += len(source.files) - len(kept)
        seen.update(kept)
        source.files = kept
    if dropped:
        notes.append(f"{dropped} image{'s' * (dropped > 1)} given more than once, used once")


def _separate_names(sources: list[_Source], notes: list[str]) -> None:
    """Put parent folders in front of names until all are different.

    All the names of an argument grow together, so that they stay relative to one folder.
    """
    while clashes := _clashing_sources(sources):
        growing = [source for source in clashes if source.can_grow]
        if not growing:
            raise InputError(f"can't tell the images of {', '.join(str(s.argument) for s in clashes)} apart by name")
        for source in growing:
            source.parents += 1
    for source in sources:
        if source.parents and source.files:
            notes.append(
                f"{source.argument}: named {source.name(source.files[0])}, because names without folders clash"
            )


def _clashing_sources(sources: list[_Source]) -> list[_Source]:
    """The sources with a name that another has too, or that is a folder in another's names.

    In HDF5 a name with a slash is a group in a group: the image ``a.jpg`` can't hold the image ``a.jpg/b.jpg``.
    """
    owners: dict[str, set[int]] = defaultdict(set)
    folders: dict[str, set[int]] = defaultdict(set)
    for index, source in enumerate(sources):
        for file in source.files:
            name = source.name(file)
            owners[name].add(index)
            for end in (position for position, letter in enumerate(name) if letter == "/"):
                folders[name[:end]].add(index)
    clashing: set[int] = set()
    for name, indices in owners.items():
        if len(indices) > 1:
            clashing |= indices
        if name in folders:
            clashing |= indices | folders[name]
    return [sources[index] for index in sorted(clashing)]


def _note_flattened_names(images: list[ImageFile], notes: list[str]) -> None:
    """Warn about names that hloc's match files can't tell apart (there ``/`` is written as ``-``)."""
    flat: dict[str, str] = {}
    for image in images:
        first = flat.setdefault(image.name.replace("/", "-"), image.name)
        if first != image.name:
            notes.append(f"{first} and {image.name} have the same name in hloc's match files; rename one to match both")
