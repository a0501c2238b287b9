"""disk_ops.matching: mutual nearest neighbours in kornia's contract and in padded batches."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from disk_ops import DistanceMatrix, MutualNearestNeighbor, MutualSoftmaxMatcher
from disk_ops.ops import distance_matrix, mutual_softmax


def descriptors(device, *shape, seed=0):
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1).to(device)


class TestMutualNearestNeighbor:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_smoke(self, device, dtype):
        dists, idxs = MutualNearestNeighbor()(
            torch.eye(4, device=device).to(dtype), torch.eye(4, device=device).to(dtype)
        )
        assert idxs.tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]] and idxs.dtype == torch.int64
        assert dists.shape == (4, 1) and not dists.any()

    @pytest.mark.parametrize("ratio", [0, -0.5, 1.5])
    def test_exception(self, ratio):
        with pytest.raises(ValueError, match=rf"ratio must lie in \(0, 1\] or be None, got {ratio}"):
            MutualNearestNeighbor(ratio)
        with pytest.raises(TypeError, match=r"ratio must be a number, got str '0\.9'"):
            MutualNearestNeighbor("0.9")
        with pytest.raises(TypeError, match="desc1 must be a tensor, got ndarray"):
            MutualNearestNeighbor()(np.eye(4), np.eye(4))
        with pytest.raises(ValueError, match=r"desc1 must have shape \[N, D\], got \[1, 4, 8\]"):
            MutualNearestNeighbor()(torch.rand(1, 4, 8), torch.rand(1, 4, 8))
        with pytest.raises(ValueError, match=r"desc1 must have shape \[B, N, D\], got \[4, 8\]"):
            MutualNearestNeighbor().match_padded(torch.rand(4, 8), torch.rand(4, 8))

    @pytest.mark.parametrize(("rows", "columns"), [(0, 0), (0, 5), (5, 0)])
    @pytest.mark.parametrize("ratio", [None, 0.8])
    def test_cardinality(self, device, rows, columns, ratio):
        matcher = MutualNearestNeighbor(ratio)
        dists, idxs = matcher(torch.rand(rows, 8, device=device), torch.rand(columns, 8, device=device))
        assert dists.shape == (0, 1) and idxs.shape == (0, 2) and idxs.dtype == torch.int64
        padded = matcher.match_padded(torch.rand(2, rows, 8, device=device), torch.rand(2, columns, 8, device=device))
        assert padded.idxs.shape == padded.dists.shape == (2, rows)

    @pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 7), (7, 1)])
    def test_one_feature(self, device, rows, columns):
        for ratio in (None, 0.9):
            _, idxs = MutualNearestNeighbor(ratio)(
                descriptors(device, rows, 8), descriptors(device, columns, 8, seed=1)
            )
            assert len(idxs) <= 1
        assert (
            len(MutualNearestNeighbor()(descriptors(device, rows, 8), descriptors(device, columns, 8, seed=1))[1]) == 1
        )

    def test_equals_kornia(self, device):
        kornia = pytest.importorskip("kornia.feature")
        for rows, columns in ((300, 200), (200, 300), (64, 64)):
            desc1, desc2 = descriptors(device, rows, 128), descriptors(device, columns, 128, seed=1)
            desc2[:50] = F.normalize(desc1[:50] + 0.03 * desc2[:50], dim=-1)
            dists, idxs = MutualNearestNeighbor()(desc1, desc2)
            expected_dists, expected = kornia.match_mnn(desc1, desc2)
            order = expected[:, 0].argsort()
            assert torch.equal(idxs, expected[order])
            torch.testing.assert_close(dists, expected_dists[order], rtol=1e-4, atol=1e-4)
            for ratio in (0.5, 0.9):
                _, idxs = MutualNearestNeighbor(ratio)(desc1, desc2)
                _, expected = kornia.match_smnn(desc1, desc2, ratio)
                assert torch.equal(idxs, expected[expected[:, 0].argsort()])

    def test_exact_duplicates_are_ambiguous(self, device):
        desc = descriptors(device, 4, 16)
        twice = torch.cat([desc, desc])
        assert len(MutualNearestNeighbor()(desc, twice)[1]) == 4
        for ratio in (0.5, 1.0):
            assert len(MutualNearestNeighbor(ratio)(desc, twice)[1]) == 0

    def test_no_row_is_used_twice_even_with_ties(self, device):
        base = descriptors(device, 5, 16)
        _, idxs = MutualNearestNeighbor()(base[[0, 0, 1, 2, 2]], base[[2, 0, 0, 1, 3]])
        assert idxs.tolist() == [[0, 1], [2, 3], [3, 0]]

    def test_padding_matches_nothing(self, device):
        desc1, desc2 = descriptors(device, 2, 9, 16), descriptors(device, 2, 7, 16, seed=1)
        padded1, padded2 = F.pad(desc1, (0, 0, 0, 3)), F.pad(desc2, (0, 0, 0, 4))  # zeros: equal to one another
        valid1 = (torch.arange(12, device=device) < 9).expand(2, -1)
        valid2 = (torch.arange(11, device=device) < 7).expand(2, -1)
        matches = MutualNearestNeighbor().match_padded(padded1, padded2, valid1, valid2)
        assert (matches.idxs[:, 9:] == -1).all() and matches.dists[:, 9:].isinf().all()
        for b in range(2):
            dists, idxs = MutualNearestNeighbor()(desc1[b], desc2[b])
            matched = (matches.idxs[b] >= 0).nonzero()[:, 0]
            assert torch.equal(torch.stack([matched, matches.idxs[b][matched]], 1), idxs)
            assert torch.equal(matches.dists[b][matched, None], dists)

    def test_dynamo(self, device):
        matcher = MutualNearestNeighbor(0.95)
        desc1, desc2 = descriptors(device, 2, 9, 16), descriptors(device, 2, 7, 16, seed=1)
        compiled = torch.compile(matcher.match_padded, fullgraph=True)(desc1, desc2)
        assert all(torch.equal(a, b) for a, b in zip(compiled, matcher.match_padded(desc1, desc2), strict=True))

    def test_module(self):
        assert "ratio=0.9" in repr(MutualNearestNeighbor(0.9))
        assert MutualNearestNeighbor(0.9).state_dict() == {}


class TestMutualSoftmaxMatcher:
    def test_probabilities(self, device):
        desc1, desc2 = descriptors(device, 8, 16), descriptors(device, 9, 16, seed=1)
        distribution = MutualSoftmaxMatcher(20.0).to(device)(desc1, desc2)
        torch.testing.assert_close(distribution.probabilities(), mutual_softmax(desc1, desc2, 20.0))
        torch.testing.assert_close(distribution.log_probabilities().exp(), distribution.probabilities())

    def test_samples_have_the_probabilities(self, device):
        desc1, desc2 = descriptors(device, 3, 4), descriptors(device, 4, 4, seed=1)
        distribution = MutualSoftmaxMatcher(3.0).to(device)(desc1, desc2)
        generator = torch.Generator(device).manual_seed(0)
        counts, draws = torch.zeros(3, 4, device=device), 4000
        for _ in range(draws):
            rows, columns = distribution.sample(generator).T
            counts[rows, columns] += 1
        expected = distribution.probabilities()
        deviation = (counts / draws - expected) / (expected * (1 - expected) / draws).sqrt()
        assert deviation.abs().max() < 4.5

    def test_mle_is_mutual_nearest_neighbours(self, device):
        desc1, desc2 = descriptors(device, 30, 16), descriptors(device, 40, 16, seed=1)
        pairs = MutualSoftmaxMatcher()(desc1, desc2).mle()
        assert torch.equal(pairs, MutualNearestNeighbor()(desc1, desc2)[1])
        sharp = MutualSoftmaxMatcher(1e6).to(device)(desc1, desc2).sample()
        assert torch.equal(sharp, pairs)

    @pytest.mark.parametrize(("rows", "columns"), [(0, 0), (0, 5), (5, 0)])
    def test_nothing_to_match(self, device, rows, columns):
        distribution = MutualSoftmaxMatcher().to(device)(
            torch.rand(rows, 8, device=device), torch.rand(columns, 8, device=device)
        )
        assert distribution.sample().shape == distribution.mle().shape == (0, 2)
        assert distribution.probabilities().shape == (rows, columns)

    def test_temperature_can_be_learned(self, device):
        matcher = MutualSoftmaxMatcher(5.0, learnable=True).to(device)
        matcher(descriptors(device, 4, 8), descriptors(device, 5, 8, seed=1)).probabilities().sum().backward()
        assert matcher.inverse_temperature.grad is not None and matcher.inverse_temperature.grad != 0
        assert set(MutualSoftmaxMatcher().state_dict()) == {"inverse_temperature"}

    def test_exception(self):
        for value in (0, -1.0, math.nan, math.inf, 1e39, "5"):
            with pytest.raises(
                (ValueError, TypeError), match=f"inverse_temperature must be .* got .*{re.escape(str(value))}"
            ):
                MutualSoftmaxMatcher(value)
        with pytest.raises(ValueError, match=r"desc1 must have shape \[N, D\], got \[1, 4, 8\]"):
            MutualSoftmaxMatcher()(torch.rand(1, 4, 8), torch.rand(1, 4, 8))


def test_distance_matrix_module(device):
    desc1, desc2 = descriptors(device, 4, 8), descriptors(device, 5, 8, seed=1)
    assert torch.equal(DistanceMatrix()(desc1, desc2), distance_matrix(desc1, desc2))
