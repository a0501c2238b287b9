"""disk_ops.training.data.tuples: tuples of overlapping images, and what is held out."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from disk_ops.scenes.errors import DataError
from disk_ops.training.data.tuples import POOL, ListedTuples, PairGraph, require_scenes, split_scenes


def names(count: int) -> list[str]:
    return [f"{index:04}.jpg" for index in range(count)]


def random_graph(count: int, share: float, name: str = "scene") -> PairGraph:
    pairs = np.array(list(itertools.combinations(range(count), 2)))
    return PairGraph(name, names(count), pairs[np.random.default_rng(1).random(len(pairs)) < share])


def as_sets(tuples: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(row) - {-1} for row in tuples.tolist()}


class TestDraw:
    @pytest.mark.parametrize("size", [2, 3, 4])
    def test_few_tuples_are_all_found_once(self, size):
        graph = random_graph(12, 0.7)
        edges = as_sets(graph.pairs)
        expected = {
            frozenset(group)
            for group in itertools.combinations(range(12), size)
            if all(frozenset(pair) in edges for pair in itertools.combinations(group, 2))
        }
        drawn = graph.draw(size, 10_000)
        assert drawn.dtype == np.int32 and drawn.shape[1] == size
        assert len(drawn) == len(expected) > 5
        assert as_sets(drawn) == expected

    def test_of_many_some_are_drawn_from_everywhere(self):
        graph = random_graph(60, 0.5)
        drawn = graph.draw(3, 500)
        assert len(as_sets(drawn)) == 500
        assert all(
            third in graph.neighbours[first] & graph.neighbours[second] for first, second, third in drawn.tolist()
        )
        uses = np.bincount(drawn.ravel(), minlength=60)
        assert uses.min() > 5 and uses.max() < 80  # 25 on average

    def test_always_the_same_are_drawn(self):
        assert np.array_equal(random_graph(40, 0.5).draw(3, 100), random_graph(40, 0.5).draw(3, 100))

    def test_a_large_scene_takes_seconds(self):
        rng = np.random.default_rng(0)  # 3000 images along a way, each with 200 neighbours: 20 million triplets
        first = np.repeat(np.arange(3000), 100)
        pairs = np.stack([first, first + np.tile(np.arange(1, 101), 3000)], 1)
        graph = PairGraph("large", names(3000), rng.permutation(pairs[pairs[:, 1] < 3000]))
        start = time.process_time()
        drawn = graph.draw(3, 10_000)
        assert len(as_sets(drawn)) == 10_000
        assert np.unique(drawn).size > 2900
        assert time.process_time() - start < 20

    def test_no_pairs_no_tuples(self):
        assert PairGraph("none", names(3), np.zeros((0, 2))).draw(2, 5).shape == (0, 2)
        assert PairGraph("none", names(3), np.array([[0, 1]])).draw(3, 5).shape == (0, 3)

    def test_listed_tuples_of_the_size_are_taken(self):
        listed = ListedTuples("listed", names(5), np.array([[0, 1, 2], [3, 4, -1], [2, 3, 4]]))
        assert as_sets(listed.draw(2, 10)) == {frozenset({0, 1, 2}), frozenset({3, 4}), frozenset({2, 3, 4})}
        assert as_sets(listed.draw(3, 10)) == {frozenset({0, 1, 2}), frozenset({2, 3, 4})}
        assert len(listed.draw(2, 2)) == 2
        assert listed.draw(4, 10).shape[0] == 0


class TestSplit:
    @pytest.mark.parametrize("holdout", [0.05, 0.3])
    @pytest.mark.parametrize("sizes", [(3, 2), (2, 2), (3, 3)])
    def test_parts_of_one_scene_share_no_image(self, holdout, sizes):
        graph = random_graph(40, 0.5)
        (train,) = split_scenes([graph], sizes[0], "train", holdout, 50)
        (val,) = split_scenes([graph], sizes[1], "val", holdout, 50)  # validation may take pairs, training triplets
        assert train.tuples.shape[1] == sizes[0] and val.tuples.shape[1] == sizes[1]
        assert not set(train.tuples.ravel().tolist()) & set(val.tuples.ravel().tolist())
        assert abs(len(np.unique(val.tuples)) - max(3, holdout * 40)) <= 3
        assert len(train.tuples) <= 50 * POOL

    def test_parts_of_listed_tuples_share_no_image(self):
        rng = np.random.default_rng(0)
        tuples = np.array([rng.choice(60, 3, replace=False) for _ in range(300)])
        listed = ListedTuples("listed", names(60), tuples)
        parts = {split: split_scenes([listed], 2, split, 0.1, 1000)[0] for split in ("train", "val")}
        assert not set(parts["train"].tuples.ravel().tolist()) & set(parts["val"].tuples.ravel().tolist())
        assert as_sets(parts["train"].tuples) | as_sets(parts["val"].tuples) <= as_sets(tuples)
        assert len(parts["train"].tuples) > 150

    def test_of_many_scenes_whole_ones_are_held_out(self):
        scenes = [random_graph(8, 0.9, f"scene{index}") for index in range(30)]
        train = {scene.name for scene in split_scenes(scenes, 3, "train", 0.2, 5)}
        val = {scene.name for scene in split_scenes(scenes, 2, "val", 0.2, 5)}
        assert not train & val and len(train | val) == 30 and 2 <= len(val) <= 12
        more = [*scenes, *(random_graph(8, 0.9, f"more{index}") for index in range(10))]
        assert val <= {scene.name for scene in split_scenes(more, 2, "val", 0.2, 5)}

    def test_all_or_nothing_may_be_held_out(self):
        scenes = [random_graph(8, 0.9)]
        assert split_scenes(scenes, 2, "val", 0, 5) == [] == split_scenes(scenes, 2, "train", 1, 5)
        everything = [
            split_scenes(scenes, 2, split, holdout, 5)[0].tuples for split, holdout in (("train", 0), ("val", 1))
        ]
        assert np.array_equal(*everything)

    def test_a_scene_with_a_single_tuple_is_for_training(self):
        scene = PairGraph("small", names(3), np.array([[0, 1], [1, 2], [0, 2]]))
        assert len(split_scenes([scene], 3, "train", 0.3, 5)[0].tuples) == 1
        assert split_scenes([scene], 3, "val", 0.3, 5) == []

    def test_scenes_without_a_tuple_are_dropped(self):
        scenes = [PairGraph("pair", names(2), np.array([[0, 1]])), PairGraph("none", names(2), np.zeros((0, 2)))]
        assert [scene.name for scene in split_scenes(scenes, 2, "train", 0, 5)] == ["pair"]
        assert split_scenes(scenes, 3, "train", 0, 5) == []

    def test_nothing_left_is_an_error_that_says_what_was_looked_for(self):
        with pytest.raises(DataError, match=r"rgbd x: nothing to use for val \(holdout is 0.1\); looked for pairs"):
            require_scenes([], "rgbd x", "val", 0.1, "looked for pairs")
        with pytest.raises(DataError, match="rgbd x: nothing to use; looked for pairs"):
            require_scenes([], "rgbd x", "train", 0.0, "looked for pairs")
