"""The programs that write detectors and features for other tools."""

from __future__ import annotations

import argparse
from pathlib import Path

from disk_ops.arguments.shared import ONE_JOB_STATUS, Commands, add_command, add_maxima, add_weights
from disk_ops.arguments.values import exported_rows, exported_window, image_size


def add_export_onnx(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add ``disk-ops export-onnx``."""
    parser = add_command(
        commands,
        "export-onnx",
        "write the detector as an ONNX file",
        "For onnxruntime and OpenCV 5's cv::DISK. Input: image [1, 3, H, W], RGB in [0, 1]. Outputs, best score first: "
        "keypoints [1, N, 2] int64 (x, y), scores [1, N], descriptors [1, N, 128]; a row without a keypoint has the "
        "score S and zeros. Where onnxruntime is installed, the model is compared with the detector.",
        ONE_JOB_STATUS,
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="such as disk.onnx")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing FILE")
    parser.add_argument(
        "--size",
        type=image_size,
        metavar="WxH|any",
        help="of the images, such as 1024x768 (default: any, padded to multiples of 16 inside the model)",
    )
    parser.add_argument("--n", type=exported_rows, default=2048, help="N, rows of the outputs (default: %(default)s)")
    add_maxima(parser, exported_window)
    add_weights(parser)
