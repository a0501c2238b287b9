"""The block ops where the tests run (--device): in each dtype that kernels take, against the definition in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from block_cases import CASES, Case, Inputs, make_inputs
from comparing import as_sets, photo_like
from torch import Tensor

from disk_ops import DISKDetector
from disk_ops.model import UNet
from disk_ops.ops import block_activation, block_convolution, block_norm, block_patches, blocks, describe_block

ALL = {
    **CASES,
    "image": Case((2, 3, 37, 23), 0, 16, "none"),
    "odd channels": Case((3, 5, 7, 9), 2, 3, "up"),
    "descriptors": Case((1, 64, 17, 35), 16, 129, "up"),
    "large": Case((1, 64, 150, 131), 16, 1, "up"),
}
# Of many sums of rounded numbers; relative to the largest.
TOLERANCES = {torch.float32: 3e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def no_tf32():
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.fixture(params=[torch.float32, torch.float16, torch.bfloat16], ids=str)
def dtype(request, device):
    if request.param not in blocks.KERNEL_DTYPES.get(device.type, ()):
        pytest.skip(f"no kernels for {request.param} on {device}")
    return request.param


@pytest.fixture(params=ALL, ids=str)
def given(request, device, dtype):
    """The tensors of a case on the device, in one dtype."""
    inputs = make_inputs(ALL[request.param])
    return Inputs(*(t.to(device, dtype) if isinstance(t, Tensor) else t for t in inputs))


def exact_of(given: Inputs) -> Inputs:
    return Inputs(*(t.double().cpu() if isinstance(t, Tensor) else t for t in given))


def check(ours: Tensor, exact: Tensor, dtype: torch.dtype, device: torch.device) -> None:
    assert ours.dtype == dtype and ours.shape == exact.shape and ours.device.type == device.type
    scale = max(float(exact.abs().max()), 1.0)
    torch.testing.assert_close(ours.double().cpu() / scale, exact / scale, rtol=0, atol=TOLERANCES[dtype])


@torch.no_grad()
def test_norm_activation_and_patches(given, device, dtype):
    exact = exact_of(given)
    norm = block_norm(given.x, given.skip, given.resample)
    assert norm.dtype == torch.float32
    torch.testing.assert_close(norm.double().cpu(), exact.norm(), rtol=1e-5, atol=1e-5)
    activation = exact.activation()
    check(block_activation(given.x, given.skip, given.slope, given.resample), activation, dtype, device)
    height, width = activation.shape[2:]
    corners = torch.tensor([(0, 0), (width - 1, height - 1), (width // 2, height // 2), (0, height - 1)])
    points = corners.expand(len(given.x), -1, -1).to(device)
    patches = block_patches(given.x, points, given.skip, norm, given.slope, given.resample)
    padded = F.pad(activation, (2, 2, 2, 2))
    expected = torch.stack([padded[:, :, y : y + 5, x : x + 5] for x, y in corners.tolist()], 1)
    check(patches, expected, dtype, device)


@torch.no_grad()
def test_convolution(given, device, dtype):
    exact = exact_of(given)
    norm = block_norm(given.x, given.skip, given.resample)
    rest = (given.skip, norm, given.slope, given.resample)
    output = block_convolution(given.x, given.weight, given.bias, *rest)
    expected = F.conv2d(exact.activation(), exact.weight, exact.bias, padding="same")
    check(output, expected, torch.float32 if len(given.weight) == 1 else dtype, device)  # scores aren't rounded
    if device.type == "cuda":
        assert blocks.has_kernel(given.x, given.skip, given.slope, norm=norm)
        assert torch.equal(output, block_convolution(given.x, given.weight, given.bias, *rest))


@torch.no_grad()
def test_any_layout(device, dtype):
    x, skip = torch.randn(2, 16, 12, 11, device=device).to(dtype), torch.randn(2, 16, 24, 22, device=device).to(dtype)
    weight, bias = torch.randn(1, 32, 5, 5, device=device).to(dtype), torch.randn(1, device=device).to(dtype)

    def run(x: Tensor, skip: Tensor) -> Tensor:
        return block_convolution(x, weight, bias, skip, block_norm(x, skip, "up"), resample="up")

    expected = run(x, skip)
    last = torch.channels_last
    assert torch.equal(run(x.to(memory_format=last), skip.to(memory_format=last)), expected)
    assert torch.equal(run(F.pad(x, (1, 2, 3, 1))[:, :, 3:-1, 1:-2], skip.mT.contiguous().mT), expected)


@torch.no_grad()
def test_descriptors(device, dtype):
    x, weight, bias = (torch.randn(*shape, device=device).to(dtype) for shape in ((2, 16, 6, 8), (5, 16, 5, 5), (5,)))
    points = torch.stack([torch.randint(0, 8, (2, 40)), torch.randint(0, 6, (2, 40))], -1)
    descriptors = describe_block(x, weight, bias, points.to(device), norm=block_norm(x))
    dense = F.conv2d(F.instance_norm(x.double()), weight.double(), bias.double(), padding="same")
    dense = F.normalize(dense, dim=1).cpu()
    expected = torch.stack([dense[b][:, xy[:, 1], xy[:, 0]].T for b, xy in enumerate(points)])
    check(descriptors, expected, dtype, device)


@torch.no_grad()
def test_network(device, dtype):
    """The fused network in a dtype is about as near to float64 as PyTorch's own layers in that dtype.

    Or as Winograd's algorithm is in float32: within 1e-5 of the largest output. How near PyTorch's layers are depends
    on the processor (with AVX-512 several times nearer than with AVX2).
    """
    unet = UNet(desc_dim=8).to(device, dtype)
    images = photo_like(device, 2, 3, 64, 80).to(dtype)
    fused = unet(images)
    assert fused.dtype == dtype
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "KERNEL_DTYPES", {})
        layered = unet(images)
    exact = unet.double()(images.double())
    error, usual = (float((output.double() - exact).abs().max()) for output in (fused, layered))
    assert error < max(4 * usual, 1e-5 * float(exact.abs().max())), f"{error} against {usual} of PyTorch's layers"


def test_with_gradients_they_stay_away(device):
    """What has no kernel for its gradient is computed by what has one."""
    unet = UNet(desc_dim=4).to(device)
    images = photo_like(device, 1, 3, 32, 32)
    output = unet(images)
    output.square().mean().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in unet.parameters())
    with torch.no_grad():
        torch.testing.assert_close(unet(images), output.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.cuda
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
def test_keypoints_in_half_precision(device, half):
    """Most keypoints of half precision are those of float32; the rest are near ties."""
    detector = DISKDetector.from_pretrained(device=device)
    images = photo_like(device, 1, 3, 240, 320)
    with torch.inference_mode():
        (precise,) = as_sets(detector(images, n=300))
        (rounded,) = as_sets(detector.to(half)(images.to(half), n=300))
    assert len(precise & rounded) > 0.5 * len(precise)


@pytest.mark.cuda
def test_opcheck(device, dtype):
    x, skip, norm = (torch.rand(*shape, device=device) for shape in ((1, 16, 4, 4), (1, 16, 8, 8), (2, 1, 32)))
    x, skip, slope = x.to(dtype), skip.to(dtype), torch.rand(32, device=device).to(dtype)
    weight, bias = torch.rand(16, 32, 5, 5, device=device).to(dtype), torch.rand(16, device=device).to(dtype)
    ops, keypoints = torch.ops.disk_ops, torch.tensor([[[0, 7], [3, 3]]], device=device)
    with torch.no_grad():
        torch.library.opcheck(ops.block_norm.default, (x, skip, "up"))
        torch.library.opcheck(ops.block_activation.default, (x, skip, norm, slope, "up"))
        torch.library.opcheck(ops.block_convolution.default, (x, weight, bias, skip, norm, slope, "up"))
        torch.library.opcheck(ops.block_patches.default, (x, keypoints, skip, norm, slope, "up"))
