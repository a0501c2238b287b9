"""Mixtures of sources: a sample is a function of its position; and how they are loaded for each step."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from making import ListSource

from disk_ops.scenes.errors import DataError
from disk_ops.training.data.loading import load_batches
from disk_ops.training.data.mixture import Mixture


def names(mixture, positions):
    return [mixture[position].sample.name for position in positions]


def test_a_pass_has_each_item_once_and_the_next_another_order():
    mixture = Mixture([ListSource("a", list(range(7)))], [1.0], seed=3)
    passes = [names(mixture, range(7 * i, 7 * i + 7)) for i in range(4)]
    assert all(sorted(each) == [f"a/{i}" for i in range(7)] for each in passes)
    assert len({tuple(each) for each in passes}) > 1


def test_a_sample_depends_on_its_position_alone():
    first, second = (Mixture([ListSource("a", [0, 1, 2]), ListSource("b", [5])], [1, 1], seed=1) for _ in range(2))
    for position in (40, 3, 1234, 0):  # not in order
        one, other = first[position], second[position]
        assert one.sample.name == other.sample.name and torch.equal(one.sample.images, other.sample.images)
    assert not torch.equal(first[0].sample.images, first[1].sample.images)


def test_another_seed_gives_other_samples():
    first, second = (Mixture([ListSource("a", list(range(9)))], [1.0], seed=seed) for seed in (0, 1))
    assert not torch.equal(first[0].sample.images, second[0].sample.images)


def test_weights_are_kept():
    sources = [ListSource("a", [0]), ListSource("b", [0]), ListSource("c", [0])]
    mixture = Mixture(sources, [3.0, 1.0, 1e-9], seed=0)
    counts = Counter(name[0] for name in names(mixture, range(2000)))
    assert counts == {"a": 2 * 749, "b": 2 * 250, "c": 2}  # none is forgotten


def test_broken_files_are_named_and_replaced():
    mixture = Mixture([ListSource("a", [0, None, 2])], [1.0], seed=0)
    loaded = [mixture[position] for position in range(30)]
    assert {each.sample.name for each in loaded} == {"a/0", "a/2"}
    assert {broken for each in loaded for broken in each.broken} == {("a/1.jpg", "is broken")}
    assert sum(bool(each.broken) for each in loaded) == 10  # once in each pass


def test_nothing_usable_is_an_error():
    with pytest.raises(DataError, match=r"a: none of 100 items .*: a/\d\.jpg: is broken"):
        Mixture([ListSource("a", [None, None])], [1.0], seed=0)[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_all_processes_are_those_of_one(workers):
    mixture = Mixture([ListSource("a", list(range(11)))], [1.0], seed=0)
    alone = [[each.position for each in batch] for batch in load_batches(mixture, 3, range(2, 5))]
    assert alone == [[6, 7, 8], [9, 10, 11], [12, 13, 14]]
    ranks = [list(load_batches(mixture, 3, range(2, 5), rank, 4, workers)) for rank in range(4)]
    for step, positions in enumerate(alone):
        assert sorted(each.position for rank in ranks for each in rank[step]) == positions
    assert [len(batch) for batch in ranks[3]] == [0, 0, 0]  # more processes than samples
    for loaded in (each for rank in ranks for batch in rank for each in batch):
        assert torch.equal(loaded.sample.images, mixture[loaded.position].sample.images)
