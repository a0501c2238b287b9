"""CUDA graphs of the detector: the work for images of one shape is recorded once and started again as a whole.

A small image keeps a GPU busy for less time than it takes Python to start its kernels one by one. Not yet run on a GPU.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from disk_ops._images import as_mask, check_image_size, check_images
from disk_ops.detector import DISKDetector
from disk_ops.features import PaddedFeatures
from disk_ops.model import UNet
from disk_ops.multiscale import MultiscaleDetector
from disk_ops.ops._arguments import check_positive_integer
from disk_ops.ops.nms import check_maxima

_WARM_UPS = 3  # calls before a capture: cuDNN chooses its algorithms, and allocations settle
Inputs = Sequence[Tensor | None]


class Recorded(Protocol):
    """A function that was captured for inputs of certain shapes."""

    def replay(self, inputs: Inputs) -> PaddedFeatures:
        """Return the results for other inputs of the same shapes, as tensors of their own."""

    def release(self) -> None:
        """Give memory back."""


class CudaGraph:
    """A function of tensors as one CUDA graph, with memory of its own for inputs and results."""

    def __init__(self, function: Callable[..., PaddedFeatures], inputs: Inputs) -> None:
        images = inputs[0]
        assert images is not None
        self._inputs = [None if tensor is None else tensor.detach().clone() for tensor in inputs]
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(images.device):
            # Captured work must not be on the default stream, and what is done once must be done before.
            side, current = torch.cuda.Stream(), torch.cuda.current_stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                for _ in range(_WARM_UPS):
                    function(*self._inputs)
            current.wait_stream(side)
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):  # others may work meanwhile
                self._results = function(*self._inputs)
            self._done = torch.cuda.Event()
            self._done.record()

    def replay(self, inputs: Inputs) -> PaddedFeatures:
        """Copy inputs in, run, and copy results out, all on the current stream."""
        with torch.cuda.device(self._results.scores.device):
            torch.cuda.current_stream().wait_event(self._done)  # the last replay may have been on another stream
            for held, given in zip(self._inputs, inputs, strict=True):
                if held is not None and given is not None:
                    held.copy_(given, non_blocking=True)
            self._graph.replay()
            results = PaddedFeatures(*(tensor.clone() for tensor in self._results))
            self._done.record()
        return results

    def release(self) -> None:
        """Give the memory of the graph back once its work is done."""
        self._done.synchronize()
        self._graph.reset()


class GraphedDetector:
    """:meth:`disk_ops.DISKDetector.forward_padded` by CUDA graphs, one for each shape of images and set of arguments.

    The first call with a shape captures its graph, which takes as long as several calls. Later calls copy the images
    into the graph's memory, start it and copy the results out; nothing waits for the GPU. At most ``max_graphs`` are
    kept, the least recently used one goes first: each holds all memory that the network needs for its shape. Without
    gradients. The detector's weights may change in place; where they move (``.to()``, ``load_state_dict`` with
    ``assign=True``), graphs are captured again. May be called from several threads, which take turns.

    Args:
        detector: a :class:`disk_ops.DISKDetector` or :class:`disk_ops.MultiscaleDetector` on a CUDA device.
        n: features per image, as for ``forward_padded``.
        max_graphs: how many graphs are kept.
        capture: makes a graph of a function and its inputs; for tests.
        arguments: more of ``forward_padded``: ``window_size``, ``score_threshold``, ``border``. The same can be given
            in each call.

    Raises:
        ValueError: the detector is not on a CUDA device, or an argument has a wrong value.
        TypeError: an argument has a wrong type, or is none of ``forward_padded``.

    Example::

        graphed = GraphedDetector(DISKDetector.from_pretrained(device="cuda").half(), n=2048)
        features = graphed(images)  # [B, 3, H, W] float16
    """

    def __init__(
        self,
        detector: DISKDetector | MultiscaleDetector,
        n: int,
        *,
        max_graphs: int = 8,
        capture: Callable[[Callable[..., PaddedFeatures], Inputs], Recorded] = CudaGraph,
        **arguments: Any,
    ) -> None:
        check_positive_integer("max_graphs", max_graphs)
        self.detector, self.max_graphs = detector, max_graphs
        self._arguments = {"n": n, **arguments}
        self._capture, self._lock = capture, threading.Lock()
        self._graphs: OrderedDict[Hashable, Recorded] = OrderedDict()
        self._weights: tuple[int, ...] = ()
        self._check_arguments(self._arguments)
        _check_device("detector", self._weight.device)

    def __call__(
        self,
        images: Tensor,  # [B, C, H, W]
        mask: Tensor | None = None,  # [B, 1, H, W]
        image_size: Tensor | None = None,  # [B, 2] (width, height)
        **arguments: Any,
    ) -> PaddedFeatures:
        """Detect and describe features; see :meth:`disk_ops.DISKDetector.forward_padded`."""
        arguments = {**self._arguments, **arguments}
        self._check_arguments(arguments)
        weight = self._weight
        unet = self.detector.unet
        check_images(images, weight, unet.in_channels if isinstance(unet, UNet) else 3)
        _check_device("images", images.device)
        if torch.is_grad_enabled() and images.requires_grad:
            raise ValueError("images must not require a gradient: CUDA graphs of the detector have none")
        # Checked and converted here: a replay looks at nothing.
        keep = None if mask is None else as_mask(mask, images)
        if image_size is not None:
            check_image_size(image_size, images)
            image_size = image_size.to(torch.int64)
        inputs = (images, keep, image_size)
        with self._lock:
            graph = self._find(inputs, arguments)
            return graph.replay(inputs)

    def __len__(self) -> int:
        """How many graphs there are."""
        return len(self._graphs)

    def clear(self) -> None:
        """Give the memory of all graphs back."""
        with self._lock:
            self._clear()

    @property
    def _weight(self) -> Tensor:
        weight = next(self.detector.parameters(), None)
        if weight is None:
            raise ValueError("detector must have parameters, which tell its device")
        return weight

    def _find(self, inputs: Inputs, arguments: dict[str, Any]) -> Recorded:
        """The graph for inputs like these, captured now if there is none."""
        weights = tuple(tensor.data_ptr() for tensor in (*self.detector.parameters(), *self.detector.buffers()))
        if weights != self._weights:
            self._clear()
            self._weights = weights
        images = inputs[0]
        assert images is not None
        key = (
            tuple(images.shape),
            images.dtype,
            tuple(tensor is None for tensor in inputs),
            tuple(sorted(arguments.items())),
            self.detector.training,
            torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        )
        found = self._graphs.pop(key, None)
        if found is None:
            while len(self._graphs) >= self.max_graphs:
                self._graphs.popitem(last=False)[1].release()
            found = self._record(inputs, arguments)
        self._graphs[key] = found
        return found

    def _record(self, inputs: Inputs, arguments: dict[str, Any]) -> Recorded:
        device = self._weight.device

        # Weights that autocast converts must not be kept: they would lie in the graph's memory.
        autocast = torch.autocast("cuda", enabled=torch.is_autocast_enabled("cuda"), cache_enabled=False)

        def run(images: Tensor, mask: Tensor | None, image_size: Tensor | None) -> PaddedFeatures:
            with torch.no_grad(), autocast:
                return self.detector.forward_padded(images, mask=mask, image_size=image_size, **arguments)

        return self._capture(run, [tensor if tensor is None else tensor.to(device) for tensor in inputs])

    def _clear(self) -> None:
        for graph in self._graphs.values():
            graph.release()
        self._graphs.clear()

    @staticmethod
    def _check_arguments(arguments: dict[str, Any]) -> None:
        unknown = arguments.keys() - {"n", "window_size", "score_threshold", "border"}
        if unknown:
            raise TypeError(f"arguments must be those of forward_padded, got {', '.join(sorted(unknown))}")
        if arguments["n"] is None:
            raise ValueError("n must be a positive integer for results of a fixed shape, got None")
        check_maxima(
            arguments["n"],
            arguments.get("window_size", 5),
            arguments.get("score_threshold", 0.0),
            arguments.get("border"),
        )


def _check_device(name: str, device: torch.device) -> None:
    if device.type != "cuda":
        raise ValueError(f"{name} must be on a CUDA device for CUDA graphs, got {device}")
