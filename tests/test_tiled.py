"""disk_ops.tiled: the features of an image that is gone through in tiles are those of the whole."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from disk_ops import DISKDetector, DISKFeatures, _library
from disk_ops.model import UNet
from disk_ops.tiled import Limit, detect_tiled, memory
from disk_ops.tiled.boxes import Box, tiles
from disk_ops.tiled.moments import Moments

LITTLE = 0.001  # GB: the smallest tiles, and nothing is kept


@pytest.fixture(scope="module")
def detector(device) -> DISKDetector:
    return DISKDetector.from_pretrained(device=device)


@pytest.fixture(scope="module")
def images(device) -> Tensor:
    """Two images with structure at all scales, of a size that is no multiple of 16."""
    rng, result = torch.Generator().manual_seed(0), torch.zeros(2, 3, 201, 333)
    for cell in (2, 4, 8, 16, 32):
        noise = torch.rand(2, 3, -(-201 // cell), -(-333 // cell), generator=rng)
        result += F.interpolate(noise, scale_factor=cell, mode="bicubic")[..., :201, :333] / 5
    return result.clamp(0, 1).to(device)


def assert_same(found: list[DISKFeatures], expected: list[DISKFeatures]) -> None:
    """The same keypoints in the same order but for near ties, their scores and descriptors to rounding."""
    assert len(found) == len(expected)
    for mine, other in zip(found, expected, strict=True):
        assert mine.n == other.n
        torch.testing.assert_close(mine.detection_scores, other.detection_scores, rtol=1e-5, atol=1e-3)
        order, other_order = (
            torch.argsort(each.keypoints[:, 1] * 10000 + each.keypoints[:, 0]) for each in (mine, other)
        )
        assert torch.equal(mine.keypoints[order], other.keypoints[other_order])
        torch.testing.assert_close(mine.descriptors[order], other.descriptors[other_order], rtol=1e-4, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("side", [64, 128, 256])
@pytest.mark.parametrize("room", [0, 3e5, 2e6, 1e9], ids=["nothing", "coarse", "more", "everything"])
def test_are_those_of_the_whole(detector, images, side, room):
    """Whatever the tiles, and what is kept and what is computed again."""
    found = detect_tiled(detector.unet, images[:1], Limit(side, room), 200, 5, 0.0, None, None)
    assert_same(found, detector(images[:1], n=200))


ARGUMENTS = {
    "all": {},
    "few": {"n": 3},
    "a threshold": {"score_threshold": 10.0},
    "no window": {"window_size": 1, "n": 500},
    "a wide window": {"window_size": 21},
    "no border": {"border": 0, "n": 300},
    "a wide border": {"border": 70},
    "too wide a border": {"border": 120},
    "nothing so high": {"score_threshold": 1e6},
}


class TestDetector:
    @torch.inference_mode()
    @pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
    def test_arguments(self, detector, images, arguments):
        assert_same(detector(images, max_memory=LITTLE, **arguments), detector(images, **arguments))

    @torch.inference_mode()
    def test_mask(self, detector, images):
        mask = torch.zeros_like(images[:, :1], dtype=torch.bool)
        mask[0, :, 40:170, 100:260] = True
        assert_same(detector(images, max_memory=LITTLE, mask=mask), detector(images, mask=mask))

    @torch.inference_mode()
    def test_padded_batch(self, detector, images):
        size = torch.tensor([[333, 201], [150, 180]])
        found = detector(images, max_memory=LITTLE, image_size=size, n=150)
        assert_same(found, detector(images, image_size=size, n=150))

    @torch.inference_mode()
    @pytest.mark.parametrize("height, width", [(1, 1), (16, 400), (129, 17), (256, 128)])
    def test_sizes(self, detector, images, height, width):
        image = F.interpolate(images[:1], (height, width), mode="bilinear")
        found = detect_tiled(detector.unet, image, Limit(64, 0), None, 5, 0.0, None, None)
        assert_same(found, detector(image))

    @torch.inference_mode()
    def test_grey_images(self, detector, images):
        assert_same(detector(images[:, :1], max_memory=LITTLE, n=99), detector(images[:, :1], n=99))

    @torch.inference_mode()
    def test_float64(self, detector, images):
        """By PyTorch's operations, to float64's rounding."""
        double = DISKDetector.from_pretrained(device=images.device).double()
        found, expected = (double(images[:1].double(), n=50, **more)[0] for more in ({"max_memory": LITTLE}, {}))
        assert torch.equal(found.keypoints, expected.keypoints)
        torch.testing.assert_close(found.descriptors, expected.descriptors, rtol=1e-9, atol=1e-9)

    @torch.inference_mode()
    def test_a_constant_image(self, detector, device):
        image = torch.full((1, 3, 160, 176), 0.5, device=device)
        assert_same(detector(image, max_memory=LITTLE, n=40), detector(image, n=40))

    @torch.inference_mode()
    def test_no_image(self, detector, images):
        assert detector(images[:0], max_memory=LITTLE) == []

    @torch.inference_mode()
    def test_sampled_statistics(self, detector, images):
        """Of some of the tiles: not the same features, but as many and mostly the same."""
        image = F.interpolate(images[:1], (400, 640), mode="bilinear")
        found = detector(image, n=100, max_memory=LITTLE, statistics="sampled")[0]
        expected = {tuple(xy) for xy in detector(image, n=100)[0].keypoints.tolist()}
        shared = len(expected & {tuple(xy) for xy in found.keypoints.tolist()})
        assert found.n == 100 and 30 < shared < 100

    @torch.inference_mode()
    def test_progress(self, detector, images):
        calls: list[tuple[int, int]] = []
        detector(images, n=10, max_memory=LITTLE, progress=lambda done, total: calls.append((done, total)))
        assert calls == [(i + 1, len(calls)) for i in range(len(calls))]

    @torch.inference_mode()
    def test_memory_is_looked_at(self, detector, images, monkeypatch):
        """Without max_memory tiles are taken where half of what is free wouldn't do."""
        calls: list[int] = []
        monkeypatch.setattr(memory, "_SMALL", 0)
        for free, tiled in ((10**12, False), (10**7, True), (None, False)):
            monkeypatch.setattr(memory, "_free", lambda device, free=free: free)
            detector(images, n=10, progress=lambda done, total: calls.append(done))
            assert bool(calls) == tiled
            calls.clear()

    @pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
    @pytest.mark.skipif(not _library.load().loaded, reason="no compiled library")
    def test_memory_stays_below_the_limit(self):
        """Of a process that has detected before, beside the image and its features."""
        code = """
            import re, torch
            from pathlib import Path
            from disk_ops import DISKDetector, buffers

            def memory(field):
                return int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024 / 1e9

            images, detector = torch.rand(1, 3, 1600, 2000), DISKDetector.from_pretrained()
            with torch.inference_mode():
                for _ in range(2):
                    detector(images[..., :500, :500], n=10)
                Path("/proc/self/clear_refs").write_text("5")
                before, kept = memory("VmRSS"), buffers.kept() / 1e9
                detector(images, n=100, max_memory=0.15)
            print(memory("VmHWM") - before + kept)
        """
        result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        assert 0.05 < float(result.stdout) < 0.15

    def test_gradients_need_all_at_once(self, images, device):
        detector = DISKDetector.from_pretrained(device=device)
        assert detector(images, n=5)[0].descriptors.requires_grad
        with pytest.raises(
            ValueError, match=r"max_memory needs torch.inference_mode\(\): gradients need the whole image"
        ):
            detector(images, n=5, max_memory=1.0)

    @torch.inference_mode()
    @pytest.mark.parametrize(
        ("make", "arguments", "message"),
        [
            ({}, {"max_memory": "4"}, "max_memory must be a number, got str '4'"),
            ({}, {"statistics": "some"}, "statistics must be 'exact' or 'sampled', got 'some'"),  # without tiles too
            ({}, {"progress": 3}, "progress must be callable or None, got int"),
            ({}, {"max_memory": 0}, "max_memory must be a positive number of GB, got 0"),
            ({}, {"max_memory": float("nan")}, "max_memory must be a number, got nan"),
            ({"norm": "valid"}, {"max_memory": 1}, "max_memory needs norm='instance', got 'valid'"),
            ({"unet": nn.Conv2d(3, 129, 1)}, {"max_memory": 1}, "max_memory needs the network of disk_ops.model"),
            ({"unet": UNet(size=3)}, {"max_memory": 1}, "max_memory needs the network of disk_ops.model"),
            ({}, {"max_memory": LITTLE, "statistics": "some"}, "statistics must be 'exact' or 'sampled', got 'some'"),
            ({}, {"max_memory": LITTLE, "window_size": 4}, "window_size must be an odd positive integer, got 4"),
            ({}, {"max_memory": LITTLE, "n": 0}, "n must be"),
            ({}, {"max_memory": LITTLE, "border": -1}, "border must be"),
            ({}, {"max_memory": LITTLE, "mask": torch.ones(2, 1, 3, 3)}, "mask must have shape"),
        ],
    )
    def test_exception(self, images, device, make, arguments, message):
        if "mask" in arguments:
            arguments = {**arguments, "mask": arguments["mask"].to(device)}
        with pytest.raises((ValueError, RuntimeError, TypeError), match=message):
            DISKDetector(**make).to(device)(images, **arguments)


class TestMoments:
    def test_of_parts(self, device):
        """Far from 0, where sums of squares would lose all digits."""
        values = 300 + torch.randn(1, 32, 40, 50, device=device)
        moments = Moments()
        for box in tiles((40, 50), 16):
            moments.add(box.crop(values, Box(0, 0, 40, 50)))
        mean, factor = moments.norm()[:, 0]
        variance, exact = torch.var_mean(values.double(), (0, 2, 3), correction=0)
        torch.testing.assert_close(mean, exact, rtol=1e-7, atol=0)
        torch.testing.assert_close(factor, torch.rsqrt(variance + 1e-5), rtol=1e-6, atol=0)

    def test_a_constant(self, device):
        moments = Moments()
        for height in (3, 5):
            moments.add(torch.full((1, 16, height, 4), 2.5, device=device))
        assert torch.equal(moments.norm()[0, 0], torch.full((16,), 2.5, dtype=torch.float64, device=device))


class TestBoxes:
    def test_tiles_cover_each_pixel_once(self):
        count = torch.zeros(37, 50)
        for box in tiles((37, 50), 16):
            box.crop(count, Box(0, 0, 37, 50)).add_(1)
        assert torch.equal(count, torch.ones(37, 50))

    def test_geometry(self):
        box = Box(4, 5, 9, 11)
        assert box.grown(5, (10, 100)) == Box(0, 0, 10, 16)
        assert box.halved() == Box(2, 2, 5, 6) and box.doubled() == Box(8, 10, 18, 22)
        assert box.joined(Box(0, 7, 5, 20)) == Box(0, 5, 9, 20) and box.joined(None) == box
