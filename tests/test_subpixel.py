"""disk_ops.subpixel: keypoints move to the peak of the quadratic through the scores around them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from disk_ops.subpixel import refine_keypoints

CENTRE = torch.tensor([[[2, 2]]])


def quadratic(x: float, y: float, cross: float = 0.0, size: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    """Scores [1, 1, size, size] that peak at (x, y)."""
    rows, columns = torch.meshgrid(torch.arange(size, dtype=dtype), torch.arange(size, dtype=dtype), indexing="ij")
    dx, dy = columns - x, rows - y
    return (7 - dx**2 - 0.5 * dy**2 + cross * dx * dy)[None, None]


def test_smoke_and_shapes() -> None:
    heatmap = torch.randn(2, 1, 6, 7)
    assert refine_keypoints(heatmap, torch.zeros(2, 3, 2, dtype=torch.int64)).shape == (2, 3, 2)
    assert refine_keypoints(heatmap, torch.zeros(2, 0, 2, dtype=torch.int64)).shape == (2, 0, 2)
    assert refine_keypoints(heatmap[:0], torch.zeros(0, 3, 2)).shape == (0, 3, 2)


@pytest.mark.parametrize("cross", [0.0, 0.6, -1.2])
@pytest.mark.parametrize("peak", [(2.0, 2.0), (2.25, 1.75), (1.6, 2.4)])
def test_the_peak_of_a_quadratic_is_found_exactly(peak: tuple[float, float], cross: float) -> None:
    found = refine_keypoints(quadratic(*peak, cross), CENTRE)
    torch.testing.assert_close(found, torch.tensor([[peak]], dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_positions_are_float32_at_least(dtype: torch.dtype) -> None:
    heatmap = quadratic(2.25, 1.75, dtype=torch.float32).to(dtype)  # multiples of 1/32 below 8: all types hold them
    found = refine_keypoints(heatmap, CENTRE)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tensor([[[2.25, 1.75]]]), rtol=0, atol=1e-6)


def test_each_image_has_its_own_scores() -> None:
    heatmap = torch.cat([quadratic(2.25, 1.75), quadratic(1.9, 2.1)])
    found = refine_keypoints(heatmap, CENTRE.expand(2, 1, 2))
    expected = torch.tensor([[[2.25, 1.75]], [[1.9, 2.1]]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_nothing_moves_by_more_than_half_a_pixel() -> None:
    assert refine_keypoints(quadratic(3.4, 0.9), CENTRE).tolist() == [[[2.5, 1.5]]]


@pytest.mark.parametrize(
    "scores",
    [
        pytest.param(torch.ones(3, 3), id="plateau"),
        pytest.param(torch.tensor([[0.0, 1, 0], [3, 2, 3.1], [0, 1, 0]]), id="saddle"),
        pytest.param(-torch.tensor([[0.0, 1, 0], [1, 2, 1.1], [0, 1, 0]]), id="minimum"),
        pytest.param(torch.tensor([[0.0, 1, 0], [1, 2, math.nan], [0, 1, 0]]), id="nan"),
        pytest.param(torch.tensor([[0.0, 1, 0], [1, 2, -math.inf], [0, 1, 0]]), id="infinite"),
        pytest.param(torch.tensor([[0.0, 1, 0], [1, math.inf, 1.5], [0, 1, 0]]), id="infinite peak"),
        pytest.param(torch.tensor([[-3e38, 1, 3e38], [1, 2, 1.5], [3e38, 1, -3e38]]), id="overflow"),
    ],
)
def test_without_a_peak_it_stays(scores: Tensor) -> None:
    assert refine_keypoints(scores[None, None], torch.tensor([[[1, 1]]])).tolist() == [[[1.0, 1.0]]]


@pytest.mark.parametrize(
    ("pixel", "expected"),
    [((0, 2), (0.0, 2.25)), ((4, 2), (4.0, 2.25)), ((2, 0), (2.25, 0.0)), ((2, 4), (2.25, 4.0)), ((0, 0), (0.0, 0.0))],
)
def test_nothing_moves_across_an_edge(pixel: tuple[int, int], expected: tuple[float, float]) -> None:
    x, y = pixel
    heatmap = quadratic(x + (x == 2) * 0.25, y + (y == 2) * 0.25)
    found = refine_keypoints(heatmap, torch.tensor([[pixel]]))
    torch.testing.assert_close(found, torch.tensor([[expected]], dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 1)])
def test_the_smallest_images(shape: tuple[int, int]) -> None:
    heatmap = torch.zeros(1, 1, *shape)
    heatmap[..., shape[0] // 2, shape[1] // 2] = 1
    pixel = torch.tensor([[[shape[1] // 2, shape[0] // 2]]])
    assert refine_keypoints(heatmap, pixel).tolist() == pixel.tolist()


def test_a_mask_is_an_edge() -> None:
    """The same in the image that ends there."""
    heatmap = torch.randn(1, 1, 8, 9)
    mask = torch.zeros_like(heatmap, dtype=torch.bool)
    mask[..., :5, :6] = True
    pixels = torch.cartesian_prod(torch.arange(6), torch.arange(5))[None]
    found = refine_keypoints(heatmap.where(mask, math.nan), pixels, mask)
    assert torch.equal(found, refine_keypoints(heatmap[..., :5, :6], pixels))


def test_gradients() -> None:
    heatmap = quadratic(2.2, 1.9, 0.3).requires_grad_()
    assert torch.autograd.gradcheck(lambda scores: refine_keypoints(scores, CENTRE), heatmap)
    flat = torch.ones(1, 1, 5, 5, requires_grad=True)
    (gradient,) = torch.autograd.grad(refine_keypoints(flat, CENTRE).sum(), flat)
    assert not gradient.any()


def test_dynamo() -> None:
    heatmap, pixels = torch.randn(2, 1, 9, 9), torch.randint(9, (2, 5, 2))
    compiled = torch.compile(refine_keypoints, fullgraph=True)
    torch.testing.assert_close(compiled(heatmap, pixels), refine_keypoints(heatmap, pixels))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((torch.zeros(1, 2, 5, 5), CENTRE), "heatmap"),
        ((torch.zeros(1, 1, 5, 5, dtype=torch.int64), CENTRE), "heatmap"),
        ((torch.zeros(1, 1, 5, 5), CENTRE[0]), "keypoints"),
        ((torch.zeros(2, 1, 5, 5), CENTRE), "keypoints"),
        ((torch.zeros(1, 1, 5, 5), CENTRE, torch.ones(1, 1, 5, 5)), "mask"),
        ((torch.zeros(1, 1, 5, 5), CENTRE, torch.ones(1, 1, 4, 5, dtype=torch.bool)), "mask"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple[Tensor, ...], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must"):
        refine_keypoints(*arguments)
