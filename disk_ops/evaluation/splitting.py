"""Dividing items into those of validation and those of the test."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.protocol import Item

VALIDATION_SHARE = 0.2


class Split(NamedTuple):
    """Items that are divided into two parts."""

    validation: list[Item]
    test: list[Item]
    separate: bool  # no file is in both


def split_items(items: Sequence[Item]) -> Split:
    """Divide items into those of validation and those of the test: about a fifth, chosen by a hash of the names.

    Items that have files in common, such as the pairs of a scene, stay together, unless all are connected in this way.
    The same names give the same parts in whichever order they come.

    Raises:
        EvaluationError: there are fewer than two items.
    """
    if len(items) < 2:
        raise EvaluationError(
            f"--ratio auto needs items for validation that are not in the test: got {len(items)} in all; "
            "give others by --validation, or a threshold by --ratio"
        )
    groups = _connected(items)
    separate = len(groups) > 1
    if not separate:
        groups = [[item] for item in items]
    wanted = max(1, round(VALIDATION_SHARE * len(items)))
    chosen: set[str] = set()
    for group in sorted(groups, key=_name_hash):
        if len(chosen) + len(group) <= wanted:
            chosen |= {item.name for item in group}
    if not chosen:  # all groups are larger
        chosen = {item.name for item in min(groups, key=lambda group: (len(group), _name_hash(group)))}
    return Split(
        [item for item in items if item.name in chosen], [item for item in items if item.name not in chosen], separate
    )


def _name_hash(group: Sequence[Item]) -> bytes:
    return min(hashlib.sha256(item.name.encode("utf-8", "surrogateescape")).digest() for item in group)


def _connected(items: Sequence[Item]) -> list[list[Item]]:
    """The items in groups of those that have files in common, directly or through others.

    Files that all have, such as a list of pairs, don't count.
    """
    common = set.intersection(*(set(item.files) for item in items))
    leader: dict[Path, Path] = {}

    def lead(file: Path) -> Path:
        while leader.setdefault(file, file) != file:
            leader[file] = file = leader[leader[file]]
        return file

    for item in items:
        own = [file for file in item.files if file not in common]
        for file in own:
            leader[lead(file)] = lead(own[0])
    groups: dict[Path | str, list[Item]] = {}
    for item in items:
        first = next((file for file in item.files if file not in common), None)
        groups.setdefault(item.name if first is None else lead(first), []).append(item)
    return list(groups.values())
