"""The CUDA kernels of describe, run on the CPU by the emulator, against the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from disk_ops import reference

pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("emulated_ops")]

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
# The reference rounds once as well, so that half types may differ by one unit in the last place.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
ALL_AT_ONCE, FEW_AT_A_TIME = 1 << 24, 700  # numbers of patches


def random_points(batch: int, count: int, width: int, height: int) -> Tensor:
    return torch.stack([torch.randint(width, (batch, count)), torch.randint(height, (batch, count))], dim=-1)


def random_layer(
    channels: int, depth: int, size: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:  # [D, C, k, k], [D]
    return (torch.randn(depth, channels, size, size) / size).to(dtype), torch.randn(depth).to(dtype)


def check(activation: Tensor, layer: tuple[Tensor, Tensor], keypoints: Tensor) -> None:
    """Forward and backward, with all patches at once and in blocks."""
    weight, bias = layer
    grad = torch.randn(*keypoints.shape[:2], len(weight)).to(activation.dtype)
    arguments = (activation, weight, bias, keypoints)
    expected = (reference.describe(*arguments), *reference._describe_backward(grad, *arguments))
    for numbers in (ALL_AT_ONCE, FEW_AT_A_TIME):
        actual = (
            torch.ops.disk_ops_emu.describe_in_blocks(*arguments, numbers),
            *torch.ops.disk_ops_emu.describe_backward_in_blocks(grad, *arguments, numbers),
        )
        tolerance = TOLERANCES[activation.dtype]
        for name, ours, theirs in zip(("result", "activation", "weight", "bias"), actual, expected, strict=True):
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, name
            scale = max(float(theirs.abs().max()), 1.0) if theirs.numel() else 1.0
            torch.testing.assert_close(
                ours / scale, theirs / scale, rtol=0, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
            )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 3, 5, 7])
def test_window_sizes(size: int, dtype: torch.dtype) -> None:
    activation = torch.randn(2, 6, 9, 8).to(dtype)
    check(activation, random_layer(6, 5, size, dtype), random_points(2, 14, 8, 9))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 40, 1, 7), (1, 33, 5, 1), (3, 2, 3, 4), (1, 70, 6, 6)], ids=str)
def test_shapes(shape: tuple[int, ...]) -> None:
    batch, channels, height, width = shape
    check(torch.randn(shape), random_layer(channels, 40, 5), random_points(batch, 9, width, height))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_layouts(dtype: torch.dtype) -> None:
    activation = torch.randn(2, 6, 10, 9).to(dtype)
    layer, points = random_layer(6, 7, 5, dtype), random_points(2, 8, 9, 10)
    check(activation.to(memory_format=torch.channels_last), layer, points)
    check(activation.transpose(2, 3).contiguous().transpose(2, 3), layer, points)
    check(activation[:1].expand(2, 6, 10, 9), layer, points)
    check(torch.randn(2, 9, 21, 19).to(dtype)[:, 1:7, 1::2, 1::2], layer, points)
    check(activation, (layer[0].to(memory_format=torch.channels_last), layer[1]), points.mT.contiguous().mT)


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_same_pixel_many_times(channels_last: bool, schedule: int) -> None:
    activation = torch.randn(2, 5, 6, 7)
    if channels_last:
        activation = activation.to(memory_format=torch.channels_last)
    points = random_points(2, 30, 3, 3) + 2  # patches overlap, many in whole
    points[:, 20:] = points[:, :1]
    check(activation, random_layer(5, 4, 5), points)


@pytest.mark.parametrize("shape", [(0, 3, 5, 5), (2, 3, 5, 5), (1, 3, 0, 5), (1, 0, 5, 5)], ids=str)
def test_empty(shape: tuple[int, ...]) -> None:
    batch, channels, height, width = shape
    check(torch.randn(shape), random_layer(channels, 4, 3), torch.zeros(batch, 0, 2, dtype=torch.int64))
    if height:
        check(torch.randn(shape), random_layer(channels, 4, 3), random_points(batch, 3, width, height))
        check(torch.randn(shape), random_layer(channels, 0, 3), random_points(batch, 3, width, height))


def test_zero_output_stays_zero() -> None:
    activation, weight, bias = torch.zeros(1, 2, 4, 4), torch.randn(3, 2, 3, 3), torch.zeros(3)
    check(activation, (weight, bias), random_points(1, 5, 4, 4))


def test_points_outside_count_as_the_nearest_pixel() -> None:
    activation, layer = torch.randn(1, 4, 5, 6), random_layer(4, 3, 5)
    outside = torch.tensor([[[-3, 2], [9, 9], [2**40, -(2**40)]]])
    inside = torch.tensor([[[0, 2], [5, 4], [5, 0]]])
    op = torch.ops.disk_ops_emu.describe
    assert torch.equal(op(activation, *layer, outside), op(activation, *layer, inside))


def test_same_bits_each_time(schedule: int) -> None:
    activation, (weight, bias), points = torch.randn(1, 8, 12, 12), random_layer(8, 6, 5), random_points(1, 60, 12, 12)
    grad = torch.randn(1, 60, 6)
    arguments = (activation, weight, bias, points)
    torch.ops.disk_ops_emu.set_seed(0)
    first = torch.ops.disk_ops_emu._describe_backward(grad, *arguments)
    torch.ops.disk_ops_emu.set_seed(schedule)
    again = torch.ops.disk_ops_emu._describe_backward(grad, *arguments)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_rounding_to_half_types(factor: float, dtype: torch.dtype) -> None:
    """A gradient of one product each shows the rounding alone: normal and subnormal numbers, and overflow."""
    values = torch.cat([torch.randn(200) * 10.0**exponent for exponent in range(-8, 5)]).to(dtype)
    values = values[values.isfinite()]
    points = torch.stack([torch.arange(len(values)), torch.zeros_like(values).long()], dim=1)[None]
    weight, bias = torch.tensor([0.0, factor], dtype=dtype).view(2, 1, 1, 1), torch.tensor([1.0, 0.0], dtype=dtype)
    grad = torch.stack([torch.zeros_like(values), values], dim=1)[None]
    activation = torch.zeros(1, 1, 1, len(values), dtype=dtype)
    ours, *_ = torch.ops.disk_ops_emu._describe_backward(grad, activation, weight, bias, points)
    assert torch.equal(ours.flatten(), (values.float() * weight[1].float().item()).to(dtype))


def test_errors_name_the_argument() -> None:
    op, activation, points = torch.ops.disk_ops_emu.describe, torch.zeros(1, 2, 4, 4), torch.zeros(1, 3, 2).long()
    weight, bias = torch.zeros(5, 2, 3, 3), torch.zeros(5)
    for match, arguments in {
        r"activation must have shape \[B, C, H, W\], got \[2, 4, 4\]": (activation[0], weight, bias, points),
        "activation must be float": (activation.int(), weight.int(), bias.int(), points),
        "weight must have shape": (activation, weight[:, :1], bias, points),
        "weight must be of dtype": (activation, weight.double(), bias, points),
        "bias must have shape": (activation, weight, bias[:2], points),
        "keypoints must have shape": (activation, weight, bias, points[0]),
        "keypoints must be of dtype": (activation, weight, bias, points.float()),
        "keypoints must lie inside": (activation[:, :, :0], weight, bias, points),
    }.items():
        with pytest.raises((RuntimeError, ValueError, TypeError), match=match):
            op(*arguments)
