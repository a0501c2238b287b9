"""Local features that are compared: DISK, OpenCV's SIFT and RootSIFT, and kornia's, by the names that a user gives.

``disk`` (the bundled weights), ``disk:CHECKPOINT``, ``disk+subpixel`` (keypoints between pixels), ``disk+multiscale``
(at several sizes of the image), ``disk+subpixel+multiscale``, ``sift``, ``rootsift``, ``kornia:NAME`` and
``kornia:NAME:CHECKPOINT``. Nothing is ever downloaded: a method of kornia takes its
weights from CHECKPOINT, or from torch hub's cache where they are there already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import cv2
import torch
from torch import Tensor

import disk_ops
from disk_ops.checkpoint import DEFAULT_CHECKPOINT, find_checkpoint, weights_digest
from disk_ops.detector import DISKDetector
from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.features import CellExtractor, DetectorExtractor, Features, RootSift, Sift
from disk_ops.evaluation.kornia_methods import KORNIA_MODELS, find_kornia_weights, load_kornia
from disk_ops.multiscale import MultiscaleDetector

FORMS = "disk[+subpixel][+multiscale][:CHECKPOINT], sift, rootsift, kornia:NAME[:CHECKPOINT]"


@dataclass(frozen=True)
class Method:
    """A method that is ready to use.

    Attributes:
        name: as tables show it.
        fingerprint: changes whenever results may: a hash of the weights' values, or the version of what computes.
        function: an image ``[3, H, W]`` and the number of features to its features.
        family: methods of one family share work on an image, so it is best given to one after the other.
    """

    name: str
    fingerprint: str
    function: Callable[[Tensor, int], Features]
    family: str = ""

    def extract(
        self,
        image: Tensor,  # [3, H, W] float32 in [0, 1]
        n: int,
    ) -> Features:
        """At most n features of an image, best first where they have scores."""
        return self.function(image, n)


@dataclass(frozen=True)
class MethodSpec:
    """A method that was named and whose files are there, not loaded yet."""

    name: str
    kind: Literal["disk", "sift", "rootsift", "kornia"]
    model: str = ""  # of kornia
    checkpoint: str = ""  # a name or path; empty for the default
    subpixel: bool = False  # of disk
    multiscale: bool = False  # of disk

    def load(self, device: str | torch.device = "cpu") -> Method:
        """Load the weights onto a device.

        Raises:
            EvaluationError: the weights can't be used.
        """
        try:
            if self.kind == "disk":
                detector = self.load_detector(device)
                return detector_method(MultiscaleDetector(detector) if self.multiscale else detector, self.name)
            if self.kind == "kornia":
                function, fingerprint = load_kornia(self.model, self.checkpoint, torch.device(device))
                return Method(self.name, fingerprint, function)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise EvaluationError(f"--method {self.name}: {error}") from error
        extractor = RootSift if self.kind == "rootsift" else Sift
        return Method(self.name, f"{self.kind} opencv {cv2.__version__}", lambda image, n: extractor(n)(image))

    def load_detector(self, device: str | torch.device = "cpu") -> DISKDetector:
        """Load the detector of ``disk``, in evaluation mode, of a single scale.

        Raises:
            EvaluationError: the weights can't be used, or the method is another one.
        """
        if self.kind != "disk":
            raise EvaluationError(f"--method {self.name} has no detector of DISK: disk[:CHECKPOINT] is needed")
        try:
            return DISKDetector.from_pretrained(self.checkpoint or DEFAULT_CHECKPOINT, device, subpixel=self.subpixel)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise EvaluationError(f"--method {self.name}: {error}") from error


def detector_method(detector: DISKDetector | MultiscaleDetector, name: str, window_size: int = 5) -> Method:
    """The method of a detector, which is in evaluation mode.

    Args:
        detector: of one scale or several; is used on the device that it is on.
        name: as tables show it.
        window_size: of the non-maximum suppression.
    """
    single, variant = detector, str(window_size)
    if isinstance(single, MultiscaleDetector):
        single, variant = single.detector, f"{window_size} scales {single.scales}"
    fingerprint = _fingerprint(single, variant)
    return Method(name, fingerprint, lambda image, n: DetectorExtractor(detector, n, window_size)(image))


def cell_method(detector: DISKDetector, name: str, cell: int = 8) -> Method:
    """The method of a detector, in evaluation mode, that finds at most one feature for each cell, as in training.

    Args:
        detector: is used on the device that it is on.
        name: as tables show it.
        cell: side of a grid cell in pixels.
    """
    fingerprint = _fingerprint(detector, f"cell {cell}")
    return Method(name, fingerprint, lambda image, n: CellExtractor(detector, n, cell)(image))


def _fingerprint(detector: DISKDetector, variant: str) -> str:
    device = next(detector.parameters()).device.type
    refined = " subpixel" if detector.subpixel else ""
    return f"disk {weights_digest(detector.state_dict())} {variant}{refined} {device} {disk_ops.__version__}"


def parse_method(text: str) -> MethodSpec:
    """Understand the name of a method, and find its weights, without loading them.

    Raises:
        EvaluationError: there is no such method, or its weights are not there.
    """
    kind, _, rest = text.partition(":")
    if kind in ("sift", "rootsift") and not rest:
        return MethodSpec(kind, kind)  # type: ignore[arg-type]
    disk, *options = kind.split("+")
    if disk == "disk" and len(set(options)) == len(options) and {*options} <= {"subpixel", "multiscale"}:
        try:
            find_checkpoint(rest or DEFAULT_CHECKPOINT)
        except (OSError, ValueError) as error:
            raise EvaluationError(f"--method {text}: {error}") from error
        kind = "+".join(["disk", *sorted(options, reverse=True)])  # one name for one method
        name = f"{kind}:{Path(rest).name}" if rest else kind
        return MethodSpec(name, "disk", "", rest, "subpixel" in options, "multiscale" in options)
    if kind == "kornia":
        model, _, checkpoint = rest.partition(":")
        if model not in KORNIA_MODELS:
            known = ", ".join(sorted(KORNIA_MODELS))
            raise EvaluationError(f"--method {text}: kornia's methods are {known}, got {model!r}")
        find_kornia_weights(model, checkpoint)
        return MethodSpec(f"kornia:{model}", "kornia", model, checkpoint)
    raise EvaluationError(f"--method must be one of {FORMS}; got {text!r}")


def parse_methods(texts: Sequence[str]) -> list[MethodSpec]:
    """Understand the names of methods and give each a name of its own for tables: as short as they can be told apart.

    Raises:
        EvaluationError: there is no such method, its weights are not there, or it is named twice.
    """
    specs = [parse_method(text) for text in texts]
    for text, spec in zip(texts, specs, strict=True):
        if specs.count(spec) > 1:
            raise EvaluationError(f"--method {text} is given twice")
    names = [spec.name for spec in specs]
    specs = [
        replace(spec, name=text) if names.count(spec.name) > 1 else spec
        for spec, text in zip(specs, texts, strict=True)
    ]
    return specs
