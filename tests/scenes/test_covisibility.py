"""disk_ops.scenes.covisibility: which images see the same points."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from disk_ops.scenes.covisibility import covisible_pairs


class TestCovisiblePairs:
    @pytest.mark.parametrize("limits", [(0.15, 0.8), (0.0, 1.0), (0.3, 0.3), (0.5, 0.9)])
    def test_equals_the_definition(self, limits):
        rng = np.random.default_rng(0)
        seen = [rng.choice(60, rng.integers(0, 40), replace=False).astype(np.int64) * 1000 + 7 for _ in range(25)]
        seen[3] = np.zeros(0, np.int64)  # an image without points
        expected = []
        for i, j in itertools.combinations(range(25), 2):
            common, fewer = len(np.intersect1d(seen[i], seen[j])), min(len(seen[i]), len(seen[j]))
            if common and limits[0] <= common / fewer <= limits[1]:
                expected.append([i, j])
        assert covisible_pairs(seen, *limits).tolist() == expected

    def test_a_point_counts_once_in_an_image(self):
        assert len(covisible_pairs([np.array([1, 1, 1, 1, 2, 3]), np.array([1, 4, 5])], 0.3, 0.4)) == 1

    @pytest.mark.parametrize("seen", [[], [np.zeros(0, np.int64)], [np.array([1])], [np.array([1]), np.array([2])]])
    def test_there_may_be_none(self, seen):
        assert covisible_pairs(seen, 0.0, 1.0).shape == (0, 2)
