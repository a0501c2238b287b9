"""The CUDA kernels of the block ops, run on the CPU by the emulator, against the reference in float64."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from block_cases import CASES, Case, Inputs, make_inputs

from disk_ops import reference_blocks

pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("emulated_ops")]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Sums are made in float32 and rounded once: by half a unit in the last place, and a little where float32 has rounded
# before. Relative to the largest number of a result.
TOLERANCES = {torch.float32: 1e-6, torch.float16: 2**-11 * 1.01, torch.bfloat16: 2**-8 * 1.01}
ODD = {
    "image": Case((1, 3, 33, 47), 0, 16, "none"),
    "an image's channel": Case((2, 1, 5, 4), 0, 1, "none"),
    "odd channels": Case((3, 5, 7, 9), 2, 3, "up"),
    "odd channels of the skip": Case((1, 16, 4, 5), 3, 1, "up"),
    "wide": Case((1, 128, 9, 7), 0, 5, "pool"),
    "the network's last": Case((1, 64, 21, 35), 16, 1, "up"),
    "a single pixel": Case((3, 32, 1, 1), 0, 1, "none"),
    "pooled to a pixel": Case((1, 80, 3, 2), 0, 16, "pool"),
    "more channels than threads": Case((1, 259, 5, 3), 0, 1, "none"),
    "too many for the head": Case((1, 300, 6, 5), 0, 1, "pool"),
    "more runs than one": Case((2, 8, 40, 21), 8, 1, "up"),
}
ALL = {**CASES, **ODD}
MOST_HEAD_CHANNELS = 288  # of blocks_kernel.h


class Given:
    """The tensors of a case in one dtype, and the same numbers in float64."""

    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        self.inputs = Inputs(*(t.to(dtype) if isinstance(t, Tensor) else t for t in make_inputs(case)))
        self.exact = Inputs(*(t.double() if isinstance(t, Tensor) else t for t in self.inputs))
        exact = self.exact
        self.norm = reference_blocks.block_norm(exact.x, exact.skip, exact.resample).float()
        self.exact_norm = self.norm.double()
        # What float32 leaves of a value that is no different from the mean, which the norm of a pixel makes large.
        self.rounding = 2**-22 * float((self.norm[0].abs() * self.norm[1]).max())

    def of_input(self) -> tuple[Any, ...]:
        return self.inputs.skip, self.norm, self.inputs.slope, self.inputs.resample

    def of_exact(self) -> tuple[Any, ...]:
        return self.exact.skip, self.exact_norm, self.exact.slope, self.exact.resample

    def points(self) -> Tensor:
        """Corners, edges, the middle, of each image."""
        height, width = self.activation().shape[2:]
        places = [(0, 0), (width - 1, height - 1), (width // 2, height // 2), (0, height - 1), (width // 3, 0)]
        return torch.tensor(places).expand(len(self.inputs.x), -1, -1)

    def activation(self) -> Tensor:
        return reference_blocks.block_activation(self.exact.x, *self.of_exact())


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def check(ours: Tensor, exact: Tensor, dtype: torch.dtype, rounding: float, factor: float = 1) -> None:
    """In the given dtype, and as near to the exact numbers as that allows."""
    assert ours.dtype == dtype and ours.shape == exact.shape
    scale = max(float(exact.abs().max()), 1.0)
    tolerance = (TOLERANCES[dtype] * scale + rounding) * factor
    torch.testing.assert_close(ours.double(), exact, rtol=0, atol=tolerance)


def check_outputs(output: Tensor, exact: Tensor, given: Given) -> None:
    """Of a convolution. A score isn't rounded, but with many channels what the convolution reads."""
    dtype, channels = given.inputs.x.dtype, given.inputs.weight.shape[1]
    if exact.shape[1] == 1:
        assert output.dtype == torch.float32
        dtype = torch.float32 if channels <= MOST_HEAD_CHANNELS else dtype
        output = output.to(dtype)
    check(output, exact, dtype, given.rounding, 4)


def emulated(name: str) -> Any:
    return getattr(torch.ops.disk_ops_emu, name)


@pytest.mark.parametrize("name", ALL, ids=str)
def test_norm(name: str, dtype: torch.dtype) -> None:
    given = Given(ALL[name], dtype)
    norm = emulated("block_norm")(given.inputs.x, given.inputs.skip, given.inputs.resample)
    exact = reference_blocks.block_norm(given.exact.x, given.exact.skip, given.exact.resample)
    assert norm.dtype == torch.float32 and norm.shape == exact.shape
    torch.testing.assert_close(norm.double(), exact, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("name", ALL, ids=str)
def test_activation(name: str, dtype: torch.dtype) -> None:
    given = Given(ALL[name], dtype)
    activation = emulated("block_activation")(given.inputs.x, *given.of_input())
    assert activation.is_contiguous(memory_format=torch.channels_last)
    check(activation, given.activation(), dtype, given.rounding)


@pytest.mark.parametrize("name", ALL, ids=str)
def test_patches(name: str, dtype: torch.dtype) -> None:
    given = Given(ALL[name], dtype)
    patches = emulated("block_patches")(given.inputs.x, given.points(), *given.of_input())
    exact = reference_blocks.block_patches(given.exact.x, given.points(), *given.of_exact())
    check(patches, exact, dtype, given.rounding)
    activation = emulated("block_activation")(given.inputs.x, *given.of_input())
    padded = F.pad(activation, (2, 2, 2, 2))
    for image, points in enumerate(given.points().tolist()):
        for number, (x, y) in enumerate(points):  # the same bits
            assert torch.equal(patches[image, number], padded[image, :, y : y + 5, x : x + 5])


@pytest.mark.parametrize("name", ALL, ids=str)
def test_convolution(name: str, dtype: torch.dtype) -> None:
    """To one output by a kernel of ours; to many by PyTorch, which rounds what it reads first."""
    given = Given(ALL[name], dtype)
    weight, bias = given.inputs.weight, given.inputs.bias
    output = emulated("block_convolution")(given.inputs.x, weight, bias, *given.of_input())
    exact = reference_blocks.block_convolution(given.exact.x, weight.double(), bias.double(), *given.of_exact())
    check_outputs(output, exact, given)


@pytest.mark.parametrize("name", ["down", "as it is", "to one", "the network's last", "image", "odd channels"])
def test_without_norm_or_gate(name: str, dtype: torch.dtype) -> None:
    given = Given(ALL[name], dtype)
    x, weight, bias, skip = given.inputs.x, given.inputs.weight, given.inputs.bias, given.inputs.skip
    exact = given.exact
    for norm, slope in ((None, None), (given.norm, None), (None, given.inputs.slope)):
        rest = (skip, norm, slope, given.inputs.resample)
        exact_rest = (
            exact.skip,
            None if norm is None else given.exact_norm,
            None if slope is None else exact.slope,
            exact.resample,
        )
        activation = reference_blocks.block_activation(exact.x, *exact_rest)
        check(emulated("block_activation")(x, *rest), activation, dtype, given.rounding)
        outputs = F.conv2d(activation, exact.weight, exact.bias, padding="same")
        check_outputs(emulated("block_convolution")(x, weight, bias, *rest), outputs, given)


@pytest.mark.parametrize("name", ["down", "to one", "the network's last", "odd channels", "more runs than one"])
def test_same_bits_in_any_order_of_threads(name: str, schedule: int) -> None:
    given = Given(ALL[name], torch.float16)
    x, weight, bias = given.inputs.x, given.inputs.weight[:1], given.inputs.bias[:1]

    def run() -> list[Tensor]:
        return [
            emulated("block_norm")(x, given.inputs.skip, given.inputs.resample),
            emulated("block_activation")(x, *given.of_input()),
            emulated("block_patches")(x, given.points(), *given.of_input()),
            emulated("block_convolution")(x, weight, bias, *given.of_input()),
        ]

    torch.ops.disk_ops_emu.set_seed(0)
    first = run()
    torch.ops.disk_ops_emu.set_seed(schedule)
    for _ in range(2):
        assert all(torch.equal(one, other) for one, other in zip(first, run(), strict=True))


@pytest.mark.parametrize("resample", ["none", "pool", "up"])
def test_images_of_a_batch_stay_alone(resample: str, dtype: torch.dtype) -> None:
    given = Given(Case((3, 16, 12, 10), 8, 1, resample), dtype)
    x, skip, slope = given.inputs.x, given.inputs.skip, given.inputs.slope
    assert skip is not None
    weight, bias = given.inputs.weight, given.inputs.bias
    norm = emulated("block_norm")(x, skip, resample)
    output = emulated("block_convolution")(x, weight, bias, skip, norm, slope, resample)
    for i in range(3):
        alone = (x[i, None], skip[i, None])
        own = emulated("block_norm")(*alone, resample)
        assert torch.equal(own[:, 0], norm[:, i])
        again = emulated("block_convolution")(alone[0], weight, bias, alone[1], own, slope, resample)
        assert torch.equal(again[0], output[i])


def test_layouts() -> None:
    """Whatever lies where: the results are those of channels-last tensors."""
    given = Given(Case((2, 16, 9, 11), 8, 1, "up"), torch.float32)
    x, skip, weight = given.inputs.x, given.inputs.skip, given.inputs.weight
    assert skip is not None
    rest = (given.norm, given.inputs.slope, "up")
    last = torch.channels_last
    expected = emulated("block_convolution")(
        x.to(memory_format=last), weight, given.inputs.bias, skip.to(memory_format=last), *rest
    )
    layouts = {
        "contiguous": lambda t: t.contiguous(),
        "transposed": lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
        "a part of channels": lambda t: torch.cat([t, t], 1).to(memory_format=last)[:, : t.shape[1]],
        "a part of columns": lambda t: F.pad(t, (3, 2, 1, 1))[:, :, 1:-1, 3:-2],
        "every other one": lambda t: t.repeat_interleave(2, 3)[..., ::2],
    }
    for change in layouts.values():
        for op in ("block_convolution", "block_norm", "block_patches"):
            changed = (change(x), change(skip))
            if op == "block_norm":
                assert torch.equal(emulated(op)(*changed, "up"), emulated(op)(x, skip, "up"))
            elif op == "block_patches":
                arguments = (given.points().mT.contiguous().mT, changed[1], given.norm, given.inputs.slope, "up")
                patches = emulated(op)(changed[0], *arguments)
                assert torch.equal(patches, emulated(op)(x, given.points(), *given.of_input()))
            else:
                other = (change(weight), given.inputs.bias.repeat(2)[::2], changed[1], *rest)
                assert torch.equal(emulated(op)(changed[0], *other), expected)
    unaligned = torch.empty(x.numel() + 1)[1:].view(2, 9, 11, 16).permute(0, 3, 1, 2).copy_(x)
    assert unaligned.data_ptr() % 16 and unaligned.is_contiguous(memory_format=last)
    ours = emulated("block_convolution")(unaligned, weight, given.inputs.bias, skip, *rest)
    assert torch.equal(ours, expected)


def test_norm_far_from_0() -> None:
    """The squares of values near 1000 would leave no digits of a deviation of 0.01."""
    x = (1000 + 0.01 * torch.randn(1, 16, 50, 50, dtype=torch.float64)).float()
    norm = emulated("block_norm")(x, None, "none")
    torch.testing.assert_close(norm.double(), reference_blocks.block_norm(x.double(), None, "none"), rtol=1e-5, atol=0)


def test_norm_of_a_constant() -> None:
    x = torch.full((1, 16, 6, 6), 3.7)
    norm = emulated("block_norm")(x, None, "none")
    assert not emulated("block_activation")(x, None, norm, None, "none").any()


def test_norm_of_many_runs() -> None:
    """Taller than one run for each thread, and a ramp, whose runs have means of their own."""
    x = torch.randn(1, 8, 700, 9, dtype=torch.float64) + torch.linspace(-50, 50, 700)[:, None]
    x = x.half()
    norm = emulated("block_norm")(x, None, "none")
    torch.testing.assert_close(
        norm.double(), reference_blocks.block_norm(x.double(), None, "none"), rtol=1e-5, atol=1e-5
    )


def test_nan_stays_where_it_is_read() -> None:
    x = torch.randn(1, 16, 12, 40)
    x[0, 3, 5, 10] = torch.nan
    output = emulated("block_convolution")(x, torch.randn(1, 16, 5, 5), torch.zeros(1), None, None, None, "none")
    assert output[0, 0, 3:8, 8:13].isnan().all()
    assert int(output.isnan().sum()) == 25
    norm = emulated("block_norm")(x, None, "none")
    assert norm[:, 0, 3].isnan().all() and int(norm.isnan().sum()) == 2


@pytest.mark.parametrize("size", [(27, 58), (28, 59), (29, 60), (57, 61), (1, 119), (60, 1), (2, 121)], ids=str)
def test_strips_of_the_head(size: tuple[int, int]) -> None:
    """Sizes at which a strip of the heatmap's kernel ends."""
    x, weight, bias = torch.randn(1, 4, *size), torch.randn(1, 4, 5, 5) / 10, torch.randn(1)
    output = emulated("block_convolution")(x, weight, bias, None, None, None, "none")
    exact = F.conv2d(x.double(), weight.double(), bias.double(), padding="same")
    check(output, exact, torch.float32, 0, 4)


def test_empty() -> None:
    x, skip, norm = torch.zeros(0, 16, 4, 4), torch.zeros(0, 8, 8, 8), torch.zeros(2, 0, 24)
    rest = (skip, norm, torch.zeros(24), "up")
    assert emulated("block_norm")(x, skip, "up").shape == (2, 0, 24)
    assert emulated("block_activation")(x, *rest).shape == (0, 24, 8, 8)
    for outputs in (1, 16):
        weight, bias = torch.zeros(outputs, 24, 5, 5), torch.zeros(outputs)
        assert emulated("block_convolution")(x, weight, bias, *rest).shape == (0, outputs, 8, 8)
    patches = emulated("block_patches")
    assert patches(x, torch.zeros(0, 3, 2).long(), *rest).shape == (0, 3, 24, 5, 5)
    none = patches(torch.zeros(2, 3, 4, 4), torch.zeros(2, 0, 2).long(), None, None, None, "none")
    assert none.shape == (2, 0, 3, 5, 5)


def test_autocast_stays_outside() -> None:
    x, weight, bias = torch.randn(1, 4, 8, 8), torch.randn(3, 4, 5, 5), torch.randn(3)
    arguments = (x, weight, bias, None, None, torch.rand(4), "none")
    output = emulated("block_convolution")(*arguments)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(emulated("block_convolution")(*arguments), output)


def test_points_outside_count_as_the_nearest_pixel() -> None:
    x = torch.randn(1, 4, 5, 6)
    outside, inside = torch.tensor([[[-3, 2], [9, 9], [2**40, -(2**40)]]]), torch.tensor([[[0, 2], [5, 4], [5, 0]]])
    patches = emulated("block_patches")
    assert torch.equal(patches(x, outside, None, None, None, "none"), patches(x, inside, None, None, None, "none"))


def test_errors_name_the_argument() -> None:
    x, half = torch.zeros(1, 16, 8, 8), torch.zeros(1, 16, 8, 8).half()
    weight, bias = torch.zeros(3, 16, 5, 5), torch.zeros(3)
    for match, arguments in {
        "x must be float32, float16 or bfloat16": (x.double(), weight, bias, None, None, None, "none"),
        "weight must be of dtype Half": (half, weight, bias, None, None, None, "none"),
        "weight must have shape": (x, weight[..., :3], bias, None, None, None, "none"),
        "bias must have shape": (x, weight, bias[:2], None, None, None, "none"),
        "skip must be of dtype": (x, weight, bias, half, None, None, "none"),
        "skip must have shape": (x, weight, bias, x, None, None, "up"),
        "norm must be of dtype Float": (x, weight, bias, None, torch.zeros(2, 1, 16).half(), None, "none"),
        "norm must have shape": (x, weight, bias, None, torch.zeros(2, 16), None, "none"),
        "slope must have shape": (x, weight, bias, None, None, bias, "none"),
        "resample must be": (x, weight, bias, None, None, None, "down"),
        "x must leave at least one pixel": (x[..., :1], weight, bias, None, None, None, "pool"),
    }.items():
        with pytest.raises((RuntimeError, ValueError), match=match):
            emulated("block_convolution")(*arguments)
