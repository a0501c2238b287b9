"""The CUDA kernels, run on the CPU by the emulator, against the reference: all of their paths, in several schedules."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from disk_ops import reference

pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("emulated_ops")]

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def random_heatmap(*shape: int, values: int | None = None, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Normally distributed scores, or whole numbers from 0 to ``values`` - 1 for plateaus and ties."""
    generator = torch.Generator().manual_seed(seed)
    if values is None:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, values, shape, generator=generator).to(dtype)


class TestNMSTopK:
    def check(
        self,
        heatmap: Tensor,  # [B, 1, H, W]
        n: int | None = 40,
        window_size: int = 5,
        score_threshold: float | None = 0.0,
        border: int = 0,
        mask: Tensor | None = None,  # [B, 1, H, W] bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        arguments = (heatmap, n, window_size, score_threshold, border, mask)
        actual = torch.ops.disk_ops_emu.nms_topk(*arguments)
        for name, one, other in zip(
            ("keypoints", "scores", "valid"), actual, reference.nms_topk(*arguments), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}")
        return actual

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("window_size", [1, 3, 5, 9, 17, 33, 35, 201])
    def test_windows(self, window_size: int, dtype: torch.dtype) -> None:
        self.check(random_heatmap(2, 1, 37, 67, dtype=dtype), window_size=window_size, border=1)
        self.check(random_heatmap(1, 1, 37, 67, values=40, dtype=dtype), n=None, window_size=window_size)

    @pytest.mark.parametrize("window_size", [5, 11, 35])
    def test_schedules(self, window_size: int, schedule: int) -> None:
        self.check(random_heatmap(2, 1, 33, 65, values=30), n=70, window_size=window_size)
        self.check(random_heatmap(1, 1, 70, 70, values=3000), n=4500, window_size=1)

    @pytest.mark.parametrize("window_size", [1, 3, 9, 99])
    @pytest.mark.parametrize("shape", [(1, 1), (1, 90), (90, 1), (2, 3), (32, 32), (33, 31), (64, 96)], ids=str)
    def test_shapes(self, shape: tuple[int, int], window_size: int) -> None:
        for dtype in (torch.float32, torch.float64):
            heatmap = random_heatmap(2, 1, *shape, dtype=dtype, values=50)
            self.check(heatmap, n=None, window_size=window_size, score_threshold=None)

    @pytest.mark.parametrize("shape", [(0, 1, 5, 5), (2, 1, 0, 5), (2, 1, 5, 0)], ids=str)
    @pytest.mark.parametrize("n", [3, None])
    def test_empty(self, shape: tuple[int, ...], n: int | None) -> None:
        self.check(torch.zeros(shape), n=n)

    @pytest.mark.parametrize("window_size", [3, 9, 41])
    def test_plateaus_keep_their_first_pixel(self, window_size: int) -> None:
        for values in (1, 2, 3):
            self.check(random_heatmap(2, 1, 40, 40, values=values), n=None, window_size=window_size)
        _, _, valid = self.check(torch.ones(1, 1, 40, 40), n=None, window_size=101)
        assert valid.shape == (1, 1)

    @pytest.mark.parametrize("window_size", [3, 39])
    def test_zeros_of_both_signs_tie(self, window_size: int) -> None:
        for dtype in DTYPES:
            heatmap = random_heatmap(1, 1, 9, 50, values=2, dtype=dtype) * -0.0
            self.check(heatmap, n=None, window_size=window_size, score_threshold=-1.0)
        spread = torch.tensor([-0.0, -5.0, 0.0, -5.0, 0.0, -5.0, -0.0]).view(1, 1, 1, 7)
        keypoints, _, _ = self.check(spread, n=3, window_size=3, score_threshold=None)
        assert keypoints[0, :, 0].tolist() == [0, 2, 4]

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("window_size", [3, 37])
    def test_nan_infinity_and_masks(self, window_size: int, dtype: torch.dtype) -> None:
        heatmap = random_heatmap(2, 1, 30, 45, dtype=dtype)
        heatmap[0, 0, ::7, ::5] = math.nan
        heatmap[1, 0, ::4, ::6] = math.inf
        heatmap[1, 0, 1::4, 1::6] = -math.inf
        mask = random_heatmap(2, 1, 30, 45, values=3) > 0
        for threshold in (None, 0.25):
            self.check(heatmap, n=60, window_size=window_size, score_threshold=threshold, mask=mask)
        self.check(heatmap, n=7, window_size=window_size, mask=torch.zeros_like(mask))
        self.check(torch.full_like(heatmap, math.nan), n=None, window_size=window_size, score_threshold=None)
        self.check(torch.full_like(heatmap, -math.inf), n=None, window_size=window_size, score_threshold=None)

    @pytest.mark.parametrize("border", [0, 1, 15, 16, 40, 2**40])
    def test_border(self, border: int) -> None:
        for window_size in (5, 45):
            self.check(random_heatmap(1, 1, 31, 50), window_size=window_size, border=border)

    def test_layouts(self) -> None:
        channels = random_heatmap(2, 5, 35, 40)
        mask = random_heatmap(2, 3, 35, 40, values=4) > 0
        for heatmap in (channels, channels.to(memory_format=torch.channels_last), channels.flip(0)):
            for window_size in (5, 41):
                self.check(heatmap[:, 3:4], window_size=window_size, mask=mask[:, 1:2])
        self.check(channels[:, :1].transpose(2, 3), mask=mask[:1, :1].transpose(2, 3).expand(2, 1, 40, 35))
        self.check(channels[:1, :1].expand(3, 1, 35, 40), n=None)
        self.check(channels[:, :1, 3::2, 1::3])

    @pytest.mark.parametrize("n", [1, 2, 3, 64, 65, 1000, 5000])
    def test_number(self, n: int) -> None:
        for dtype in (torch.float32, torch.float64):
            self.check(random_heatmap(2, 1, 40, 60, dtype=dtype, values=200), n=n, window_size=3)

    @pytest.mark.parametrize("n", [4000, 4097, 6000, None])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
    def test_lists_longer_than_a_sorted_chunk(self, dtype: torch.dtype, n: int | None) -> None:
        heatmap = random_heatmap(2, 1, 75, 76, dtype=dtype, values=900)
        self.check(heatmap, n=n, window_size=1, score_threshold=None)
        self.check(torch.zeros_like(heatmap), n=n, window_size=1, score_threshold=None)  # raster order alone decides

    @pytest.mark.parametrize("window_size", [3, 5, 35])
    def test_as_many_maxima_as_possible(self, window_size: int) -> None:
        step = window_size // 2 + 1
        heatmap = torch.zeros(2, 1, 5 * step - 1, 4 * step + 1)
        heatmap[:, :, ::step, ::step] = 1.0
        _, _, valid = self.check(heatmap, n=None, window_size=window_size)
        assert valid.shape == (2, 25) and valid.all()

    def test_errors_name_the_argument(self) -> None:
        op, heatmap = torch.ops.disk_ops_emu.nms_topk, torch.zeros(1, 1, 4, 4)
        for match, arguments in {
            r"heatmap must have shape \[B, 1, H, W\], got \[1, 4, 4\]": (heatmap[0], 3, 5, 0.0, 0, None),
            "heatmap must be float": (heatmap.int(), 3, 5, 0.0, 0, None),
            "n must be .*got 0": (heatmap, 0, 5, 0.0, 0, None),
            "window_size must be .*got 4": (heatmap, 3, 4, 0.0, 0, None),
            "border must be .*got -1": (heatmap, 3, 5, 0.0, -1, None),
            "mask must have": (heatmap, 3, 5, 0.0, 0, heatmap[..., :2].bool()),
            "mask must be": (heatmap, 3, 5, 0.0, 0, heatmap),
        }.items():
            with pytest.raises((RuntimeError, ValueError, TypeError), match=match):
                op(*arguments)


def unit_rows(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(rows, dim=-1).to(dtype)


def whole_rows(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Small whole numbers: every sum is exact, so that ties are ties in any order of addition."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class TestNearestNeighbors:
    def check(
        self,
        desc1: Tensor,  # [B, N, D]
        desc2: Tensor,  # [B, M, D]
        valid1: Tensor | None = None,  # [B, N] bool
        valid2: Tensor | None = None,  # [B, M] bool
        tiles: tuple[int, ...] = (1, 2),  # small, large
    ) -> None:
        expected = reference.nearest_neighbors(desc1, desc2, valid1, valid2)
        for tile in tiles if desc1.dtype != torch.float64 else (0,):
            actual = torch.ops.disk_ops_emu.nearest_neighbors_in_tiles(desc1, desc2, valid1, valid2, tile)
            for distances in (0, 2):
                torch.testing.assert_close(actual[distances], expected[distances], rtol=1e-5, atol=1e-6)
                assert torch.equal(actual[distances + 1], expected[distances + 1]), "indices"

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("sizes", [(127, 130), (128, 129), (64, 65), (1, 200), (3, 2)], ids=str)
    @pytest.mark.parametrize("make", [unit_rows, whole_rows])
    def test_sizes(self, make: Callable[..., Tensor], sizes: tuple[int, int], dtype: torch.dtype) -> None:
        rows, columns = sizes
        self.check(make(1, rows, 32, dtype=dtype, seed=1), make(1, columns, 32, dtype=dtype, seed=2))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("depth", [1, 7, 8, 128, 130])
    def test_dimensions(self, depth: int, dtype: torch.dtype) -> None:
        self.check(whole_rows(2, 33, depth, dtype=dtype, seed=3), whole_rows(2, 70, depth, dtype=dtype, seed=4))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("shapes", [(1, 0, 5), (1, 3, 0), (1, 0, 0), (0, 3, 4), (2, 1, 1), (1, 2, 1), (1, 1, 2)])
    def test_few_or_none(self, shapes: tuple[int, int, int], dtype: torch.dtype) -> None:
        batch, rows, columns = shapes
        self.check(unit_rows(batch, rows, 6, dtype=dtype), unit_rows(batch, columns, 6, dtype=dtype, seed=1))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_no_dimensions(self, dtype: torch.dtype) -> None:
        for tile in (1, 2):
            outcome = torch.ops.disk_ops_emu.nearest_neighbors_in_tiles(
                torch.zeros(1, 70, 0, dtype=dtype), torch.zeros(1, 3, 0, dtype=dtype), None, None, tile
            )
            for distances, indices in (outcome[:2], outcome[2:]):
                assert (distances == 0).all() and (indices == torch.tensor([0, 1])).all()

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_equal_rows_tie(self, dtype: torch.dtype) -> None:
        base = unit_rows(1, 9, 128, dtype=dtype)
        desc2 = base.repeat(1, 15, 1)  # each row 15 times, in different places of tiles
        for tile in (1, 2):
            distances1, indices1, distances2, indices2 = torch.ops.disk_ops_emu.nearest_neighbors_in_tiles(
                base, desc2, None, None, tile
            )
            assert (distances1 == 0).all() and (distances2[..., 0] == 0).all()
            assert torch.equal(indices1[0], torch.stack([torch.arange(9), torch.arange(9, 18)], dim=1))
            assert torch.equal(indices2[0, :, 0], torch.arange(9).repeat(15))
        self.check(whole_rows(1, 70, 3, dtype=dtype), whole_rows(1, 150, 3, dtype=dtype, seed=1))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_valid_and_nan(self, dtype: torch.dtype) -> None:
        desc1, desc2 = unit_rows(3, 66, 12, dtype=dtype), unit_rows(3, 40, 12, dtype=dtype, seed=1)
        valid1, valid2 = torch.rand(3, 66) > 0.4, torch.rand(3, 40) > 0.4
        self.check(desc1, desc2, valid1, None)
        desc1[0, 3, 5] = desc2[1, 4, 11] = desc2[1, 20] = math.nan
        valid2[2] = False
        valid1[1, 1:] = False
        self.check(desc1, desc2, valid1, valid2)
        self.check(desc1, desc2, None, valid2)
        self.check(torch.full_like(desc1, math.nan), desc2)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_layouts(self, dtype: torch.dtype) -> None:
        desc1, desc2 = unit_rows(2, 24, 80, dtype=dtype), unit_rows(2, 66, 25, dtype=dtype, seed=1)
        valid = (torch.rand(66, 2) > 0.2).T
        self.check(desc1.transpose(1, 2), desc2[:, :, 1:], None, valid)
        self.check(desc2[:, 1:, 1:], desc2[:1, :, 1:].expand(2, 66, 24))

    def test_unaligned_storage(self) -> None:
        storage = unit_rows(1, 1, 1 + 70 * 16).flatten()
        self.check(storage[1:].view(1, 70, 16), unit_rows(1, 40, 16, seed=1))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_schedules(self, dtype: torch.dtype, schedule: int) -> None:
        self.check(whole_rows(2, 66, 20, dtype=dtype), whole_rows(2, 131, 20, dtype=dtype, seed=1))

    def test_both_ways_agree(self) -> None:
        desc1, desc2 = unit_rows(1, 140, 128, seed=5), unit_rows(1, 90, 128, seed=6)
        there = torch.ops.disk_ops_emu.nearest_neighbors_in_tiles(desc1, desc2, None, None, 1)
        back = torch.ops.disk_ops_emu.nearest_neighbors_in_tiles(desc2, desc1, None, None, 2)
        for one, other in zip(there, (*back[2:], *back[:2]), strict=True):
            assert torch.equal(one, other)

    def test_errors_name_the_argument(self) -> None:
        op, desc = torch.ops.disk_ops_emu.nearest_neighbors, torch.zeros(1, 4, 8)
        for match, arguments in {
            r"desc1 must have shape \[B, N, D\], got \[4, 8\]": (desc[0], desc, None, None),
            "desc1 must be float": (desc.int(), desc.int(), None, None),
            "desc2 must be": (desc, desc.double(), None, None),
            "desc2 must have": (desc, desc[..., :4], None, None),
            "valid1 must have": (desc, desc, torch.ones(1, 3, dtype=torch.bool), None),
            "valid2 must be": (desc, desc, None, torch.ones(1, 4)),
        }.items():
            with pytest.raises((RuntimeError, ValueError, TypeError), match=match):
                op(*arguments)
