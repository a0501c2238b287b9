"""The compiled ops on pairs of descriptors against their materialised twins in disk_ops.reference_reward."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from disk_ops import reference_reward as reference
from disk_ops.ops import distance_matrix, mutual_softmax

ops = torch.ops.disk_ops
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
OPS = ("distance_matrix", "match_statistics", "_match_sums", "_match_backward")


class Sample(NamedTuple):
    """Arguments of the ops, in float64."""

    name: str
    desc1: Tensor  # [B, N, D]
    desc2: Tensor  # [B, M, D]
    theta: float = 20.0
    valid1: Tensor | None = None
    valid2: Tensor | None = None
    rule: tuple[Tensor | None, ...] = ()  # reward, keypoints1, keypoints2, warped1, warped2, fundamental
    official: bool = False
    weights: tuple[Tensor | None, ...] = (None, None, None)


def sample_inputs(device: torch.device) -> Iterator[Sample]:
    """Every edge case once."""
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device)

    def descriptors(*shape: int) -> Tensor:
        return F.normalize(normal(*shape), dim=-1)

    def flags(*shape: int) -> Tensor:
        return (torch.rand(*shape, generator=generator) > 0.3).to(device)

    def pair(rows: int, columns: int, depth: int, batch: int = 1) -> tuple[Tensor, Tensor]:
        """Some of the second set lie near some of the first, so that matches have a probability to speak of."""
        desc1, desc2 = descriptors(batch, rows, depth), descriptors(batch, columns, depth)
        common = min(rows, columns) // 2
        desc2[:, :common] = F.normalize(desc1[:, :common] + 0.1 * desc2[:, :common], dim=-1)
        return desc1, desc2

    def geometry(rows: int, columns: int, batch: int = 1, lines: bool = True, points: bool = True) -> tuple:
        """Keypoints of a sheared second image, a third of them displaced, some of unknown place in the other."""
        keypoints1, keypoints2 = 20 * normal(batch, rows, 2).sigmoid(), 20 * normal(batch, columns, 2).sigmoid()
        shear = torch.tensor([[1.0, 0.1], [-0.05, 1.1]], dtype=torch.float64, device=device)
        common = min(rows, columns)
        keypoints2[:, :common] = keypoints1[:, :common] @ shear + 0.4 * normal(batch, common, 2)
        warped1, warped2 = keypoints1 @ shear, keypoints2 @ shear.inverse()
        warped1[:, ::7, 0], warped2[:, 3::5] = math.nan, math.nan
        fundamental = normal(batch, 3, 3)
        return (
            None,
            keypoints1,
            keypoints2,
            *((warped1, warped2) if points else (None, None)),
            fundamental if lines else None,
        )

    def weights(rows: int, columns: int, batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
        return normal(batch, rows), normal(batch, columns), normal(batch, rows)

    def dense(rows: int, columns: int, batch: int = 1) -> tuple:
        return (normal(batch, rows, columns), None, None, None, None, None)

    yield Sample("plain", *pair(50, 70, 32), rule=dense(50, 70))
    yield Sample("several blocks", *pair(401, 233, 128), rule=dense(401, 233), weights=weights(401, 233))
    yield Sample("many columns", *pair(5, 777, 20), rule=geometry(5, 777), weights=weights(5, 777))
    for rows, columns in ((0, 5), (5, 0), (0, 0), (1, 1), (1, 6), (6, 1)):
        name = f"{rows} against {columns}"
        yield Sample(name, *pair(rows, columns, 16, 2), rule=dense(rows, columns, 2), weights=weights(rows, columns, 2))
    yield Sample("no images", *pair(4, 3, 8, 0), rule=dense(4, 3, 0), weights=weights(4, 3, 0))
    yield Sample("no dimension", *pair(3, 4, 0, 2), rule=geometry(3, 4, 2), weights=weights(3, 4, 2))
    yield Sample("one dimension", *(3 * x for x in pair(9, 8, 1)), rule=dense(9, 8), weights=weights(9, 8))
    yield Sample("odd sizes", *pair(101, 97, 37, 3), rule=geometry(101, 97, 3), weights=weights(101, 97, 3))
    masked = {"valid1": flags(2, 60), "valid2": flags(2, 41)}
    yield Sample("valid", *pair(60, 41, 24, 2), rule=geometry(60, 41, 2), weights=weights(60, 41, 2), **masked)
    yield Sample("valid2 only", *pair(60, 41, 24, 2), rule=dense(60, 41, 2), valid2=masked["valid2"])
    pairs = masked["valid1"][..., None] & masked["valid2"][:, None]
    unknown = (normal(2, 60, 41).masked_fill(~pairs, math.nan), *[None] * 5)  # rewards of masked pairs don't count
    yield Sample("NaN where masked", *pair(60, 41, 24, 2), rule=unknown, weights=weights(60, 41, 2), **masked)
    yield Sample("NaN where masked, no weights", *pair(60, 41, 24, 2), rule=unknown, **masked)
    nobody = torch.zeros(2, 41, dtype=torch.bool, device=device)
    yield Sample("nobody", *pair(60, 41, 24, 2), rule=dense(60, 41, 2), weights=weights(60, 41, 2), valid2=nobody)
    for official in (False, True):
        for lines, points in ((True, True), (False, True), (True, False), (False, False)):
            rule = geometry(83, 90, 2, lines, points)
            name = f"geometry: lines {lines}, points {points}, official {official}"
            yield Sample(name, *pair(83, 90, 16, 2), rule=rule, official=official, weights=weights(83, 90, 2))
    for i in range(3):
        chosen = tuple(w if k == i else None for k, w in enumerate(weights(40, 30)))
        yield Sample(f"only weight {(1, 2, 0)[i]}", *pair(40, 30, 16), rule=geometry(40, 30), weights=chosen)
    yield Sample("theta 0", *pair(40, 30, 16), theta=0.0, rule=dense(40, 30), valid1=flags(1, 40))
    yield Sample("negative theta", *pair(40, 30, 16), theta=-5.0, rule=dense(40, 30), valid2=flags(1, 30))
    same = descriptors(1, 60, 64)
    yield Sample("equal sets", same, same.clone(), rule=dense(60, 60), weights=weights(60, 60))
    near = same + 1e-3 / 8 * normal(1, 60, 64).sign()
    yield Sample("near-equal sets", same, near, rule=dense(60, 60), weights=weights(60, 60))
    yield Sample("all equal", same[:, :1].expand(1, 30, 64), same[:, :1].expand(1, 50, 64), rule=dense(30, 50))
    yield Sample("large descriptors", *(30 * x for x in pair(30, 20, 16)), theta=0.5, rule=dense(30, 20))
    yield Sample(
        "not contiguous", descriptors(2, 16, 30).mT, descriptors(2, 50, 32)[:, ::2, ::2], rule=dense(30, 25, 2)
    )


def convert(sample: Sample, dtype: torch.dtype) -> Sample:
    """Descriptors of `dtype`, the rest of the dtype of results."""
    precise = torch.float64 if dtype == torch.float64 else torch.float32

    def to_precise(tensors: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        return tuple(None if tensor is None else tensor.to(precise) for tensor in tensors)

    return sample._replace(
        desc1=sample.desc1.to(dtype),
        desc2=sample.desc2.to(dtype),
        rule=to_precise(sample.rule),
        weights=to_precise(sample.weights),
    )


def compute(of: object, sample: Sample) -> dict[str, Tensor]:
    """Every result of every op; statistics and sums go on into the ops that read them."""
    precise = torch.float64 if sample.desc1.dtype == torch.float64 else torch.float32
    theta = torch.tensor(sample.theta, dtype=precise, device=sample.desc1.device)
    distance = of.distance_matrix(sample.desc1, sample.desc2)
    common = (sample.desc1, sample.desc2, theta, sample.valid1, sample.valid2)
    logsumexp = of.match_statistics(*common)
    common += (*logsumexp, *sample.rule, 1.5, 1.0, -0.25, sample.official, *sample.weights)
    sums = of._match_sums(*common)
    backward = of._match_backward(*common, sums[0], sums[1], True)
    names = ("distance", "logsumexp1", "logsumexp2", "sum1", "sum2", "probability1")
    names += ("grad1", "grad2", "grad_theta", "grad_reward")
    return dict(zip(names, (distance, *logsumexp, *sums, *backward), strict=True))


def assert_close(name: str, found: Tensor, expected: Tensor, tolerance: float, scale: float = 1e-3) -> None:
    """Differences count relative to the largest number of the result, or to the scale of what was added up."""
    assert found.shape == expected.shape and found.is_contiguous(), f"{name}: {found.shape}"
    assert torch.equal(found.isfinite(), expected.isfinite()), name
    finite = expected.isfinite()
    assert torch.equal(found[~finite].double(), expected[~finite].double()), name
    difference = (found.double() - expected)[finite].abs().max().item() if finite.any() else 0.0
    scale = max(expected[finite].abs().max().item(), scale) if finite.any() else scale
    assert difference <= tolerance * scale, f"{name}: {difference:.3g} at {scale:.3g}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_equal_the_materialised_formulas(device: torch.device, dtype: torch.dtype) -> None:
    rounding = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 2e-5, torch.float64: 1e-10}
    for sample in map(lambda s: convert(s, dtype), sample_inputs(device)):
        found, expected = compute(ops, sample), compute(reference, convert(sample, torch.float64))
        for name, value in found.items():
            is_gradient = name in ("grad1", "grad2")
            assert value.dtype == (
                dtype if is_gradient else (torch.float64 if dtype == torch.float64 else torch.float32)
            ), name
            tolerance = rounding[dtype if is_gradient or dtype == torch.float64 else torch.float32]
            scale = 1.0 if name.startswith("grad") else 1e-3
            assert_close(f"{sample.name}, {name}", value, expected[name], tolerance, scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_huge_inverse_temperature_stays_finite(device: torch.device, dtype: torch.dtype) -> None:
    """Logits of 1e4 are known to 1e-3 in float32, and so are probabilities; the best match keeps its probability."""
    for sample in sample_inputs(device):
        if sample.name in ("several blocks", "valid", "equal sets", "near-equal sets"):
            huge = convert(sample._replace(theta=1e4), dtype)
            found, expected = compute(ops, huge), compute(reference, convert(huge, torch.float64))
            for name, value in found.items():
                assert not value.isnan().any() and torch.equal(value.isfinite(), expected[name].isfinite()), name
            for name in ("logsumexp1", "logsumexp2", "sum1", "sum2", "probability1"):
                tolerance = 1e-9 if dtype == torch.float64 else 5e-7 if name.startswith("log") else 2e-2
                assert_close(f"{sample.name}, {name}", found[name], expected[name], tolerance)


def test_distances_are_accurate_near_zero(device: torch.device) -> None:
    desc = F.normalize(torch.randn(200, 128, device=device, dtype=torch.float64), dim=-1)
    for size in (1e-3, 1e-2, 0.1, 0.19, 0.2, 0.21, 0.3, 1.0):
        near = (desc + size * F.normalize(torch.randn_like(desc), dim=-1)).float()
        found = ops.distance_matrix(desc.float()[None], near[None])[0]
        exact = torch.cdist(desc.float().double(), near.double(), compute_mode="donot_use_mm_for_euclid_dist")
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0)
    same = ops.distance_matrix(desc.float()[None], desc.float()[None])[0]
    assert not same.diagonal().any() and torch.equal(same, same.T)


def test_large_descriptors_keep_their_distances(device: torch.device) -> None:
    """Equal ones are at 0 and others at inf where a squared norm overflows, in matches too."""
    desc1, desc2 = torch.randn(1, 30, 16, device=device), torch.randn(1, 40, 16, device=device)
    desc1[0, 3] *= 1e25
    desc2[0, 7], desc2[0, 8] = desc1[0, 3], -desc1[0, 3]
    exact = torch.cdist(desc1.double(), desc2.double(), compute_mode="donot_use_mm_for_euclid_dist")
    expected = exact.float().masked_fill(exact > 1e19, math.inf)
    torch.testing.assert_close(ops.distance_matrix(desc1, desc2), expected, rtol=1e-5, atol=1e-6)
    found = ops.match_statistics(desc1, desc2, torch.tensor(3.0, device=device), None, None)
    logits = -3 * exact.masked_fill(exact > 1e19, math.inf)
    for one, other in zip(found, (logits.logsumexp(2), logits.logsumexp(1)), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def test_probabilities_of_far_descriptors_are_at_most_1(device: torch.device) -> None:
    """Logits of 1e10 are known to hundreds in float32, and e to the power of hundreds is infinite."""
    desc1, desc2 = torch.randn(1, 30, 16, device=device), torch.randn(1, 40, 16, device=device)
    desc2[0, 8, 2] = 1e10
    results = []
    for of, dtype in ((ops, torch.float32), (reference, torch.float64)):
        inputs = (desc1.to(dtype), desc2.to(dtype), torch.tensor(3.0, dtype=dtype, device=device), None, None)
        logsumexp = of.match_statistics(*inputs)
        reward = torch.ones(1, 30, 40, dtype=dtype, device=device)
        rule = (*inputs, *logsumexp, reward, None, None, None, None, None, 1.5, 1.0, -0.25, False)
        sums = of._match_sums(*rule, None, None, None)
        ones = torch.ones(1, 30, dtype=dtype, device=device)
        results.append((*sums, *of._match_backward(*rule, ones, None, None, *sums[:2], False)[:2]))
    for found, expected in zip(*results, strict=True):
        kept = torch.arange(expected.shape[1], device=device) != 8 if expected.shape[1] == 40 else slice(None)
        assert found.isfinite().all()
        torch.testing.assert_close(found[:, kept].double(), expected[:, kept], rtol=1e-4, atol=1e-5)


def test_gradient_between_near_equal_descriptors_keeps_its_digits(device: torch.device) -> None:
    """It has the direction of a difference that products would lose: theta dA (a - b) / d."""
    desc1 = F.normalize(torch.randn(1, 40, 128, device=device, dtype=torch.float64), dim=-1)
    desc2 = desc1 + 1e-4 * F.normalize(torch.randn_like(desc1), dim=-1)
    desc1, desc2 = desc1.float(), desc2.float()
    zeros, ones = torch.zeros(1, 40, device=device), torch.ones(1, 40, device=device)
    results = []
    for of, dtype in ((ops, torch.float32), (reference, torch.float64)):
        inputs = (desc1.to(dtype), desc2.to(dtype), torch.tensor(5.0, dtype=dtype, device=device), None, None)
        logsumexp = of.match_statistics(*inputs)
        rule = (None, None, None, None, None, None, 1.5, 1.0, -0.25, False, None, None, None)
        results.append(of._match_backward(*inputs, *logsumexp, *rule, ones.to(dtype), zeros.to(dtype), False))
    for found, expected in zip(results[0][:3], results[1][:3], strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1e-2, 1e-4, 1e-7])
@pytest.mark.parametrize("op", [distance_matrix, mutual_softmax])
def test_gradient_of_matrices_between_near_equal_descriptors_keeps_its_digits(op, size, device: torch.device) -> None:
    exact = F.normalize(torch.randn(40, 128, device=device, dtype=torch.float64), dim=-1)
    near = (exact + size * F.normalize(torch.randn_like(exact), dim=-1)).float()
    weights = torch.rand(40, 40, device=device)
    results = []
    for dtype in (torch.float32, torch.float64):
        desc1, desc2 = (desc.float().to(dtype).requires_grad_() for desc in (exact, near))
        matrix = op(desc1, desc2) if op is distance_matrix else op(desc1, desc2, 5.0)
        results.append(torch.autograd.grad((matrix * weights.to(dtype)).sum(), (desc1, desc2)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def test_results_do_not_depend_on_threads(device: torch.device) -> None:
    samples = [convert(sample, torch.float32) for sample in sample_inputs(device)]
    generator = torch.Generator().manual_seed(0)
    many = [F.normalize(torch.randn(2, 2000, 16, generator=generator), dim=-1).to(device) for _ in range(2)]
    reward = torch.randn(2, 2000, 2000, generator=generator).to(device)
    samples.append(Sample("many blocks in a chunk", *many, rule=(reward, *[None] * 5)))
    threads = torch.get_num_threads()
    results: list[list[Tensor]] = []
    try:
        for count in (1, 2, 5, 2):
            torch.set_num_threads(count)
            results.append([value for sample in samples for value in compute(ops, sample).values()])
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_images_of_a_batch_do_not_mix(device: torch.device) -> None:
    """Also where the gradients of a batch are computed some images at a time."""
    generator = torch.Generator().manual_seed(0)
    desc1, desc2 = (F.normalize(torch.randn(9, 800, 128, generator=generator), dim=-1).to(device) for _ in range(2))
    reward = torch.randn(9, 800, 800, generator=generator).to(device)
    together = compute(ops, Sample("all", desc1, desc2, rule=(reward, *[None] * 5)))
    for b in (0, 8):
        one = slice(b, b + 1)
        alone = compute(ops, Sample("one", desc1[one], desc2[one], rule=(reward[one], *[None] * 5)))
        assert all(torch.equal(value[one], alone[name]) for name, value in together.items())


def test_nan_spreads_to_what_depends_on_it(device: torch.device) -> None:
    desc1, desc2 = torch.rand(1, 300, 16, device=device), torch.rand(1, 70, 16, device=device)
    desc1[0, 7, 3] = math.nan
    theta = torch.tensor(3.0, device=device)
    logsumexp1, logsumexp2 = ops.match_statistics(desc1, desc2, theta, None, None)
    assert logsumexp1[0].isnan().nonzero().flatten().tolist() == [7] and logsumexp2.isnan().all()
    valid = torch.arange(300, device=device)[None] != 7
    logsumexp1, logsumexp2 = ops.match_statistics(desc1, desc2, theta, valid, None)
    assert not logsumexp1.isnan().any() and not logsumexp2.isnan().any() and logsumexp1[0, 7] == -math.inf


def arguments_of(op: str, device: torch.device) -> dict[str, object]:
    """Right arguments by name, in order."""
    b, n, m = 2, 4, 3
    rand = {
        "desc1": (b, n, 8), "desc2": (b, m, 8), "logsumexp1": (b, n), "logsumexp2": (b, m), "reward": (b, n, m),
        "keypoints1": (b, n, 2), "keypoints2": (b, m, 2), "warped1": (b, n, 2), "warped2": (b, m, 2),
        "fundamental": (b, 3, 3), "weight1": (b, n), "weight2": (b, m), "weight0": (b, n), "sum1": (b, n),
        "sum2": (b, m), "inverse_temperature": (),
    }  # fmt: skip
    others = {"epsilon": 1.5, "lambda_tp": 1.0, "lambda_fp": -0.25, "official": False, "reward_gradient": True}
    valid = {
        name: torch.ones(b, size, dtype=torch.bool, device=device) for name, size in (("valid1", n), ("valid2", m))
    }
    everything = {name: torch.rand(shape, device=device) for name, shape in rand.items()} | others | valid
    names = [argument.name for argument in getattr(ops, op).default._schema.arguments]
    return {name: everything[name] for name in names}


@pytest.mark.parametrize("op", OPS)
def test_wrong_arguments_are_named(device: torch.device, op: str) -> None:
    right = arguments_of(op, device)
    getattr(ops, op)(*right.values())
    for name, value in right.items():
        if not isinstance(value, Tensor):
            continue
        for wrong in (value[None], value.to(torch.int32), torch.cat([value, value]) if value.dim() else value[None]):
            with pytest.raises(RuntimeError, match=f"^{name} must|^desc2 must" if name == "desc1" else f"^{name} must"):
                getattr(ops, op)(*(right | {name: wrong}).values())
    if "warped1" in right:
        with pytest.raises(RuntimeError, match="warped1 and warped2 must be given together, got warped2 alone"):
            getattr(ops, op)(*(right | {"warped1": None}).values())
        with pytest.raises(RuntimeError, match="reward must be given, or keypoints1 and keypoints2"):
            getattr(ops, op)(*(right | {"reward": None, "keypoints2": None}).values())
