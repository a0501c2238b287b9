"""The detector as one graph: torch.compile without breaks, torch.export, the same features."""

from __future__ import annotations

import pytest
import torch
from comparing import photo_like
from torch import nn

from disk_ops import DISKDetector
from disk_ops._keypoints import find_maxima
from disk_ops.ops import nms_topk


@pytest.fixture(scope="module", params=["instance", "valid"])
def detector(request, device):
    return DISKDetector.from_pretrained(device=device, norm=request.param).requires_grad_(False)


@pytest.fixture(autouse=True)
def compile_anew():
    """Otherwise the cases count as one function that is compiled too often."""
    torch.compiler.reset()


def arguments_of(name, device):
    if name == "mask":
        return {"mask": torch.rand(2, 1, 35, 48, device=device) > 0.3}
    if name == "image_size":
        return {"image_size": torch.tensor([[30, 35], [48, 21]], device=device)}
    return {}


def assert_all_close(ours, expected):
    assert ours[3].any() and not ours[3].all()
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "gradients"), [(None, False), ("mask", False), ("image_size", False), ("image_size", True)]
)
def test_dynamo(device, detector, name, gradients):
    images, arguments = photo_like(device, 2, 3, 35, 48), arguments_of(name, device)
    compiled = torch.compile(detector.forward_padded, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        expected = detector.forward_padded(images, 40, **arguments)
    images.requires_grad_(gradients)
    ours = compiled(images, 40, **arguments)
    assert_all_close(ours, expected)
    if gradients:
        ours.descriptors[..., 0].sum().backward()
        assert images.grad.isfinite().all() and images.grad.any()


@pytest.mark.slow
def test_inductor(device):
    detector = DISKDetector.from_pretrained(device=device)
    images = photo_like(device, 1, 3, 35, 48)
    with torch.no_grad():
        compiled = torch.compile(detector.forward_padded, fullgraph=True)(images, 40)
        assert_all_close(compiled, detector.forward_padded(images, 40))


class Padded(nn.Module):
    """``forward_padded`` in the form that torch.export takes."""

    def __init__(self, detector):
        super().__init__()
        self.detector = detector

    def forward(self, images, **arguments):
        return self.detector.forward_padded(images, 40, **arguments)


@pytest.mark.parametrize("name", [None, "mask", "image_size"])
def test_export(device, detector, name):
    arguments = arguments_of(name, device)
    with torch.no_grad():
        program = torch.export.export(Padded(detector), (photo_like(device, 2, 3, 35, 48),), arguments)
        other = photo_like(device, 2, 3, 35, 48)
        assert_all_close(program.module()(other, **arguments), detector.forward_padded(other, 40, **arguments))


@pytest.mark.parametrize("case", range(40))
def test_borders_of_a_padded_batch(device, case):
    """One call for the batch finds what a call for each image finds."""
    generator = torch.Generator().manual_seed(case)

    def draw(low, high, *shape):
        return torch.randint(low, high, shape, generator=generator)

    batch, height, width = (int(draw(1, high, 1)) for high in (4, 31, 31))
    heatmap = draw(-2, 6, batch, 1, height, width).float().to(device)  # with many ties
    size = torch.stack([draw(1, width + 1, batch), draw(1, height + 1, batch)], 1)
    keep = draw(0, 10, batch, 1, height, width).to(device) > 0
    for i, (w, h) in enumerate(size.tolist()):
        keep[i, :, h:], keep[i, :, :, w:] = False, False
    for n, window_size, border in ((None, 5, None), (3, 3, 2), (1000, 7, None), (4, 1, 0), (2, 3, 40)):
        found = find_maxima(heatmap, n, window_size, 0.0, keep, border, size)
        edge = window_size // 2 if border is None else border
        for i, (w, h) in enumerate(size.tolist()):
            image = (slice(i, i + 1), slice(None), slice(h), slice(w))
            alone = nms_topk(heatmap[image], n, window_size, 0.0, edge, keep[image])
            count = int(alone.valid.sum())
            assert found.valid[i].tolist() == [True] * count + [False] * (found.valid.shape[1] - count)
            assert torch.equal(found.keypoints[i, :count], alone.keypoints[0, :count])
            assert torch.equal(found.scores[i, :count], alone.scores[0, :count])
            assert not found.keypoints[i, count:].any() and not found.scores[i, count:].any()
