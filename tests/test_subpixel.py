"""disk_ops.subpixel: keypoints move to the peak of the quadratic through the scores around them, in every result."""

from __future__ import annotations

import math

import pytest
import torch
from comparing import photo_like
from torch import Tensor

from disk_ops import DISKDetector
from disk_ops.checkpoint import DEFAULT_CHECKPOINT
from disk_ops.evaluation.features import CellExtractor, DetectorExtractor
from disk_ops.evaluation.methods import parse_method
from disk_ops.ops import distance_matrix
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


@pytest.mark.parametrize(
    "point",
    [
        (2.4, 2.0),
        (1.999, 2.0),
        (-1.0, 2.0),
        (5.0, 2.0),
        (2.0, 1e30),
        (math.nan, 2.0),
        (2.0, math.inf),
        (-math.inf, 2.0),
    ],
)
def test_what_is_no_pixel_of_the_image_stays(point: tuple[float, float]) -> None:
    points = torch.tensor([[point, (2.0, 2.0)]], dtype=torch.float64)
    found = refine_keypoints(quadratic(2.25, 1.75), points)
    torch.testing.assert_close(found[0, 0], points[0, 0], rtol=0, atol=0, equal_nan=True)
    assert found[0, 1].tolist() == [2.25, 1.75]  # a whole pixel in floating point is one


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_integers_of_any_kind(dtype: torch.dtype) -> None:
    found = refine_keypoints(quadratic(2.25, 1.75), torch.tensor([[[2, 2], [9, 2]]], dtype=dtype))
    assert found.tolist() == [[[2.25, 1.75], [9.0, 2.0]]]


def test_a_pixel_outside_the_mask_stays() -> None:
    mask = torch.ones(1, 1, 5, 5, dtype=torch.bool)
    mask[..., 2, 2] = False
    assert refine_keypoints(quadratic(2.25, 1.75), CENTRE, mask).tolist() == [[[2.0, 2.0]]]


def test_refined_once_is_refined() -> None:
    heatmap = torch.randn(1, 1, 20, 20)
    pixels = torch.cartesian_prod(torch.arange(20), torch.arange(20))[None]
    once = refine_keypoints(heatmap, pixels)
    moved = (once != pixels).any(-1)
    assert moved.any() and torch.equal(refine_keypoints(heatmap, once)[moved], once[moved])


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
        ((torch.zeros(1, 1, 5, 5), CENTRE > 0), "keypoints"),
        ((torch.zeros(1, 1, 5, 5), CENTRE + 0j), "keypoints"),
        ((torch.zeros(1, 1, 5, 5), CENTRE.numpy()), "keypoints"),
        ((torch.zeros(1, 1, 5, 5), CENTRE.to("meta")), "keypoints"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple[Tensor, ...], name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{name} must"):
        refine_keypoints(*arguments)


@pytest.fixture(scope="module")
def whole(device: torch.device) -> DISKDetector:
    return DISKDetector.from_pretrained(device=device)


@pytest.fixture(scope="module")
def refined(device: torch.device) -> DISKDetector:
    return DISKDetector.from_pretrained(device=device, subpixel=True)


class TestDetector:
    @torch.inference_mode()
    def test_only_positions_differ(self, whole: DISKDetector, refined: DISKDetector, device: torch.device) -> None:
        images = photo_like(device, 2, 3, 70, 90)
        heatmap, _ = whole.heatmap_and_dense_descriptors(images)
        for i, (found, moved) in enumerate(zip(whole(images, n=50), refined(images, n=50), strict=True)):
            expected = refine_keypoints(heatmap[i, None], found.keypoints[None])[0]
            torch.testing.assert_close(moved.keypoints, expected, rtol=0, atol=2e-3)
            assert (moved.keypoints != found.keypoints).any(1).float().mean() > 0.9
            assert torch.equal(moved.descriptors, found.descriptors)
            assert torch.equal(moved.detection_scores, found.detection_scores)

    @torch.inference_mode()
    def test_all_entry_points_agree(self, refined: DISKDetector, device: torch.device) -> None:
        images = photo_like(device, 1, 3, 70, 90)
        images = torch.cat([images, torch.zeros_like(images)])  # nothing is found in the second
        found = refined(images, n=20)[0].keypoints
        padded = refined.forward_padded(images, 20)
        assert torch.equal(padded.keypoints[0], found) and not padded.keypoints[~padded.valid].any()
        assert torch.equal(refined.forward_laf(images, n=20)[0][0, :, :, 2], found)
        torch.testing.assert_close(refined.detect(images, n=20)[0][0, :, :, 2], found, rtol=0, atol=2e-3)
        assert torch.equal(DetectorExtractor(refined, 20)(images[0]).keypoints, found.cpu())
        cells = CellExtractor(refined, 20)(images[0]).keypoints
        assert (cells != cells.round()).any(1).float().mean() > 0.9

    @torch.inference_mode()
    def test_in_tiles(self, refined: DISKDetector, device: torch.device) -> None:
        images, mask = photo_like(device, 2, 3, 201, 333), torch.ones(2, 1, 201, 333, dtype=torch.bool, device=device)
        mask[1, :, 50:, 90:] = False
        options = {
            "n": 150,
            "window_size": 1,
            "border": 0,
            "mask": mask,
            "image_size": torch.tensor([[333, 201], [9, 8]]),
            "score_threshold": -100.0,
        }
        for whole, tiled in zip(refined(images, **options), refined(images, max_memory=0.001, **options), strict=True):
            apart = distance_matrix(whole.keypoints, tiled.keypoints)  # near ties may come in another order
            assert whole.n == tiled.n > 5
            assert apart.amin(0).max() < 5e-3 and apart.amin(1).max() < 5e-3

    @torch.inference_mode()
    def test_the_same_alone_and_in_a_padded_batch(self, device: torch.device) -> None:
        detector = DISKDetector.from_pretrained(device=device, norm="valid", subpixel=True)
        image = photo_like(device, 1, 3, 40, 56)
        canvas = torch.rand(1, 3, 64, 80, device=device)
        canvas[..., :40, :56] = image
        alone = detector(image, border=0)[0]
        padded = detector(canvas, border=0, image_size=torch.tensor([[56, 40]]))[0]
        torch.testing.assert_close(padded.keypoints, alone.keypoints, rtol=0, atol=5e-3)

    @torch.inference_mode()
    def test_as_a_method_of_evaluations(self, refined: DISKDetector, device: torch.device) -> None:
        image = photo_like(device, 1, 3, 70, 90)[0]
        spec, plain = parse_method("disk+subpixel"), parse_method("disk")
        method = spec.load(device)
        assert (method.name, spec.kind) == ("disk+subpixel", "disk")
        assert method.fingerprint != plain.load(device).fingerprint
        assert torch.equal(method.extract(image, 20).keypoints, refined(image[None], n=20)[0].keypoints.cpu())
        named = f"disk+subpixel:{DEFAULT_CHECKPOINT}"
        assert parse_method(named).name == named
