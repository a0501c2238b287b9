"""disk_ops.ops.nms_topk: exactly the n best local maxima, whatever the input."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from disk_ops import NMSTopK, reference
from disk_ops.ops import nms_topk

Arguments = dict[str, object]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def brute_force(
    heatmap: Tensor, n: int | None, window_size: int, threshold: float | None, border: int, mask: Tensor | None
) -> list[list[tuple[int, int, float]]]:
    """The definition, pixel by pixel: (x, y, score) of the maxima of each image, best first."""
    radius, results = window_size // 2, []
    for b in range(heatmap.shape[0]):
        image = heatmap[b, 0].double().tolist()
        height, width = heatmap.shape[2:]

        def value(x: int, y: int, image: list[list[float]] = image, b: int = b) -> float:
            hidden = math.isnan(image[y][x]) or (mask is not None and not mask[b, 0, y, x])
            return -math.inf if hidden else image[y][x]

        found = []
        for y in range(border, height - border):
            for x in range(border, width - border):
                own = value(x, y)
                if not own > (-math.inf if threshold is None else threshold):
                    continue
                window = [
                    (value(i, j), -(j * width + i))
                    for j in range(max(y - radius, 0), min(y + radius + 1, height))
                    for i in range(max(x - radius, 0), min(x + radius + 1, width))
                ]
                if max(window) == (own, -(y * width + x)):
                    found.append((x, y, own))
        found.sort(key=lambda maximum: (-maximum[2], maximum[1], maximum[0]))
        results.append(found if n is None else found[:n])
    return results


def as_lists(keypoints: Tensor, scores: Tensor, valid: Tensor) -> list[list[tuple[int, int, float]]]:
    return [
        [(x, y, s) for (x, y), s in zip(xy[ok].tolist(), score[ok].double().tolist(), strict=True)]
        for xy, score, ok in zip(keypoints, scores, valid, strict=True)
    ]


def sample_inputs(device: torch.device, dtype: torch.dtype = torch.float32) -> Iterator[tuple[str, Tensor, Arguments]]:
    """Every edge case once, as (what it is, heatmap, arguments)."""
    generator = torch.Generator().manual_seed(7)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    yield "plain", noise(2, 1, 23, 37), {"n": 9}
    yield "more asked for than there is", noise(1, 1, 12, 12), {"n": 500}
    yield "all of them", noise(3, 1, 17, 29), {"n": None}
    yield "no threshold", noise(1, 1, 16, 16), {"n": 40, "score_threshold": None}
    yield "window of one pixel", noise(1, 1, 9, 11), {"n": 30, "window_size": 1}
    yield "window larger than the image", noise(2, 1, 9, 70), {"n": 8, "window_size": 41}
    yield "large window", noise(1, 1, 30, 44), {"n": 30, "window_size": 33, "score_threshold": -5.0}
    yield "several strips", noise(1, 1, 200, 31), {"n": 300, "window_size": 3}
    yield "border", noise(2, 1, 15, 21), {"n": 30, "border": 4}
    yield "border wider than the image", noise(1, 1, 15, 21), {"n": 4, "border": 8}
    yield "constant", torch.ones(2, 1, 13, 13, device=device, dtype=dtype), {"n": 5}
    yield "plateaus and ties", (noise(2, 1, 40, 40) * 2).round(), {"n": 25}
    yield "ties, wide window", (noise(1, 1, 30, 30) * 2).round(), {"n": None, "window_size": 9}
    yield "nothing", torch.zeros(2, 1, 8, 8, device=device, dtype=dtype), {"n": 3}
    yield "nothing, all of it", torch.zeros(2, 1, 8, 8, device=device, dtype=dtype), {"n": None}
    signed_zeros = torch.zeros(1, 1, 6, 6, device=device, dtype=dtype)
    signed_zeros[0, 0, ::2] = -0.0
    yield "signed zeros", signed_zeros, {"n": 4, "score_threshold": -1.0}
    for name, special in (("NaN", math.nan), ("minus infinity", -math.inf), ("infinity", math.inf)):
        holes = noise(2, 1, 20, 20)
        holes[:, :, ::3, ::4] = special
        yield name, holes, {"n": 30, "score_threshold": None}
    yield "NaN everywhere", torch.full((1, 1, 7, 7), math.nan, device=device, dtype=dtype), {"n": 3}
    mask = torch.rand(2, 1, 20, 20, generator=generator).to(device) > 0.4
    yield "mask", noise(2, 1, 20, 20), {"n": 30, "mask": mask}
    yield "everything masked", noise(2, 1, 20, 20), {"n": 3, "mask": torch.zeros_like(mask)}
    yield "one row", noise(2, 1, 1, 50), {"n": 9}
    yield "one column", noise(2, 1, 50, 1), {"n": 9}
    yield "one pixel", noise(2, 1, 1, 1).abs() + 1, {"n": 2}
    yield "transposed", noise(2, 1, 30, 20).transpose(2, 3), {"n": 12}
    yield "channel of a channels-last tensor", noise(2, 20, 24, 5).permute(0, 3, 1, 2)[:, 2:3], {"n": 12}
    yield "mask not contiguous", noise(2, 1, 20, 24), {"n": 9, "mask": torch.ones(2, 1, 24, 20, device=device).mT > 0}
    yield "no images", noise(0, 1, 8, 8), {"n": 3}
    yield "no images, all", noise(0, 1, 8, 8), {"n": None}
    yield "no rows", noise(2, 1, 0, 8), {"n": 3}
    yield "no columns", noise(2, 1, 8, 0), {"n": None}


def native_arguments(heatmap: Tensor, arguments: Arguments) -> tuple[object, ...]:
    defaults: Arguments = {"n": None, "window_size": 5, "score_threshold": 0.0, "border": 0, "mask": None}
    return (heatmap, *(defaults | arguments).values())


class TestNmsTopk:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_smoke(self, device, dtype):
        maxima = nms_topk(torch.rand(2, 1, 16, 16, device=device).to(dtype), n=4)
        assert maxima.keypoints.dtype == torch.int64
        assert maxima.scores.dtype == dtype
        assert maxima.valid.dtype == torch.bool
        assert all(tensor.device.type == device.type and tensor.is_contiguous() for tensor in maxima)

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            (
                {"heatmap": torch.rand(2, 16, 16)},
                ValueError,
                r"heatmap must have shape \[B, 1, H, W\], got \[2, 16, 16\]",
            ),
            ({"heatmap": torch.rand(2, 3, 16, 16)}, ValueError, r"heatmap must .* got \[2, 3, 16, 16\]"),
            (
                {"heatmap": torch.ones(2, 1, 16, 16, dtype=torch.int32)},
                TypeError,
                "heatmap must be float.* got torch.int32",
            ),
            ({"heatmap": torch.ones(2, 1, 16, 16).to(torch.float8_e5m2)}, TypeError, r"got torch.float8_e5m2"),
            ({"n": 0}, ValueError, "n must be a positive integer or None, got 0"),
            ({"n": -1}, ValueError, "n must be a positive integer or None, got -1"),
            ({"window_size": 4}, ValueError, "window_size must be an odd positive integer, got 4"),
            ({"window_size": -3}, ValueError, "window_size must be an odd positive integer, got -3"),
            ({"border": -1}, ValueError, "border must be 0 or more pixels, got -1"),
            ({"n": "3"}, TypeError, "n must be an integer, got str '3'"),
            ({"window_size": None}, TypeError, "window_size must be an integer, got NoneType None"),
            ({"border": None}, TypeError, "border must be an integer, got NoneType None"),
            ({"score_threshold": "a"}, TypeError, "score_threshold must be a number, got str 'a'"),
            ({"score_threshold": True}, TypeError, "score_threshold must be a number, got bool True"),
            ({"score_threshold": math.nan}, ValueError, "score_threshold must be a number, got nan"),
            ({"heatmap": np.zeros((2, 1, 16, 16), np.float32)}, TypeError, "heatmap must be a tensor, got ndarray"),
            ({"mask": np.ones((2, 1, 16, 16), bool)}, TypeError, "mask must be a tensor, got ndarray"),
            ({"n": 3.0, "compat": "kornia"}, TypeError, "n must be an integer, got float 3.0"),
            ({"window_size": 3.0}, TypeError, "window_size must be an integer, got float 3.0"),
            ({"border": 1.5}, TypeError, "border must be an integer, got float 1.5"),
            ({"mask": torch.ones(2, 1, 16, 15) > 0}, ValueError, r"mask must have the shape .* got \[2, 1, 16, 15\]"),
            ({"mask": torch.ones(2, 1, 16, 16)}, TypeError, "mask must be of dtype bool, got torch.float32"),
            ({"compat": "opencv"}, ValueError, "compat must be 'official', 'kornia' or None, got 'opencv'"),
            ({"compat": "kornia", "border": 1}, ValueError, "compat='kornia' reproduces code that knows no mask"),
        ],
    )
    def test_exception(self, device, change, error, message):
        arguments = {"heatmap": torch.rand(2, 1, 16, 16), "n": 4} | change
        arguments = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in arguments.items()}
        with pytest.raises(error, match=message):
            nms_topk(**arguments)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                (torch.rand(1, 2, 8, 8), 3, 5, 0.0, 0, None),
                r"heatmap must have shape \[B, 1, H, W\], got \[1, 2, 8, 8\]",
            ),
            ((torch.ones(1, 1, 8, 8, dtype=torch.int64), 3, 5, 0.0, 0, None), "heatmap must be float16.*got Long"),
            ((torch.rand(1, 1, 8, 8), 0, 5, 0.0, 0, None), "n must be a positive integer or None, got 0"),
            ((torch.rand(1, 1, 8, 8), 3, 2, 0.0, 0, None), "window_size must be an odd positive integer, got 2"),
            ((torch.rand(1, 1, 8, 8), 3, 5, 0.0, -2, None), "border must be 0 or more pixels, got -2"),
            ((torch.rand(1, 1, 8, 8), 3, 5, 0.0, 0, torch.ones(1, 1, 8, 8)), "mask must be of dtype Bool, got Float"),
        ],
    )
    def test_exception_of_the_native_op(self, device, arguments, message):
        arguments = tuple(a.to(device) if isinstance(a, Tensor) else a for a in arguments)
        with pytest.raises(RuntimeError, match=message):
            torch.ops.disk_ops.nms_topk(*arguments)

    @pytest.mark.parametrize("batch", [0, 1, 3])
    @pytest.mark.parametrize("n", [1, 7])
    def test_cardinality(self, device, batch, n):
        maxima = nms_topk(torch.rand(batch, 1, 24, 32, device=device), n)
        assert maxima.keypoints.shape == (batch, n, 2)
        assert maxima.scores.shape == maxima.valid.shape == (batch, n)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_feature(self, device, dtype):
        for name, heatmap, arguments in sample_inputs(device, dtype):
            full = native_arguments(heatmap, arguments)
            expected = brute_force(*full)
            maxima = nms_topk(heatmap, **arguments)
            assert as_lists(*maxima) == expected, name
            assert not maxima.keypoints[~maxima.valid].any() and not maxima.scores[~maxima.valid].any(), name
            if arguments["n"] is None:
                assert maxima.scores.shape[1] == max((len(found) for found in expected), default=0), name

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_reference_agrees(self, device, dtype):
        for name, heatmap, arguments in sample_inputs(device, dtype):
            full = native_arguments(heatmap, arguments)
            for ours, twin in zip(torch.ops.disk_ops.nms_topk(*full), reference.nms_topk(*full), strict=True):
                assert ours.dtype == twin.dtype and torch.equal(ours, twin), name

    @pytest.mark.parametrize(
        ("shape", "window_size"), [((1, 1, 640, 799), 5), ((4, 1, 129, 257), 3), ((1, 1, 300, 300), 101)]
    )
    def test_reference_agrees_on_larger_maps(self, device, shape, window_size):
        heatmap = torch.randn(shape, device=device)
        for n in (2048, 5, None):
            full = (heatmap, n, window_size, 0.0, 2, None)
            for ours, twin in zip(torch.ops.disk_ops.nms_topk(*full), reference.nms_topk(*full), strict=True):
                assert torch.equal(ours, twin)

    @pytest.mark.parametrize("window_size", [10**7 + 1, 2**62 + 1])
    def test_window_without_end(self, device, window_size):
        heatmap = torch.rand(1, 1, 11, 13, device=device)
        maxima = nms_topk(heatmap, 4, window_size)
        assert maxima.valid.sum() == 1 and maxima.scores.max() == heatmap.max()
        for ours, twin in zip(maxima, reference.nms_topk(heatmap, 4, window_size, 0.0, 0, None), strict=True):
            assert torch.equal(ours, twin)

    def test_fewer_are_a_prefix_of_more(self, device):
        heatmap = (torch.randn(2, 1, 64, 64, device=device) * 3).round()
        every = nms_topk(heatmap, None)
        for n in (1, 10, 100):
            some = nms_topk(heatmap, n)
            assert torch.equal(some.keypoints, every.keypoints[:, :n])
            assert torch.equal(some.scores, every.scores[:, :n])

    def test_result_does_not_depend_on_threads(self, device):
        heatmap = (torch.randn(2, 1, 300, 200, device=device) * 4).round()
        threads = torch.get_num_threads()
        results = []
        try:
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                results.append(nms_topk(heatmap, 500))
        finally:
            torch.set_num_threads(threads)
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))

    def test_gradcheck(self, device):
        heatmap = torch.rand(2, 1, 6, 7, device=device, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda h: nms_topk(h, 5).scores, (heatmap,))

    def test_gradient_lands_on_the_maxima(self, device):
        heatmap = torch.rand(2, 1, 30, 30, device=device, requires_grad=True)
        maxima = nms_topk(heatmap, 400)
        assert not maxima.valid.all()  # padding must not leak a gradient into pixel (0, 0)
        weight = torch.rand_like(maxima.scores)
        (maxima.scores * weight).sum().backward()
        expected = torch.zeros_like(heatmap)
        for b in range(2):
            x, y = maxima.keypoints[b, maxima.valid[b]].T
            expected[b, 0, y, x] = weight[b, maxima.valid[b]]
        assert torch.equal(heatmap.grad, expected)

    def test_opcheck(self, device):
        # With gradients, opcheck's last test adds outputs in place, int64 first, and fails on that alone;
        # test_dynamo compares compiled gradients instead.
        first_three = ("test_schema", "test_autograd_registration", "test_faketensor")
        op = torch.ops.disk_ops.nms_topk.default
        for _, heatmap, arguments in sample_inputs(device):
            if heatmap.numel() <= 900:
                torch.library.opcheck(op, native_arguments(heatmap, arguments))
                heatmap = heatmap.detach().clone().requires_grad_()
                torch.library.opcheck(op, native_arguments(heatmap, arguments), test_utils=first_three)

    @pytest.mark.parametrize("n", [6, None])
    def test_dynamo(self, device, n):
        def weighted(heatmap):
            maxima = nms_topk(heatmap * 2, n)
            weight = maxima.keypoints.sum(-1).to(heatmap.dtype)
            return maxima, (maxima.scores * weight).sum()

        eager_input = torch.rand(2, 1, 24, 24, device=device, requires_grad=True)
        compiled_input = eager_input.detach().clone().requires_grad_()
        eager, eager_loss = weighted(eager_input)
        compiled, compiled_loss = torch.compile(weighted, fullgraph=True)(compiled_input)
        assert all(torch.equal(a, b) for a, b in zip(compiled, eager, strict=True))
        eager_loss.backward()
        compiled_loss.backward()
        torch.testing.assert_close(compiled_input.grad, eager_input.grad)

    def test_module(self, device):
        heatmap, module = torch.rand(2, 1, 16, 16, device=device), NMSTopK(n=5, window_size=3, border=1)
        for ours, function in zip(module(heatmap), nms_topk(heatmap, 5, 3, border=1), strict=True):
            assert torch.equal(ours, function)
        assert "n=5, window_size=3" in repr(module)

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"n": 0}, ValueError, "n must be a positive integer or None, got 0"),
            ({"window_size": 4}, ValueError, "window_size must be an odd positive integer, got 4"),
            ({"score_threshold": "a"}, TypeError, "score_threshold must be a number, got str 'a'"),
            ({"border": None}, TypeError, "border must be an integer, got NoneType None"),
        ],
    )
    def test_module_refuses_wrong_arguments_when_it_is_made(self, arguments, error, message):
        with pytest.raises(error, match=message):
            NMSTopK(**arguments)

    def test_numbers_of_numpy(self, device):
        heatmap = torch.rand(1, 1, 16, 16, device=device)
        ours = nms_topk(heatmap, np.int64(5), np.int32(3), np.float32(0.5))
        assert all(torch.equal(one, other) for one, other in zip(ours, nms_topk(heatmap, 5, 3, 0.5), strict=True))

    def test_there_are_n_columns_beyond_the_number_of_pixels(self, device):
        maxima = nms_topk(torch.rand(1, 1, 2, 2, device=device), 50)
        assert maxima.keypoints.shape == (1, 50, 2) and int(maxima.valid.sum()) == 1


class TestCompat:
    """The other implementations' behaviour, on request."""

    def test_kornia(self, device):
        heatmap_to_keypoints = pytest.importorskip("kornia.feature.disk.detector").heatmap_to_keypoints
        for seed in range(4):
            heatmap = (torch.randn(2, 1, 40, 50, generator=torch.Generator().manual_seed(seed)) * 4).round() / 4
            heatmap = heatmap.to(device)
            for n, window_size in ((None, 5), (20, 5), (1000, 3), (10, 9)):
                expected = heatmap_to_keypoints(heatmap, n, window_size, 0.25)
                ours = nms_topk(heatmap, n, window_size, 0.25, compat="kornia")
                for b, keypoints in enumerate(expected):
                    assert torch.equal(ours.keypoints[b, ours.valid[b]], keypoints.xys)
                    assert torch.equal(ours.scores[b, ours.valid[b]], keypoints.detection_logp)

    def test_official_loses_the_weakest_and_all_ties_at_the_threshold(self, device):
        heatmap = torch.zeros(1, 1, 3, 40, device=device)
        heatmap[0, 0, 1, ::10] = torch.tensor([5.0, 4.0, 4.0, 3.0], device=device)
        assert nms_topk(heatmap, 2, compat="official").valid.sum() == 1
        assert nms_topk(heatmap, 10, compat="official").valid.sum() == 3
        assert nms_topk(heatmap, 2).valid.sum() == 2
        assert nms_topk(heatmap, 10).valid.sum() == 4

    def test_official_raises_where_there_is_nothing(self, device):
        with pytest.raises((IndexError, RuntimeError)):
            nms_topk(torch.zeros(1, 1, 9, 9, device=device), 5, compat="official")

    def test_official_keeps_border_and_first_of_plateau(self, device):
        heatmap = torch.zeros(1, 1, 9, 9, device=device)
        for x, y in ((0, 0), (8, 1), (8, 8), (7, 8)):
            heatmap[0, 0, y, x] = 1
        ours = nms_topk(heatmap, None, compat="official")
        assert ours.keypoints[0].tolist() == [[0, 0], [8, 1], [7, 8]]
        assert nms_topk(heatmap, None).keypoints[0].tolist() == [[0, 0], [8, 1], [7, 8]]
        assert nms_topk(heatmap, None, compat="kornia").valid.sum() == 0
