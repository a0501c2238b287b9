"""disk_ops.evaluation.splitting: what a threshold is chosen on, and what it is tested on."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.protocol import Item
from disk_ops.evaluation.splitting import split_items


@pytest.mark.parametrize(("number", "chosen"), [(2, 1), (3, 1), (10, 2), (108, 22)])
def test_a_fifth_is_for_validation(number, chosen) -> None:
    items = [Item(f"set{index}", ()) for index in range(number)]
    validation, test, separate = split_items(items)
    assert separate
    assert len(validation) == chosen and len(test) == number - chosen
    assert sorted([*validation, *test], key=items.index) == items
    other = split_items(items[::-1]).validation
    assert {item.name for item in other} == {item.name for item in validation}


def test_items_with_common_files_stay_together() -> None:
    """Pairs of a scene have images in common: thresholds would be chosen on images of the test."""
    every = Path("list")
    scenes = {name: [Path(f"{name}{index}") for index in range(4)] for name in "abcd"}
    items = [
        Item(f"{name} {one} {two}", (every, scenes[name][one], scenes[name][two]))
        for name, count in (("a", 3), ("b", 4), ("c", 3), ("d", 2))
        for one, two in combinations(range(count), 2)
    ]
    validation, test, separate = split_items(items)
    assert separate and 1 <= len(validation) <= 3, "at most a fifth of 13, rounded"
    files = [{file for item in part for file in item.files} for part in (validation, test)]
    assert files[0] & files[1] == {every}


def test_the_smallest_group_where_all_are_larger_than_a_fifth() -> None:
    items = [Item(f"{name}{index}", (Path(name),)) for name in "aab" for index in range(2)]
    items = list(dict.fromkeys(items))
    items.append(Item("a2", (Path("a"),)))
    assert [item.name for item in split_items(items).validation] == ["b0", "b1"]


def test_items_that_are_all_connected_are_divided_all_the_same() -> None:
    items = [Item(f"{one} {two}", (Path(str(one)), Path(str(two)))) for one, two in combinations(range(5), 2)]
    validation, test, separate = split_items(items)
    assert not separate and len(validation) == 2 and len(test) == 8


def test_one_item_cannot_be_divided() -> None:
    with pytest.raises(EvaluationError, match="got 1 in all; give others by --validation"):
        split_items([Item("one", ())])
