"""disk_ops.ops.blocks in half types on the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from block_cases import CASES, make_inputs

from disk_ops.ops import (
    block_activation,
    block_convolution,
    block_norm,
    block_patches,
    blocks,
    conv_block,
    describe_block,
)


@pytest.fixture(params=CASES, ids=str)
def inputs(request):
    return make_inputs(CASES[request.param])


HALF_TYPES = {torch.float16: 2**-11, torch.bfloat16: 2**-8}  # and what rounding changes a number by, at most


@pytest.fixture(params=HALF_TYPES, ids=str)
def half(request):
    return request.param


class TestHalf:
    """Half types on the CPU: computed in float32 from the same numbers, and rounded once."""

    def test_statistics_are_float32(self, inputs, half):
        given = inputs.to(half)
        norm = block_norm(given.x, given.skip, given.resample)
        assert norm.dtype == torch.float32
        torch.testing.assert_close(norm.double(), given.to(torch.float64).norm(), rtol=2e-6, atol=2e-6)

    def test_results_are_those_of_float32_rounded_once(self, inputs, half):
        """The same bits; scores aren't rounded."""
        given, wide = inputs.to(half), inputs.to(half).float()
        norm = block_norm(given.x, given.skip, given.resample)
        rest = (given.skip, norm, given.slope, given.resample)
        wide_rest = (wide.skip, norm, wide.slope, wide.resample)
        output = block_convolution(given.x, given.weight, given.bias, *rest)
        expected = block_convolution(wide.x, wide.weight, wide.bias, *wide_rest)
        assert torch.equal(output, expected if len(given.weight) == 1 else expected.to(half))
        assert torch.equal(
            block_activation(given.x, given.skip, given.slope, given.resample),
            block_activation(wide.x, wide.skip, wide.slope, wide.resample).to(half),
        )
        keypoints = torch.zeros(len(given.x), 1, 2, dtype=torch.int64)
        patches = block_patches(given.x, keypoints, *rest)
        assert torch.equal(patches, block_patches(wide.x, keypoints, *wide_rest).to(half))

    def test_convolution_against_float64(self, inputs, half):
        """The bound of float32 (above), and the half type's rounding of each number."""
        given, exact_inputs = inputs.to(half), inputs.to(half).to(torch.float64)
        exact = F.conv2d(exact_inputs.activation(), exact_inputs.weight, exact_inputs.bias, padding="same")
        wide = given.float()
        direct = F.conv2d(wide.activation(), wide.weight, wide.bias, padding="same")
        norm = block_norm(given.x, given.skip, given.resample)
        output = block_convolution(given.x, given.weight, given.bias, given.skip, norm, given.slope, given.resample)
        score = len(given.weight) == 1
        assert output.dtype == (torch.float32 if score else half)
        bound = 4 * float((direct.double() - exact).abs().max()) + 4e-6
        rounding = 0 if score else HALF_TYPES[half] * (exact.abs() + bound)
        assert bool(((output.double() - exact).abs() < bound + rounding).all())

    @pytest.mark.parametrize("channels", [1, 3])
    def test_of_an_image(self, half, channels):
        images, weight, bias = torch.rand(2, channels, 37, 23), torch.randn(16, channels, 5, 5), torch.randn(16)
        images, weight, bias = images.to(half), weight.to(half), bias.to(half)
        expected = block_convolution(images.float(), weight.float(), bias.float())
        for given in (images, images.to(memory_format=torch.channels_last), images.mT.contiguous().mT):
            assert torch.equal(block_convolution(given, weight, bias), expected.to(half))

    def test_every_number_is_read(self, half):
        """Subnormal numbers, infinities and NaN too: their bits come out as they went in."""
        x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(half).view(1, 64, 64, 16).permute(0, 3, 1, 2)
        copied, number = block_activation(x), ~x.isnan()
        assert torch.equal(copied.isnan(), ~number)
        assert torch.equal(copied.view(torch.int16)[number], x.view(torch.int16)[number])

    def test_ties_are_rounded_to_even(self, half):
        """Between each two neighbouring numbers, as PyTorch rounds."""
        bits = torch.arange(2**15, dtype=torch.int32).to(torch.int16)
        first, second = bits.view(half), (bits + (bits < 2**15 - 1).short()).view(half)
        x = torch.stack([first, second, first, second], -1).view(1, 16, 2**11, 2, 2).permute(0, 1, 3, 2, 4)
        x = x.reshape(1, 16, 2, 2**12)
        middle = F.avg_pool2d(x.float(), 2).to(half)
        pooled = block_activation(x, resample="pool")
        torch.testing.assert_close(pooled, middle, rtol=0, atol=0, equal_nan=True)

    def test_without_compiled_kernels(self, inputs, half, monkeypatch):
        """The reference computes in float32 too: no further from the kernels than a rounding and float32's errors."""
        given = inputs.to(half)
        norm = block_norm(given.x, given.skip, given.resample)
        rest = (given.skip, norm, given.slope, given.resample)
        mine = block_convolution(given.x, given.weight, given.bias, *rest)
        monkeypatch.setattr(blocks, "KERNEL_DTYPES", {})
        reference = block_convolution(given.x, given.weight, given.bias, *rest)
        assert mine.dtype == reference.dtype
        rounding = 2 * HALF_TYPES[half] if mine.dtype == half else 0
        torch.testing.assert_close(mine, reference, rtol=rounding, atol=1e-4)

    def test_autocast(self, inputs, half):
        """Arguments become half, as those of a convolution do, and results are the same as of half tensors."""
        given, rounded = inputs.float(), inputs.to(half)
        expected = conv_block(rounded.x, rounded.weight, rounded.bias, rounded.skip, rounded.slope, rounded.resample)
        with torch.autocast("cpu", half):
            output = conv_block(given.x, given.weight, given.bias, given.skip, given.slope, given.resample)
        assert torch.equal(output, expected)

    def test_other_sizes(self, half):
        """Channels and kernels for which there are no compiled kernels."""
        x, weight, bias = (torch.randn(*size).to(half) for size in ((1, 5, 8, 8), (7, 5, 3, 3), (7,)))
        expected = F.conv2d(x.float(), weight.float(), bias.float(), padding="same").to(half)
        assert torch.equal(block_convolution(x, weight, bias), expected)

    def test_descriptors_have_unit_length_before_rounding(self, half):
        x, weight, bias = (torch.randn(*size).to(half) for size in ((1, 16, 6, 8), (5, 16, 5, 5), (5,)))
        keypoints = torch.stack([torch.randint(0, 8, (1, 40)), torch.randint(0, 6, (1, 40))], -1)
        norm = block_norm(x)
        patches = block_patches(x, keypoints, norm=norm).double()[0]
        exact = F.normalize(torch.einsum("ncvu,dcvu->nd", patches, weight.double()) + bias.double(), dim=-1)
        descriptors = describe_block(x, weight, bias, keypoints, norm=norm)
        assert descriptors.dtype == half
        torch.testing.assert_close(descriptors[0].double(), exact, rtol=HALF_TYPES[half], atol=1e-6)
