"""Pure-PyTorch twin of ``sample_grid``: the same random numbers and rule, and so the same draws but for roundings."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_LOW_32 = 0xFFFFFFFF


def sample_grid(
    heatmap: Tensor,  # [B, 1, H, W]
    cell: int,
    seed: Tensor,  # [] int64, on the CPU
    argmax: bool,
    mask: Tensor | None,  # [B, 1, H, W] bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Propose a pixel in each cell and decide on it; see :func:`disk_ops.ops.sample_grid`.

    Weights are added in one order everywhere: each row of a cell from left to right, then the rows from top to bottom.
    The proposal is the first pixel in raster order at which the sum passes a threshold uniform in [0, total).

    Returns:
        keypoints ``[B, h, w, 2]`` int64 xy, accepted ``[B, h, w]`` bool, logp ``[B, h, w]``.
    """
    logits = _cells(heatmap, cell, mask)  # [B, h, w, cell, cell]
    weights, highest = _weights(logits)
    running = _running_sum(weights)  # along x
    rows = _running_sum(running[..., -1])  # [B, h, w, cell]: up to the end of each row
    total = rows[..., -1]

    uniform_proposal, uniform_acceptance = _uniforms(int(seed), logits)
    if argmax:
        flat = (logits == highest[..., None, None]).flatten(-2).int().argmax(-1)  # the first of equals
        y, x = flat // cell, flat % cell
    else:
        threshold = torch.minimum(uniform_proposal * total, torch.nextafter(total, torch.zeros_like(total)))
        y = (rows <= threshold[..., None]).sum(-1).clamp_(max=cell - 1)
        before = torch.where(y > 0, _at(rows, (y - 1).clamp_(min=0)), 0)
        x = (before[..., None] + _row(running, y) <= threshold[..., None]).sum(-1).clamp_(max=cell - 1)

    empty = total == 0
    y, x = y.masked_fill(empty, 0), x.masked_fill(empty, 0)
    logit = _at(_row(logits, y), x).masked_fill(empty, 0)
    if argmax:
        accepted = logit > 0
    else:
        small = torch.exp(-logit.abs())
        accepted = uniform_acceptance * (1 + small) < torch.where(logit < 0, small, 1)
    accepted = accepted & ~empty
    logp = logit - highest - total.log() + F.logsigmoid(torch.where(accepted, logit, -logit))

    columns, lines = _corners(x.shape[2], cell, x.device), _corners(x.shape[1], cell, x.device)
    keypoints = torch.stack([x + columns, y + lines[:, None]], dim=-1)
    return keypoints, accepted, logp.masked_fill(empty, 0)


def _sample_grid_backward(
    grad_logp: Tensor,  # [B, h, w]
    heatmap: Tensor,  # [B, 1, H, W]
    cell: int,
    keypoints: Tensor,  # [B, h, w, 2] int64
    accepted: Tensor,  # [B, h, w] bool
    mask: Tensor | None,  # [B, 1, H, W] bool
) -> Tensor:
    """The gradient of logp by the heatmap, where a proposal and the decision on it are fixed."""
    batch, _, height, width = heatmap.shape
    logits = _cells(heatmap, cell, mask)
    weights, _ = _weights(logits)
    total = weights.sum((-2, -1))
    scale = torch.where(total > 0, grad_logp / total, 0)
    grad = -scale[..., None, None] * weights

    x = keypoints[..., 0] - _corners(keypoints.shape[2], cell, keypoints.device)
    y = keypoints[..., 1] - _corners(keypoints.shape[1], cell, keypoints.device)[:, None]
    index = (y * cell + x)[..., None]
    proposed = weights.flatten(-2).gather(-1, index) > 0
    logit = logits.flatten(-2).gather(-1, index).masked_fill(~proposed, 0)
    slope = accepted[..., None] + torch.sigmoid(-logit)  # 1 + sigmoid(-K), or 1 - sigmoid(K)
    own = (grad_logp[..., None] * slope).masked_fill(~proposed, 0)
    grad = grad.flatten(-2).scatter_add(-1, index, own).view_as(logits)

    padded = grad.transpose(2, 3).reshape(batch, 1, grad.shape[1] * cell, grad.shape[2] * cell)
    return padded[:, :, :height, :width].to(heatmap.dtype).contiguous()


def _cells(heatmap: Tensor, cell: int, mask: Tensor | None) -> Tensor:
    """Logits as ``[B, h, w, cell, cell]``; -inf beyond the image, where masked, and for NaN."""
    batch, _, height, width = heatmap.shape
    logits = heatmap[:, 0].float() if heatmap.dtype in (torch.float16, torch.bfloat16) else heatmap[:, 0]
    logits = logits.masked_fill(logits.isnan(), -math.inf).clamp(max=torch.finfo(logits.dtype).max)
    if mask is not None:
        logits = logits.masked_fill(~mask[:, 0], -math.inf)
    rows, columns = -(-height // cell), -(-width // cell)
    logits = F.pad(logits, (0, columns * cell - width, 0, rows * cell - height), value=-math.inf)
    return logits.view(batch, rows, cell, columns, cell).transpose(2, 3)


def _weights(
    logits: Tensor,  # [B, h, w, cell, cell]
) -> tuple[Tensor, Tensor]:
    """Unnormalised probabilities, and each cell's highest logit (0 in a cell without pixels to propose)."""
    highest = logits.amax((-2, -1))
    highest = highest.masked_fill(highest == -math.inf, 0)
    return torch.exp(logits - highest[..., None, None]), highest


def _running_sum(
    values: Tensor,  # [..., n]
) -> Tensor:
    """Like ``cumsum``, but in one order and precision on every device."""
    sums = [values[..., 0]]
    for i in range(1, values.shape[-1]):
        sums.append(sums[-1] + values[..., i])
    return torch.stack(sums, dim=-1)


def _at(
    values: Tensor,  # [..., n]
    index: Tensor,  # [...]
) -> Tensor:
    return values.gather(-1, index[..., None])[..., 0]


def _row(
    values: Tensor,  # [B, h, w, cell, cell]
    y: Tensor,  # [B, h, w]
) -> Tensor:
    index = y[..., None, None].expand(*y.shape, 1, values.shape[-1])
    return values.gather(-2, index)[..., 0, :]


def _corners(count: int, cell: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device) * cell


def _uniforms(
    seed: int,
    logits: Tensor,  # [B, h, w, cell, cell]
) -> tuple[Tensor, Tensor]:
    """Two numbers in [0, 1) for each cell: for its proposal and its acceptance."""
    batch, rows, columns = logits.shape[:3]
    cells = torch.arange(rows * columns, device=logits.device).view(1, rows, columns)
    images = torch.arange(batch, device=logits.device).view(batch, 1, 1)
    zero = torch.zeros_like(cells)
    words = philox(seed, (cells, images, zero, zero))
    if logits.dtype == torch.float64:
        first, second = ((words[i] << 21 | words[i + 2] >> 11).to(torch.float64) * 2.0**-53 for i in (0, 1))
    else:
        first, second = ((words[i] >> 8).to(logits.dtype) * 2.0**-24 for i in (0, 1))
    return first, second


def philox(seed: int, counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox-4x32-10: 32-bit words, held in int64, of a 64-bit key and a counter of four 32-bit words."""
    a, b, c, d = torch.broadcast_tensors(*counter)
    key0, key1 = seed & _LOW_32, seed >> 32 & _LOW_32
    for _ in range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57  # modulo 2^64: both halves are there
        a, b = (second >> 32 & _LOW_32) ^ b ^ key0, second & _LOW_32
        c, d = (first >> 32 & _LOW_32) ^ d ^ key1, first & _LOW_32
        key0, key1 = key0 + 0x9E3779B9 & _LOW_32, key1 + 0xBB67AE85 & _LOW_32
    return a, b, c, d
