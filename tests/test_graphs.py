"""disk_ops.graphs: which graph is taken, kept and given up; on a GPU, that graphs give what the detector gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from comparing import photo_like

from disk_ops import DISKDetector, MultiscaleDetector, graphs
from disk_ops.graphs import GraphedDetector


class Recording:
    """In place of a graph: calls the function, and notes what happens to it."""

    log: list[str]

    def __init__(self, function, inputs):
        self.function, self.shape = function, "x".join(map(str, inputs[0].shape))
        self.log.append(f"capture {self.shape}")
        self.function(*inputs)

    def replay(self, inputs):
        self.log.append(f"replay {self.shape}")
        return self.function(*inputs)

    def release(self):
        self.log.append(f"release {self.shape}")


@pytest.fixture
def log(monkeypatch):
    monkeypatch.setattr(Recording, "log", [], raising=False)
    monkeypatch.setattr(graphs, "_check_device", lambda name, device: None)
    return Recording.log


@pytest.fixture(scope="module")
def detector():
    return DISKDetector.from_pretrained()


def take(log):
    taken = list(log)
    log.clear()
    return taken


def assert_same(ours, expected):
    assert all(torch.equal(one, other) for one, other in zip(ours, expected, strict=True))


class TestPolicy:
    def test_several_scales(self, detector, log):
        several, images = MultiscaleDetector(detector, (1, 0.5)), torch.rand(1, 3, 32, 48)
        with torch.no_grad():
            assert_same(GraphedDetector(several, 20, capture=Recording)(images), several.forward_padded(images, 20))
        assert take(log) == ["capture 1x3x32x48", "replay 1x3x32x48"]

    def test_one_graph_for_each_shape(self, detector, log):
        graphed = GraphedDetector(detector, 20, capture=Recording)
        small, wide = torch.rand(1, 3, 32, 32), torch.rand(1, 3, 32, 48)
        with torch.no_grad():
            assert_same(graphed(small), detector.forward_padded(small, 20))
        assert take(log) == ["capture 1x3x32x32", "replay 1x3x32x32"]
        graphed(torch.rand(1, 3, 32, 32))
        graphed(wide)
        graphed(small)
        expected = ["replay 1x3x32x32", "capture 1x3x32x48", "replay 1x3x32x48", "replay 1x3x32x32"]
        assert take(log) == expected and len(graphed) == 2

    def test_the_least_recently_used_goes(self, detector, log):
        graphed = GraphedDetector(detector, 5, max_graphs=2, capture=Recording)
        for width in (16, 32, 16, 48):
            graphed(torch.rand(1, 3, 16, width))
        assert [entry for entry in take(log) if "release" in entry] == ["release 1x3x16x32"]
        graphed(torch.rand(1, 3, 16, 16))
        assert take(log) == ["replay 1x3x16x16"] and len(graphed) == 2
        graphed.clear()
        assert sorted(take(log)) == ["release 1x3x16x16", "release 1x3x16x48"] and len(graphed) == 0

    def test_masks_and_sizes_have_graphs_of_their_own(self, detector, log):
        graphed = GraphedDetector(detector, 20, capture=Recording)
        images, mask = torch.rand(2, 3, 32, 48), torch.rand(2, 1, 32, 48) > 0.3
        size = torch.tensor([[30, 32], [48, 21]], dtype=torch.int32)
        with torch.no_grad():
            for given in ({}, {"mask": mask}, {"mask": mask.float()}, {"image_size": size}, {"mask": ~mask}):
                assert_same(graphed(images, **given), detector.forward_padded(images, 20, **given))
        assert sum("capture" in entry for entry in take(log)) == 3

    def test_other_arguments_are_captured_anew(self, detector, log):
        graphed = GraphedDetector(detector, 20, window_size=3, capture=Recording)
        images = torch.rand(1, 3, 32, 32)
        for given in ({}, {"n": 10}, {"window_size": 5}, {"border": 0}, {"score_threshold": 0.5}, {"n": 10}, {}):
            with torch.no_grad():
                arguments = {"n": 20, "window_size": 3, **given}
                assert_same(graphed(images, **given), detector.forward_padded(images, **arguments))
        assert sum("capture" in entry for entry in take(log)) == 5

    def test_weights_that_move(self, log):
        detector = DISKDetector(desc_dim=4)
        graphed = GraphedDetector(detector, 5, capture=Recording)
        images = torch.rand(1, 3, 16, 16)
        graphed(images)
        detector.load_state_dict({name: 2 * value for name, value in detector.state_dict().items()})
        graphed(images)  # in place: the graph reads them
        assert [entry.split()[0] for entry in take(log)] == ["capture", "replay", "replay"]
        detector.double()
        graphed(images.double())
        assert [entry.split()[0] for entry in take(log)] == ["release", "capture", "replay"]

    def test_a_capture_that_fails_leaves_nothing(self, detector, log):
        def fail(function, inputs):
            raise RuntimeError("operation not permitted when stream is capturing")

        graphed = GraphedDetector(detector, 5, capture=fail)
        with pytest.raises(RuntimeError, match="capturing"):
            graphed(torch.rand(1, 3, 16, 16))
        assert len(graphed) == 0

    def test_records_no_gradient(self, detector, log):
        graphed = GraphedDetector(detector, 5, capture=Recording)
        assert not graphed(torch.rand(1, 3, 16, 16)).descriptors.requires_grad


class TestErrors:
    def test_cpu(self, detector):
        with pytest.raises(ValueError, match="detector must be on a CUDA device for CUDA graphs, got cpu"):
            GraphedDetector(detector, 10)

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"n": 0}, ValueError, "n must be a positive integer"),
            ({"n": None}, ValueError, "n must be a positive integer"),
            ({"n": "5"}, TypeError, "n must be an integer, got str '5'"),
            ({"n": True}, TypeError, "n must be an integer, got bool True"),
            ({"n": 5, "window_size": 4}, ValueError, "window_size must be an odd positive integer, got 4"),
            ({"n": 5, "max_graphs": "2"}, TypeError, "max_graphs must be an integer, got str '2'"),
            ({"n": 5, "max_graphs": 0}, ValueError, "max_graphs must be a positive integer, got 0"),
            ({"n": 5, "window": 3}, TypeError, "arguments must be those of forward_padded, got window"),
        ],
    )
    def test_exception_of_the_constructor(self, detector, log, arguments, error, message):
        with pytest.raises(error, match=message):
            GraphedDetector(detector, **arguments)

    @pytest.mark.parametrize(
        ("images", "arguments", "error", "message"),
        [
            (torch.rand(3, 16, 16), {}, ValueError, r"images must have shape \[B, C, H, W\]"),
            (torch.rand(1, 3, 16, 16).double(), {}, TypeError, "images must be of the detector's dtype"),
            (torch.rand(1, 3, 16, 16, requires_grad=True), {}, ValueError, "images must not require a gradient"),
            (np.zeros((1, 3, 16, 16), np.float32), {}, TypeError, "images must be a tensor, got ndarray"),
            (
                torch.rand(1, 3, 16, 16),
                {"mask": np.ones((1, 1, 16, 16))},
                TypeError,
                "mask must be a tensor, got ndarray",
            ),
            (torch.rand(1, 3, 16, 16), {"mask": torch.ones(1, 1, 4, 4)}, ValueError, "mask must have shape"),
            (torch.rand(1, 3, 16, 16), {"image_size": torch.tensor([[17, 3]])}, ValueError, "image_size must lie"),
            (torch.rand(1, 3, 16, 16), {"n": -1}, ValueError, "n must be a positive integer"),
        ],
    )
    def test_exception(self, detector, log, images, arguments, error, message):
        graphed = GraphedDetector(detector, 5, capture=Recording)
        with pytest.raises(error, match=message):
            graphed(images, **arguments)
        assert take(log) == []


@pytest.mark.cuda
class TestOnAGpu:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("norm", ["instance", "valid"])
    def test_gives_what_the_detector_gives(self, device, dtype, norm):
        detector = DISKDetector.from_pretrained(device=device, norm=norm).to(dtype)
        graphed = GraphedDetector(detector, 200, max_graphs=2)
        with torch.no_grad():
            for shape in ((1, 3, 96, 128), (2, 3, 70, 90), (1, 3, 96, 128), (1, 1, 64, 64), (2, 3, 70, 90)):
                for _ in range(2):  # new images in an old graph
                    images = photo_like(device, *shape).to(dtype)
                    mask = torch.rand(shape[0], 1, *shape[2:], device=device) > 0.2
                    size = torch.tensor([[40, 50]] * shape[0])
                    for given in ({}, {"mask": mask}, {"image_size": size}):
                        expected = detector.forward_padded(images, 200, **given)
                        ours = graphed(images, **given)
                        assert torch.equal(ours.keypoints, expected.keypoints)
                        torch.testing.assert_close(ours, expected)

    def test_results_outlive_the_next_call(self, device):
        detector = DISKDetector.from_pretrained(device=device)
        graphed = GraphedDetector(detector, 50)
        first = graphed(photo_like(device, 1, 3, 64, 64))
        copy = [tensor.clone() for tensor in first]
        graphed(photo_like(device, 1, 3, 64, 64))
        assert_same(first, copy)

    def test_on_other_streams(self, device):
        detector = DISKDetector.from_pretrained(device=device)
        graphed = GraphedDetector(detector, 50)
        images = [photo_like(device, 1, 3, 96, 96) for _ in range(4)]
        torch.cuda.synchronize(device)
        results = []
        for one in images:
            with torch.cuda.stream(torch.cuda.Stream(device)):
                results.append(graphed(one))
        torch.cuda.synchronize(device)
        with torch.no_grad():
            for one, result in zip(images, results, strict=True):
                assert torch.equal(result.keypoints, detector.forward_padded(one, 50).keypoints)
