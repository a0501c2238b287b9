"""disk_ops.ops.sample_grid: exact probabilities, exact gradients, the same draw everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from disk_ops import GridSampler, reference
from disk_ops.ops import sample_grid
from disk_ops.reference_sampling import philox

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
Arguments = tuple[Tensor, int, Tensor, bool, Tensor | None]


def seed_tensor(seed: int) -> Tensor:
    return torch.tensor(seed, dtype=torch.int64)


def draw(
    heatmap: Tensor, cell: int = 8, seed: int = 0, argmax: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.disk_ops.sample_grid(heatmap, cell, seed_tensor(seed), argmax, mask)


def sample_inputs(device: torch.device, dtype: torch.dtype = torch.float32) -> Iterator[tuple[str, Arguments]]:
    """Every edge case once, as (what it is, arguments of the native op)."""
    generator = torch.Generator().manual_seed(7)

    def noise(*shape: int, scale: float = 2.0) -> Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(device, dtype)

    def case(
        heatmap: Tensor, cell: int = 8, seed: int = 5, argmax: bool = False, mask: Tensor | None = None
    ) -> Arguments:
        return heatmap, cell, seed_tensor(seed), argmax, mask

    yield "plain", case(noise(2, 1, 24, 32))
    yield "argmax", case(noise(2, 1, 24, 32), argmax=True)
    yield "argmax with ties", case(noise(2, 1, 24, 32).round(), argmax=True)
    for cell in (1, 3, 8, 64):
        yield f"partial cells of {cell}", case(noise(2, 1, 21, 67), cell)
    yield "cell larger than the image", case(noise(2, 1, 5, 9), 64)
    yield "negative seed", case(noise(1, 1, 16, 16), seed=-(2**63))
    yield "constant", case(torch.zeros(1, 1, 16, 24, device=device, dtype=dtype))
    holes = noise(2, 1, 20, 20)
    for special in (math.nan, -math.inf, math.inf, 1e4, -1e4):
        holes = holes.clone()
        holes[:, :, ::3, ::4] = special
        yield f"some {special}", case(holes, 4)
        yield f"nothing but {special}", case(torch.full_like(holes, special))
        yield f"nothing but {special}, argmax", case(torch.full_like(holes, special), argmax=True)
    mask = torch.rand(2, 1, 20, 20, generator=generator).to(device) > 0.6
    yield "mask", case(noise(2, 1, 20, 20), 4, mask=mask)
    yield "mask, argmax", case(noise(2, 1, 20, 20), 4, argmax=True, mask=mask)
    yield "everything masked", case(noise(2, 1, 20, 20), mask=torch.zeros_like(mask))
    yield "one pixel", case(noise(2, 1, 1, 1))
    yield "transposed", case(noise(2, 1, 30, 20).mT)
    yield "channel of a channels-last tensor", case(noise(2, 20, 24, 5).permute(0, 3, 1, 2)[:, 2:3])
    yield "every other pixel", case(noise(2, 3, 40, 40)[:, 1:2, 1::2, ::2])
    yield "expanded", case(noise(1, 1, 16, 16).expand(3, 1, 16, 16))
    yield "mask not contiguous", case(noise(2, 1, 20, 24), mask=torch.rand(2, 1, 24, 20, device=device).mT > 0.5)
    yield "no images", case(noise(0, 1, 8, 8))
    yield "no rows", case(noise(2, 1, 0, 8))
    yield "no columns", case(noise(2, 1, 8, 0), argmax=True)


def log_probability(heatmap: Tensor, cell: int, keypoints: Tensor, accepted: Tensor, mask: Tensor | None) -> Tensor:
    """The definition, cell by cell in differentiable float64 torch."""
    logits = heatmap.double().masked_fill(heatmap.isnan(), -math.inf).clamp(max=1e6)  # like +inf
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf)
    batch, rows, columns = accepted.shape
    result = torch.zeros(batch, rows, columns, dtype=torch.float64, device=heatmap.device)
    for b in range(batch):
        for i in range(rows):
            for j in range(columns):
                square = logits[b, 0, i * cell : (i + 1) * cell, j * cell : (j + 1) * cell]
                if (square == -math.inf).all():
                    assert keypoints[b, i, j].tolist() == [j * cell, i * cell] and not accepted[b, i, j]
                    continue
                x, y = keypoints[b, i, j].tolist()
                assert 0 <= x - j * cell < square.shape[1] and 0 <= y - i * cell < square.shape[0]
                logit = logits[b, 0, y, x]
                log_softmax = logit - torch.logsumexp(square.flatten(), 0)
                result[b, i, j] = log_softmax + F.logsigmoid(logit if accepted[b, i, j] else -logit)
    return result


class TestSampleGrid:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_smoke(self, device, dtype):
        samples = sample_grid(torch.randn(2, 1, 16, 20, device=device).to(dtype))
        assert samples.keypoints.dtype == torch.int64 and samples.accepted.dtype == torch.bool
        assert samples.logp.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert all(tensor.device.type == device.type and tensor.is_contiguous() for tensor in samples)

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            (
                {"heatmap": torch.rand(2, 16, 16)},
                ValueError,
                r"heatmap must have shape \[B, 1, H, W\], got \[2, 16, 16",
            ),
            ({"heatmap": torch.rand(2, 3, 16, 16)}, ValueError, r"heatmap must .* got \[2, 3, 16, 16\]"),
            ({"heatmap": torch.ones(2, 1, 8, 8).int()}, TypeError, "heatmap must be float.* got torch.int32"),
            ({"cell": 0}, ValueError, "cell must be from 1 to 64 pixels, got 0"),
            ({"cell": 65}, ValueError, "cell must be from 1 to 64 pixels, got 65"),
            ({"cell": 8.0}, TypeError, "cell must be an integer, got float 8.0"),
            ({"generator": 3}, TypeError, "generator must be a torch.Generator or None, got int"),
            ({"mode": "mean"}, ValueError, "mode must be 'sample' or 'argmax', got 'mean'"),
            ({"mask": torch.ones(2, 1, 16, 15) > 0}, ValueError, r"mask must have the shape .* got \[2, 1, 16, 15\]"),
            ({"mask": torch.ones(2, 1, 16, 16)}, TypeError, "mask must be of dtype bool, got torch.float32"),
        ],
    )
    def test_exception(self, device, change, error, message):
        arguments = {"heatmap": torch.rand(2, 1, 16, 16)} | change
        arguments = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in arguments.items()}
        with pytest.raises(error, match=message):
            sample_grid(**arguments)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"heatmap": torch.rand(2, 16, 16)}, r"heatmap must have shape \[B, 1, H, W\], got \[2, 16, 16\]"),
            ({"heatmap": torch.ones(1, 1, 8, 8).long()}, "heatmap must be float16.*got Long"),
            ({"cell": 65}, "cell must be from 1 to 64 pixels, got 65"),
            ({"seed": torch.tensor(1.0)}, r"seed must be an int64 tensor without dimensions on the CPU, got Float"),
            ({"seed": torch.tensor([1])}, r"seed must be .* got Long of shape \[1\]"),
            ({"mask": torch.ones(1, 1, 8, 8)}, "mask must be of dtype Bool, got Float"),
        ],
    )
    def test_exception_of_the_native_op(self, device, change, message):
        arguments = {"heatmap": torch.rand(1, 1, 8, 8), "cell": 8, "seed": seed_tensor(0), "argmax": False}
        arguments = arguments | {"mask": None} | change
        if change.get("seed") is None:
            arguments = {k: v.to(device) if isinstance(v, Tensor) and k != "seed" else v for k, v in arguments.items()}
        with pytest.raises(RuntimeError, match=message):
            torch.ops.disk_ops.sample_grid(*arguments.values())

    def test_exception_of_the_native_gradient(self, device):
        heatmap = torch.rand(1, 1, 8, 8, device=device)
        keypoints, accepted, logp = draw(heatmap)
        op = torch.ops.disk_ops._sample_grid_backward
        with pytest.raises(RuntimeError, match=r"grad_logp must have shape \[B, h, w\] = \[1, 1, 1\], got \[1, 1\]"):
            op(logp[0], heatmap, 8, keypoints, accepted, None)
        with pytest.raises(RuntimeError, match="grad_logp must be of dtype Float, got Double"):
            op(logp.double(), heatmap, 8, keypoints, accepted, None)
        with pytest.raises(RuntimeError, match=r"keypoints must have shape .* got \[1, 1, 2\]"):
            op(logp, heatmap, 8, keypoints[0], accepted, None)
        with pytest.raises(RuntimeError, match="accepted must be of dtype Bool, got Float"):
            op(logp, heatmap, 8, keypoints, logp, None)

    @pytest.mark.parametrize("shape", [(0, 1, 8, 8), (2, 1, 0, 9), (2, 1, 9, 0), (3, 1, 17, 8), (1, 1, 8, 25)])
    def test_cardinality(self, device, shape):
        for cell in (1, 5, 8):
            samples = sample_grid(torch.randn(shape, device=device), cell)
            grid = (shape[0], -(-shape[2] // cell), -(-shape[3] // cell))
            assert samples.keypoints.shape == (*grid, 2) and samples.accepted.shape == samples.logp.shape == grid

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_feature(self, device, dtype):
        """Log-probability and gradient equal the definition for whatever was drawn, and are finite."""
        for name, (heatmap, cell, *rest) in sample_inputs(device, dtype):
            if cell == 1 and dtype != torch.float32:
                continue
            heatmap = heatmap.detach().clone().requires_grad_()
            keypoints, accepted, logp = torch.ops.disk_ops.sample_grid(heatmap, cell, *rest)
            twin = heatmap.detach().double().requires_grad_()
            expected = log_probability(twin, cell, keypoints, accepted, rest[-1])
            tolerance = {"rtol": 1e-5, "atol": 2e-5} if dtype != torch.float64 else {"rtol": 1e-10, "atol": 1e-10}
            torch.testing.assert_close(logp.double(), expected, **tolerance, msg=lambda text, n=name: f"{n}: {text}")
            if not logp.numel() or "inf" in name:
                continue  # differences of infinities have no derivative in the definition
            weight = torch.rand_like(logp)
            (grad,) = torch.autograd.grad((logp * weight).sum(), heatmap)
            expected = torch.zeros_like(twin)
            if (log := log_probability(twin, cell, keypoints, accepted, rest[-1])).requires_grad:
                (expected,) = torch.autograd.grad((log * weight).sum(), twin)
            rounding = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1e-5, torch.float64: 1e-10}[dtype]
            expected = expected.nan_to_num(0)  # NaN: of cells without a pixel
            torch.testing.assert_close(
                grad.double(), expected, rtol=rounding, atol=rounding, msg=lambda text, n=name: f"{n}: {text}"
            )

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_finite(self, device, dtype):
        for name, arguments in sample_inputs(device, dtype):
            keypoints, accepted, logp = torch.ops.disk_ops.sample_grid(*arguments)
            heatmap, cell, _, _, mask = arguments
            backward = torch.ops.disk_ops._sample_grid_backward
            grad = backward(torch.ones_like(logp), heatmap, cell, keypoints, accepted, mask)
            assert logp.isfinite().all() and grad.isfinite().all(), name
            hidden = heatmap.isnan() | (heatmap == -math.inf)
            hidden |= False if mask is None else ~mask
            assert not grad[hidden].any(), name
            if "argmax" not in name and heatmap.numel():
                x, y = keypoints.flatten(1, 2).unbind(-1)
                proposed_hidden = hidden[torch.arange(len(x), device=x.device)[:, None], 0, y, x]
                assert not (proposed_hidden & (logp.flatten(1) != 0)).any(), name
                assert not accepted.flatten(1)[proposed_hidden].any(), name

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_reference_agrees(self, device, dtype):
        for name, arguments in sample_inputs(device, dtype):
            ours, twin = torch.ops.disk_ops.sample_grid(*arguments), reference.sample_grid(*arguments)
            heatmap, cell, _, _, mask = arguments
            assert torch.equal(ours[0], twin[0]) and torch.equal(ours[1], twin[1]), name
            torch.testing.assert_close(ours[2], twin[2], rtol=1e-5, atol=1e-5)
            weight = torch.rand_like(ours[2])
            grads = [
                op(weight, heatmap, cell, *ours[:2], mask)
                for op in (torch.ops.disk_ops._sample_grid_backward, reference._sample_grid_backward)
            ]
            tolerance = 8e-3 if dtype in (torch.float16, torch.bfloat16) else 1e-5
            torch.testing.assert_close(*grads, rtol=tolerance, atol=1e-5)

    def test_reference_agrees_in_nearly_all_draws(self, device):
        heatmap = torch.randn(6, 1, 512, 512, device=device) * 3
        ours, twin = draw(heatmap, 8, 11), reference.sample_grid(heatmap, 8, seed_tensor(11), False, None)
        for one, other in zip(ours[:2], twin[:2], strict=True):
            same = (one == other).view(6 * 64 * 64, -1).all(1)
            assert same.double().mean() >= 0.9999  # where the last bit of an exponential decides, they may differ

    def test_argmax_takes_the_first_of_equals(self, device):
        heatmap = torch.full((1, 1, 8, 16), -1.0, device=device)
        heatmap[0, 0, 3, 5] = heatmap[0, 0, 3, 6] = heatmap[0, 0, 4, 1] = 2.0
        samples = sample_grid(heatmap, mode="argmax")
        assert samples.keypoints.tolist() == [[[[5, 3], [8, 0]]]]
        assert samples.accepted.tolist() == [[[True, False]]]

    def test_half_precision_draws_what_float_draws(self, device):
        for dtype in (torch.float16, torch.bfloat16):
            heatmap = torch.randn(2, 1, 40, 50, device=device).to(dtype)
            for half, full in zip(draw(heatmap), draw(heatmap.float()), strict=True):
                assert torch.equal(half, full)

    @pytest.mark.cuda
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_cuda_draws_what_the_cpu_draws(self, device, dtype):
        heatmap = torch.randn(6, 1, 512, 512).to(dtype) * 3
        many = [("many", (heatmap, cell, seed_tensor(cell), False, None)) for cell in (3, 8, 64)]
        for name, arguments in [*sample_inputs(torch.device("cpu"), dtype), *many]:
            heatmap, *others, mask = arguments
            expected = torch.ops.disk_ops.sample_grid(*arguments)
            moved = (heatmap.to(device), *others, None if mask is None else mask.to(device))
            ours = [tensor.cpu() for tensor in torch.ops.disk_ops.sample_grid(*moved)]
            assert torch.equal(ours[0], expected[0]) and torch.equal(ours[1], expected[1]), name
            torch.testing.assert_close(ours[2], expected[2], rtol=1e-5, atol=1e-5)

    def test_layout_and_threads_make_no_difference(self, device):
        heatmap = torch.randn(3, 1, 200, 170, device=device)
        threads = torch.get_num_threads()
        results = []
        try:
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                keypoints, accepted, logp = draw(heatmap)
                backward = torch.ops.disk_ops._sample_grid_backward
                results.append((keypoints, accepted, logp, backward(logp, heatmap, 8, keypoints, accepted, None)))
        finally:
            torch.set_num_threads(threads)
        strided = torch.empty(200, 170, 3, 2, device=device)[..., 0].permute(2, 0, 1)[:, None].copy_(heatmap)
        results.append((*draw(strided), results[0][3]))
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))

    def test_generator(self, device):
        heatmap = torch.randn(2, 1, 64, 64, device=device)

        def seeded(seed: int) -> Tensor:
            return sample_grid(heatmap, generator=torch.Generator().manual_seed(seed)).keypoints

        assert torch.equal(seeded(3), seeded(3)) and not torch.equal(seeded(3), seeded(4))
        generator = torch.Generator().manual_seed(3)
        first, second = (sample_grid(heatmap, generator=generator).keypoints for _ in range(2))
        assert torch.equal(first, seeded(3)) and not torch.equal(first, second)
        torch.manual_seed(1)
        default = sample_grid(heatmap).keypoints
        torch.manual_seed(1)
        state = torch.get_rng_state()
        sample_grid(heatmap, mode="argmax")  # draws nothing
        assert torch.equal(torch.get_rng_state(), state) and torch.equal(sample_grid(heatmap).keypoints, default)

    @pytest.mark.parametrize("argmax", [False, True])
    def test_gradcheck(self, device, argmax):
        heatmap = torch.randn(2, 1, 9, 11, device=device, dtype=torch.float64, requires_grad=True)
        mask = torch.rand(2, 1, 9, 11, device=device) > 0.3
        for hidden in (None, mask):
            assert torch.autograd.gradcheck(lambda h, m=hidden: draw(h, 4, 3, argmax, m)[2], (heatmap,))

    def test_second_derivative_is_refused(self, device):
        heatmap = torch.randn(1, 1, 8, 8, device=device, requires_grad=True)
        (grad,) = torch.autograd.grad(sample_grid(heatmap).logp.sum(), heatmap, create_graph=True)
        with pytest.raises(RuntimeError, match="sample_grid can be differentiated once"):
            grad.sum().backward()

    def test_opcheck(self, device):
        # With gradients, opcheck's last test adds outputs in place, int64 first, and fails on that alone;
        # test_dynamo compares compiled gradients instead.
        first_three = ("test_schema", "test_autograd_registration", "test_faketensor")
        for name, arguments in sample_inputs(device):
            if "nothing but" in name or arguments[0].numel() > 1000:
                continue
            torch.library.opcheck(torch.ops.disk_ops.sample_grid.default, arguments)
            heatmap = arguments[0].detach().clone().requires_grad_()
            torch.library.opcheck(
                torch.ops.disk_ops.sample_grid.default, (heatmap, *arguments[1:]), test_utils=first_three
            )
        heatmap = torch.randn(2, 1, 9, 11, device=device)
        keypoints, accepted, logp = draw(heatmap)
        torch.library.opcheck(
            torch.ops.disk_ops._sample_grid_backward.default, (logp, heatmap, 8, keypoints, accepted, None)
        )

    @pytest.mark.parametrize("mode", ["sample", "argmax"])
    def test_dynamo(self, device, mode):
        def weighted(heatmap):
            samples = sample_grid(heatmap * 2, 8, mode=mode)
            return samples, (samples.logp * samples.accepted).sum()

        heatmap = torch.randn(2, 1, 40, 44, device=device, requires_grad=True)
        compiled = torch.compile(weighted, fullgraph=True)
        samples, loss = compiled(heatmap)
        loss.backward()
        twin = (heatmap.detach().double() * 2).requires_grad_()
        expected = log_probability(twin, 8, samples.keypoints, samples.accepted, None)
        torch.testing.assert_close(samples.logp.double(), expected, rtol=1e-5, atol=1e-5)
        (expected * samples.accepted).sum().backward()
        torch.testing.assert_close(heatmap.grad.double(), 2 * twin.grad, rtol=1e-5, atol=1e-5)
        again = compiled(heatmap)[0].keypoints
        assert torch.equal(again, samples.keypoints) == (mode == "argmax")  # the seed is not compiled in

    def test_module(self, device):
        heatmap, module = torch.randn(2, 1, 16, 16, device=device), GridSampler(cell=4)
        ours = module(heatmap, generator=torch.Generator().manual_seed(2))
        function = sample_grid(heatmap, 4, torch.Generator().manual_seed(2))
        assert all(torch.equal(a, b) for a, b in zip(ours, function, strict=True))
        with pytest.raises(ValueError, match="cell must be from 1 to 64 pixels, got 0"):
            GridSampler(0)
        assert repr(GridSampler(4, "argmax")) == "GridSampler(cell=4, mode='argmax')"


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        (0, (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (2**64 - 1, (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            0x299F31D0A4093822,
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_has_its_published_values(key, counter, expected):
    words = philox(key, tuple(torch.tensor(word) for word in counter))
    assert tuple(int(word) for word in words) == expected
