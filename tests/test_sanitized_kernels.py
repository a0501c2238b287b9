"""The emulated CUDA kernels under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer.

What a sanitizer finds is only worth something if it would find a fault: too short a list and
kernels without one of their barriers must be caught.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from emulation import building

pytestmark = pytest.mark.emulated

VARIANTS: dict[str, tuple[str, ...]] = {
    "address": ("address,undefined",),
    "thread": ("thread",),
    "planted": ("thread", "-DDISK_PLANT_MISSING_BARRIER"),
}


def run(variant: str, *arguments: str, seed: int = 0) -> subprocess.CompletedProcess[str]:
    """Run to the first finding; without randomised addresses where ThreadSanitizer has no place for its memory."""
    program = building.sanitized_kernels(*VARIANTS[variant])
    environment = {
        **os.environ,
        "CUEMU_SEED": str(seed),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": "halt_on_error=1 exitcode=66",
    }
    command = [str(program), *arguments]

    def once(prefix: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*prefix, *command], env=environment, capture_output=True, text=True, timeout=900)

    result = once([])
    if "unexpected memory mapping" in result.stderr:
        if shutil.which("setarch") is None:
            pytest.skip("ThreadSanitizer needs setarch on this kernel: unexpected memory mapping")
        result = once(["setarch", os.uname().machine, "-R"])
        if "failed to set personality" in result.stderr:
            pytest.skip("ThreadSanitizer can't run: address randomisation can't be switched off here")
    return result


@pytest.mark.parametrize(
    ("variant", "kernels", "seed"),
    [
        ("address", "nms", 1),
        ("address", "sort", 0),
        ("address", "neighbors", 1),
        ("address", "match", 1),
        ("address", "describe", 1),
        ("address", "sample", 1),
        ("address", "blocks", 1),
        ("thread", "nms", 2),
        ("thread", "neighbors", 2),
        ("thread", "match", 2),
        ("thread", "describe", 2),
        ("thread", "sample", 2),
        ("thread", "blocks", 2),
    ],
)
def test_nothing_found(variant: str, kernels: str, seed: int) -> None:
    result = run(variant, kernels, seed=seed)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    assert "Sanitizer:" not in result.stderr and "runtime error" not in result.stderr, result.stderr[-4000:]


def test_write_beyond_a_list_is_found() -> None:
    result = run("address", "short-list")
    assert result.returncode != 0
    assert "heap-buffer-overflow" in result.stderr and "find_maxima_in_tiles_kernel" in result.stderr


@pytest.mark.parametrize(
    ("kernels", "where"),
    [
        ("nms", "find_maxima_in_tiles_kernel"),
        ("neighbors", "search_tiles_kernel"),
        ("match", "distance_matrix_kernel"),
        ("sample", "sample_grid_kernel"),
        ("blocks", "block_moments_kernel"),
    ],
)
def test_missing_barrier_is_found(kernels: str, where: str) -> None:
    result = run("planted", kernels)
    assert result.returncode == 66, result.stdout[-2000:] + result.stderr[-4000:]
    assert "data race" in result.stderr and where in result.stderr
