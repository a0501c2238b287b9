"""An ONNX graph that is put together node by node; a tensor is known by its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

try:
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:
    raise ImportError(f"exporting needs the package onnx (pip install 'disk_ops[onnx]'): {error}") from error

# The oldest that has all that is needed (Shape with start and end: 15, and what is newer only renames). IR version 8
# is the one that came with it, so runtimes of 2022 and later read the file.
OPSET = 17
IR_VERSION = 8

Dimensions = Sequence[int | str]  # a str names a dimension that may have any size


class Graph:
    """Nodes and constants in the order in which they are made, which is one in which they can be computed."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._known: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def constant(self, value: Any, name: str | None = None) -> str:
        """A constant tensor. Python's integers become int64 and its floats float32; equal values are kept once."""
        array = np.asarray(value)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        key = (array.dtype.str, array.shape, array.tobytes())
        if name is None:
            if key in self._known:
                return self._known[key]
            name = self._known[key] = f"constant_{len(self._constants)}"
        self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        return name

    def op(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """A node with one output, whose name is returned."""
        (name,) = self.ops(kind, *inputs, outputs=[output or f"{kind}_{len(self._nodes)}"], **attributes)
        return name

    def ops(self, kind: str, *inputs: str, outputs: Sequence[str], **attributes: Any) -> Sequence[str]:
        """A node with several outputs, whose names are given."""
        node = helper.make_node(kind, list(inputs), list(outputs), name=outputs[0], **attributes)
        self._nodes.append(node)
        return outputs

    def slice(self, x: str, start: Sequence[int], end: Sequence[int] | str, axes: Sequence[int]) -> str:
        """A part of ``x``; ``end`` may be a tensor."""
        ends = end if isinstance(end, str) else self.constant(list(end))
        return self.op("Slice", x, self.constant(list(start)), ends, self.constant(list(axes)))

    def all(self, conditions: Iterable[str]) -> str:
        """Where all conditions hold."""
        first, *rest = conditions
        for condition in rest:
            first = self.op("And", first, condition)
        return first

    def model(
        self,
        inputs: Mapping[str, Dimensions],  # float32
        outputs: Mapping[str, tuple[Any, Dimensions]],  # NumPy's dtype, dimensions
        metadata: Mapping[str, str],
        producer_version: str,
        description: str,
    ) -> onnx.ModelProto:
        """The checked model; ``inputs`` and ``outputs`` are names in the graph."""
        kinds = {np.float32: TensorProto.FLOAT, np.int64: TensorProto.INT64, np.bool_: TensorProto.BOOL}
        graph = helper.make_graph(
            self._nodes,
            "disk",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info(name, kinds[kind], shape) for name, (kind, shape) in outputs.items()],
            list(self._constants.values()),
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="disk_ops",
            producer_version=producer_version,
            doc_string=description,
        )
        helper.set_model_props(model, dict(metadata))
        onnx.checker.check_model(model, full_check=True)
        return model
