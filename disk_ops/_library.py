"""Loads the compiled ops, or says why not and puts the pure-PyTorch reference in their place.

Whatever happens here, `torch.ops.disk_ops.*` exist afterwards and give right results on every device type:

- The compiled library brings the schemas and the native CPU (and perhaps CUDA) kernels.
- Without it (not built, built for another torch) the same schemas are defined from Python, after a warning.
- `disk_ops.reference` is registered under the alias key CompositeExplicitAutograd, which the dispatcher uses for those
  device types alone that have no kernel of their own: all of them without the library, CUDA after a build without nvcc,
  mps, xpu and so on always.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

NAMESPACE = "disk_ops"
REINSTALL = "pip install --no-build-isolation ."
UNTIL_THEN = "(until then its ops run as slower pure-PyTorch code)"
# The same strings as in csrc/ops.cpp (tests/test_library.py compares them).
SCHEMAS = (
    "nms_topk(Tensor heatmap, int? n, int window_size, float? score_threshold, int border, Tensor? mask)"
    " -> (Tensor keypoints, Tensor scores, Tensor valid)",
    "nearest_neighbors(Tensor desc1, Tensor desc2, Tensor? valid1, Tensor? valid2)"
    " -> (Tensor distances1, Tensor indices1, Tensor distances2, Tensor indices2)",
    "distance_matrix(Tensor desc1, Tensor desc2) -> Tensor",
    "match_statistics(Tensor desc1, Tensor desc2, Tensor inverse_temperature, Tensor? valid1, Tensor? valid2)"
    " -> (Tensor logsumexp1, Tensor logsumexp2)",
    "_match_sums(Tensor desc1, Tensor desc2, Tensor inverse_temperature, Tensor? valid1, Tensor? valid2,"
    " Tensor logsumexp1, Tensor logsumexp2, Tensor? reward, Tensor? keypoints1, Tensor? keypoints2, Tensor? warped1,"
    " Tensor? warped2, Tensor? fundamental, float epsilon, float lambda_tp, float lambda_fp, bool official,"
    " Tensor? weight1, Tensor? weight2, Tensor? weight0)"
    " -> (Tensor sum1, Tensor sum2, Tensor probability1)",
    "_match_backward(Tensor desc1, Tensor desc2, Tensor inverse_temperature, Tensor? valid1, Tensor? valid2,"
    " Tensor logsumexp1, Tensor logsumexp2, Tensor? reward, Tensor? keypoints1, Tensor? keypoints2, Tensor? warped1,"
    " Tensor? warped2, Tensor? fundamental, float epsilon, float lambda_tp, float lambda_fp, bool official,"
    " Tensor? weight1, Tensor? weight2, Tensor? weight0, Tensor sum1, Tensor sum2, bool reward_gradient)"
    " -> (Tensor grad1, Tensor grad2, Tensor grad_inverse_temperature, Tensor grad_reward)",
    "describe(Tensor activation, Tensor weight, Tensor bias, Tensor keypoints) -> Tensor",
    "_describe_backward(Tensor grad, Tensor activation, Tensor weight, Tensor bias, Tensor keypoints)"
    " -> (Tensor grad_activation, Tensor grad_weight, Tensor grad_bias)",
    "sample_grid(Tensor heatmap, int cell, Tensor seed, bool argmax, Tensor? mask)"
    " -> (Tensor keypoints, Tensor accepted, Tensor logp)",
    "_sample_grid_backward(Tensor grad_logp, Tensor heatmap, int cell, Tensor keypoints, Tensor accepted,"
    " Tensor? mask) -> Tensor",
    "block_norm(Tensor x, Tensor? skip, str resample) -> Tensor",
    "block_convolution(Tensor x, Tensor weight, Tensor bias, Tensor? skip, Tensor? norm, Tensor? slope,"
    " str resample) -> Tensor",
    "block_activation(Tensor x, Tensor? skip, Tensor? norm, Tensor? slope, str resample) -> Tensor",
    "_block_input_backward(Tensor grad, Tensor x, Tensor? skip, Tensor? norm, Tensor? slope, str resample)"
    " -> (Tensor grad_x, Tensor grad_skip, Tensor grad_slope)",
    "_block_weight_backward(Tensor grad, Tensor x, Tensor? skip, Tensor? norm, Tensor? slope, str resample) -> Tensor",
    "block_patches(Tensor x, Tensor keypoints, Tensor? skip, Tensor? norm, Tensor? slope, str resample) -> Tensor",
)
OPS = tuple(schema.partition("(")[0] for schema in SCHEMAS)
# On other devices the network's gradients are PyTorch's own, and these aren't called.
CPU_ONLY = tuple(op for op in OPS if op.startswith("_block_"))


class LibraryStatus(NamedTuple):
    """Whether the compiled library is in use, why not, and what it was built for (None if that is unknown)."""

    loaded: bool
    reason: str | None
    build_info: dict[str, str] | None


_status: LibraryStatus | None = None
_registrations: list[torch.library.Library] = []  # a registration lasts as long as its Library object
_warned: set[str] = set()


def load() -> LibraryStatus:
    """Make the ops available; called once by `import disk_ops`, and harmless when called again."""
    global _status
    if _status is None:
        _status = _load_compiled(Path(__file__).resolve().parent)
        if not _status.loaded:
            warnings.warn(f"{_status.reason} {UNTIL_THEN}", RuntimeWarning, stacklevel=3)
        _define_schemas()
        _register_reference()
    return _status


def library_status() -> LibraryStatus:
    """What `load` found."""
    return load()


def has_native_kernel(op: str, dispatch_key: str) -> bool:
    """Whether `op` has a compiled kernel for a dispatch key such as "CPU" or "CUDA"."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"{NAMESPACE}::{op}", dispatch_key))


def missing_kernels(dispatch_key: str) -> list[str]:
    """The ops without a compiled kernel for "CPU" or "CUDA", of those that are called there."""
    called = [op for op in OPS if dispatch_key == "CPU" or op not in CPU_ONLY]
    return [op for op in called if not has_native_kernel(op, dispatch_key)]


def _load_compiled(package: Path) -> LibraryStatus:
    """Import disk_ops._C if it was built for this torch. A library for another torch is not even opened."""
    if not any((package / f"_C{suffix}").exists() for suffix in importlib.machinery.EXTENSION_SUFFIXES):
        others = sorted(path.name for path in (*package.glob("_C.*.so"), *package.glob("_C.*.pyd")))
        found = f" (only {', '.join(others)}, for another Python)" if others else ""
        return LibraryStatus(False, f"disk_ops has no compiled library here{found}: install with {REINSTALL}", None)
    build_info = _read_build_info(package / "_build_info.json")
    if build_info is None:
        reason = "disk_ops has no _build_info.json, which says what its compiled library was built for: reinstall with "
        return LibraryStatus(False, reason + REINSTALL, None)
    built_for, have = build_info["torch"], str(torch.__version__)
    if built_for != have:
        reason = f"disk_ops was built for torch {built_for} (you have {have}): reinstall with {REINSTALL}"
        return LibraryStatus(False, reason, build_info)
    try:
        compiled = importlib.import_module("disk_ops._C")
    except ImportError as error:  # a missing symbol or shared library
        reason = f"disk_ops was built for torch {built_for}, but its compiled library does not load ({error}): "
        return LibraryStatus(False, f"{reason}reinstall with {REINSTALL}", build_info)
    return LibraryStatus(True, None, dict(compiled.build_info()))


def _read_build_info(path: Path) -> dict[str, str] | None:
    """The record that the build leaves next to the library."""
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): str(value) for key, value in info.items()} if "torch" in info else None
    except (OSError, ValueError, AttributeError, TypeError):
        return None


def _define_schemas() -> None:
    """Define the ops as csrc/ops.cpp would, where the compiled library has not."""
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    for op, schema in zip(OPS, SCHEMAS, strict=True):
        if not hasattr(getattr(torch.ops, NAMESPACE), op):
            library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _registrations.append(library)


def _register_reference() -> None:
    """Register the reference for every device type without a kernel of its own."""
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    for op in OPS:
        if not has_native_kernel(op, "CompositeExplicitAutograd"):
            library.impl(op, _reference_kernel(op), "CompositeExplicitAutograd")
    _registrations.append(library)


def _reference_kernel(op: str) -> Callable[..., Any]:
    def kernel(*args: Any) -> Any:
        from disk_ops import reference  # not above: reference is a part of the package that is being imported

        device = args[0].device.type
        if _status is not None and _status.loaded and device not in ("cpu", "meta") and device not in _warned:
            _warned.add(device)
            warnings.warn(_no_native_kernels(device), RuntimeWarning, stacklevel=2)
        return getattr(reference, op)(*args)

    kernel.__name__ = kernel.__qualname__ = f"{op}_reference"
    return kernel


def _no_native_kernels(device: str) -> str:
    """Said once for each device type."""
    message = f"disk_ops has no compiled kernels for {device} tensors: its ops run there as slower pure-PyTorch code"
    if device == "cuda" and _status is not None and _status.build_info is not None:
        message += f" (it was installed so: {_status.build_info.get('decision', 'unknown')})"
    return message
