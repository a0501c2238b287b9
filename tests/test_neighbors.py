"""disk_ops.ops.nearest_neighbors: the two nearest neighbours both ways, without the matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from disk_ops import reference
from disk_ops.ops import nearest_neighbors

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
# |a - b|² comes from products rounded in float32: neighbours whose squared distances differ less may change places.
RANKING_TOLERANCE = {torch.float64: 1e-13}

Sample = tuple[str, Tensor, Tensor, Tensor | None, Tensor | None]


def sample_inputs(device: torch.device, dtype: torch.dtype = torch.float32) -> Iterator[Sample]:
    """Every edge case once, as (what it is, desc1, desc2, valid1, valid2)."""
    generator = torch.Generator().manual_seed(3)

    def descriptors(*shape: int) -> Tensor:
        return F.normalize(torch.randn(*shape, generator=generator), dim=-1).to(device, dtype)

    def flags(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator).to(device) > 0.3

    yield "plain", descriptors(1, 50, 32), descriptors(1, 70, 32), None, None
    yield "several blocks of rows", descriptors(1, 400, 128), descriptors(1, 33, 128), None, None
    yield "several panels of columns", descriptors(1, 5, 128), descriptors(1, 300, 128), None, None
    for rows, columns in ((0, 5), (5, 0), (0, 0), (1, 1), (1, 6), (6, 1), (2, 2)):
        yield f"{rows} against {columns}", descriptors(2, rows, 16), descriptors(2, columns, 16), None, None
    yield "batch", descriptors(3, 40, 20), descriptors(3, 25, 20), None, None
    yield "no images", descriptors(0, 4, 8), descriptors(0, 3, 8), None, None
    yield "one dimension", descriptors(1, 9, 1) * 3, descriptors(1, 8, 1), None, None
    yield "odd dimension", descriptors(1, 19, 37), descriptors(1, 23, 37), None, None
    yield "no dimension", descriptors(2, 3, 0), descriptors(2, 4, 0), None, None
    yield "valid", descriptors(2, 30, 24), descriptors(2, 40, 24), flags(2, 30), flags(2, 40)
    yield "valid on one side", descriptors(2, 30, 24), descriptors(2, 40, 24), None, flags(2, 40)
    nobody = torch.zeros(2, 40, dtype=torch.bool, device=device)
    yield "nobody valid", descriptors(2, 30, 24), descriptors(2, 40, 24), flags(2, 30), nobody
    only = nobody.clone()
    only[:, 7] = True
    yield "one valid", descriptors(2, 30, 24), descriptors(2, 40, 24), None, only
    same = descriptors(1, 30, 64)
    yield "equal sets", same, same.clone(), None, None
    yield "duplicates", same[:, [3, 3, 1, 3, 1]], same[:, [1, 3, 3, 1, 3, 3]], None, None
    yield "all equal", same[:, :1].expand(1, 300, 64), same[:, :1].expand(1, 50, 64), None, None
    holes = descriptors(1, 20, 16)
    holes[0, [2, 5], 3] = math.nan
    yield "NaN", holes, holes.roll(1, 1), None, None
    yield "not normalised", descriptors(1, 30, 16) * 5, descriptors(1, 30, 16) * 0.1, None, None
    yield "not contiguous", descriptors(2, 16, 30).mT, descriptors(2, 50, 32)[:, ::2, ::2], None, None


def assert_nearest(name: str, distances: Tensor, indices: Tensor, desc1: Tensor, desc2: Tensor, keep: Tensor) -> None:
    """Check the neighbours of each row of desc1 against all exact distances; ``keep`` [B, N, M] tells legal pairs."""
    assert indices.dtype == torch.int64, name
    expected_dtype = torch.float64 if desc1.dtype == torch.float64 else torch.float32
    assert distances.dtype == expected_dtype, name
    a, b = desc1.double(), desc2.double()
    exact = (a[:, :, None] - b[:, None]).square().sum(-1)
    keep = keep & ~exact.isnan()
    exact = exact.masked_fill(~keep, math.inf)
    scale = max(float(a.nan_to_num().square().sum(-1).max()) if a.numel() else 0.0, 1.0)
    tolerance = RANKING_TOLERANCE.get(desc1.dtype, 1e-6) * scale
    ranked = F.pad(exact, (0, 2), value=math.inf).sort(-1).values[..., :2]  # [B, N, 2]
    missing = ranked.isinf()
    assert torch.equal(indices == -1, missing) and torch.equal(distances.isinf(), missing), name
    if exact.shape[-1] == 0:
        return
    chosen = exact.gather(-1, indices.clamp(min=0)).masked_fill(missing, math.inf)
    rounding = 1e-12 if expected_dtype == torch.float64 else 1e-6
    torch.testing.assert_close(distances.double(), chosen.sqrt(), rtol=rounding, atol=1e-12, msg=name)
    assert torch.all((chosen <= ranked + tolerance) | missing), name
    both = ~missing.any(-1)
    assert torch.all(indices[..., 0][both] != indices[..., 1][both]), name
    assert torch.all(distances[..., 0] <= distances[..., 1]), name


def pairs(desc1: Tensor, desc2: Tensor, valid1: Tensor | None, valid2: Tensor | None) -> Tensor:
    keep = torch.ones(*desc1.shape[:2], desc2.shape[1], dtype=torch.bool, device=desc1.device)
    if valid1 is not None:
        keep = keep & valid1[:, :, None]
    return keep if valid2 is None else keep & valid2[:, None]


class TestNearestNeighbors:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_smoke(self, device, dtype):
        result = nearest_neighbors(torch.rand(5, 8, device=device).to(dtype), torch.rand(7, 8, device=device).to(dtype))
        assert all(tensor.device.type == device.type for tensor in result)

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"desc1": torch.rand(4)}, ValueError, r"desc1 must have shape \[N, D\] or \[B, N, D\], got \[4\]"),
            ({"desc1": torch.ones(4, 8, dtype=torch.int64)}, TypeError, "desc1 must be float16.* got torch.int64"),
            ({"desc2": torch.rand(4, 9)}, ValueError, r"desc2 must have the rank.* got \[4, 9\]"),
            ({"desc2": torch.rand(1, 4, 8)}, ValueError, r"desc2 must have the rank.* got \[1, 4, 8\]"),
            (
                {"desc2": torch.rand(4, 8).double()},
                TypeError,
                "desc2 must be of dtype torch.float32.* got torch.float64",
            ),
            ({"valid1": torch.ones(5) > 0}, ValueError, r"valid1 must have shape \[4\], got \[5\]"),
            ({"valid2": torch.ones(4)}, TypeError, "valid2 must be of dtype bool, got torch.float32"),
        ],
    )
    def test_exception(self, device, change, error, message):
        arguments = {"desc1": torch.rand(4, 8), "desc2": torch.rand(4, 8)} | change
        with pytest.raises(error, match=message):
            nearest_neighbors(**{name: value.to(device) for name, value in arguments.items()})

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((torch.rand(4, 8), torch.rand(1, 4, 8), None, None), r"desc1 must have shape \[B, N, D\], got \[4, 8\]"),
            (
                (torch.rand(1, 4, 8), torch.rand(1, 4, 9), None, None),
                r"desc2 must have the batch size .* got \[1, 4, 9\]",
            ),
            (
                (torch.rand(1, 4, 8), torch.rand(1, 4, 8), torch.ones(1, 5) > 0, None),
                r"valid1 must have shape \[B, N\]",
            ),
            (
                (torch.rand(1, 4, 8), torch.rand(1, 4, 8), None, torch.ones(1, 4)),
                "valid2 must be of dtype Bool, got Float",
            ),
        ],
    )
    def test_exception_of_the_native_op(self, device, arguments, message):
        arguments = tuple(a.to(device) if isinstance(a, Tensor) else a for a in arguments)
        with pytest.raises(RuntimeError, match=message):
            torch.ops.disk_ops.nearest_neighbors(*arguments)

    @pytest.mark.parametrize("batch", [(), (0,), (1,), (3,)])
    @pytest.mark.parametrize(("rows", "columns"), [(6, 4), (0, 4), (3, 0)])
    def test_cardinality(self, device, batch, rows, columns):
        result = nearest_neighbors(
            torch.rand(*batch, rows, 8, device=device), torch.rand(*batch, columns, 8, device=device)
        )
        assert result.distances1.shape == result.indices1.shape == (*batch, rows, 2)
        assert result.distances2.shape == result.indices2.shape == (*batch, columns, 2)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("implementation", ["op", "reference"])
    def test_feature(self, device, dtype, implementation):
        compute = nearest_neighbors if implementation == "op" else reference.nearest_neighbors
        for name, desc1, desc2, valid1, valid2 in sample_inputs(device, dtype):
            distances1, indices1, distances2, indices2 = compute(desc1, desc2, valid1, valid2)
            keep = pairs(desc1, desc2, valid1, valid2)
            assert_nearest(f"{name}, rows", distances1, indices1, desc1, desc2, keep)
            assert_nearest(f"{name}, columns", distances2, indices2, desc2, desc1, keep.mT)

    def test_ties_go_to_the_lowest_index_wherever_the_equals_lie(self, device):
        generator = torch.Generator().manual_seed(0)
        base = F.normalize(torch.randn(7, 128, generator=generator), dim=-1).to(device)
        pick1 = torch.randint(7, (1000,), generator=generator).to(device)
        pick2 = torch.randint(7, (777,), generator=generator).to(device)
        result = nearest_neighbors(base[pick1], base[pick2])
        for indices, rows, others in ((result.indices1, pick1, pick2), (result.indices2, pick2, pick1)):
            lowest = torch.stack([(others == which).nonzero()[:2, 0] for which in range(7)])
            assert torch.equal(indices, lowest[rows])
        assert not result.distances1.any() and not result.distances2.any()

    def test_mutual_neighbours_agree_in_both_directions(self, device):
        desc = F.normalize(torch.randn(500, 128, device=device), dim=-1)
        order = torch.randperm(500, device=device)
        result = nearest_neighbors(desc, desc[order])
        assert torch.equal(order[result.indices1[:, 0]], torch.arange(500, device=device))
        assert torch.equal(result.indices2[:, 0], order)

    def test_distances_are_accurate_near_zero(self, device):
        desc = F.normalize(torch.randn(64, 128, device=device, dtype=torch.float64), dim=-1)
        near = desc + 1e-3 / math.sqrt(128) * torch.randn_like(desc).sign()
        result = nearest_neighbors(desc.float(), near.float())
        exact = (desc.float().double() - near.float().double()).norm(dim=-1)
        torch.testing.assert_close(result.distances1[:, 0].double(), exact, rtol=1e-5, atol=0)

    def test_permuting_the_rows_permutes_the_result(self, device):
        desc1, desc2 = torch.randn(90, 16, device=device), torch.randn(60, 16, device=device)
        order = torch.randperm(90, device=device)
        plain, permuted = nearest_neighbors(desc1, desc2), nearest_neighbors(desc1[order], desc2)
        assert torch.equal(permuted.indices1, plain.indices1[order])
        assert torch.equal(order[permuted.indices2], plain.indices2)

    def test_padding_changes_nothing(self, device):
        desc1, desc2 = torch.randn(2, 30, 16, device=device), torch.randn(2, 20, 16, device=device)
        padded1, padded2 = F.pad(desc1, (0, 0, 0, 9), value=math.inf), F.pad(desc2, (0, 0, 0, 7))
        valid1 = (torch.arange(39, device=device) < 30).expand(2, -1)
        valid2 = (torch.arange(27, device=device) < 20).expand(2, -1)
        plain, padded = nearest_neighbors(desc1, desc2), nearest_neighbors(padded1, padded2, valid1, valid2)
        assert torch.equal(padded.indices1[:, :30], plain.indices1)
        assert torch.equal(padded.distances2[:, :20], plain.distances2)
        assert (padded.indices1[:, 30:] == -1).all() and (padded.indices2[:, 20:] == -1).all()

    def test_result_does_not_depend_on_threads(self, device):
        desc1, desc2 = torch.randn(3, 700, 64, device=device), torch.randn(3, 300, 64, device=device)
        desc2[:, 100:200] = desc1[:, :100]
        threads = torch.get_num_threads()
        results = []
        try:
            for count in (1, 2, 5):
                torch.set_num_threads(count)
                results.append(nearest_neighbors(desc1, desc2))
        finally:
            torch.set_num_threads(threads)
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))

    def test_gradcheck(self, device):
        # The op is declared not differentiable: it never pretends to have a gradient.
        result = nearest_neighbors(torch.rand(4, 8, device=device, requires_grad=True), torch.rand(5, 8, device=device))
        assert not any(tensor.requires_grad for tensor in result)

    def test_opcheck(self, device):
        for _, desc1, desc2, valid1, valid2 in sample_inputs(device):
            if desc1.shape[1] * desc2.shape[1] <= 4000:
                torch.library.opcheck(torch.ops.disk_ops.nearest_neighbors.default, (desc1, desc2, valid1, valid2))

    def test_dynamo(self, device):
        desc1, desc2 = torch.rand(2, 9, 8, device=device), torch.rand(2, 6, 8, device=device)
        compiled = torch.compile(lambda a, b: nearest_neighbors(a * 2, b), fullgraph=True)
        for ours, eager in zip(compiled(desc1, desc2), nearest_neighbors(desc1 * 2, desc2), strict=True):
            assert torch.equal(ours, eager)
