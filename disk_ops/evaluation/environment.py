"""How results came about, as reports tell it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from typing import Any

import cv2
import torch

import disk_ops
from disk_ops.evaluation.methods import Method
from disk_ops.evaluation.protocol import Protocol
from disk_ops.provenance import installed_versions, source_commit

_PACKAGES = ("numpy", "kornia", "pycolmap", "poselib", "pydegensac")


def describe_environment(
    command: str,
    protocol: Protocol,
    methods: Sequence[Method],
    ns: Sequence[int],
    ratio: float | str | None,
    device: torch.device,
) -> dict[str, Any]:
    """What results depend on. No date and no time: equal runs have equal reports.

    Args:
        command: that was given.
        protocol: what was measured.
        methods: all of them.
        ns: numbers of keypoints.
        ratio: threshold of the ratio test, ``auto``, or None.
        device: that was used.
    """
    used = str(device)
    if device.type == "cuda":
        used = f"{used} ({torch.cuda.get_device_name(device)})"
    return {
        "command": command,
        "commit": source_commit(),
        "protocol": protocol.name,
        "settings": protocol.settings,
        "methods": {method.name: method.fingerprint for method in methods},
        "n": list(ns),
        "ratio": "none" if ratio is None else ratio,
        "packages": {
            "disk_ops": disk_ops.__version__,
            "torch": torch.__version__,
            "opencv": cv2.__version__,
            **installed_versions(_PACKAGES),
        },
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
        "device": used,
    }
