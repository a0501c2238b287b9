"""The CUDA kernels of sample_grid, run on the CPU by the emulator, against the CPU's own: the same bits are drawn."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from test_sampling import DTYPES, sample_inputs, seed_tensor

from disk_ops import reference
from disk_ops._library import has_native_kernel

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.usefixtures("emulated_ops"),
    pytest.mark.skipif(
        not has_native_kernel("sample_grid", "CPU"),
        reason="the same bits are promised by the compiled kernels, and there are none",
    ),
]

# Of a gradient; half types may differ by one unit in the last place.
TOLERANCES = {torch.float64: 1e-14, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
CPU = torch.device("cpu")


def check(
    heatmap: Tensor,  # [B, 1, H, W]
    cell: int = 8,
    seed: Tensor | int = 3,
    argmax: bool = False,
    mask: Tensor | None = None,  # [B, 1, H, W] bool
    name: str = "",
) -> tuple[Tensor, Tensor, Tensor]:
    """Forward and backward; what was drawn."""
    arguments = (heatmap, cell, seed_tensor(seed) if isinstance(seed, int) else seed, argmax, mask)
    ours, expected = torch.ops.disk_ops_emu.sample_grid(*arguments), torch.ops.disk_ops.sample_grid(*arguments)
    assert all(one.dtype == other.dtype and one.shape == other.shape for one, other in zip(ours, expected, strict=True))
    # Another order of summation changes hardly any draw, but log-probabilities, which here come from one library.
    assert all(torch.equal(one, other) for one, other in zip(ours, expected, strict=True)), name
    check_gradient(torch.randn(ours[2].shape).to(ours[2].dtype), heatmap, cell, ours[0], ours[1], mask, name)
    return ours


def check_gradient(
    grad_logp: Tensor,  # [B, h, w]
    heatmap: Tensor,  # [B, 1, H, W]
    cell: int,
    keypoints: Tensor,  # [B, h, w, 2]
    accepted: Tensor,  # [B, h, w] bool
    mask: Tensor | None = None,  # [B, 1, H, W] bool
    name: str = "",
) -> Tensor:
    arguments = (grad_logp, heatmap, cell, keypoints, accepted, mask)
    ours = torch.ops.disk_ops_emu._sample_grid_backward(*arguments)
    expected = torch.ops.disk_ops._sample_grid_backward(*arguments)
    assert ours.is_contiguous() and ours.dtype == expected.dtype and ours.shape == expected.shape
    tolerance = TOLERANCES[heatmap.dtype]
    torch.testing.assert_close(
        ours, expected, rtol=tolerance, atol=tolerance, msg=lambda text: f"{name}, gradient: {text}"
    )
    return ours


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_edge_cases(dtype: torch.dtype, schedule: int) -> None:
    for name, arguments in sample_inputs(CPU, dtype):
        check(*arguments, name=name)


@pytest.mark.parametrize("cell", [*range(1, 20), 31, 32, 33, 47, 63, 64])
def test_cells(cell: int) -> None:
    """Whole cells, partial ones in x and y, and more than the cells of a block."""
    for height, width in ((cell, 2 * cell), (cell + 1, 300), (2 * cell - 1, 3 * cell - 1), (2, 1)):
        check(torch.randn(1, 1, height, width), cell)
    check(torch.randn(1, 1, cell + 2, 5 * cell + 1).double(), cell)
    check(torch.randn(1, 1, cell + 2, 5 * cell + 1).round(), cell, argmax=True)


@pytest.mark.parametrize("shape", [(1, 1), (1, 600), (600, 1), (8, 256), (9, 257), (64, 64), (65, 130)], ids=str)
def test_shapes(shape: tuple[int, int], schedule: int) -> None:
    for cell in (1, 8, 64):
        heatmap = torch.randn(2, 1, *shape) * 3
        check(heatmap, cell, mask=torch.rand(2, 1, *shape) > 0.3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0, 100.0])
def test_many_draws(dtype: torch.dtype, scale: float) -> None:
    heatmap = ((torch.randn(1, 1, 96, 270) - 2) * scale).to(dtype)
    for seed in (-1, 2**63 - 1, 12345):
        _, accepted, _ = check(heatmap, 8, seed)
        assert accepted.any() and not accepted.all()
    check(heatmap, 8, argmax=True)


def test_masks_of_any_layout() -> None:
    heatmap, mask = torch.randn(3, 1, 30, 44), torch.rand(44, 30, 3) > 0.4
    check(heatmap, mask=mask.permute(2, 1, 0)[:, None])
    check(heatmap, mask=mask[..., :1].permute(2, 1, 0)[:, None].expand(3, 1, 30, 44))
    check(heatmap[:1].expand(3, 1, 30, 44), mask=(torch.rand(3, 1, 60, 88) > 0.4)[..., ::2, 1::2], argmax=True)


def test_argmax_knows_logits_that_weigh_the_same() -> None:
    heatmap = torch.zeros(1, 1, 8, 16)
    heatmap[0, 0, 5, 3], heatmap[0, 0, 6, 12] = 1e-10, 1e-10  # exp of a difference of 1e-10 rounds to 1
    keypoints, accepted, _ = check(heatmap, argmax=True)
    assert keypoints.tolist() == [[[[3, 5], [12, 6]]]] and accepted.all()


def test_layouts_of_what_was_drawn() -> None:
    heatmap = torch.randn(2, 1, 20, 30)
    keypoints, accepted, logp = check(heatmap, 8)
    expected = check_gradient(logp, heatmap, 8, keypoints, accepted)
    strided = (tensor.repeat_interleave(2, dim=2)[:, :, ::2] for tensor in (logp, keypoints, accepted))
    grad_logp, keypoints, accepted = strided
    assert not grad_logp.is_contiguous() and not keypoints.is_contiguous() and not accepted.is_contiguous()
    assert torch.equal(check_gradient(grad_logp, heatmap, 8, keypoints, accepted), expected)
    constant = torch.ones(()).expand(logp.shape)
    check_gradient(constant, heatmap, 8, keypoints, accepted)


def test_keypoints_outside_of_their_cell_are_ignored() -> None:
    heatmap = torch.randn(1, 1, 20, 21)
    _, accepted, logp = check(heatmap, 8)
    corners = torch.stack([torch.arange(3).expand(3, 3), torch.arange(3)[:, None].expand(3, 3)], dim=-1)[None] * 8
    for offset in ((-1, 0), (0, -1), (8, 0), (0, 8), (-(2**62), 3), (3, 2**62), (2**32, 0), (0, 2**32)):
        outside = corners + torch.tensor(offset)
        grad = check_gradient(torch.ones_like(logp), heatmap, 8, outside, accepted)
        assert (grad < 0).all()  # the softmax alone
    edge = corners + torch.tensor([5, 4])  # beyond the image in the last column and row
    check_gradient(torch.ones_like(logp), heatmap, 8, edge, accepted)


def test_gradient_at_a_pixel_that_cannot_be_proposed() -> None:
    heatmap = torch.randn(1, 1, 8, 8)
    heatmap[0, 0, 2, 1] = -torch.inf
    keypoints, yes = torch.tensor([1, 2]).view(1, 1, 1, 2), torch.ones(1, 1, 1, dtype=torch.bool)
    grad = check_gradient(torch.ones(1, 1, 1), heatmap, 8, keypoints, yes)
    assert grad[0, 0, 2, 1] == 0 and grad.isfinite().all()


def test_reference_agrees() -> None:
    """Not through the CPU's kernels."""
    arguments = (torch.randn(2, 1, 40, 50), 8, seed_tensor(5), False, None)
    for one, other in zip(
        torch.ops.disk_ops_emu.sample_grid(*arguments), reference.sample_grid(*arguments), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_errors_name_the_argument() -> None:
    op, backward = torch.ops.disk_ops_emu.sample_grid, torch.ops.disk_ops_emu._sample_grid_backward
    heatmap, seed = torch.zeros(1, 1, 8, 8), seed_tensor(0)
    for match, arguments in {
        r"heatmap must have shape \[B, 1, H, W\], got \[1, 8, 8\]": (heatmap[0], 8, seed, False, None),
        "cell must be from 1 to 64 pixels, got 65": (heatmap, 65, seed, False, None),
        "seed must be an int64 tensor": (heatmap, 8, seed.float(), False, None),
        "mask must have the shape": (heatmap, 8, seed, False, heatmap[..., :7] > 0),
        "heatmap must have at most 268435455 images": (heatmap[..., :1].expand(2**28, 1, 8, 1), 1, seed, False, None),
    }.items():
        with pytest.raises(RuntimeError, match=match):
            op(*arguments)
    keypoints, accepted, logp = op(heatmap, 8, seed, False, None)
    with pytest.raises(RuntimeError, match="grad_logp must be of dtype Float, got Double"):
        backward(logp.double(), heatmap, 8, keypoints, accepted, None)
