"""disk_ops.ops.match: distances, match probabilities and the expected reward."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from disk_ops.ops import MatchGeometry, distance_matrix, expected_reward, match_statistics, mutual_softmax

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
Sample = tuple[str, Tensor, Tensor, Tensor | None, Tensor | None]


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 1e-9, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 2e-5}


def sample_inputs(device: torch.device, dtype: torch.dtype = torch.float32) -> Iterator[Sample]:
    """Every edge case once, as (what it is, desc1, desc2, valid1, valid2)."""
    generator = torch.Generator().manual_seed(5)

    def descriptors(*shape: int) -> Tensor:
        return F.normalize(torch.randn(*shape, generator=generator), dim=-1).to(device, dtype)

    def flags(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator).to(device) > 0.3

    yield "plain", descriptors(1, 30, 32), descriptors(1, 41, 32), None, None
    yield "several blocks", descriptors(1, 260, 16), descriptors(1, 150, 16), None, None
    yield "batch", descriptors(3, 20, 16), descriptors(3, 25, 16), None, None
    for rows, columns in ((0, 4), (4, 0), (0, 0), (1, 1), (1, 5), (5, 1)):
        yield f"{rows} against {columns}", descriptors(2, rows, 8), descriptors(2, columns, 8), None, None
    yield "no images", descriptors(0, 4, 8), descriptors(0, 3, 8), None, None
    yield "valid", descriptors(2, 20, 16), descriptors(2, 30, 16), flags(2, 20), flags(2, 30)
    nobody = torch.zeros(2, 30, dtype=torch.bool, device=device)
    yield "nobody valid", descriptors(2, 20, 16), descriptors(2, 30, 16), flags(2, 20), nobody
    same = descriptors(1, 25, 16)
    yield "equal sets", same, same.clone(), None, None
    yield "not contiguous", descriptors(1, 16, 20).mT, descriptors(1, 50, 32)[:, ::2, ::2], None, None


def materialised(desc1, desc2, theta, valid1, valid2, absent=-math.inf):
    """Distances, row and column log-sum-exps and P in float64, every matrix written out."""
    a, b = desc1.double(), desc2.double()
    distance = (a[:, :, None] - b[:, None]).square().sum(-1).sqrt()
    logits = -theta * distance
    keep = torch.ones_like(logits, dtype=torch.bool)
    if valid1 is not None:
        keep &= valid1[..., None]
    if valid2 is not None:
        keep &= valid2[:, None]
    logits = logits.masked_fill(~keep, absent)
    row, column = logits.logsumexp(2), logits.logsumexp(1)
    probability = ((logits - row[..., None]).exp() * (logits - column[:, None]).exp()).masked_fill(~keep, 0)
    return distance, row, column, probability


def geometry(device: torch.device, desc1: Tensor, desc2: Tensor, **change: object) -> MatchGeometry:
    """Keypoints of which a third correspond, some without depth, and an epipolar geometry of horizontal lines."""
    generator = torch.Generator().manual_seed(1)
    batch, rows, columns = *desc1.shape[:2], desc2.shape[1]
    keypoints1 = torch.rand(batch, rows, 2, generator=generator) * 30
    keypoints2 = torch.rand(batch, columns, 2, generator=generator) * 30
    shared = min(rows, columns) // 3
    keypoints2[:, :shared] = keypoints1[:, :shared] + torch.tensor([5.0, 0.5])
    warped1, warped2 = keypoints1 + torch.tensor([5.0, 0.0]), keypoints2 - torch.tensor([5.0, 0.0])
    warped1[:, 1::4], warped2[:, ::5] = math.nan, math.nan
    rectified = torch.tensor([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]]).expand(batch, 3, 3)
    fields = {
        "keypoints1": keypoints1,
        "keypoints2": keypoints2,
        "warped1": warped1,
        "warped2": warped2,
        "fundamental": rectified,
    }
    moved = {name: field.to(device) for name, field in fields.items()} | change
    return MatchGeometry(**moved)


def rewards_of(rule: MatchGeometry) -> Tensor:
    """The reward of every pair, by the definition, pair by pair."""
    keypoints1, keypoints2 = rule.keypoints1.double().cpu(), rule.keypoints2.double().cpu()
    result = torch.zeros(*keypoints1.shape[:2], keypoints2.shape[1], dtype=torch.float64)
    for b, i, j in itertools.product(*map(range, result.shape)):
        x1, x2 = keypoints1[b, i], keypoints2[b, j]
        consistent = False
        if rule.fundamental is not None:
            matrix = rule.fundamental[b].double().cpu()
            line2, line1 = matrix @ torch.cat([x1, torch.ones(1)]).double(), matrix.mT @ torch.cat([x2, torch.ones(1)])
            residual = line2[:2] @ x2 + line2[2]
            near = [abs(residual) < rule.epsilon * line[:2].norm() for line in (line1, line2)]
            consistent = bool(near[0] and near[1])
        correct, unknown = consistent, False
        if rule.warped1 is not None:
            w1, w2 = rule.warped1[b, i].double().cpu(), rule.warped2[b, j].double().cpu()
            unknown = bool(w1.isnan().any() or w2.isnan().any())
            correct = not unknown and bool((w1 - x2).norm() < rule.epsilon and (w2 - x1).norm() < rule.epsilon)
            plausible = consistent and (unknown or rule.rule == "official")
        else:
            plausible = False
        result[b, i, j] = rule.lambda_tp if correct else 0.0 if plausible else rule.lambda_fp
    return result.to(rule.keypoints1.device)


class TestDistanceMatrix:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_feature(self, device, dtype):
        for name, desc1, desc2, _, _ in sample_inputs(device, dtype):
            distance = distance_matrix(desc1, desc2)
            expected = materialised(desc1, desc2, 1.0, None, None)[0]
            assert distance.dtype == torch.promote_types(dtype, torch.float32), name
            torch.testing.assert_close(distance.double(), expected, rtol=1e-5, atol=1e-6, msg=name)

    def test_accurate_near_zero(self, device):
        desc = F.normalize(torch.randn(100, 128, device=device, dtype=torch.float64), dim=-1)
        for size in (0.0, 1e-3, 1e-2, 0.1, 0.3):
            near = desc + size / math.sqrt(128) * torch.randn_like(desc).sign()
            distance = distance_matrix(desc.float(), near.float()).diagonal().double()
            exact = (desc.float().double() - near.float().double()).norm(dim=-1)
            torch.testing.assert_close(distance, exact, rtol=1e-5, atol=0.0)

    def test_unbatched(self, device):
        desc1, desc2 = torch.randn(5, 8, device=device), torch.randn(6, 8, device=device)
        assert torch.equal(distance_matrix(desc1, desc2), distance_matrix(desc1[None], desc2[None])[0])

    def test_gradcheck(self, device):
        desc1, desc2 = (torch.randn(2, n, 3, device=device, dtype=torch.float64, requires_grad=True) for n in (4, 5))
        assert torch.autograd.gradcheck(distance_matrix, (desc1, desc2))

    def test_gradient_at_zero_is_zero(self, device):
        desc = torch.randn(4, 8, device=device, requires_grad=True)
        distance_matrix(desc, desc.detach().clone()).diagonal().sum().backward()
        assert not desc.grad.any()


class TestMatchStatistics:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("theta", [0.0, 15.0, 1e4])
    def test_feature(self, device, dtype, theta):
        for name, desc1, desc2, valid1, valid2 in sample_inputs(device, dtype):
            # A tensor may be 0, a number may not.
            row, column = match_statistics(desc1, desc2, torch.tensor(theta), valid1, valid2)
            _, expected_row, expected_column, _ = materialised(desc1, desc2, theta, valid1, valid2)
            scale = max(theta, 1.0) * (1e-12 if dtype == torch.float64 else 3e-6)
            torch.testing.assert_close(row.double(), expected_row, rtol=1e-5, atol=scale, msg=name)
            torch.testing.assert_close(column.double(), expected_column, rtol=1e-5, atol=scale, msg=name)

    def test_gradcheck(self, device):
        desc1, desc2 = (torch.randn(2, n, 3, device=device, dtype=torch.float64, requires_grad=True) for n in (4, 5))
        theta = torch.tensor(3.0, device=device, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(match_statistics, (desc1, desc2, theta))


class TestMutualSoftmax:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_feature(self, device, dtype):
        for name, desc1, desc2, valid1, valid2 in sample_inputs(device, dtype):
            probability = mutual_softmax(desc1, desc2, 15.0, valid1, valid2)
            expected = materialised(desc1, desc2, 15.0, valid1, valid2)[3]
            torch.testing.assert_close(probability.double(), expected, **tolerance(dtype), msg=name)
            log = mutual_softmax(desc1, desc2, 15.0, valid1, valid2, return_log=True)
            assert torch.equal(log.exp(), probability), name

    def test_it_is_a_probability(self, device):
        desc1, desc2 = torch.randn(20, 8, device=device), torch.randn(30, 8, device=device)
        probability = mutual_softmax(desc1, desc2, 4.0)
        assert (probability >= 0).all() and (probability.sum(0) <= 1).all() and (probability.sum(1) <= 1).all()

    def test_gradcheck(self, device):
        desc1, desc2 = (torch.randn(2, n, 3, device=device, dtype=torch.float64, requires_grad=True) for n in (4, 5))
        theta = torch.tensor(3.0, device=device, dtype=torch.float64, requires_grad=True)
        valid = torch.rand(2, 4, device=device) > 0.3
        for log in (False, True):
            assert torch.autograd.gradcheck(
                lambda a, b, t, log=log: mutual_softmax(a, b, t, None if log else valid, None, log),
                (desc1, desc2, theta),
            )


class TestExpectedReward:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("kind", ["dense", "depth", "official", "homography", "epipolar"])
    def test_feature(self, device, dtype, kind):
        for name, desc1, desc2, valid1, valid2 in sample_inputs(device, dtype):
            if kind == "dense":
                reward: Tensor | MatchGeometry = torch.randn(*desc1.shape[:2], desc2.shape[1], device=device)
                matrix = reward.double()
            else:
                change = {
                    "depth": {},
                    "official": {"rule": "official"},
                    "homography": {"fundamental": None},
                    "epipolar": {"warped1": None, "warped2": None},
                }[kind]
                reward = geometry(device, desc1, desc2, **change)
                if reward.keypoints1.shape[1] > 100:
                    continue
                matrix = rewards_of(reward)
            result = expected_reward(desc1, desc2, 15.0, reward, valid1, valid2)
            probability = materialised(desc1, desc2, 15.0, valid1, valid2)[3]
            expected = ((probability * matrix).sum(2), (probability * matrix).sum(1), probability.sum((1, 2)))
            for ours, exact in zip(result, expected, strict=False):
                torch.testing.assert_close(ours.double(), exact, **tolerance(dtype), msg=f"{name}, {kind}")
            count1 = desc1.shape[1] if valid1 is None else valid1.sum(1)
            assert (result.count1 == count1).all() and result.count1.shape == desc1.shape[:1], name

    def test_gradients_are_those_of_the_materialised_formula(self, device):
        for name, desc1, desc2, valid1, valid2 in sample_inputs(device, torch.float64):
            if "equal" in name:
                continue  # distances of 0 have no derivative in the materialised formula
            reward = torch.randn(*desc1.shape[:2], desc2.shape[1], device=device, dtype=torch.float64)
            theta = torch.tensor(9.0, device=device, dtype=torch.float64)
            leaves = [leaf.detach().clone().requires_grad_() for leaf in (desc1, desc2, theta, reward)]
            result = expected_reward(leaves[0], leaves[1], leaves[2], leaves[3], valid1, valid2)
            # An empty softmax has no derivative in torch; one over numbers that are as good as -inf has.
            probability = materialised(*leaves[:3], valid1, valid2, absent=-1e30)[3]
            weight1, weight2 = torch.randn_like(result.reward1), torch.randn_like(result.reward2)
            ours = (result.reward1 * weight1).sum() + (result.reward2 * weight2).sum() + result.matches.sum()
            weighted = probability * leaves[3] * (weight1[..., None] + weight2[:, None]) + probability
            for total, exact in ((ours, weighted.sum()), (result.reward1.sum(), (probability * leaves[3]).sum())):
                mine = torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)
                theirs = torch.autograd.grad(exact, leaves, retain_graph=True, allow_unused=True)
                for a, b in zip(mine, theirs, strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-10, msg=name)

    def test_gradcheck(self, device):
        desc1, desc2 = (torch.randn(2, n, 3, device=device, dtype=torch.float64, requires_grad=True) for n in (4, 5))
        theta = torch.tensor(3.0, device=device, dtype=torch.float64, requires_grad=True)
        reward = torch.randn(2, 4, 5, device=device, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda *x: expected_reward(*x)[:3], (desc1, desc2, theta, reward))

    def test_half_precision_gradients_are_halves(self, device):
        desc1, desc2 = (torch.randn(n, 8, device=device).half().requires_grad_() for n in (4, 5))
        expected_reward(desc1, desc2, 5.0, torch.randn(4, 5, device=device)).reward1.sum().backward()
        assert desc1.grad.dtype == torch.float16 and desc1.grad.isfinite().all()

    def test_padding_changes_nothing(self, device):
        desc1, desc2 = torch.randn(2, 12, 16, device=device), torch.randn(2, 9, 16, device=device)
        reward = torch.randn(2, 12, 9, device=device)
        valid1 = (torch.arange(15, device=device) < 12).expand(2, -1)
        valid2 = (torch.arange(13, device=device) < 9).expand(2, -1)
        plain = expected_reward(desc1, desc2, 5.0, reward)
        padded = expected_reward(
            F.pad(desc1, (0, 0, 0, 3)), F.pad(desc2, (0, 0, 0, 4)), 5.0, F.pad(reward, (0, 4, 0, 3)), valid1, valid2
        )
        torch.testing.assert_close(padded.reward1[:, :12], plain.reward1)
        torch.testing.assert_close(padded.matches, plain.matches)
        assert not padded.reward1[:, 12:].any() and not padded.reward2[:, 9:].any()

    @pytest.mark.parametrize("threads", [2, 3])
    def test_result_does_not_depend_on_threads(self, device, threads):
        desc1, desc2 = torch.randn(2, 500, 32, device=device), torch.randn(2, 450, 32, device=device)
        reward = torch.randn(2, 500, 450, device=device)

        def compute():
            leaves = [leaf.clone().requires_grad_() for leaf in (desc1, desc2)]
            result = expected_reward(*leaves, 10.0, reward)
            return (*result, *torch.autograd.grad(result.reward1.sum() + result.reward2.square().sum(), leaves))

        before = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            alone = compute()
            torch.set_num_threads(threads)
            together = compute()
        finally:
            torch.set_num_threads(before)
        assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"desc1": torch.rand(4)}, ValueError, r"desc1 must have shape \[N, D\] or \[B, N, D\], got \[4\]"),
            ({"desc2": torch.rand(5, 9)}, ValueError, r"desc2 must have the rank.* got \[5, 9\]"),
            ({"desc2": torch.rand(5, 8).double()}, TypeError, "desc2 must be of dtype torch.float32"),
            ({"reward": torch.rand(4, 4)}, ValueError, r"reward must have shape \[4, 5\], got \[4, 4\]"),
            ({"reward": 1.0}, TypeError, "reward must be a tensor or a MatchGeometry, got float"),
            ({"valid1": torch.ones(5) > 0}, ValueError, r"valid1 must have shape \[4\], got \[5\]"),
            ({"valid2": torch.ones(5)}, TypeError, r"valid2 must be of dtype bool, got torch\.float32"),
            ({"inverse_temperature": torch.ones(2)}, ValueError, r"inverse_temperature must be a number .* got \[2\]"),
            ({"inverse_temperature": torch.tensor(1j)}, TypeError, "inverse_temperature must be real, got .*complex64"),
            ({"reward": torch.rand(4, 5) + 0j}, TypeError, "reward must be real, got torch.complex64"),
            ({"desc1": np.zeros((4, 8), np.float32)}, TypeError, "desc1 must be a tensor, got ndarray"),
            ({"valid2": np.ones(5, bool)}, TypeError, "valid2 must be a tensor, got ndarray"),
        ],
    )
    def test_exception(self, device, change, error, message):
        arguments = {
            "desc1": torch.rand(4, 8),
            "desc2": torch.rand(5, 8),
            "inverse_temperature": 5.0,
            "reward": torch.rand(4, 5),
        } | change
        with pytest.raises(error, match=message):
            expected_reward(**{k: v.to(device) if isinstance(v, Tensor) else v for k, v in arguments.items()})

    @pytest.mark.parametrize("op", [match_statistics, mutual_softmax, expected_reward])
    @pytest.mark.parametrize("theta", [0, -5.0, math.nan, math.inf, 1e39, "5", True])
    def test_temperatures_that_are_no_positive_numbers(self, device, op, theta):
        desc, reward = torch.rand(4, 8, device=device), [torch.ones(4, 4, device=device)] * (op is expected_reward)
        with pytest.raises(
            (ValueError, TypeError), match=f"inverse_temperature must be .* got .*{re.escape(str(theta))}"
        ):
            op(desc, desc, theta, *reward)

    def test_a_number_is_as_large_as_the_dtype_that_it_is_computed_in_holds(self, device):
        desc = torch.eye(2, dtype=torch.float64, device=device)
        assert mutual_softmax(desc, desc, 1e39).tolist() == [[1, 0], [0, 1]]

    @pytest.mark.parametrize("op", [match_statistics, mutual_softmax])
    @pytest.mark.parametrize("name", ["valid1", "valid2"])
    def test_flags_of_another_device_are_refused(self, device, op, name):
        desc, valid = torch.rand(4, 8, device=device), torch.ones(4, dtype=torch.bool, device="meta")
        with pytest.raises(ValueError, match=f"{name} must be on the device of its descriptors"):
            op(desc, desc, 5.0, **{name: valid})


@pytest.mark.parametrize("op", ["distance_matrix", "match_statistics", "_match_sums", "_match_backward"])
def test_opcheck(device, op):
    for _, desc1, desc2, valid1, valid2 in sample_inputs(device):
        if desc1.shape[1] * desc2.shape[1] > 1000:
            continue
        theta = torch.tensor(5.0, device=device)
        rule = geometry(device, desc1, desc2)
        fields = (rule.keypoints1, rule.keypoints2, rule.warped1, rule.warped2, rule.fundamental)
        pair = (desc1, desc2, theta, valid1, valid2)
        statistics = match_statistics(desc1.contiguous(), desc2.contiguous(), theta, valid1, valid2)
        ones1 = torch.ones_like(statistics[0])
        sums = (*pair, *statistics, None, *fields, 1.5, 1.0, -0.25, False)
        arguments = {
            "distance_matrix": (desc1, desc2),
            "match_statistics": pair,
            "_match_sums": (*sums, None, None, None),
            "_match_backward": (*sums, ones1, None, None, ones1, torch.ones_like(statistics[1]), False),
        }[op]
        torch.library.opcheck(getattr(torch.ops.disk_ops, op).default, arguments)


def test_dynamo(device):
    desc1, desc2 = torch.randn(6, 8, device=device), torch.randn(7, 8, device=device)
    reward = torch.randn(6, 7, device=device)

    def loss(a, b, theta):
        result = expected_reward(a, b, theta, reward)
        return result.reward1.sum() + (mutual_softmax(a, b, theta) * reward).sum() + distance_matrix(a, b).mean()

    results = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaves = [leaf.clone().requires_grad_() for leaf in (desc1, desc2, torch.tensor(4.0, device=device))]
        value = function(*leaves)
        results.append((value, *torch.autograd.grad(value, leaves)))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)
