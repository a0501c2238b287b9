"""Derivatives that the ops don't have are refused: left alone, PyTorch would take them for zero."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from disk_ops import ops

GENERATOR = torch.Generator().manual_seed(0)
DESC1, DESC2 = torch.randn(5, 4, generator=GENERATOR), torch.randn(6, 4, generator=GENERATOR)
REWARD = torch.randn(5, 6, generator=GENERATOR)
HEATMAP = torch.randn(1, 1, 16, 16, generator=GENERATOR)
KEYPOINTS = torch.tensor([[[1, 1], [4, 5]]])
WEIGHT, BLOCK_WEIGHT = torch.randn(3, 2, 3, 3, generator=GENERATOR), torch.randn(16, 16, 5, 5, generator=GENERATOR)

ONCE = {
    "match_statistics": (lambda desc: ops.match_statistics(desc, DESC2, 2.0)[0], DESC1),
    "mutual_softmax": (lambda desc: ops.mutual_softmax(desc, DESC2, 2.0), DESC1),
    "expected_reward": (lambda desc: ops.expected_reward(desc, DESC2, 2.0, REWARD).reward1, DESC1),
    "sample_grid": (lambda heatmap: ops.sample_grid(heatmap, mode="argmax").logp, HEATMAP),
    "describe": (
        lambda activation: ops.describe(activation, WEIGHT, torch.ones(3), KEYPOINTS),
        HEATMAP.view(1, 2, 8, 16),
    ),
    "conv_block": (
        lambda x: ops.conv_block(x, BLOCK_WEIGHT, torch.ones(16), slope=torch.full((16,), 0.1)),
        HEATMAP.view(1, 16, 4, 4),
    ),
    "block_activation": (
        lambda x: ops.block_activation(x, slope=torch.full((16,), 0.1)),
        HEATMAP.view(1, 16, 4, 4),
    ),
}
TWICE = {
    "distance_matrix": (lambda desc: ops.distance_matrix(desc, DESC2.double()), DESC1),
    "nms_topk": (lambda heatmap: ops.nms_topk(heatmap, 4).scores.square(), HEATMAP),
}
NO_FORWARD = [name for name in ONCE if "block" not in name]  # the blocks run as PyTorch's own operations then
NO_FORWARD += list(TWICE)


def gradient(name: str) -> tuple[Tensor, Tensor]:
    """The gradient of an op, which is a function of its argument, and that argument."""
    function, given = ONCE[name]
    given = given.clone().requires_grad_()
    (first,) = torch.autograd.grad(function(given).square().sum(), given, create_graph=True)
    return first, given


@pytest.mark.parametrize("name", ONCE)
class TestOnce:
    def test_backward_through_a_gradient_is_refused(self, name):
        first, _ = gradient(name)
        with pytest.raises(RuntimeError, match=f"{name}.* can be differentiated once"):
            first.square().sum().backward()

    def test_a_gradient_of_a_gradient_is_refused(self, name):
        first, given = gradient(name)
        with pytest.raises(RuntimeError, match=f"{name}.* can be differentiated once"):
            torch.autograd.grad(first.square().sum() + given.sum(), given)


@pytest.mark.parametrize("name", TWICE)
def test_some_can_be_differentiated_twice(name):
    function, given = TWICE[name]
    assert torch.autograd.gradgradcheck(function, given.double().requires_grad_())


@pytest.mark.parametrize("name", [*ONCE, *TWICE])
@pytest.mark.parametrize("create_graph", [False, True])
def test_checkpointing_changes_nothing(name, create_graph):
    """It computes saved tensors again when they are asked for, which may be once."""
    function, given = {**ONCE, **TWICE}[name]
    given = given.double() if name == "distance_matrix" else given
    results = []
    for call in (function, lambda x: checkpoint(function, x, use_reentrant=False)):
        leaf = given.clone().requires_grad_()
        (result,) = torch.autograd.grad(call(leaf).square().sum(), leaf, create_graph=create_graph)
        results.append(result.detach())
    assert torch.equal(*results)


@pytest.mark.parametrize("name", NO_FORWARD)
def test_forward_mode_is_refused(name):
    function, given = {**ONCE, **TWICE}[name]
    given = given.double() if name == "distance_matrix" else given
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match=f"{name} has no forward-mode derivative"):
        function(forward_ad.make_dual(given, torch.ones_like(given)))


@pytest.mark.parametrize("name", ["conv_block", "block_activation"])
def test_blocks_have_a_forward_mode_derivative(name):
    function, given = ONCE[name]
    tangent = torch.randn(given.shape, generator=torch.Generator().manual_seed(1))
    with forward_ad.dual_level():
        forward = forward_ad.unpack_dual(function(forward_ad.make_dual(given, tangent))).tangent
    leaf = given.clone().requires_grad_()
    weights = torch.randn(forward.shape, generator=torch.Generator().manual_seed(2))
    (function(leaf) * weights).sum().backward()
    torch.testing.assert_close((forward * weights).sum(), (leaf.grad * tangent).sum(), rtol=1e-4, atol=1e-3)


def test_the_gradients_of_blocks_are_the_same_where_a_second_one_may_be_asked_for():
    function, given = ONCE["conv_block"]
    leaf = given.clone().requires_grad_()
    function(leaf).square().sum().backward()
    assert torch.equal(gradient("conv_block")[0], leaf.grad)


def test_blocks_without_gradients_can_be_mapped():
    x = torch.randn(3, 1, 16, 4, 4, generator=torch.Generator().manual_seed(3))
    for name in ("conv_block", "block_activation"):
        function = ONCE[name][0]
        assert torch.equal(torch.vmap(function)(x), torch.stack([function(each) for each in x])), name
