"""disk_ops.ops.blocks with gradients: whole blocks, of which nothing between input and output is kept."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from block_cases import CASES, Inputs, make_inputs
from torch import Tensor

from disk_ops import _library, reference_blocks
from disk_ops.ops import block_activation, conv_block

native = pytest.mark.skipif(not _library.load().loaded, reason="no compiled library")


@pytest.fixture(params=CASES, ids=str)
def inputs(request):
    return make_inputs(CASES[request.param])


def leaves(inputs: Inputs) -> Inputs:
    """The same tensors, whose gradients are kept."""
    return Inputs(*(entry.detach().requires_grad_() if isinstance(entry, Tensor) else entry for entry in inputs))


def gradients(inputs: Inputs, output: Tensor, towards: Tensor) -> dict[str, Tensor]:
    """Of a loss with the gradient `towards` at `output`."""
    given = {name: entry for name, entry in inputs._asdict().items() if isinstance(entry, Tensor)}
    found = torch.autograd.grad(output, list(given.values()), towards.to(output.dtype), allow_unused=True)
    return {name: gradient for name, gradient in zip(given, found, strict=True) if gradient is not None}


def layers(inputs: Inputs) -> Tensor:
    """The block by PyTorch's modules."""
    return F.conv2d(inputs.activation(), inputs.weight, inputs.bias, padding="same")


def block(inputs: Inputs) -> Tensor:
    return conv_block(inputs.x, inputs.weight, inputs.bias, inputs.skip, inputs.slope, inputs.resample)


def largest_error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().max())


class TestConvBlock:
    def test_smoke(self, inputs):
        output = block(leaves(inputs.float()))
        assert output.dtype == torch.float32 and output.requires_grad

    def test_is_the_layers(self, inputs):
        exact = layers(inputs)
        for output in (block(inputs.float()), block(leaves(inputs.float())).detach()):
            assert float((output.double() - exact).abs().max()) < 32 * inputs.rounding()

    def test_gradients_are_those_of_the_layers(self, inputs):
        """Relative to the largest element, within ten times the rounding error of float32 layers, and a little."""
        towards = torch.randn(layers(inputs).shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        reference, direct, mine = leaves(inputs), leaves(inputs.float()), leaves(inputs.float())
        exact = gradients(reference, layers(reference), towards)
        usual = gradients(direct, layers(direct), towards)
        found = gradients(mine, block(mine), towards)
        assert found.keys() == exact.keys()
        for name, gradient in exact.items():
            error, bound = largest_error(found[name], gradient), largest_error(usual[name], gradient)
            assert error < 10 * bound + 1e-5, f"{name}: {error} against {bound} of direct convolution"

    def test_without_norm_and_gate(self, inputs):
        towards = torch.randn(layers(inputs).shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        found = []
        for given in (leaves(inputs), leaves(inputs.float())):
            output = conv_block(given.x, given.weight, given.bias, given.skip, None, given.resample)
            found.append(gradients(given, output, towards))
        for name, gradient in found[0].items():
            assert largest_error(found[1][name], gradient) < 4e-5, name
        assert "slope" not in found[0] and found[0].keys() == found[1].keys()

    def test_gradcheck(self):
        """In float64 it is PyTorch's own operations."""
        tensors = [
            torch.randn(*shape, dtype=torch.float64, requires_grad=True)
            for shape in ((1, 2, 3, 3), (2, 3, 5, 5), (2,), (1, 1, 6, 6), (3,))
        ]
        assert torch.autograd.gradcheck(lambda *tensors: conv_block(*tensors, "up"), tensors)

    @pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
    def test_half(self, inputs, half):
        """Gradients are those of float32 from the same numbers, rounded once."""
        mine, wide = leaves(inputs.to(half)), leaves(inputs.to(half).float())
        output = block(mine)
        towards = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype)
        found, expected = gradients(mine, output, towards), gradients(wide, block(wide), towards)
        assert found.keys() == expected.keys() >= {"x", "weight", "bias", "slope"}
        for name, gradient in expected.items():
            assert torch.equal(found[name], gradient.to(half)), name
        with torch.no_grad():
            assert torch.equal(output, block(mine))

    @pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
    def test_autocast(self, inputs, half):
        """Gradients of float32 tensors under autocast are those of half tensors."""
        given, rounded = leaves(inputs.float()), leaves(inputs.to(half))
        with torch.autocast("cpu", half):
            output = block(given)
        towards = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype)
        found, expected = gradients(given, output, towards), gradients(rounded, block(rounded), towards)
        for name, gradient in expected.items():
            assert found[name].dtype == torch.float32 and torch.equal(found[name], gradient.float()), name

    @pytest.mark.parametrize("frozen", ["x", "weight", "bias", "skip", "slope"])
    def test_of_some(self, frozen):
        given = leaves(make_inputs(CASES["up"]).float())
        towards = torch.ones_like(block(given))
        everything = gradients(given, block(given), towards)
        getattr(given, frozen).requires_grad_(False)
        block(given).backward(towards)
        for name, gradient in everything.items():
            mine = getattr(given, name).grad
            assert mine is None if name == frozen else torch.equal(mine, gradient)

    @pytest.mark.parametrize("of_image", [False, True])
    def test_of_an_image(self, of_image):
        images, weight, bias = torch.rand(2, 3, 37, 23), torch.randn(16, 3, 5, 5), torch.randn(16)
        given = [tensor.requires_grad_() for tensor in (images.requires_grad_(of_image), weight, bias)][1 - of_image :]
        images.requires_grad_(of_image)
        found = torch.autograd.grad(conv_block(images, weight, bias).square().sum(), given)
        doubled = [images.double(), weight.double(), bias.double()]
        exact = torch.autograd.grad(F.conv2d(*doubled, padding="same").square().sum(), given)
        for mine, other in zip(found, exact, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))

    def test_memory_format(self):
        given = leaves(make_inputs(CASES["up"]).float())
        towards = torch.randn_like(block(given))
        found = gradients(given, block(given), towards)
        strided = Inputs(
            given.x.contiguous(memory_format=torch.channels_last), given.weight, given.bias,
            given.skip.contiguous(memory_format=torch.channels_last), given.slope, given.resample,
        )  # fmt: skip
        other = gradients(strided, block(strided), towards.contiguous(memory_format=torch.channels_last))
        for name, gradient in found.items():
            assert torch.equal(other[name], gradient), name

    def test_of_a_part_is_that_of_its_copy(self, inputs):
        """Parts of wider images in channels-last aren't copied; nothing around them is read."""

        def inside(x: Tensor | None) -> Tensor | None:
            if x is None:
                return None
            wide = F.pad(x, (2, 3, 1, 4), value=torch.nan).to(memory_format=torch.channels_last)
            return wide[..., 1 : 1 + x.shape[2], 2 : 2 + x.shape[3]]

        copy = leaves(inputs.float())
        part = leaves(copy._replace(x=inside(copy.x), skip=inside(copy.skip)))
        towards = torch.randn_like(block(copy))
        expected, found = gradients(copy, block(copy), towards), gradients(part, block(part), towards)
        assert expected.keys() == found.keys() >= {"x", "weight", "bias"}
        for name, gradient in found.items():
            assert torch.equal(gradient, expected[name]), name

    def test_does_not_depend_on_threads(self):
        inputs, threads, results = make_inputs(CASES["up"]).float(), torch.get_num_threads(), []
        try:
            for number in (1, 2, 3):
                torch.set_num_threads(number)
                given = leaves(inputs)
                output = block(given)
                results.append(gradients(given, output, torch.ones_like(output)))
        finally:
            torch.set_num_threads(threads)
        for name, gradient in results[0].items():
            assert torch.equal(gradient, results[1][name]) and torch.equal(gradient, results[2][name]), name

    def test_no_image(self):
        x, weight = torch.rand(0, 16, 8, 8, requires_grad=True), torch.randn(32, 16, 5, 5, requires_grad=True)
        conv_block(x, weight, torch.zeros(32), slope=torch.ones(16), resample="pool").sum().backward()
        assert x.grad.shape == x.shape and not weight.grad.any()

    @native
    def test_is_differentiable_once(self):
        given = leaves(make_inputs(CASES["as it is"]).float())
        (gradient,) = torch.autograd.grad(block(given).square().sum(), given.x, create_graph=True)
        with pytest.raises(RuntimeError, match="once"):
            gradient.sum().backward()

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_other_dtypes(self, dtype):
        x, weight, bias, slope = (torch.randn(*s).to(dtype) for s in ((1, 16, 8, 8), (16, 16, 5, 5), (16,), (16,)))
        x.requires_grad_()
        output = conv_block(x, weight, bias, slope=slope, resample="pool")
        output.sum().backward()
        assert output.dtype == dtype and x.grad.dtype == dtype

    def test_other_sizes(self):
        """Channels and kernels for which there are no compiled kernels."""
        x, weight, bias = torch.randn(1, 16, 8, 8, requires_grad=True), torch.randn(7, 16, 3, 3), torch.randn(7)
        expected = F.conv2d(F.avg_pool2d(x, 2), weight, bias, padding="same")
        output = conv_block(x, weight, bias, resample="pool")
        torch.testing.assert_close(output, expected)
        towards = torch.rand_like(output)
        torch.testing.assert_close(*(torch.autograd.grad(each, x, towards) for each in (output, expected)))

    @pytest.mark.parametrize("outputs", [5, 129])
    def test_any_number_of_outputs(self, outputs):
        given = leaves(make_inputs(CASES["up"]._replace(outputs=outputs)).float())
        output = block(given)
        torch.testing.assert_close(output, layers(given), rtol=1e-4, atol=1e-4)
        towards = torch.randn_like(output)
        found, expected = gradients(given, output, towards), gradients(given, layers(given), towards)
        for name, gradient in expected.items():
            assert largest_error(found[name], gradient.double()) < 1e-3, name

    def test_dynamo(self):
        given = leaves(make_inputs(CASES["down"]).float())
        compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
        output, expected = compiled(given), block(given)
        torch.testing.assert_close(output, expected)
        towards = torch.ones_like(output)
        for mine, other in zip(
            gradients(given, output, towards).values(), gradients(given, expected, towards).values(), strict=True
        ):
            torch.testing.assert_close(mine, other)


class TestBlockActivation:
    def test_is_that_of_the_layers(self, inputs):
        given = inputs.float()
        found = block_activation(given.x, given.skip, given.slope, given.resample)
        torch.testing.assert_close(found.double(), inputs.activation(), rtol=1e-5, atol=1e-5)

    def test_gradients(self, inputs):
        towards = torch.randn(
            inputs.activation().shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
        )
        reference, mine = leaves(inputs), leaves(inputs.float())
        exact = gradients(reference, reference.activation(), towards)
        found = gradients(mine, block_activation(mine.x, mine.skip, mine.slope, mine.resample), towards)
        assert found.keys() == exact.keys() >= {"x", "slope"}
        for name, gradient in exact.items():
            assert largest_error(found[name], gradient) < 2e-5, name

    @pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
    def test_half(self, inputs, half):
        mine, wide = leaves(inputs.to(half)), leaves(inputs.to(half).float())
        output, expected = (block_activation(g.x, g.skip, g.slope, g.resample) for g in (mine, wide))
        assert torch.equal(output, expected.to(half))
        towards = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(half)
        found, exact = gradients(mine, output, towards), gradients(wide, expected, towards)
        for name, gradient in exact.items():
            assert torch.equal(found[name], gradient.to(half)), name

    def test_without_norm_and_gate(self):
        x, skip = torch.rand(1, 16, 4, 4, requires_grad=True), torch.rand(1, 16, 4, 4)
        assert torch.equal(block_activation(x, skip), torch.cat([x, skip], 1))


class TestReference:
    """The twins of the gradient ops, in float64, against autograd."""

    def test_of_the_input(self, inputs):
        given = leaves(inputs)
        towards = torch.randn(given.activation().shape, dtype=torch.float64)
        exact = gradients(given, given.activation(), towards)
        found = reference_blocks._block_input_backward(
            towards, inputs.x, inputs.skip, inputs.norm(), inputs.slope, inputs.resample
        )
        for name, mine in zip(("x", "skip", "slope"), found, strict=True):
            torch.testing.assert_close(mine, exact.get(name, mine.new_zeros(0)))

    def test_of_the_weights(self, inputs):
        given = leaves(inputs)
        towards = torch.randn(layers(given).shape, dtype=torch.float64)
        found = reference_blocks._block_weight_backward(
            towards, inputs.x, inputs.skip, inputs.norm(), inputs.slope, inputs.resample
        )
        torch.testing.assert_close(found, gradients(given, layers(given), towards)["weight"])


X, SKIP, NORM, SLOPE = torch.rand(1, 16, 4, 4), torch.rand(1, 16, 8, 8), torch.rand(2, 1, 32), torch.rand(32)
OPS = {
    "block_activation": (X, SKIP, NORM, SLOPE, "up"),
    "_block_input_backward": (torch.rand(1, 32, 8, 8), X, SKIP, NORM, SLOPE, "up"),
    "_block_weight_backward": (torch.rand(1, 48, 8, 8), X, SKIP, NORM, SLOPE, "up"),
}


@native
@pytest.mark.parametrize("op", OPS)
def test_opcheck(op):
    torch.library.opcheck(getattr(torch.ops.disk_ops, op).default, OPS[op])


@native
@pytest.mark.parametrize(
    ("op", "grad", "message"),
    [
        (
            "_block_input_backward",
            torch.rand(1, 32, 8, 9),
            r"grad must be .* of size \[1, C, 8, 8\], got \[1, 32, 8, 9\]",
        ),
        ("_block_input_backward", torch.rand(1, 16, 8, 8), "grad must be that of the block's output"),
        ("_block_input_backward", torch.rand(1, 32, 8, 8).double(), "grad must be float32"),
        ("_block_weight_backward", torch.rand(2, 16, 8, 8), "grad must be that of the block's output"),
        ("_block_weight_backward", torch.rand(1, 5, 8, 8), "grad must have 1 channel or a multiple of 16"),
    ],
)
def test_exception(op, grad, message):
    with pytest.raises((RuntimeError, ValueError), match=message):
        getattr(torch.ops.disk_ops, op)(grad, *OPS[op][1:])
