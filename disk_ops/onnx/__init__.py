"""The detector as an ONNX file, for programs without PyTorch: onnxruntime, OpenCV 5's ``cv::DISK``.

Needs the package ``onnx``: ``pip install disk_ops[onnx]``. The graph is written out operator by operator rather than
traced: it is then the same for every version of PyTorch, and has no operator that one of the two runtimes lacks.
"""

from disk_ops.onnx.check import Agreement, compare_with_detector
from disk_ops.onnx.model import INPUT, OUTPUTS, export_onnx, make_model

__all__ = ["INPUT", "OUTPUTS", "Agreement", "compare_with_detector", "export_onnx", "make_model"]
