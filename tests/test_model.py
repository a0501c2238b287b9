"""disk_ops.model: the released network, and its form that sees valid pixels only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from disk_ops.model import InstanceNorm, UNet


@pytest.fixture
def unet(device):
    return UNet(desc_dim=8).to(device)


class TestInstanceNorm:
    def test_equals_torch(self, device):
        x = torch.randn(2, 5, 7, 9, device=device)
        torch.testing.assert_close(InstanceNorm()(x), F.instance_norm(x))

    def test_single_pixel_gives_zero(self, device):
        x = torch.randn(2, 5, 1, 1, device=device, requires_grad=True)
        assert not InstanceNorm()(x).any()

    def test_all_valid_equals_none(self, device):
        x = torch.randn(2, 5, 7, 9, device=device)
        valid = torch.ones(2, 1, 7, 9, dtype=torch.bool, device=device)
        torch.testing.assert_close(InstanceNorm()(x, valid), InstanceNorm()(x))

    def test_statistics_are_those_of_valid_pixels(self, device):
        x = torch.randn(1, 3, 6, 8, device=device)
        valid = torch.zeros(1, 1, 6, 8, dtype=torch.bool, device=device)
        valid[..., :4, :5] = True
        canvas = torch.where(valid, x, torch.inf)
        normalized = InstanceNorm()(canvas, valid)
        torch.testing.assert_close(normalized[..., :4, :5], F.instance_norm(x[..., :4, :5]))
        assert not normalized.masked_fill(valid, 0).any()

    def test_nothing_valid_gives_zero(self, device):
        x = torch.randn(1, 3, 6, 8, device=device)
        assert not InstanceNorm()(x, torch.zeros(1, 1, 6, 8, dtype=torch.bool, device=device)).any()


class TestUNet:
    @pytest.mark.parametrize("size", [(16, 16), (16, 32), (64, 48)])
    def test_smoke(self, device, unet, size):
        assert unet(torch.rand(2, 3, *size, device=device)).shape == (2, 9, *size)

    def test_released_size(self):
        assert sum(p.numel() for p in UNet().parameters()) == 1_092_369

    def test_names_and_results_are_those_of_kornia(self, device):
        kornia = pytest.importorskip("kornia.feature").DISK(desc_dim=8).to(device)
        ours = UNet(desc_dim=8).to(device)
        ours.load_state_dict({name.removeprefix("unet."): value for name, value in kornia.state_dict().items()})
        assert [f"unet.{name}" for name in ours.state_dict()] == list(kornia.state_dict())
        images = torch.rand(2, 3, 64, 80, device=device)
        theirs, mine = kornia.unet(images), ours(images)
        exact = kornia.unet.double()(images.double())
        error, usual = (float((result.double() - exact).detach().abs().max()) for result in (mine, theirs))
        # How near kornia's are depends on the processor; ours are within 1e-5 of the largest output on each.
        bound = max(4 * usual, 1e-5 * float(exact.detach().abs().max()))
        assert error < bound, f"{error} against {usual} of kornia's"

    def test_exception(self):
        with pytest.raises(ValueError, match="down must have two entries more than up"):
            UNet(down=(8, 8), up=(8,))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"in_channels": 0}, "in_channels must be a positive integer, got 0"),
            ({"desc_dim": 1.5}, r"desc_dim must be an integer, got float 1\.5"),
            ({"size": "5"}, "size must be an integer, got str '5'"),
            ({"size": 4}, "size must be odd, got 4"),
            ({"down": (8, 0, 8), "up": (8,)}, r"down\[1\] must be a positive integer, got 0"),
            ({"down": (8, 8, 8), "up": (8.0,)}, r"up\[0\] must be an integer, got float 8\.0"),
        ],
    )
    def test_exception_of_the_constructor(self, arguments, message):
        with pytest.raises((ValueError, TypeError), match=message):
            UNet(**arguments)

    @pytest.mark.parametrize("read", ["forward", "maps", "features", "heads"])
    @pytest.mark.parametrize(
        ("images", "message"),
        [
            (torch.rand(1, 3, 30, 30), r"images must have sizes divisible by 16, got \[30, 30\]"),
            (torch.rand(1, 1, 32, 32), r"images must have shape \[B, 3, H, W\] .* got \[1, 1, 32, 32\]"),
            (torch.rand(3, 32, 32), r"images must have shape \[B, 3, H, W\] .* got \[3, 32, 32\]"),
            (torch.rand(1, 3, 0, 16), r"images must have shape \[B, 3, H, W\] .* got \[1, 3, 0, 16\]"),
            (np.zeros((1, 3, 32, 32), np.float32), "images must be a tensor, got ndarray"),
        ],
    )
    def test_images_that_it_can_not_take(self, unet, read, images, message):
        with pytest.raises((ValueError, TypeError), match=message):
            getattr(unet, read)(images)

    def test_other_depths(self, device):
        small = UNet(in_channels=1, desc_dim=4, size=3, down=(4, 8), up=()).to(device)
        assert small.stride == 2
        assert small(torch.rand(1, 1, 6, 10, device=device)).shape == (1, 5, 6, 10)

    def test_gradcheck(self, device):
        tiny = UNet(desc_dim=2, size=3, down=(2, 3, 2), up=(2,)).to(device).double()
        images = torch.rand(1, 3, 4, 8, device=device, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(tiny, (images,), fast_mode=True)
        valid = torch.rand(1, 1, 4, 8, device=device) > 0.3
        assert torch.autograd.gradcheck(lambda x: tiny(x, valid), (images,), fast_mode=True)

    def test_dynamo(self, device, unet):
        images = torch.rand(1, 3, 32, 32, device=device)
        torch.testing.assert_close(torch.compile(unet, fullgraph=True, backend="aot_eager")(images), unet(images))

    def test_all_valid_equals_none(self, device, unet):
        images = torch.rand(2, 3, 48, 64, device=device)
        valid = torch.ones(2, 1, 48, 64, dtype=torch.bool, device=device)
        torch.testing.assert_close(unet(images, valid), unet(images), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("size", [(48, 32), (37, 41), (1, 1), (17, 80)])
    def test_valid_pixels_do_not_feel_the_canvas(self, device, unet, size):
        height, width = size
        images = torch.rand(1, 3, height, width, device=device)

        def on_canvas(canvas_height, canvas_width, fill):
            canvas = torch.full((1, 3, canvas_height, canvas_width), fill, device=device)
            valid = torch.zeros(1, 1, canvas_height, canvas_width, dtype=torch.bool, device=device)
            canvas[..., :height, :width] = images
            valid[..., :height, :width] = True
            return unet(canvas, valid)[..., :height, :width]

        smallest = on_canvas(-(-height // 16) * 16, -(-width // 16) * 16, 0.0)
        torch.testing.assert_close(on_canvas(80, 96, 0.7), smallest, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(on_canvas(64, 128, torch.nan), smallest, rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_kornia():
    """Against float64, within 2e-5, or ten times the rounding error of kornia's float32 layers.

    With slopes of 1: where PReLU has a kink, any rounding error may turn a gradient into another one.
    """
    torch.manual_seed(0)
    images, towards = torch.rand(2, 3, 48, 64), torch.randn(2, 9, 48, 64, dtype=torch.float64)
    kornia = pytest.importorskip("kornia.feature").DISK(desc_dim=8).unet
    for name, parameter in kornia.named_parameters():
        if name.endswith(".1.weight"):  # of PReLU
            torch.nn.init.ones_(parameter)
    ours = UNet(desc_dim=8)
    ours.load_state_dict(kornia.state_dict())

    def gradients(network):
        network.zero_grad()
        weights = {name: weight for name, weight in network.named_parameters() if not _cancelled(name)}
        dtype = next(iter(weights.values())).dtype
        output = network(images.to(dtype))
        return dict(zip(weights, torch.autograd.grad(output, list(weights.values()), towards.to(dtype)), strict=True))

    found, usual, exact = gradients(ours), gradients(kornia), gradients(kornia.double())
    for name, gradient in exact.items():
        error, bound = (float((each[name].double() - gradient).norm() / gradient.norm()) for each in (found, usual))
        assert error < max(10 * bound, 2e-5), f"{name}: {error} against {bound} of kornia's"


def _cancelled(name: str) -> bool:
    """Whether this is a bias that the norm of the next block subtracts again, so that its gradient is 0."""
    return name.endswith("bias") and not name.startswith("path_up.3")
