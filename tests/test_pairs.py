"""Selection of pairs: each way on small lists, what is refused, and files of pairs."""

from __future__ import annotations

from pathlib import Path

import pytest

from disk_ops.io.inputs import InputError
from disk_ops.pairs import (
    PairSelection,
    exhaustive_pairs,
    loop_pairs,
    pattern_pairs,
    read_pairs,
    sequential_pairs,
    unique_pairs,
)

RIG = ["cam1/frame_1.jpg", "cam1/frame_2.jpg", "cam2/frame_1.jpg", "cam2/frame_10.jpg", "cam2/frame_2.jpg"]


def offsets(pairs: list[tuple[str, str]]) -> set[int]:
    return {int(second) - int(first) for first, second in pairs}


def numbered(count: int) -> list[str]:
    return [f"{index:03}" for index in range(count)]


def test_all_pairs_are_visited_block_by_block() -> None:
    pairs = exhaustive_pairs(numbered(100))
    assert len(pairs) == len(set(pairs)) == 100 * 99 // 2 and all(first < second for first, second in pairs)
    assert len({name for pair in pairs[:400] for name in pair}) <= 2 * 32


def test_sequential() -> None:
    assert sequential_pairs(["a", "b", "c", "d"], 2) == [("a", "b"), ("a", "c"), ("b", "c"), ("b", "d"), ("c", "d")]
    assert sequential_pairs(["a", "b"], 10) == [("a", "b")]
    assert sequential_pairs(["a"], 1) == []


def test_quadratic_overlap_has_the_distances_of_colmap() -> None:
    assert offsets(sequential_pairs(numbered(40), 5, quadratic=True)) == {1, 2, 3, 4, 5, 8, 16}
    assert offsets(sequential_pairs(numbered(6), 1000, quadratic=True)) == {1, 2, 3, 4, 5}
    assert sequential_pairs(numbered(9), 1, quadratic=True) == sequential_pairs(numbered(9), 1)


def test_loop_closure_matches_every_lth_image_with_all() -> None:
    pairs = loop_pairs(numbered(7), 3)
    partners = {name: {other for pair in pairs if name in pair for other in pair} - {name} for name in numbered(7)}
    for anchor in ("000", "003", "006"):
        assert partners[anchor] == set(numbered(7)) - {anchor}
    assert partners["001"] == {"000", "003", "006"}
    assert len(pairs) == len({frozenset(pair) for pair in pairs})


def test_pairs_that_two_ways_find_come_once() -> None:
    assert unique_pairs([("a", "b"), ("b", "a"), ("a", "b"), ("b", "c")]) == [("a", "b"), ("b", "c")]
    both = PairSelection(sequential=2, loop_closure=1).pairs(numbered(8))
    assert len(both) == 8 * 7 // 2


def test_names_are_taken_in_natural_order() -> None:
    assert PairSelection(sequential=1).pairs(["f10", "f9", "f1"]) == [("f1", "f9"), ("f9", "f10")]
    assert set(PairSelection().pairs(["b", "c", "a"])) == {("a", "b"), ("a", "c"), ("b", "c")}


def test_two_globs_pair_one_group_with_the_other() -> None:
    assert pattern_pairs(RIG, "cam1/* cam2/*") == [(one, two) for one in RIG[:2] for two in RIG[2:]]
    assert pattern_pairs(RIG, "cam1/*") == [(RIG[0], RIG[1])]
    assert len(pattern_pairs(RIG, "* cam1/*")) == 1 + 2 * 3  # each pair once, and no image with itself
    assert pattern_pairs(["my cam/a", "b"], "'my cam/*' b") == [("my cam/a", "b")]


def test_a_regular_expression_pairs_equal_groups() -> None:
    assert pattern_pairs(RIG, r"re:frame_(\d+)") == [(RIG[0], RIG[2]), (RIG[1], RIG[4])]
    assert pattern_pairs(RIG, r"re:^(cam1)") == [(RIG[0], RIG[1])]  # the others don't match


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("cam3/* cam1/*", "'cam3/\\*': matches none of 5 images, such as 'cam1/frame_1.jpg'"),
        ("a b c", "one or two globs .* are needed, got 3"),
        ("", "one or two globs .* are needed, got 0"),
        ("'cam1", "No closing quotation"),
        ("cam1/frame_1.jpg", "there are no such pairs among 5 images"),
        ("re:(", "is not a regular expression"),
        ("re:frame", "needs a group in parentheses"),
        ("re:(.*)", "there are no such pairs"),
    ],
)
def test_a_pattern_that_can_not_be_used(pattern: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        pattern_pairs(RIG, pattern)


def test_a_selection_that_makes_no_sense() -> None:
    with pytest.raises(InputError, match="need a sequence"):
        PairSelection(loop_closure=3)
    with pytest.raises(InputError, match="need a sequence"):
        PairSelection(quadratic=True)
    with pytest.raises(InputError, match="two images are needed to make a pair, got 1"):
        PairSelection().pairs(["a"])


def test_a_file_of_pairs(tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text("\ufeffa.jpg sub/a.jpg\n\n# a comment\na.png\tsub dir/b 9.png\n'sub dir/b 10.png' a.jpg\n")
    expected = [("a.jpg", "sub/a.jpg"), ("a.png", "sub dir/b 9.png"), ("sub dir/b 10.png", "a.jpg")]
    assert read_pairs(path) == expected and PairSelection(file=path).pairs([]) == expected


@pytest.mark.parametrize("line", ["a.jpg", "a.jpg b.jpg c.jpg", "a b.jpg c.jpg", "it's a.jpg b.jpg"])
def test_a_line_that_is_no_pair_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text(f"a.jpg b.jpg\n{line}\n")
    with pytest.raises(InputError, match=r"pairs\.txt, line 2: two image names are expected, got"):
        read_pairs(path)


def test_files_that_hold_no_pairs(tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    with pytest.raises(InputError, match="No such file"):
        read_pairs(path)
    path.write_text("# nothing\n\n")
    with pytest.raises(InputError, match="holds no pairs"):
        read_pairs(path)
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        read_pairs(path)
