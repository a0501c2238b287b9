"""disk_ops.ops.describe: a convolution at keypoints only, normalised, and its gradients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from disk_ops import DISKDetector, reference
from disk_ops.model import UNet
from disk_ops.ops import describe, nms_topk

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
# Of results in units of the largest: descriptors are at most 1, half types round once.
TOLERANCES = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 3e-6, torch.float64: 1e-13}
# All but the one that compiles, which test_opcheck_of_compiled_gradients does.
QUICK_CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")

Arguments = tuple[Tensor, Tensor, Tensor, Tensor]


def make(
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    shape: tuple[int, int, int, int] = (2, 6, 9, 11),
    depth: int = 7,
    size: int = 5,
    count: int = 20,
) -> Arguments:
    """Random activation, weight, bias and keypoints, the same on every device and in every dtype."""
    batch, channels, height, width = shape
    activation = torch.randn(shape, dtype=torch.float64)
    weight = torch.randn(depth, channels, size, size, dtype=torch.float64) / size
    bias = torch.randn(depth, dtype=torch.float64)
    if count:
        points = torch.stack([torch.randint(width, (batch, count)), torch.randint(height, (batch, count))], dim=-1)
    else:
        points = torch.zeros(batch, 0, 2, dtype=torch.int64)
    return activation.to(device, dtype), weight.to(device, dtype), bias.to(device, dtype), points.to(device)


def sample_inputs(device: torch.device, dtype: torch.dtype = torch.float32) -> Iterator[tuple[str, Arguments]]:
    """Every edge case once."""
    yield "plain", make(device, dtype)
    for size in (1, 3, 7, 11):
        yield f"window of {size}", make(device, dtype, size=size)
    yield "window larger than the image", make(device, dtype, (1, 3, 2, 3), size=9)
    yield "one pixel", make(device, dtype, (3, 4, 1, 1))
    yield "several blocks of keypoints", make(device, dtype, count=101)
    yield "several slices of channels", make(device, dtype, (1, 300, 5, 6), size=3)
    yield "many dimensions", make(device, dtype, depth=133)
    yield "no keypoints", make(device, dtype, count=0)
    yield "no images", make(device, dtype, (0, 3, 5, 5))
    yield "no pixels", make(device, dtype, (2, 3, 0, 5), count=0)
    yield "no channels", make(device, dtype, (1, 0, 4, 4))
    yield "no dimensions", make(device, dtype, depth=0)
    activation, weight, bias, points = make(device, dtype)
    corners = torch.tensor([[0, 0], [10, 0], [0, 8], [10, 8]], device=device).expand(2, -1, -1)
    yield "corners", (activation, weight, bias, corners)
    yield "one keypoint many times", (activation, weight, bias, points[:, :1].expand(2, 60, 2))
    yield "channels last", (activation.to(memory_format=torch.channels_last), weight, bias, points)
    yield "weight channels last", (activation, weight.to(memory_format=torch.channels_last), bias, points)
    turned = make(device, dtype, (2, 6, 11, 9))[0].transpose(2, 3)
    yield "not contiguous", (turned, weight.flip(0), bias, points.flip(1))
    larger = make(device, dtype, (2, 13, 18, 23))[0]
    yield "a window into a larger map", (larger[:, 1::2, ::2, 1::2], weight, bias, points)
    yield "one map for all images", (activation[:1].expand(2, -1, -1, -1), weight, bias, points)


def dense(activation: Tensor, weight: Tensor, bias: Tensor, keypoints: Tensor) -> Tensor:
    """The convolution of the whole image, read at the keypoints."""
    if activation.shape[2] * activation.shape[3] * activation.shape[0] * len(weight) == 0:
        return activation.new_zeros(*keypoints.shape[:2], len(weight))
    if activation.shape[1] == 0:
        return F.normalize(bias.expand(*keypoints.shape[:2], -1), dim=-1)
    output = F.conv2d(activation, weight, bias, padding=weight.shape[-1] // 2)
    image = torch.arange(len(activation), device=activation.device)[:, None]
    return F.normalize(output[image, :, keypoints[..., 1], keypoints[..., 0]], dim=-1)


def assert_near(name: str, actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert actual.dtype == dtype and actual.shape == expected.shape, name
    scale = float(expected.abs().max().clamp(min=1e-30)) if expected.numel() else 1.0
    torch.testing.assert_close(actual.double() / scale, expected / scale, rtol=0, atol=TOLERANCES[dtype], msg=name)


class TestDescribe:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_smoke(self, device, dtype):
        arguments = make(device, dtype)
        result = describe(*arguments)
        assert result.shape == (2, 20, 7) and result.dtype == dtype and result.device == arguments[0].device
        assert ((result.double().norm(dim=-1) - 1).abs() < 1e-2).all()

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"activation": torch.rand(6, 9, 11)}, ValueError, r"activation must have shape .* got \[6, 9, 11\]"),
            ({"activation": torch.ones(2, 6, 9, 11).int()}, TypeError, "activation must be float16.* got torch.int32"),
            ({"weight": torch.rand(7, 5, 5, 5)}, ValueError, r"weight must .* C = 6 and k odd, got \[7, 5, 5, 5\]"),
            ({"weight": torch.rand(7, 6, 4, 4)}, ValueError, r"weight must .* k odd, got \[7, 6, 4, 4\]"),
            ({"weight": torch.rand(7, 6, 3, 5)}, ValueError, r"weight must have shape .* got \[7, 6, 3, 5\]"),
            ({"weight": torch.rand(7, 6, 5, 5).double()}, TypeError, "weight must be of dtype .* got torch.float64"),
            ({"bias": torch.rand(6)}, ValueError, r"bias must have shape \[D\] with D = 7, got \[6\]"),
            ({"bias": torch.rand(7).half()}, TypeError, "bias must be of dtype torch.float32 .* got torch.float16"),
            ({"keypoints": torch.zeros(4, 2).long()}, ValueError, r"keypoints must have shape .* got \[4, 2\]"),
            ({"keypoints": torch.zeros(3, 4, 2).long()}, ValueError, r"keypoints must have shape .* with B = 2"),
            ({"keypoints": torch.zeros(2, 4, 2)}, TypeError, "keypoints must be whole pixels .* got torch.float32"),
            ({"activation": torch.zeros(2, 6, 0, 11)}, ValueError, "keypoints must lie inside the image, which has"),
        ],
    )
    def test_exception(self, device, change, error, message):
        arguments = dict(zip(("activation", "weight", "bias", "keypoints"), make(device), strict=True))
        with pytest.raises(error, match=message):
            describe(**{name: value.to(device) for name, value in (arguments | change).items()})

    @pytest.mark.parametrize("implementation", ["op", "reference"])
    @pytest.mark.parametrize("point", [(11, 0), (0, 9), (-1, 3), (3, -1), (2**62, 0)])
    def test_keypoint_outside_the_image(self, device, implementation, point):
        compute = describe if implementation == "op" else reference.describe
        activation, weight, bias, keypoints = make(device)
        keypoints[1, 13] = torch.tensor(point)
        if device.type == "cpu":
            message = rf"keypoints must lie .* 11 and height 9, got \({point[0]}, {point[1]}\) as number 13 of image 1"
            with pytest.raises(ValueError, match=message):
                compute(activation, weight, bias, keypoints)
        else:
            nearest = keypoints.clamp(min=0).minimum(torch.tensor([10, 8], device=device))
            assert torch.equal(compute(activation, weight, bias, keypoints), compute(activation, weight, bias, nearest))

    def test_exception_of_the_native_op(self, device):
        activation, weight, bias, keypoints = make(device)
        for message, arguments in {
            r"activation must have shape \[B, C, H, W\], got": (activation[0], weight, bias, keypoints),
            "activation must be float": (activation.int(), weight, bias, keypoints),
            r"weight must have shape \[D, C, k, k\] with C = 6": (activation, weight[..., 1:], bias, keypoints),
            "weight must be of dtype Float, got Double": (activation, weight.double(), bias, keypoints),
            r"bias must have shape \[D\] with D = 7": (activation, weight, bias[1:], keypoints),
            r"keypoints must have shape \[B, N, 2\]": (activation, weight, bias, keypoints[0]),
            "keypoints must be of dtype Long, got Int": (activation, weight, bias, keypoints.int()),
        }.items():
            with pytest.raises(RuntimeError, match=message):
                torch.ops.disk_ops.describe(*arguments)
        with pytest.raises(RuntimeError, match=r"grad must have shape \[B, N, D\] = \[2, 20, 7\], got \[2, 20, 6\]"):
            torch.ops.disk_ops._describe_backward(torch.zeros(2, 20, 6).to(device), *make(device))

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("implementation", ["op", "reference"])
    def test_feature(self, device, dtype, implementation):
        ops = torch.ops.disk_ops if implementation == "op" else reference
        for name, arguments in sample_inputs(device, dtype):
            *exact, keypoints = arguments
            exact = [tensor.double().requires_grad_() for tensor in exact]
            expected = dense(*exact, keypoints)
            assert_near(name, ops.describe(*arguments), expected.detach(), dtype)
            grad = torch.randn(expected.shape, dtype=torch.float64).to(device, dtype)
            grads = ops._describe_backward(grad, *arguments)
            nothing = sum(tensor.sum() * 0 for tensor in exact)  # so that all have a gradient, and be it 0
            expected_grads = torch.autograd.grad(expected + nothing, exact, grad.double())
            for which, actual, wanted in zip(("activation", "weight", "bias"), grads, expected_grads, strict=True):
                assert_near(f"{name}, gradient of {which}", actual, wanted, dtype)

    def test_zero_output(self, device):
        activation, weight, bias, keypoints = make(device)
        for factor in (0.0, 1e-15):  # below epsilon, division by a constant
            arguments = [(tensor * factor).requires_grad_() for tensor in (activation, weight, bias)]
            result, expected = describe(*arguments, keypoints), dense(*arguments, keypoints)
            torch.testing.assert_close(result, expected)
            for ours, theirs in zip(
                torch.autograd.grad(result[..., 0].sum(), arguments),
                torch.autograd.grad(expected[..., 0].sum(), arguments),
                strict=True,
            ):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-2)

    def test_nan_stays_where_it_is(self, device):
        activation, weight, bias, _ = make(device)
        keypoints = torch.tensor([[[1, 1], [9, 7]], [[1, 1], [9, 7]]], device=device)
        activation[0, 2, 2, 2] = torch.nan
        result = describe(activation, weight, bias, keypoints)
        assert result[0, 0].isnan().all() and not result[0, 1].isnan().any() and not result[1].isnan().any()

    def test_on_the_network(self, device):
        detector = DISKDetector.from_pretrained(device=device)
        images = torch.rand(2, 3, 48, 64, device=device)
        with torch.no_grad():
            activation = detector.unet.features(images)
            layer = detector.unet.last_convolution
            heatmap, _ = detector.heatmap_and_dense_descriptors(images)
            keypoints = nms_topk(heatmap, 40).keypoints
            descriptors = describe(activation, layer.weight[:-1], layer.bias[:-1], keypoints)
            torch.testing.assert_close(descriptors, detector.describe(images, keypoints), rtol=0, atol=2e-5)

    def test_padding_the_batch_changes_nothing(self, device):
        activation, weight, bias, keypoints = make(device)
        both = describe(activation, weight, bias, keypoints)
        for i in range(2):
            alone = describe(activation[i, None], weight, bias, keypoints[i, None])
            torch.testing.assert_close(alone, both[i, None], rtol=0, atol=1e-6)

    def test_result_does_not_depend_on_threads(self, device):
        activation, weight, bias, keypoints = make(device, shape=(1, 40, 30, 30), depth=60, count=500)
        grad = torch.randn(1, 500, 60, device=device)
        threads = torch.get_num_threads()
        results = []
        try:
            for count in (1, 2, 5):
                torch.set_num_threads(count)
                arguments = (activation, weight, bias, keypoints)
                results.append((describe(*arguments), *torch.ops.disk_ops._describe_backward(grad, *arguments)))
        finally:
            torch.set_num_threads(threads)
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))

    @pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
    def test_gradcheck(self, device, memory_format):
        activation, weight, bias, keypoints = make(device, torch.float64, (2, 2, 4, 5), depth=3, size=3, count=4)
        keypoints[:, 3] = keypoints[:, 0]
        activation = activation.to(memory_format=memory_format)
        inputs = [tensor.requires_grad_() for tensor in (activation, weight, bias)]
        assert torch.autograd.gradcheck(lambda a, w, b: describe(a, w, b, keypoints), inputs)

    def test_second_derivatives_are_refused(self, device):
        activation, weight, bias, keypoints = make(device)
        weight.requires_grad_()
        (grad,) = torch.autograd.grad(describe(activation, weight, bias, keypoints).sum(), weight, create_graph=True)
        with pytest.raises(RuntimeError, match="describe can be differentiated once"):
            grad.sum().backward()

    def test_opcheck(self, device):
        for _, arguments in sample_inputs(device):
            torch.library.opcheck(torch.ops.disk_ops.describe.default, arguments, test_utils=QUICK_CHECKS)
            activation, weight, bias, keypoints = arguments
            inputs = [tensor.detach().clone().requires_grad_() for tensor in (activation, weight, bias)]
            torch.library.opcheck(torch.ops.disk_ops.describe.default, (*inputs, keypoints), test_utils=QUICK_CHECKS)
            grad = torch.randn(*keypoints.shape[:2], len(weight), device=device)
            backward = torch.ops.disk_ops._describe_backward.default
            torch.library.opcheck(backward, (grad, *arguments), test_utils=QUICK_CHECKS)

    def test_opcheck_of_compiled_gradients(self, device):
        *inputs, keypoints = make(device)
        inputs = [tensor.requires_grad_() for tensor in inputs]
        torch.library.opcheck(torch.ops.disk_ops.describe.default, (*inputs, keypoints))

    def test_dynamo(self, device):
        *inputs, keypoints = make(device)

        def loss(activation, weight, bias):
            return describe(activation * 2, weight, bias, keypoints).square()[..., 0].sum()

        eager = [tensor.clone().requires_grad_() for tensor in inputs]
        compiled = [tensor.clone().requires_grad_() for tensor in inputs]
        expected, actual = loss(*eager), torch.compile(loss, fullgraph=True)(*compiled)
        expected.backward()
        actual.backward()
        torch.testing.assert_close(actual, expected)
        for ours, theirs in zip(compiled, eager, strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)

    def test_autocast(self, device):
        if device.type not in ("cpu", "cuda"):
            pytest.skip(f"autocast is tested on cpu and cuda, this is {device.type}")
        activation, weight, bias, keypoints = make(device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            mixed = describe(activation.bfloat16(), weight, bias, keypoints)
            single = describe(activation, weight, bias, keypoints)
            double = describe(activation.double(), weight.double(), bias.double(), keypoints)
        assert mixed.dtype == single.dtype == torch.bfloat16 and double.dtype == torch.float64
        assert torch.equal(mixed, single)


class TestFeaturesOfTheNetwork:
    """UNet.features, which describe reads."""

    def test_last_convolution_gives_the_output(self, device):
        unet, images = UNet(desc_dim=8).to(device), torch.rand(2, 3, 32, 48, device=device)
        features = unet.features(images)
        assert features.shape == (2, 80, 32, 48)
        torch.testing.assert_close(unet.last_convolution(features), unet(images), rtol=1e-4, atol=1e-4)

    def test_valid(self, device):
        unet, images = UNet(desc_dim=8).to(device), torch.rand(2, 3, 32, 48, device=device)
        valid = torch.zeros(2, 1, 32, 48, dtype=torch.bool, device=device)
        valid[0, :, :20, :30], valid[1, :, :32, :11] = True, True
        features = unet.features(images, valid)
        assert not features.masked_select(~valid).any()
        assert torch.equal(torch.where(valid, unet.last_convolution(features), 0), unet(images, valid))
