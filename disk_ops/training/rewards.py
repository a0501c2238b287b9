"""Rewards of matches: what is known of two images, as the geometry that :func:`disk_ops.ops.expected_reward` evaluates.

Points are pixels in xy order with integer pixel centres. Cameras follow ``x_cam = R X_world + t`` and ``x = K x_cam``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from disk_ops.ops import MatchGeometry


class View(NamedTuple):
    """One posed image: intrinsics, pose, and optionally depth along the optical axis (0 or NaN where unknown)."""

    K: Tensor  # [3, 3], invertible with last row (0, 0, 1); not upper triangular where the image was turned
    R: Tensor  # [3, 3]
    t: Tensor  # [3]
    depth: Tensor | None = None  # [H, W]


class _Reward(nn.Module):
    def __init__(self, epsilon: float = 1.5, lambda_tp: float = 1.0, lambda_fp: float = -0.25) -> None:
        super().__init__()
        if not epsilon > 0:
            raise ValueError(f"epsilon must be a positive number of pixels, got {epsilon}")
        self.epsilon, self.lambda_tp, self.lambda_fp = epsilon, lambda_tp, lambda_fp

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"epsilon={self.epsilon}, lambda_tp={self.lambda_tp}, lambda_fp={self.lambda_fp}"


class HomographyReward(_Reward):
    """Reward for two images of a plane (or warped from one photograph): the truth is known for every pair.

    A match is correct if both keypoints, warped into the other image, lie nearer than ``epsilon``; else incorrect.

    Args:
        epsilon: pixels.
        lambda_tp: reward of a correct match.
        lambda_fp: reward of an incorrect one.

    Example:
        >>> points = torch.tensor([[3.0, 4.0]])
        >>> HomographyReward()(points, points, torch.eye(3)).warped1
        tensor([[3., 4.]])
    """

    def forward(
        self,
        keypoints1: Tensor,  # [N, 2]
        keypoints2: Tensor,  # [M, 2]
        homography: Tensor,  # [3, 3], image 1 to image 2
    ) -> MatchGeometry:
        """Return the geometry of a pair."""
        if homography.shape != (3, 3):
            raise ValueError(f"homography must have shape [3, 3], got {list(homography.shape)}")
        inverse, singular = torch.linalg.inv_ex(homography.double())
        if singular:
            raise ValueError(f"homography must be invertible, got {homography.tolist()}")
        return MatchGeometry(
            keypoints1,
            keypoints2,
            warped1=_transform(keypoints1, homography.double()),
            warped2=_transform(keypoints2, inverse),
            epsilon=self.epsilon,
            lambda_tp=self.lambda_tp,
            lambda_fp=self.lambda_fp,
        )


class EpipolarReward(_Reward):
    """Reward for two posed images without depth: a match is correct if it is consistent with the epipolar geometry.

    Both keypoints must lie nearer than ``epsilon`` to the epipolar line of the other. Arguments as of
    :class:`HomographyReward`.
    """

    def forward(
        self,
        keypoints1: Tensor,  # [N, 2]
        keypoints2: Tensor,  # [M, 2]
        view1: View,
        view2: View,
    ) -> MatchGeometry:
        """Return the geometry of a pair."""
        return MatchGeometry(
            keypoints1,
            keypoints2,
            fundamental=fundamental_matrix(view1, view2),
            epsilon=self.epsilon,
            lambda_tp=self.lambda_tp,
            lambda_fp=self.lambda_fp,
        )


class DepthReward(_Reward):
    """Reward for two posed images with depth maps (DISK, section 3).

    Correct: both reprojections nearer than ``epsilon``. ``rule="paper"``: plausible, with reward 0, where depth is
    unknown at either end and the pair is consistent with the epipolar geometry; else incorrect. ``rule="official"``:
    every incorrect pair that is consistent with it gets 0, as in the released code.

    Args:
        epsilon: pixels.
        lambda_tp: reward of a correct match.
        lambda_fp: reward of an incorrect one.
        rule: ``"paper"`` or ``"official"``.
        interpolation: depth at a point is that of the ``"nearest"`` pixel or ``"bilinear"``, unknown if one of the
            pixels is.
    """

    def __init__(
        self,
        epsilon: float = 1.5,
        lambda_tp: float = 1.0,
        lambda_fp: float = -0.25,
        rule: Literal["paper", "official"] = "paper",
        interpolation: Literal["nearest", "bilinear"] = "nearest",
    ) -> None:
        super().__init__(epsilon, lambda_tp, lambda_fp)
        if rule not in ("paper", "official"):
            raise ValueError(f"rule must be 'paper' or 'official', got {rule!r}")
        if interpolation not in ("nearest", "bilinear"):
            raise ValueError(f"interpolation must be 'nearest' or 'bilinear', got {interpolation!r}")
        self.rule, self.interpolation = rule, interpolation

    def forward(
        self,
        keypoints1: Tensor,  # [N, 2]
        keypoints2: Tensor,  # [M, 2]
        view1: View,
        view2: View,
    ) -> MatchGeometry:
        """Return the geometry of a pair."""
        return MatchGeometry(
            keypoints1,
            keypoints2,
            warped1=reproject(keypoints1, view1, view2, self.interpolation),
            warped2=reproject(keypoints2, view2, view1, self.interpolation),
            fundamental=fundamental_matrix(view1, view2),
            epsilon=self.epsilon,
            lambda_tp=self.lambda_tp,
            lambda_fp=self.lambda_fp,
            rule=self.rule,
        )


def fundamental_matrix(view1: View, view2: View) -> Tensor:
    """Return F ``[3, 3]`` in float64 with ``x2^T F x1 = 0`` for the images of one point."""
    K1, K2 = view1.K.double(), view2.K.double()
    R = view2.R.double() @ view1.R.double().mT
    t = view2.t.double() - R @ view1.t.double()
    zero = torch.zeros_like(t[0])
    cross = torch.stack([zero, -t[2], t[1], t[2], zero, -t[0], -t[1], t[0], zero]).view(3, 3)
    return torch.linalg.inv(K2).mT @ cross @ R @ torch.linalg.inv(K1)


def reproject(
    keypoints: Tensor,  # [N, 2]
    view: View,
    other: View,
    interpolation: Literal["nearest", "bilinear"] = "nearest",
) -> Tensor:
    """Return where keypoints of a view are seen in another one, ``[N, 2]`` in float64.

    NaN where depth is unknown, inf where the point lies behind the other camera.
    """
    if view.depth is None:
        raise ValueError("view has no depth map")
    depth = _depth_at(view.depth, keypoints, interpolation)
    points = torch.cat([keypoints.double(), torch.ones_like(keypoints[:, :1], dtype=torch.float64)], 1)
    in_camera = points @ torch.linalg.inv(view.K.double()).mT * depth[:, None]
    in_world = (in_camera - view.t.double()) @ view.R.double()  # R^T (x - t), in rows
    in_other = in_world @ other.R.double().mT + other.t.double()
    projected = in_other @ other.K.double().mT
    behind = projected[:, 2] <= 0
    pixels = projected[:, :2] / torch.where(behind, 1, projected[:, 2])[:, None]
    return torch.where(behind[:, None], torch.inf, pixels)


def _transform(
    points: Tensor,  # [N, 2]
    homography: Tensor,  # [3, 3] float64
) -> Tensor:
    """Return warped points ``[N, 2]``; inf for those that a plane's horizon lies in front of."""
    warped = torch.cat([points.double(), torch.ones_like(points[:, :1], dtype=torch.float64)], 1) @ homography.mT
    behind = warped[:, 2] * torch.linalg.det(homography) <= 0
    pixels = warped[:, :2] / torch.where(behind, 1, warped[:, 2])[:, None]
    return torch.where(behind[:, None], torch.inf, pixels)


def _depth_at(
    depth: Tensor,  # [H, W]
    keypoints: Tensor,  # [N, 2]
    interpolation: str,
) -> Tensor:
    """Return depth at points ``[N]`` in float64, NaN where it isn't known or the point lies outside."""
    height, width = depth.shape
    known = torch.where(depth.isfinite() & (depth > 0), depth, torch.nan).double()
    x, y = keypoints.double().unbind(1)
    if interpolation == "nearest":
        columns, rows = x.round(), y.round()
        inside = (columns >= 0) & (rows >= 0) & (columns < width) & (rows < height)
        column, row = columns.nan_to_num(0).clamp(0, width - 1), rows.nan_to_num(0).clamp(0, height - 1)
        return torch.where(inside, known[row.long(), column.long()], torch.nan)
    inside = (x >= 0) & (y >= 0) & (x <= width - 1) & (y <= height - 1)
    left, top = x.nan_to_num(0).clamp(0, width - 1).floor(), y.nan_to_num(0).clamp(0, height - 1).floor()
    total = torch.zeros_like(x)
    for dx, weight_x in ((0, 1 - (x - left)), (1, x - left)):
        for dy, weight_y in ((0, 1 - (y - top)), (1, y - top)):
            weight = weight_x * weight_y
            value = known[(top + dy).clamp(max=height - 1).long(), (left + dx).clamp(max=width - 1).long()]
            total = total + torch.where(weight > 0, weight * value, 0)  # a pixel without weight may be unknown
    return torch.where(inside, total, torch.nan)
