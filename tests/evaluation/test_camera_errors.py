"""Alignment and errors of cameras: known errors are measured, degenerate ones are none."""

from __future__ import annotations

import numpy as np
import pytest

from disk_ops.evaluation.camera_errors import align, camera_errors


def rotation(axis: list[float], degrees: float) -> np.ndarray:
    unit = np.array(axis) / np.linalg.norm(axis)
    K = np.array([[0, -unit[2], unit[1]], [unit[2], 0, -unit[0]], [-unit[1], unit[0], 0]])
    angle = np.radians(degrees)
    return np.eye(3) + np.sin(angle) * K + (1 - np.cos(angle)) * K @ K


@pytest.fixture
def cameras() -> tuple[np.ndarray, np.ndarray]:
    """R [6, 3, 3] and positions [6, 3]."""
    generator = np.random.default_rng(0)
    R = np.array([rotation(generator.normal(size=3).tolist(), 40 * index) for index in range(6)])
    return R, generator.normal(size=(6, 3)) * 3


def translations(R: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return -np.einsum("nij,nj->ni", R, positions)


def test_a_similarity_is_found() -> None:
    points = np.random.default_rng(1).normal(size=(10, 3))
    Q, scale, shift = rotation([1, 2, 3], 130), 0.3, np.array([5.0, -2, 1])
    found = align(points, scale * points @ Q.T + shift)
    assert found is not None and found.scale == pytest.approx(scale)
    np.testing.assert_allclose(found.rotation, Q, atol=1e-12)
    np.testing.assert_allclose(found.translation, shift, atol=1e-12)


def test_a_mirror_image_is_not_turned_over() -> None:
    points = np.random.default_rng(1).normal(size=(10, 3))
    found = align(points, points * [1, 1, -1])
    assert found is not None and np.linalg.det(found.rotation) == pytest.approx(1)


def test_equal_cameras_in_another_frame_have_no_error(cameras: tuple[np.ndarray, np.ndarray]) -> None:
    R, positions = cameras
    Q, scale, shift = rotation([0, 1, 1], 77), 12.0, np.array([1.0, 2, 3])
    other_R = R @ Q.T
    errors = camera_errors(
        other_R, translations(other_R, scale * positions @ Q.T + shift), R, translations(R, positions)
    )
    assert errors is not None
    assert errors.positions.max() < 1e-9 and errors.rotations.max() < 1e-5
    distances = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
    assert errors.extent == pytest.approx(distances.max())


@pytest.mark.parametrize("noise", [0.0, 1e-4])
def test_cameras_on_a_line_are_aligned_by_their_rotations(noise: float) -> None:
    """Positions say nothing of the rotation around the line."""
    generator = np.random.default_rng(2)
    R = np.array([rotation([0, 1, 0], 10 * index) for index in range(6)])
    positions = np.arange(6)[:, None] * np.array([1.0, 2, 3]) + [4, 5, 6]
    Q, scale, shift = rotation([0, 1, 1], 77), 12.0, np.array([1.0, 2, 3])
    other_R, moved = R @ Q.T, scale * (positions + noise * generator.normal(size=(6, 3))) @ Q.T + shift
    errors = camera_errors(other_R, translations(other_R, moved), R, translations(R, positions))
    assert errors is not None
    assert errors.positions.max() <= 1e-9 + 5 * noise and errors.rotations.max() < 1e-5


def test_a_rotation_of_10_degrees_is_10_degrees(cameras: tuple[np.ndarray, np.ndarray]) -> None:
    R, positions = cameras
    turned = R.copy()
    turned[2] = rotation([3, 1, 2], 10) @ turned[2]
    errors = camera_errors(turned, translations(turned, positions), R, translations(R, positions))
    assert errors is not None
    np.testing.assert_allclose(errors.rotations, [0, 0, 10, 0, 0, 0], atol=1e-5)
    assert errors.positions.max() < 1e-9


def test_a_shifted_camera() -> None:
    positions = np.array([[x, y, z] for x in (-1.0, 1) for y in (-1.0, 1) for z in (-1.0, 1)] + [[0, 0, 0]])
    R = np.tile(np.eye(3), (9, 1, 1))
    moved = positions.copy()
    moved[8, 0] = 0.09  # of nine cameras; the mean moves by 0.01, and the scale by 0.0003
    errors = camera_errors(R, -moved, R, -positions)
    assert errors is not None
    np.testing.assert_allclose(errors.positions, [0.01] * 8 + [0.08], atol=4e-4)
    np.testing.assert_allclose(errors.rotations, 0, atol=1e-5)
    assert errors.extent == pytest.approx(2 * np.sqrt(3))


def test_too_few_cameras_or_all_in_one_place(cameras: tuple[np.ndarray, np.ndarray]) -> None:
    R, positions = cameras
    t = translations(R, positions)
    assert camera_errors(R[:2], t[:2], R[:2], t[:2]) is None
    assert camera_errors([], [], [], []) is None
    still = translations(R, np.tile(positions[:1], (6, 1)))
    assert camera_errors(R, still, R, t) is None and camera_errors(R, t, R, still) is None


def test_different_numbers_of_cameras(cameras: tuple[np.ndarray, np.ndarray]) -> None:
    R, positions = cameras
    with pytest.raises(ValueError, match=r"R must have as many cameras as true_R \(4\), got 6"):
        camera_errors(R, translations(R, positions), R[:4], translations(R[:4], positions[:4]))
