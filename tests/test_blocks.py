"""disk_ops.ops.blocks: a block's input resampled, joined, normalised and gated where it is read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from block_cases import CASES, make_inputs
from torch import Tensor

from disk_ops import _library, reference_blocks
from disk_ops.ops import (
    block_activation,
    block_convolution,
    block_norm,
    block_patches,
    conv_block,
    describe_block,
)

native = pytest.mark.skipif(not _library.load().loaded, reason="no compiled library")


@pytest.fixture(params=CASES, ids=str)
def inputs(request):
    return make_inputs(CASES[request.param])


class TestBlockNorm:
    def test_are_mean_and_deviation(self, inputs):
        given = inputs.float()
        exact, norm = inputs.norm(), block_norm(given.x, given.skip, given.resample)
        torch.testing.assert_close(norm.double(), exact, rtol=2e-6, atol=2e-6)

    def test_a_constant_channel_becomes_0(self):
        x = torch.full((1, 16, 6, 6), 3.7)
        patches = block_patches(x, torch.tensor([[[3, 3]]]), norm=block_norm(x))
        assert not patches.any()

    def test_far_from_0(self):
        """The squares of values near 1000 would leave no digits of a deviation of 0.01."""
        x = 1000 + 0.01 * torch.randn(1, 16, 50, 50, dtype=torch.float64)
        x = x.float()
        torch.testing.assert_close(
            block_norm(x).double(), reference_blocks.block_norm(x.double(), None, "none"), rtol=1e-5, atol=0
        )


class TestBlockConvolution:
    def test_smoke(self, inputs):
        given = inputs.float()
        norm = block_norm(given.x, given.skip, given.resample)
        output = block_convolution(given.x, given.weight, given.bias, given.skip, norm, given.slope, given.resample)
        assert output.dtype == torch.float32 and output.shape[1] == len(inputs.weight)

    def test_is_the_convolution_of_the_activation(self, inputs):
        """Within 32 roundings of the largest sum, on every processor."""
        given = inputs.float()
        exact = F.conv2d(inputs.activation(), inputs.weight, inputs.bias, padding="same")
        norm = block_norm(given.x, given.skip, given.resample)
        output = block_convolution(given.x, given.weight, given.bias, given.skip, norm, given.slope, given.resample)
        assert output.shape == exact.shape
        assert float((output.double() - exact).abs().max()) < 32 * inputs.rounding()

    @pytest.mark.parametrize("channels", [1, 3])
    @pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
    def test_of_an_image(self, channels, memory_format):
        images = torch.rand(2, channels, 37, 23).to(memory_format=memory_format)
        weight, bias = torch.randn(16, channels, 5, 5), torch.randn(16)
        exact = F.conv2d(images.double(), weight.double(), bias.double(), padding="same")
        torch.testing.assert_close(block_convolution(images, weight, bias).double(), exact, rtol=1e-5, atol=1e-5)
        crop = images[:, :, 3:-4, 2:-5]  # not contiguous
        torch.testing.assert_close(
            block_convolution(crop, weight, bias), block_convolution(crop.contiguous(), weight, bias), rtol=0, atol=0
        )

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_of_a_part_is_that_of_its_copy(self, inputs, dtype):
        """Parts of wider images in channels-last aren't copied; nothing around them is read."""

        def inside(x: Tensor | None, memory_format: torch.memory_format) -> Tensor | None:
            if x is None:
                return None
            wide = F.pad(x, (2, 3, 1, 4), value=torch.nan).to(memory_format=memory_format)
            return wide[..., 1 : 1 + x.shape[2], 2 : 2 + x.shape[3]]

        given = inputs.to(dtype)
        xy = torch.randint(min(inputs.activation().shape[2:]), (len(given.x), 30, 2))
        results = []
        for memory_format in (torch.channels_last, torch.contiguous_format):
            x, skip = (inside(each, memory_format) for each in (given.x, given.skip))
            rest = (skip, block_norm(x, skip, given.resample), given.slope, given.resample)
            output = block_convolution(x, given.weight, given.bias, *rest)
            activation = block_activation(x, skip, given.slope, given.resample)
            results.append((rest[1], output, activation, block_patches(x, xy, *rest)))
        assert all(each.isfinite().all() for each in results[0])
        assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))

    def test_does_not_depend_on_threads(self, inputs):
        given = inputs.float()
        height, width = inputs.activation().shape[2:]
        points = torch.randint(min(height, width), (len(given.x), 60, 2))
        threads = torch.get_num_threads()
        results = []
        try:
            for number in (1, 2, 3):
                torch.set_num_threads(number)
                norm = block_norm(given.x, given.skip, given.resample)
                rest = (given.skip, norm, given.slope, given.resample)
                output = block_convolution(given.x, given.weight, given.bias, *rest)
                activation = block_activation(given.x, given.skip, given.slope, given.resample)
                results.append((norm, output, block_patches(given.x, points, *rest), activation))
        finally:
            torch.set_num_threads(threads)
        for other in results[1:]:
            assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))

    def test_does_not_depend_on_the_batch(self):
        x, weight, bias = torch.randn(3, 16, 40, 52), torch.randn(16, 16, 5, 5), torch.randn(16)
        alone = torch.cat([block_convolution(image, weight, bias, norm=block_norm(image)) for image in x.split(1)])
        torch.testing.assert_close(alone, block_convolution(x, weight, bias, norm=block_norm(x)))

    def test_nan_stays_where_it_is_read(self):
        x = torch.randn(1, 16, 40, 40)
        x[0, 3, 10, 10] = torch.nan
        output = block_convolution(x, torch.randn(16, 16, 5, 5), torch.zeros(16))
        assert output[0, :, 8:13, 8:13].isnan().all()
        assert output[0, :, 20:, 20:].isfinite().all()

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_other_dtypes(self, dtype):
        x, weight, bias = (torch.randn(*shape).to(dtype) for shape in ((1, 16, 8, 8), (16, 16, 5, 5), (16,)))
        output = block_convolution(x, weight, bias, norm=block_norm(x, resample="pool"), resample="pool")
        assert output.dtype == dtype and output.shape == (1, 16, 4, 4)

    def test_other_sizes(self):
        """Channels and kernels for which there are no compiled kernels."""
        x, weight, bias = torch.randn(1, 5, 8, 8), torch.randn(7, 5, 3, 3), torch.randn(7)
        expected = F.conv2d(F.avg_pool2d(x, 2), weight, bias, padding="same")
        torch.testing.assert_close(block_convolution(x, weight, bias, resample="pool"), expected)

    def test_gradcheck(self):
        """With gradients it is PyTorch's own operations."""
        x, skip, weight, bias, slope = (
            torch.randn(*shape, dtype=torch.float64, requires_grad=True)
            for shape in ((1, 2, 3, 3), (1, 1, 6, 6), (2, 3, 5, 5), (2,), (3,))
        )

        def run(*tensors: Tensor) -> Tensor:
            x, skip, weight, bias, slope = tensors
            return block_convolution(x, weight, bias, skip, block_norm(x, skip, "up"), slope, "up")

        assert torch.autograd.gradcheck(run, (x, skip, weight, bias, slope))
        x = torch.randn(1, 16, 8, 8, requires_grad=True)
        assert block_convolution(x, torch.randn(16, 16, 5, 5), torch.randn(16)).requires_grad

    def test_forward_derivative(self):
        x, towards = torch.randn(1, 16, 12, 8), torch.randn(1, 16, 12, 8)
        weight, bias = torch.randn(16, 16, 5, 5), torch.randn(16)

        def run(x: Tensor) -> Tensor:
            norm = block_norm(x, resample="pool")
            return block_convolution(x, weight.to(x.dtype), bias.to(x.dtype), norm=norm, resample="pool")

        _, derivative = torch.func.jvp(run, (x,), (towards,))
        _, exact = torch.func.jvp(run, (x.double(),), (towards.double(),))
        torch.testing.assert_close(derivative.double(), exact, rtol=1e-4, atol=1e-4)

    def test_dynamo(self):
        x, weight, bias = torch.randn(1, 16, 12, 8), torch.randn(16, 16, 5, 5), torch.randn(16)

        def run(x: Tensor) -> Tensor:
            return block_convolution(x, weight, bias, norm=block_norm(x, resample="pool"), resample="pool")

        compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), run(x))

    @native
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"resample": "down"}, "resample must be 'none', 'pool' or 'up', got 'down'"),
            ({"x": torch.rand(1, 16, 8)}, r"x must have shape \[B, C, H, W\]"),
            ({"x": torch.rand(1, 16, 1, 8), "resample": "pool"}, "x must leave at least one pixel"),
            ({"x": torch.rand(1, 16, 8, 8).double()}, "x must be float32, float16 or bfloat16, got Double"),
            ({"weight": torch.rand(16, 16, 5, 5).half()}, "weight must be of dtype Float, got Half"),
            ({"skip": torch.rand(1, 16, 8, 9)}, r"skip must have shape \[1, C, 8, 8\], got \[1, 16, 8, 9\]"),
            ({"skip": torch.rand(1, 3, 8, 8), "weight": torch.rand(16, 19, 5, 5)}, "skip must have a multiple of 16"),
            ({"norm": torch.rand(2, 1, 3)}, r"norm must have shape \[2, 1, 16\], got \[2, 1, 3\]"),
            ({"slope": torch.rand(3)}, r"slope must have shape \[16\], got \[3\]"),
            ({"weight": torch.rand(5, 16, 5, 5)}, "with K = 1 or a multiple of 16"),
            ({"weight": torch.rand(16, 16, 3, 3)}, r"weight must have shape \[K, 16, 5, 5\]"),
            ({"bias": torch.rand(3)}, r"bias must have shape \[16\], got \[3\]"),
        ],
    )
    def test_exception(self, change, message):
        """Of the op itself; the function takes what the op does not."""
        arguments = {
            "x": torch.rand(1, 16, 8, 8),
            "weight": torch.rand(16, 16, 5, 5),
            "bias": torch.rand(16),
            "skip": None,
            "norm": None,
            "slope": None,
            "resample": "none",
            **change,
        }
        with pytest.raises((RuntimeError, ValueError), match=message):
            torch.ops.disk_ops.block_convolution(*arguments.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["compiled", "reference"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.rand(16, 8, 8)}, r"x must have shape \[B, C, H, W\], got \[16, 8, 8\]"),
        ({"x": torch.rand(1, 16, 1, 1), "resample": "pool"}, "x must leave at least one pixel"),
        ({"x": torch.ones(1, 16, 8, 8).int()}, "x must be float"),
        ({"skip": torch.rand(1, 16, 9, 8)}, r"skip must have shape \[1, C, 8, 8\], got \[1, 16, 9, 8\]"),
        ({"skip": torch.rand(2, 16, 8, 8)}, r"skip must have shape \[1, C, 8, 8\], got \[2, 16, 8, 8\]"),
        ({"norm": torch.rand(2, 1, 3)}, r"norm must have shape \[2, 1, 16\], got \[2, 1, 3\]"),
        ({"slope": torch.rand(3)}, r"slope must have shape \[16\], got \[3\]"),
        ({"slope": torch.rand(16, device="meta")}, "slope must be on the device of x"),
        ({"weight": torch.rand(16, 15, 5, 5)}, r"weight must have shape \[K, 16, .* got \[16, 15, 5, 5\]"),
        ({"weight": torch.rand(0, 16, 5, 5)}, r"weight must have shape \[K, 16, .* got \[0, 16, 5, 5\]"),
        ({"bias": torch.rand(3)}, r"bias must have shape \[16\], got \[3\]"),
        ({"resample": "down"}, "resample must be 'none', 'pool' or 'up', got 'down'"),
    ],
)
def test_wrong_arguments_are_named_with_and_without_kernels(dtype, change, message):
    arguments = {"x": torch.rand(1, 16, 8, 8), "weight": torch.rand(16, 16, 5, 5), "bias": torch.rand(16)} | change
    if dtype == torch.float64:
        arguments = {k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in arguments.items()}
    with pytest.raises((RuntimeError, ValueError, TypeError), match=message):
        block_convolution(**arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["compiled", "reference"])
@pytest.mark.parametrize("op", [conv_block, block_convolution])
@pytest.mark.parametrize("kernel", [(4, 4), (3, 5), (0, 0)])
def test_kernels_are_squares_of_odd_size(dtype, op, kernel):
    x, weight, bias = (torch.rand(*size, dtype=dtype) for size in ((1, 16, 8, 8), (16, 16, *kernel), (16,)))
    with pytest.raises(ValueError, match=rf"weight must have shape \[K, .* k odd.* got \[16, 16, {kernel[0]}, "):
        op(x, weight, bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["compiled", "reference"])
@pytest.mark.parametrize("kernel", [(7, 7), (3, 3), (5, 3)])
def test_descriptors_read_patches_of_5_by_5(dtype, kernel):
    """A larger kernel would read zeros where the image goes on."""
    x, weight, bias = (torch.rand(*size, dtype=dtype) for size in ((1, 16, 8, 8), (8, 16, *kernel), (8,)))
    with pytest.raises(ValueError, match=r"weight must have shape \[D, C1 \+ C2, 5, 5\]"):
        describe_block(x, weight, bias, torch.tensor([[[3, 4]]]))


def test_no_channels():
    x, weight, bias = torch.rand(1, 0, 8, 8), torch.rand(16, 0, 5, 5), torch.rand(16)
    with pytest.raises(ValueError, match=r"weight must have .* at least one channel, got \[16, 0, 5, 5\]"):
        conv_block(x.double(), weight.double(), bias.double())


XY = torch.tensor([[[3, 4]]])
SIZES = {"x": (1, 16, 8, 8), "weight": (16, 32, 5, 5), "bias": (16,), "skip": (1, 16, 8, 8), "slope": (32,)}
TAKEN = {
    conv_block: ("x", "weight", "bias", "skip", "slope"),
    block_convolution: ("x", "weight", "bias", "skip", "slope"),
    describe_block: ("x", "weight", "bias", "skip", "slope"),
    block_activation: ("x", "skip", "slope"),
    block_patches: ("x", "skip", "slope"),
    block_norm: ("x", "skip"),
}


@pytest.mark.parametrize(("op", "name"), [(op, name) for op, names in TAKEN.items() for name in names])
def test_tensors_of_another_dtype_are_named(op, name):
    tensors = {each: torch.rand(SIZES[each]) for each in TAKEN[op]}
    more = {"keypoints": XY} if op in (describe_block, block_patches) else {}
    wrong = {name: tensors[name].double()}
    if name == "x":  # then all others are of another dtype
        name, wrong = "skip", {"x": wrong["x"]} | {each: tensors[each].double() for each in TAKEN[op] if each != "skip"}
    with pytest.raises(TypeError, match=f"^{name} must be of dtype torch.float.* as x is, got torch.float"):
        op(**tensors | wrong, **more)
    with pytest.raises(TypeError, match=f"^{name} must be a tensor, got ndarray"):
        op(**tensors | {name: tensors[name].numpy()}, **more)


@pytest.mark.parametrize("op", TAKEN)
def test_arrays_in_place_of_x(op):
    tensors = {each: torch.rand(SIZES[each]) for each in TAKEN[op]} | {"x": np.zeros((1, 16, 8, 8), np.float32)}
    more = {"keypoints": XY} if op in (describe_block, block_patches) else {}
    with pytest.raises(TypeError, match=r"^x must be a tensor, got ndarray"):
        op(**tensors, **more)


@pytest.mark.parametrize("keypoints", [torch.tensor([3, 4]), torch.tensor([[3, 4]])])
@pytest.mark.parametrize("op", ["describe_block", "block_patches"])
def test_keypoints_without_a_batch(op, keypoints):
    x, weight, bias = torch.rand(1, 16, 8, 8), torch.rand(8, 16, 5, 5), torch.rand(8)
    with pytest.raises(ValueError, match=r"keypoints must have shape \[B, N, 2\], got \["):
        describe_block(x, weight, bias, keypoints) if op == "describe_block" else block_patches(x, keypoints)


class TestBlockPatches:
    def test_are_those_of_the_activation(self, inputs):
        given = inputs.float()
        norm = block_norm(given.x, given.skip, given.resample)
        activation = given.activation()
        height, width = activation.shape[2:]
        corners = torch.tensor([(0, 0), (width - 1, height - 1), (width // 2, height // 2), (0, height - 1)])
        keypoints = corners.expand(len(given.x), -1, -1)
        patches = block_patches(given.x, keypoints, given.skip, norm, given.slope, given.resample)
        padded = F.pad(activation, (2, 2, 2, 2))
        for i, (x, y) in enumerate(corners.tolist()):
            torch.testing.assert_close(patches[:, i], padded[:, :, y : y + 5, x : x + 5], rtol=1e-4, atol=1e-4)

    @native
    def test_exception(self):
        with pytest.raises(
            ValueError, match=r"keypoints must lie inside the image of width 8 and height 6, got \(8, 0\)"
        ):
            block_patches(torch.rand(1, 16, 6, 8), torch.tensor([[[8, 0]]]))
        with pytest.raises(RuntimeError, match="keypoints must have shape"):
            block_patches(torch.rand(1, 16, 6, 8), torch.zeros(2, 1, 2, dtype=torch.int64))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["compiled", "reference"])
    @pytest.mark.parametrize("xy", [(8, 0), (-1, 2), (3, 6), (0, -7)])
    def test_keypoints_outside_are_refused(self, dtype, xy):
        with pytest.raises(ValueError, match=r"keypoints must lie inside the image of width 8 and height 6"):
            block_patches(torch.rand(1, 16, 6, 8, dtype=dtype), torch.tensor([[xy]]))

    @pytest.mark.parametrize("number", [0, 1, 4097])
    def test_descriptors(self, number):
        x, weight, bias = torch.randn(2, 16, 6, 8), torch.randn(5, 16, 5, 5), torch.randn(5)
        keypoints = torch.stack([torch.randint(0, 8, (2, number)), torch.randint(0, 6, (2, number))], -1)
        descriptors = describe_block(x, weight, bias, keypoints, norm=block_norm(x))
        dense = F.normalize(F.conv2d(F.instance_norm(x), weight, bias, padding="same"), dim=1)
        expected = torch.stack([dense[b][:, xy[:, 1], xy[:, 0]].T for b, xy in enumerate(keypoints)])
        torch.testing.assert_close(descriptors, expected, rtol=1e-5, atol=1e-5)


@native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", ["norm", "convolution", "score", "patches"])
def test_opcheck(op, dtype):
    x, skip, slope = (torch.rand(*size).to(dtype) for size in ((1, 16, 4, 4), (1, 16, 8, 8), (32,)))
    norm, ops = torch.rand(2, 1, 32), torch.ops.disk_ops
    with torch.no_grad():
        if op == "norm":
            torch.library.opcheck(ops.block_norm.default, (x, skip, "up"))
        elif op == "patches":
            arguments = (x, torch.tensor([[[0, 7], [3, 3]]]), skip, norm, slope, "up")
            torch.library.opcheck(ops.block_patches.default, arguments)
        else:
            outputs = 1 if op == "score" else 16
            weight, bias = torch.rand(outputs, 32, 5, 5).to(dtype), torch.rand(outputs).to(dtype)
            torch.library.opcheck(ops.block_convolution.default, (x, weight, bias, skip, norm, slope, "up"))
