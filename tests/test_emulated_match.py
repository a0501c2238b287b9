"""The CUDA kernels of distances and matches, run on the CPU by the emulator, against the reference in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from disk_ops import reference_reward

pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("emulated_ops")]

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-5, torch.bfloat16: 2e-5, torch.float64: 1e-11}
OUTPUT = {torch.float16: 1e-3, torch.bfloat16: 1e-2}  # of gradients, which come in the descriptors' dtype


def result_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def unit_rows(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(rows, dim=-1).to(dtype)


def numbers(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(result_dtype(dtype))


def geometry(batch: int, rows: int, columns: int, dtype: torch.dtype, warped: bool, fundamental: bool) -> list:
    """Keypoints in a small image, their places in the other image with noise and gaps, and a matrix of rank 2."""
    size = 12.0
    keypoints1 = numbers(batch, rows, 2, dtype=dtype, seed=1).sigmoid() * size
    keypoints2 = numbers(batch, columns, 2, dtype=dtype, seed=2).sigmoid() * size
    warped1 = keypoints1 + numbers(batch, rows, 2, dtype=dtype, seed=3)
    warped2 = keypoints2 + numbers(batch, columns, 2, dtype=dtype, seed=4)
    warped1[:, ::3] = math.nan
    warped2[:, 1::4, 1] = math.nan
    u, v, w = (numbers(batch, 3, dtype=dtype, seed=seed) for seed in (5, 6, 7))
    matrix = u[:, :, None] * v[:, None] + w[:, :, None] * u[:, None]
    return [keypoints1, keypoints2, *((warped1, warped2) if warped else (None, None)), matrix if fundamental else None]


def double(argument: Any) -> Any:
    return argument.double() if isinstance(argument, Tensor) and argument.is_floating_point() else argument


def assert_near(actual: Tensor, expected: Tensor, tolerance: float, name: str, least: float = 1.0) -> None:
    """Near relative to the largest of the expected numbers and to ``least``: sums cancel."""
    finite = expected[expected.isfinite()]
    scale = max(least, finite.abs().max().item()) if finite.numel() else least
    torch.testing.assert_close(
        actual.double(), expected.double(), rtol=tolerance, atol=tolerance * scale, equal_nan=True,
        msg=lambda text: f"{name}: {text}",
    )  # fmt: skip


class TestDistanceMatrix:
    def check(self, desc1: Tensor, desc2: Tensor) -> Tensor:  # [B, N, D], [B, M, D]
        actual = torch.ops.disk_ops_emu.distance_matrix(desc1, desc2)
        expected = reference_reward.distance_matrix(desc1.double(), desc2.double())
        assert actual.dtype == result_dtype(desc1.dtype)
        tolerance = 1e-12 if desc1.dtype == torch.float64 else 1e-5
        torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=0, equal_nan=True)
        return actual

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("sizes", [(1, 1, 1), (64, 32, 16), (65, 31, 17), (3, 70, 130), (33, 64, 7)], ids=str)
    def test_sizes(self, sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
        rows, columns, depth = sizes
        self.check(unit_rows(2, rows, depth, dtype=dtype), unit_rows(2, columns, depth, dtype=dtype, seed=1))

    @pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5), (2, 3, 4, 0)], ids=str)
    def test_empty(self, shape: tuple[int, int, int, int]) -> None:
        batch, rows, columns, depth = shape
        for dtype in DTYPES:
            distances = self.check(
                torch.ones(batch, rows, depth, dtype=dtype), torch.ones(batch, columns, depth, dtype=dtype)
            )
            assert distances.shape == (batch, rows, columns)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_near_equal(self, dtype: torch.dtype) -> None:
        desc = unit_rows(1, 20, 128, dtype=dtype)
        for step in (1e-3, 1e-2, 0.1, 0.2, 0.3):
            self.check(desc, desc + step * unit_rows(1, 20, 128, dtype=dtype, seed=1))
        assert (self.check(desc, desc)[0].diagonal() == 0).all()
        assert (self.check(desc * 0, desc[:, :3] * 0) == 0).all()

    def test_nan_and_layouts(self) -> None:
        desc1, desc2 = unit_rows(2, 24, 80), unit_rows(2, 66, 25, seed=1)
        desc1[1, 3, 4] = math.nan
        self.check(desc2[:, 1:, 1:], desc1[:1].expand(2, 24, 80).mT[:, ::2, :24])
        self.check(desc1, desc1[:, 1::2])
        huge = torch.full((1, 2, 4), 1e25)
        assert torch.ops.disk_ops_emu.distance_matrix(huge, huge).eq(0).all()


class TestMatches:
    """``match_statistics``, then ``_match_sums`` and ``_match_backward`` with what came before."""

    def check(
        self,
        desc1: Tensor,  # [B, N, D]
        desc2: Tensor,  # [B, M, D]
        rule: list,  # reward, keypoints1, keypoints2, warped1, warped2, fundamental
        theta: float = 12.0,
        valid1: Tensor | None = None,  # [B, N] bool
        valid2: Tensor | None = None,  # [B, M] bool
        weights: tuple[bool, bool, bool] = (False, False, False),
        official: bool = False,
        factor: float = 1.0,  # of the tolerance
    ) -> None:
        dtype = desc1.dtype
        (batch, rows, _), columns = desc1.shape, desc2.shape[1]
        tolerance = TOLERANCE[dtype] * factor
        first = [desc1, desc2, torch.tensor(theta, dtype=result_dtype(dtype)), valid1, valid2]
        statistics = torch.ops.disk_ops_emu.match_statistics(*first)
        expected = reference_reward.match_statistics(*map(double, first))
        for name, one, other in zip(("logsumexp1", "logsumexp2"), statistics, expected, strict=True):
            assert_near(one, other, tolerance, name)

        given = [numbers(batch, size, dtype=dtype, seed=8 + i) for i, size in enumerate((rows, columns, rows))]
        arguments = [*first, *(lse.to(result_dtype(dtype)) for lse in expected), *rule, 1.5, 1.0, -0.25, official]
        arguments += [weight if use else None for weight, use in zip(given, weights, strict=True)]
        actual = torch.ops.disk_ops_emu._match_sums(*arguments)
        sums = reference_reward._match_sums(*map(double, arguments))
        for name, one, other in zip(("sum1", "sum2", "probability1"), actual, sums, strict=True):
            assert_near(one, other, tolerance, name)

        for reward_gradient in (True, False):
            backward = [*arguments, *(total.to(result_dtype(dtype)) for total in sums[:2]), reward_gradient]
            gradients = torch.ops.disk_ops_emu._match_backward(*backward)
            wanted = reference_reward._match_backward(*map(double, backward))
            for name, one, other in zip(("grad1", "grad2", "theta", "reward"), gradients, wanted, strict=True):
                assert one.shape == other.shape
                coarse = OUTPUT.get(dtype, 0) if name.startswith("grad") else 0
                assert_near(one, other, max(3 * tolerance, coarse), name, max(1.0, theta))
            assert gradients[0].dtype == dtype and gradients[2].dtype == result_dtype(dtype)

    def dense(self, batch: int, rows: int, columns: int, dtype: torch.dtype) -> list:
        return [numbers(batch, rows, columns, dtype=dtype, seed=20), *[None] * 5]

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize(
        "sizes", [(1, 1, 1, 1), (2, 64, 32, 16), (1, 65, 33, 17), (2, 5, 70, 9), (1, 33, 66, 130)], ids=str
    )
    def test_sizes(self, sizes: tuple[int, int, int, int], dtype: torch.dtype) -> None:
        batch, rows, columns, depth = sizes
        desc1, desc2 = unit_rows(batch, rows, depth, dtype=dtype), unit_rows(batch, columns, depth, dtype=dtype, seed=1)
        self.check(desc1, desc2, self.dense(batch, rows, columns, dtype), weights=(True, True, True))

    @pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5), (2, 0, 0, 5), (2, 3, 4, 0)], ids=str)
    def test_empty(self, shape: tuple[int, int, int, int]) -> None:
        batch, rows, columns, depth = shape
        for dtype in DTYPES:
            desc1, desc2 = (torch.ones(batch, size, depth, dtype=dtype) for size in (rows, columns))
            self.check(desc1, desc2, self.dense(batch, rows, columns, dtype))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("official", [False, True])
    @pytest.mark.parametrize("given", [(False, False), (True, False), (False, True), (True, True)], ids=str)
    def test_geometry(self, given: tuple[bool, bool], official: bool, dtype: torch.dtype) -> None:
        rule = [None, *geometry(2, 40, 35, dtype, *given)]
        desc1, desc2 = unit_rows(2, 40, 8, dtype=dtype), unit_rows(2, 35, 8, dtype=dtype, seed=1)
        self.check(desc1, desc2, rule, official=official)
        self.check(desc1, desc2, rule, official=official, weights=(True, True, True))

    @pytest.mark.parametrize("weights", [(True, False, False), (False, True, False), (False, False, True)], ids=str)
    def test_single_weights(self, weights: tuple[bool, bool, bool]) -> None:
        for dtype in (torch.float32, torch.float64):
            desc1, desc2 = unit_rows(1, 20, 8, dtype=dtype), unit_rows(1, 25, 8, dtype=dtype, seed=1)
            self.check(desc1, desc2, [None, *geometry(1, 20, 25, dtype, True, True)], weights=weights)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_valid(self, dtype: torch.dtype) -> None:
        desc1, desc2 = unit_rows(3, 66, 12, dtype=dtype), unit_rows(3, 40, 12, dtype=dtype, seed=1)
        generator = torch.Generator().manual_seed(2)
        valid1, valid2 = (torch.rand(3, size, generator=generator) > 0.4 for size in (66, 40))
        valid1[1], valid2[2] = False, False
        rule = self.dense(3, 66, 40, dtype)
        rule[0].masked_fill_(~valid1[..., None], math.nan)  # rewards of masked pairs don't count
        self.check(desc1, desc2, rule, valid1=valid1, weights=(True, True, True))
        desc1[~valid1] = desc2[~valid2] = 0
        self.check(desc1, desc2, rule, valid1=valid1, valid2=valid2, weights=(True, False, True))

    def test_numbers_of_invalid_rows_do_not_matter(self) -> None:
        desc, valid = unit_rows(1, 20, 8), torch.arange(20)[None] % 3 > 0
        theta = torch.tensor(9.0)
        expected = torch.ops.disk_ops_emu.match_statistics(desc, desc, theta, valid, valid)
        for number in (math.nan, math.inf, 1e30):
            changed = desc.masked_fill(~valid[..., None], number)
            actual = torch.ops.disk_ops_emu.match_statistics(changed, changed, theta, valid, valid)
            assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))

    def test_nan_descriptors(self) -> None:
        desc = unit_rows(1, 20, 8)
        desc[0, 3, 1] = math.nan
        for one in torch.ops.disk_ops_emu.match_statistics(desc, unit_rows(1, 5, 8), torch.tensor(9.0), None, None):
            assert one[0].isnan().sum() in (1, 5)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("theta", [0.0, 1e-3, 300.0, 1e4])
    def test_temperatures(self, theta: float, dtype: torch.dtype) -> None:
        desc1, desc2 = unit_rows(1, 36, 8, dtype=dtype), unit_rows(1, 37, 8, dtype=dtype, seed=1)
        rule = self.dense(1, 36, 37, dtype)
        self.check(desc1, desc2, rule, theta=theta, weights=(True, True, True), factor=max(1.0, theta / 20))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_equal_descriptors(self, dtype: torch.dtype) -> None:
        desc1 = unit_rows(1, 9, 16, dtype=dtype).repeat(1, 4, 1)
        desc2 = torch.cat([desc1[:, :20], unit_rows(1, 20, 16, dtype=dtype, seed=1)], 1)
        self.check(desc1, desc2, self.dense(1, 36, 40, dtype), weights=(True, True, False))
        self.check(desc1 * 0, desc2 * 0, self.dense(1, 36, 40, dtype), weights=(True, True, False))

    def test_layouts(self) -> None:
        rule = [numbers(40, 2, 30, dtype=torch.float32, seed=3).permute(1, 2, 0), *[None] * 5]
        self.check(
            unit_rows(2, 8, 30).mT, unit_rows(1, 40, 8, seed=1).expand(2, 40, 8), rule, weights=(True, True, True)
        )
        rule[0] = numbers(1, 1, 40, dtype=torch.float32, seed=3).expand(2, 30, 40)
        self.check(unit_rows(2, 30, 9)[..., 1:], unit_rows(2, 40, 8, seed=1), rule, weights=(True, False, False))

    def test_no_reward_and_no_weights(self) -> None:
        """What the gradient of the log-sum-exps alone needs."""
        desc1, desc2, theta = unit_rows(1, 20, 8), unit_rows(1, 30, 8, seed=1), torch.tensor(9.0)
        statistics = reference_reward.match_statistics(desc1, desc2, theta, None, None)
        sums = numbers(1, 20, dtype=torch.float32, seed=1), numbers(1, 30, dtype=torch.float32, seed=2)
        arguments = [
            desc1,
            desc2,
            theta,
            None,
            None,
            *statistics,
            *[None] * 6,
            1.5,
            1.0,
            -0.25,
            False,
            *[None] * 3,
            *sums,
        ]
        actual = torch.ops.disk_ops_emu._match_backward(*arguments, True)
        expected = reference_reward._match_backward(*map(double, [*arguments, True]))
        for one, other in zip(actual, expected, strict=True):
            assert_near(one, other, 1e-4, "gradient")

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_schedules(self, dtype: torch.dtype, schedule: int) -> None:
        rule = [None, *geometry(2, 70, 66, dtype, True, True)]
        desc1, desc2 = unit_rows(2, 70, 20, dtype=dtype), unit_rows(2, 66, 20, dtype=dtype, seed=1)
        self.check(desc1, desc2, rule, weights=(True, True, True))

    def test_ranges_of_several_tiles(self) -> None:
        """More tiles than ranges, in either direction; the same bits in any schedule."""
        desc1, desc2, theta = (
            unit_rows(1, 1090, 2, dtype=torch.float64),
            unit_rows(1, 40, 2, dtype=torch.float64, seed=1),
            3.0,
        )
        self.check(desc1, desc2, self.dense(1, 1090, 40, torch.float64), theta, weights=(True, True, True))
        self.check(desc2, desc1, self.dense(1, 40, 1090, torch.float64), theta, weights=(True, True, True))
        outcomes = []
        for seed in (1, 2):
            torch.ops.disk_ops_emu.set_seed(seed)
            outcomes.append(
                torch.ops.disk_ops_emu.match_statistics(desc1, desc2, torch.tensor(theta).double(), None, None)
            )
        torch.ops.disk_ops_emu.set_seed(0)
        assert all(torch.equal(one, other) for one, other in zip(*outcomes, strict=True))

    def test_errors_name_the_argument(self) -> None:
        desc, theta = torch.zeros(1, 4, 8), torch.tensor(1.0)
        op = torch.ops.disk_ops_emu.match_statistics
        for match, arguments in {
            r"desc1 must have shape \[B, N, D\]": (desc[0], desc, theta, None, None),
            "desc2 must be": (desc, desc.double(), theta, None, None),
            "inverse_temperature must": (desc, desc, theta[None], None, None),
            "valid2 must be": (desc, desc, theta, None, torch.ones(1, 4)),
        }.items():
            with pytest.raises((RuntimeError, ValueError, TypeError), match=match):
                op(*arguments)
