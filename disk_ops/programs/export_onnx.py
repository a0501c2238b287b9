"""``disk-ops export-onnx``: the detector as an ONNX file, compared with the detector."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from disk_ops import DISKDetector, demo
from disk_ops.checkpoint import WEIGHTS_FOLDER, find_checkpoint
from disk_ops.io import images as image_io
from disk_ops.io.output import whole_file
from disk_ops.programs.common import OK, UserError, is_out_of_memory, load_detector, note, printable, quiet_opencv
from disk_ops.training.export import read_record

if TYPE_CHECKING:
    from disk_ops.onnx.graph import onnx

_LICENCE = "Apache-2.0"  # of the bundled weights
_TEST_SIZE = (500, 375)  # width, height for a model of any size: not divisible by 16


def run(arguments: argparse.Namespace) -> int:
    """Run the program; see ``disk-ops export-onnx --help``."""
    quiet_opencv()
    output: Path = arguments.output
    try:
        from disk_ops.onnx.model import check_export, make_model
    except ImportError as error:
        raise UserError(str(error)) from error
    check_export(output, overwrite=arguments.overwrite)
    if output.exists() and Path(arguments.weights).is_file() and output.samefile(arguments.weights):
        raise UserError(f"{output} is the weights and the output as well")
    detector, weights_hash = load_detector(arguments.weights, torch.device("cpu"))
    try:
        model = make_model(
            detector,
            arguments.n,
            arguments.window_size,
            arguments.score_threshold,
            size=arguments.size,
            metadata=_metadata(arguments.weights, weights_hash),
        )
    except ValueError as error:
        raise UserError(str(error)) from error
    compared = _compare(model, detector, arguments.size or _TEST_SIZE, arguments.n)
    with whole_file(output) as file:
        file.write(model.SerializeToString())
    print(printable(f"wrote {output}: {_summary(model, arguments.size)}"))
    print(compared)
    return OK


def _metadata(weights: str, weights_hash: str) -> dict[str, Any]:
    """Where the weights are from. The folder is left out: it is nobody's business who gets the file."""
    path = find_checkpoint(weights)
    bundled = path.parent == WEIGHTS_FOLDER
    metadata: dict[str, Any] = {"weights": path.stem if bundled else path.name, "weights_hash": weights_hash}
    record = read_record(path)
    if record is not None:
        metadata["record"] = record
    if bundled:
        metadata["licence"] = _LICENCE
    return metadata


def _compare(model: onnx.ModelProto, detector: DISKDetector, size: tuple[int, int], n: int) -> str:
    """Run the model and the detector on a photograph, and tell how they differ."""
    from disk_ops.onnx.check import compare_with_detector

    try:
        found = compare_with_detector(model, detector, _photograph(size))
    except ImportError as error:
        note(f"the model was not run: {error} (pip install onnxruntime)")
        return "checked: the graph only"
    except Exception as error:  # onnxruntime has its own
        if not (is_out_of_memory(error) or "failed to allocate memory" in str(error).lower()):
            raise
        raise UserError(
            f"--size {size[0]}x{size[1]}, --n {n}: not enough memory to compare the model with the detector, so "
            "nothing was written"
        ) from error
    told = (
        f"{found.common:,} of the detector's {found.detected:,} keypoints on a photograph of {size[0]} x {size[1]} "
        f"pixels; largest differences: scores {found.scores:.1e} of the largest, descriptors {found.descriptors:.1e}"
    )
    if not found.is_close:
        raise UserError(f"the model differs from the detector by more than rounding, so nothing was written: {told}")
    return f"checked in onnxruntime: {told}"


def _photograph(size: tuple[int, int]) -> Tensor:  # [1, C, H, W]
    pixels = torch.from_numpy(image_io.to_rgb_float(image_io.read_image(demo.IMAGES[0])))
    return F.interpolate(pixels[None], size[::-1], mode="bilinear", antialias=True).clamp(0, 1)


def _summary(model: onnx.ModelProto, size: tuple[int, int] | None) -> str:
    images = "images of any size" if size is None else f"images of {size[0]} x {size[1]} pixels"
    return f"{images}, opset {model.opset_import[0].version}, {model.ByteSize() / 1e6:.1f} MB"
