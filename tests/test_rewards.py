"""disk_ops.training.rewards: what is correct, incorrect or unknown between two images."""

from __future__ import annotations

import math

import pytest
import torch

from disk_ops.ops import MatchGeometry, expected_reward
from disk_ops.reference_reward import RewardRule, rewards_of_pairs
from disk_ops.training import DepthReward, EpipolarReward, HomographyReward, View
from disk_ops.training.rewards import fundamental_matrix, reproject


def matrix(geometry: MatchGeometry) -> torch.Tensor:
    """r_ij [N, M] by the reference."""
    fields = [geometry.keypoints1, geometry.keypoints2, geometry.warped1, geometry.warped2, geometry.fundamental]
    batched = [None if field is None else field[None].double() for field in fields]
    rule = RewardRule(
        None, *batched, geometry.epsilon, geometry.lambda_tp, geometry.lambda_fp, geometry.rule == "official"
    )
    shape = (1, len(geometry.keypoints1), len(geometry.keypoints2))
    return rewards_of_pairs(rule, torch.zeros(shape, dtype=torch.float64, device=geometry.keypoints1.device))[0]


def rotation(angle: float, axis: int) -> torch.Tensor:
    c, s = math.cos(angle), math.sin(angle)
    plane = [i for i in range(3) if i != axis]
    R = torch.eye(3, dtype=torch.float64)
    R[plane[0], plane[0]], R[plane[0], plane[1]], R[plane[1], plane[0]], R[plane[1], plane[1]] = c, -s, s, c
    return R


@pytest.fixture
def scene(device):
    """Two cameras and points in front of both, with depth maps that are right at the points' pixels."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(30, 3, generator=generator, dtype=torch.float64) * 2 - 1
    views, pixels = [], []
    for R, t in (
        (torch.eye(3, dtype=torch.float64), torch.tensor([0.0, 0.0, 6.0])),
        (rotation(0.3, 1) @ rotation(0.1, 0), torch.tensor([0.4, -0.2, 5.5])),
    ):
        K = torch.tensor([[300.0, 0, 160], [0, 310.0, 120], [0, 0, 1]], dtype=torch.float64)
        in_camera = points @ R.mT + t.double()
        projected = in_camera @ K.mT
        xy = projected[:, :2] / projected[:, 2:]
        depth = torch.full((240, 320), torch.nan, dtype=torch.float64)
        depth[xy[:, 1].round().long(), xy[:, 0].round().long()] = in_camera[:, 2]
        views.append(View(K.to(device), R.to(device), t.double().to(device), depth.to(device)))
        pixels.append(xy.to(device))
    return views, pixels


class TestHomographyReward:
    def test_only_corresponding_points_are_right(self, device):
        homography = torch.tensor([[0.9, 0.1, 5.0], [-0.2, 1.1, 3.0], [1e-4, 2e-4, 1.0]], device=device)
        points = torch.rand(20, 2, device=device) * 200
        warped = torch.cat([points, torch.ones_like(points[:, :1])], 1) @ homography.mT
        others = warped[:, :2] / warped[:, 2:]
        rewards = matrix(HomographyReward()(points, others, homography))
        assert torch.equal(rewards, torch.where(torch.eye(20, device=device) > 0, 1.0, -0.25).double())

    def test_both_directions_must_be_near(self, device):
        scale = torch.diag(torch.tensor([4.0, 4.0, 1.0], device=device))  # image 2 is four times as large
        point = torch.tensor([[10.0, 10.0]], device=device)
        for offset, right in ((1.0, True), (3.0, False)):  # 0.75 px in image 1, but 3 px in image 2
            rewards = matrix(HomographyReward()(point, point * 4 + torch.tensor([offset, 0], device=device), scale))
            assert (rewards.item() == 1) is right

    def test_points_beyond_the_horizon_match_nothing(self, device):
        homography = torch.tensor([[1.0, 0, 0], [0, 1, 0], [-0.1, 0, 1]], device=device)
        points = torch.tensor([[20.0, 5.0], [10.0, 5.0], [1.0, 5.0]], device=device)  # behind, on, before the horizon
        geometry = HomographyReward()(points, points, homography)
        assert geometry.warped1[:2].isinf().all() and geometry.warped1[2].isfinite().all()
        assert not matrix(geometry).isnan().any()

    def test_exception(self):
        with pytest.raises(ValueError, match="epsilon must be a positive number of pixels, got 0"):
            HomographyReward(epsilon=0)
        with pytest.raises(ValueError, match="homography must be invertible, got"):
            HomographyReward()(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(3, 3))
        with pytest.raises(ValueError, match=r"homography must have shape \[3, 3\], got \[1, 3, 3\]"):
            HomographyReward()(torch.zeros(1, 2), torch.zeros(1, 2), torch.eye(3)[None])
        with pytest.raises(ValueError, match="rule must be 'paper' or 'official', got 'both'"):
            DepthReward(rule="both")
        with pytest.raises(ValueError, match="interpolation must be 'nearest' or 'bilinear', got 'cubic'"):
            DepthReward(interpolation="cubic")
        with pytest.raises(ValueError, match="view has no depth map"):
            DepthReward()(torch.zeros(1, 2), torch.zeros(1, 2), *(View(torch.eye(3), torch.eye(3), torch.ones(3)),) * 2)
        with pytest.raises(ValueError, match="either warped1 and warped2 or fundamental must be given"):
            MatchGeometry(torch.zeros(1, 2), torch.zeros(1, 2))
        with pytest.raises(ValueError, match="warped1 and warped2 must be given together"):
            MatchGeometry(torch.zeros(1, 2), torch.zeros(1, 2), warped1=torch.zeros(1, 2))

    @pytest.mark.parametrize("name", ["keypoints1", "keypoints2", "fundamental", "epsilon", "lambda_tp", "lambda_fp"])
    @pytest.mark.parametrize("value", [None, "1"])
    def test_geometry_of_wrong_types(self, name, value):
        points = torch.zeros(1, 2)
        given = {"keypoints1": points, "keypoints2": points, "warped1": points, "warped2": points}
        if (name, value) == ("fundamental", None):
            pytest.skip("one geometry is enough")
        with pytest.raises(TypeError, match=f"^{name} must be a (tensor|number), got {type(value).__name__}"):
            MatchGeometry(**given | {name: value})


class TestPosedRewards:
    def test_fundamental_matrix(self, scene):
        (view1, view2), (points1, points2) = scene
        ones = torch.ones_like(points1[:, :1])
        F = fundamental_matrix(view1, view2)
        residual = (torch.cat([points2, ones], 1) @ F * torch.cat([points1, ones], 1)).sum(1)
        assert residual.abs().max() < 1e-9 * F.norm() * 320**2

    def test_epipolar(self, scene):
        (view1, view2), (points1, points2) = scene
        rewards = matrix(EpipolarReward()(points1, points2, view1, view2))
        assert (rewards.diag() == 1).all()
        assert ((rewards == 1) | (rewards == -0.25)).all() and (rewards == -0.25).sum() > 700

    def test_reprojection(self, scene):
        (view1, view2), (points1, points2) = scene
        # Depth belongs to pixels: it is exact for points at pixel centres.
        assert (reproject(points1, view1, view2) - points2).norm(dim=1).max() < 0.5
        with_depth = View(view1.K, view1.R, view1.t, torch.full_like(view1.depth, 6.0))
        there = reproject(points1, with_depth, view2)
        plane = View(view2.K, view2.R, view2.t, view2.depth)
        assert there.isfinite().all() and plane.K is view2.K

    def test_depth(self, scene):
        (view1, view2), (points1, points2) = scene
        rewards = matrix(DepthReward()(points1, points2, view1, view2))
        assert (rewards.diag() == 1).all()
        epipolar = matrix(EpipolarReward()(points1, points2, view1, view2)) == 1
        wrong = ~torch.eye(30, dtype=torch.bool, device=rewards.device)
        assert (rewards[wrong] == -0.25).all()  # depth is known everywhere: nothing is plausible
        official = matrix(DepthReward(rule="official")(points1, points2, view1, view2))
        assert (official[wrong & epipolar] == 0).all() and (official[wrong & ~epipolar] == -0.25).all()

    def test_unknown_depth_is_plausible_on_the_epipolar_line(self, scene):
        (view1, view2), (points1, points2) = scene
        unknown = view1._replace(depth=torch.zeros_like(view1.depth))
        epipolar = matrix(EpipolarReward()(points1, points2, view1, view2)) == 1
        for rule in ("paper", "official"):
            rewards = matrix(DepthReward(rule=rule)(points1, points2, unknown, view2))
            assert torch.equal(rewards == 0, epipolar) and (rewards[~epipolar] == -0.25).all()

    @pytest.mark.parametrize("missing", [0.0, -1.0, math.nan, math.inf])
    @pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
    def test_missing_depth(self, device, missing, interpolation):
        depth = torch.full((5, 6), 2.0, device=device)
        depth[2, 3] = missing
        view = View(torch.eye(3), torch.eye(3), torch.zeros(3), depth)
        view = View(*(field.to(device) for field in view))
        points = torch.tensor([[3.0, 2.0], [2.6, 2.0], [1.0, 1.0], [-2.0, 1.0], [7.0, 1.0]], device=device)
        known = reproject(points, view, view, interpolation).isfinite().all(1).tolist()
        assert known == [False, False, True, False, False]

    def test_bilinear_depth_ignores_pixels_without_weight(self, device):
        depth = torch.full((4, 4), 2.0, device=device)
        depth[:, 3] = torch.nan
        view = View(*(field.to(device) for field in (torch.eye(3), torch.eye(3), torch.zeros(3), depth)))
        assert reproject(torch.tensor([[2.0, 1.5]], device=device), view, view, "bilinear").isfinite().all()

    def test_points_behind_the_other_camera_are_wrong_not_unknown(self, device):
        depth = torch.full((4, 4), 2.0, device=device)
        fields = [field.to(device) for field in (torch.eye(3), torch.eye(3), torch.zeros(3), depth)]
        view = View(*fields)
        turned = View(fields[0], rotation(math.pi, 1).float().to(device), fields[2], depth)
        assert reproject(torch.tensor([[1.0, 1.0]], device=device), view, turned).isinf().all()

    def test_kernel_takes_them(self, scene):
        (view1, view2), (points1, points2) = scene
        desc = torch.eye(30, device=points1.device)
        result = expected_reward(desc, desc, 1e3, DepthReward()(points1, points2, view1, view2))
        torch.testing.assert_close(result.reward1, torch.ones_like(result.reward1))
