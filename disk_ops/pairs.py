"""Which pairs of images to match: all, neighbours in a sequence, by patterns of their names, or those of a file."""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from disk_ops.io.inputs import InputError, natural_key

Pair = tuple[str, str]

BLOCK = 32
"""Images per side of the blocks in which all pairs are visited."""


@dataclass(frozen=True)
class PairSelection:
    """A way to choose pairs; all pairs if nothing is set.

    Attributes:
        file: the pairs that :func:`read_pairs` finds in it.
        sequential: see :func:`sequential_pairs`.
        quadratic: see :func:`sequential_pairs`.
        loop_closure: see :func:`loop_pairs`; together with ``sequential``.
        pattern: see :func:`pattern_pairs`.
    """

    file: Path | None = None
    sequential: int | None = None
    quadratic: bool = False
    loop_closure: int | None = None
    pattern: str | None = None

    def __post_init__(self) -> None:
        if self.sequential is None and (self.quadratic or self.loop_closure is not None):
            raise InputError(
                "quadratic overlap and loop closure (every L-th image) need a sequence (the K next images)"
            )

    def pairs(self, names: Iterable[str]) -> list[Pair]:
        """The pairs of these images, each once; those of a file as they are there, whatever the names.

        Raises:
            InputError: if there are none, or the file or the pattern can't be used.
        """
        if self.file is not None:
            return read_pairs(self.file)
        ordered = sorted(names, key=natural_key)
        if len(ordered) < 2:
            raise InputError(f"two images are needed to make a pair, got {len(ordered)}")
        if self.pattern is not None:
            return pattern_pairs(ordered, self.pattern)
        if self.sequential is None:
            return exhaustive_pairs(ordered)
        pairs = sequential_pairs(ordered, self.sequential, self.quadratic)
        if self.loop_closure is not None:
            pairs += loop_pairs(ordered, self.loop_closure)
        return unique_pairs(pairs)


def exhaustive_pairs(names: Sequence[str]) -> list[Pair]:
    """All pairs, block by block, so that the features of few images are needed at a time."""
    pairs = combinations(range(len(names)), 2)
    ordered = sorted(pairs, key=lambda pair: (pair[0] // BLOCK, pair[1] // BLOCK, pair))
    return [(names[i], names[j]) for i, j in ordered]


def sequential_pairs(names: Sequence[str], ahead: int, quadratic: bool = False) -> list[Pair]:
    """Each image with the ``ahead`` next ones; if ``quadratic``, also with those 1, 2, 4, ... 2**(ahead - 1) further.

    The distances of quadratic overlap are those of COLMAP's sequential matcher: partners far ahead bridge frames that
    are blurred or hidden.
    """
    steps = set(range(1, ahead + 1))
    if quadratic:  # larger powers than these are beyond the end of the sequence
        steps |= {2**power for power in range(min(ahead, len(names).bit_length()))}
    return [(names[i], names[i + step]) for i in range(len(names)) for step in sorted(steps) if i + step < len(names)]


def loop_pairs(names: Sequence[str], every: int) -> list[Pair]:
    """Every ``every``-th image, beginning with the first, with all the others: for a sequence that comes back."""
    indices = range(len(names))
    return unique_pairs((names[i], names[j]) for i in indices[::every] for j in indices if i != j)


def pattern_pairs(names: Sequence[str], pattern: str) -> list[Pair]:
    r"""Pairs by the names of the images.

    Args:
        names: of the images, in order.
        pattern: either one or two globs, separated by a space, that match whole names, where ``*`` also matches
            slashes: ``"cam1/* cam2/*"`` pairs each image of ``cam1`` with each of ``cam2``, and ``"cam1/*"`` the images
            of ``cam1`` with each other (globs with spaces in quotes). Or ``re:`` and a regular expression that is
            searched for in each name and that has at least one group: two images are a pair if the groups are equal,
            so ``"re:/frame_(\d+)"`` pairs frames of equal number from different cameras. Images whose names don't
            match are left out.

    Raises:
        InputError: a malformed pattern, or one without pairs.
    """
    pairs = _equal_groups(names, pattern[3:]) if pattern.startswith("re:") else _glob_pairs(names, pattern)
    if not pairs:
        raise InputError(
            f"pattern {pattern!r}: there are no such pairs among {len(names)} images, such as {names[0]!r}"
        )
    return pairs


def _equal_groups(names: Sequence[str], expression: str) -> list[Pair]:
    try:
        compiled = re.compile(expression)
    except re.error as error:
        raise InputError(f"pattern 're:{expression}' is not a regular expression: {error}") from error
    if not compiled.groups:
        raise InputError(f"pattern 're:{expression}' needs a group in parentheses: images are paired where it is equal")
    alike: dict[tuple[str | None, ...], list[str]] = {}
    for name in names:
        if match := compiled.search(name):
            alike.setdefault(match.groups(), []).append(name)
    return [pair for group in alike.values() for pair in combinations(group, 2)]


def _glob_pairs(names: Sequence[str], pattern: str) -> list[Pair]:
    try:
        globs = shlex.split(pattern)
    except ValueError as error:
        raise InputError(f"pattern {pattern!r}: {error}") from error
    if len(globs) not in (1, 2):
        raise InputError(f"pattern {pattern!r}: one or two globs such as 'cam1/* cam2/*' are needed, got {len(globs)}")
    first, second = (_matching(names, glob) for glob in (globs[0], globs[-1]))
    if len(globs) == 1:
        return exhaustive_pairs(first)
    return unique_pairs((one, other) for one in first for other in second if one != other)


def _matching(names: Sequence[str], glob: str) -> list[str]:
    found = [name for name in names if fnmatch.fnmatchcase(name, glob)]
    if not found:
        raise InputError(f"pattern {glob!r}: matches none of {len(names)} images, such as {names[0]!r}")
    return found


def unique_pairs(pairs: Iterable[Pair]) -> list[Pair]:
    """The pairs without those that came before, in this order or swapped."""
    kept: dict[frozenset[str], Pair] = {}
    for pair in pairs:
        kept.setdefault(frozenset(pair), pair)
    return list(kept.values())


def read_pairs(path: Path) -> list[Pair]:
    """Read a pairs file: two image names a line.

    The names are separated by a tab, or by spaces if neither contains any; names with spaces can also be quoted
    as in a shell. Empty lines and lines that begin with ``#`` are skipped.

    Raises:
        InputError: when the file can't be read or a line doesn't hold two names.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise InputError(f"{path}: {reason}") from error
    pairs = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        names = _split_names(line)
        if len(names) != 2:
            raise InputError(
                f"{path}, line {number}: two image names are expected, got {line.strip()!r} "
                "(separate names that contain spaces by a tab, or quote them)"
            )
        pairs.append((names[0], names[1]))
    if not pairs:
        raise InputError(f"{path}: holds no pairs")
    return pairs


def _split_names(line: str) -> list[str]:
    if "\t" in line:
        return [name.strip() for name in line.split("\t") if name.strip()]
    names = line.split()
    if len(names) == 2 or not set("\"'") & set(line):
        return names
    try:
        return shlex.split(line)
    except ValueError:  # an unclosed quote
        return names
