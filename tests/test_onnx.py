"""The exported model in onnxruntime and in OpenCV: the detector's features."""

from __future__ import annotations

import copy

import cv2
import numpy as np
import pytest
import torch
from torch import nn

from disk_ops import DISKDetector, MultiscaleDetector, demo
from disk_ops.model import UNet
from disk_ops.ops import nms_topk

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from disk_ops.onnx import OUTPUTS, export_onnx, make_model  # noqa: E402
from disk_ops.onnx.check import agreement, compare_with_detector, model_arguments  # noqa: E402
from disk_ops.onnx.graph import Graph  # noqa: E402
from disk_ops.onnx.heads import best_maxima  # noqa: E402

needs_cv_disk = pytest.mark.skipif(not hasattr(cv2, "DISK"), reason=f"OpenCV {cv2.__version__} has no cv2.DISK")
RUNTIMES = ["onnxruntime", pytest.param("opencv", marks=needs_cv_disk)]


@pytest.fixture(scope="module")
def detector():
    return DISKDetector.from_pretrained()


@pytest.fixture(scope="module")
def model(detector):
    return make_model(detector, n=600)


@pytest.fixture(scope="module")
def photograph():
    """RGB as [H, W, 3] uint8."""
    return cv2.cvtColor(cv2.imread(str(demo.IMAGES[0])), cv2.COLOR_BGR2RGB)


def crop(photograph, height, width):
    """From the middle, where the building is."""
    top, left = (photograph.shape[0] - height) // 2, (photograph.shape[1] - width) // 2
    return np.ascontiguousarray(photograph[top : top + height, left : left + width])


def as_input(pixels):
    return torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255


def run(runtime, model, inputs):
    """All outputs of the model, by name."""
    names = [output.name for output in model.graph.output]
    if runtime == "onnxruntime":
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        return dict(zip(names, session.run(names, inputs), strict=True))
    net = cv2.dnn.readNetFromONNX(np.frombuffer(model.SerializeToString(), np.uint8))
    for name, value in inputs.items():
        net.setInput(value, name)
    return dict(zip(names, net.forward(names), strict=True))


def assert_features_of(detector, image, outputs, n, threshold=0.0, **arguments):
    """The outputs are what ``forward_padded`` gives, near ties in any order."""
    with torch.inference_mode():
        expected = detector.forward_padded(image, n, score_threshold=threshold, **arguments)
    count = int(expected.valid.sum())
    keypoints, scores, descriptors = (outputs[name] for name in OUTPUTS)
    assert keypoints.shape == (1, n, 2) and keypoints.dtype == np.int64
    assert scores.shape == (1, n) and scores.dtype == np.float32
    assert descriptors.shape == (1, n, detector.desc_dim) and descriptors.dtype == np.float32
    assert (scores[0, :count] > threshold).all() and (scores[0, count:] == np.float32(threshold)).all()
    assert (np.diff(scores[0]) <= 0).all()
    assert not keypoints[0, count:].any() and not descriptors[0, count:].any()
    found = agreement(
        [outputs[name][0, :count] for name in OUTPUTS],
        [tensor[0, :count].numpy() for tensor in (expected.keypoints, expected.scores, expected.descriptors)],
    )
    # The last of n keypoints may be another of nearly the same score.
    assert found.common >= count - (1 if count == n else 0)
    assert found.scores < 1e-5 and found.descriptors < 1e-5
    return count


@pytest.mark.parametrize("runtime", RUNTIMES)
class TestRuntimes:
    @pytest.mark.parametrize("size", [(240, 320), (239, 317), (64, 48), (16, 16), (33, 5), (4, 4), (1, 40), (1, 1)])
    def test_any_size(self, detector, model, photograph, runtime, size):
        image = as_input(crop(photograph, *size))
        assert_features_of(detector, image, run(runtime, model, {"image": image.numpy()}), 600)

    @pytest.mark.parametrize("size", [(16, 16), (40, 5), (50, 12), (33, 17), (7, 100), (12, 50), (17, 33)])
    def test_a_single_row_or_column_at_the_lowest_level(self, detector, photograph, runtime, size):
        """OpenCV's Resize would read beyond it. The threshold leaves features even here."""
        image, model = as_input(crop(photograph, *size)), make_model(detector, n=40, score_threshold=-1e6)
        assert assert_features_of(detector, image, run(runtime, model, {"image": image.numpy()}), 40, -1e6) > 0

    @pytest.mark.parametrize(
        "name", ["homography/oxford_affine/graf/img1.png", "pose/strecha/castle-P30/images/0010.jpg"]
    )
    def test_photographs(self, detector, shared_data, runtime, name):
        pixels = cv2.imread(str(shared_data / name))
        if pixels is None:
            pytest.skip(f"{name} is not in ../shared/data")
        image = as_input(np.ascontiguousarray(pixels[:, :, ::-1]))
        outputs = run(runtime, make_model(detector), {"image": image.numpy()})
        assert assert_features_of(detector, image, outputs, 2048) > 1000

    @pytest.mark.parametrize("size", [(160, 192), (157, 190)])
    def test_fixed_size(self, detector, photograph, runtime, size):
        model = make_model(detector, n=300, size=size[::-1])
        assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [1, 3, *size]
        image = as_input(crop(photograph, *size))
        assert_features_of(detector, image, run(runtime, model, {"image": image.numpy()}), 300)

    @pytest.mark.parametrize(
        ("window_size", "threshold", "border"), [(1, 30.0, 0), (3, -10.0, None), (9, 5.5, 0), (5, float("-inf"), 7)]
    )
    def test_arguments(self, detector, photograph, runtime, window_size, threshold, border):
        image = as_input(crop(photograph, 100, 140))
        model = make_model(detector, 150, window_size, threshold, border)
        outputs = run(runtime, model, {"image": image.numpy()})
        count = assert_features_of(detector, image, outputs, 150, threshold, window_size=window_size, border=border)
        assert count > 20

    def test_no_keypoints(self, detector, photograph, runtime):
        """A threshold that nothing reaches; and a grey image, which has only what its borders make."""
        image = as_input(crop(photograph, 64, 64))
        outputs = run(runtime, make_model(detector, 50, score_threshold=1e6), {"image": image.numpy()})
        assert assert_features_of(detector, image, outputs, 50, 1e6) == 0
        grey = torch.full((1, 3, 64, 64), 0.5)
        model = make_model(detector, 50, border=24)
        assert assert_features_of(detector, grey, run(runtime, model, {"image": grey.numpy()}), 50, border=24) == 0

    def test_not_a_number(self, detector, model, runtime):
        image = torch.full((1, 3, 48, 48), float("nan"))
        assert assert_features_of(detector, image, run(runtime, model, {"image": image.numpy()}), 600) == 0

    def test_other_networks(self, photograph, runtime):
        torch.manual_seed(3)
        detector = DISKDetector(16, unet=UNet(desc_dim=16, size=3, down=(8, 16, 24), up=(16,))).eval()
        for gate in (module for module in detector.modules() if isinstance(module, nn.PReLU)):
            nn.init.uniform_(gate.weight)
        image = as_input(crop(photograph, 90, 70))
        model = make_model(detector, 200, score_threshold=-1.0)
        outputs = run(runtime, model, {"image": image.numpy()})
        assert assert_features_of(detector, image, outputs, 200, -1.0) > 50

    @pytest.mark.parametrize("case", range(12))
    def test_maxima_are_exact(self, runtime, case):
        """Of heatmaps with plateaus and ties on all ranks, the same maxima in the same order as `nms_topk`."""
        generator = np.random.default_rng(case)
        height, width, n = (int(generator.integers(1, high)) for high in (40, 40, 300))
        window_size, border = int(generator.choice([1, 3, 5, 9])), int(generator.integers(0, 4))
        heatmap = generator.integers(-3, 4, (1, 1, height, width)).astype(np.float32)
        if case % 3 == 0:  # few values in large areas
            heatmap = np.kron(heatmap[..., ::4, ::3], np.ones((4, 3), np.float32))[..., :height, :width]
        if case % 2:
            heatmap[generator.random(heatmap.shape) < 0.05] = np.nan
            heatmap[generator.random(heatmap.shape) < 0.05] = -np.inf
        outputs = run(runtime, maxima_model(n, window_size, -1.0, border), {"heatmap": heatmap})
        expected = nms_topk(torch.from_numpy(heatmap), n, window_size, -1.0, border)
        count = int(expected.valid.sum())
        assert outputs["valid"][0].astype(bool).tolist() == expected.valid[0].tolist()
        assert np.array_equal(outputs["scores"][0, :count], expected.scores[0, :count].numpy())
        xy = np.stack([outputs["x"][0], outputs["y"][0]], -1)[:count]
        assert np.array_equal(xy, expected.keypoints[0, :count].numpy())


def maxima_model(n, window_size, threshold, border):
    """The part of the model that finds maxima, alone."""
    graph = Graph()
    maxima = best_maxima(graph, "heatmap", n, window_size, threshold, border)
    outputs = {"scores": (np.float32, (1, n))}
    for name, kind in (("x", np.int64), ("y", np.int64), ("valid", np.bool_)):
        graph.op("Identity", getattr(maxima, name), output=name)
        outputs[name] = (kind, (1, n))
    return graph.model({"heatmap": (1, 1, "height", "width")}, outputs, {}, "", "")


@needs_cv_disk
class TestOpenCVClass:
    @pytest.fixture
    def path(self, detector, tmp_path):
        export_onnx(detector, tmp_path / "disk.onnx", n=400)
        return str(tmp_path / "disk.onnx")

    def test_features(self, detector, photograph, path):
        """Of images of several sizes, one after the other, and with the class's own limits."""
        disk = cv2.DISK.create(path)
        for height, width in ((160, 208), (96, 64)):
            pixels = crop(photograph, height, width)
            disk.setImageSize((width, height))
            keypoints, descriptors = disk.detectAndCompute(pixels[..., ::-1], None)
            with torch.inference_mode():
                expected = detector(as_input(pixels), n=400)[0]
            found = agreement(
                [np.array([k.pt for k in keypoints]), np.array([k.response for k in keypoints]), descriptors],
                [expected.keypoints.numpy(), expected.detection_scores.numpy(), expected.descriptors.numpy()],
            )
            assert len(keypoints) == expected.n and found.common >= expected.n - 1
            assert found.scores < 1e-5 and found.descriptors < 1e-5
        disk.setMaxKeypoints(10)
        assert len(disk.detect(pixels[..., ::-1])) == 10

    def test_default_size(self, photograph, path):
        """Without a size the class scales images to 1024 x 1024, and keypoints back."""
        keypoints = cv2.DISK.create(path).detect(crop(photograph, 300, 400)[..., ::-1])
        assert len(keypoints) == 400
        assert all(0 <= k.pt[0] < 400 and 0 <= k.pt[1] < 300 for k in keypoints)

    def test_no_keypoints(self, detector, photograph, tmp_path):
        export_onnx(detector, tmp_path / "none.onnx", n=20, score_threshold=1e6)
        disk = cv2.DISK.create(str(tmp_path / "none.onnx"), scoreThreshold=1e6, imageSize=(64, 64))
        keypoints, descriptors = disk.detectAndCompute(crop(photograph, 64, 64), None)
        assert len(keypoints) == 0 and descriptors is None


class TestModel:
    def test_only_standard_operators(self, model):
        assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)]
        assert {node.domain for node in model.graph.node} == {""}
        # The last convolution, 80 to 129 channels in every pixel, is not in it.
        shapes = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
        dense = [shapes[node.input[1]] for node in model.graph.node if node.op_type == "Conv"]
        assert dense[-2:] == [[5, 80, 1, 5], [1, 5, 5, 1]] and all(shape[0] <= 64 for shape in dense)

    def test_file_says_what_it_is(self, detector):
        model = make_model(detector, 9, 7, 0.5, metadata={"weights": "mine", "record": {"steps": 3}})
        stored = {entry.key: entry.value for entry in model.metadata_props}
        assert stored["weights"] == "mine" and stored["record"] == '{"steps": 3}'
        assert model_arguments(model) == {"n": 9, "window_size": 7, "score_threshold": 0.5, "border": 3}
        assert model.producer_name == "disk_ops" and "above 0.5" in model.doc_string

    def test_the_same_bytes_again(self, detector, model):
        assert make_model(detector, n=600).SerializeToString() == model.SerializeToString()

    def test_half_precision_weights_become_float32(self, detector, photograph):
        half = copy.deepcopy(detector).half()
        found = compare_with_detector(make_model(half, 100), half, as_input(crop(photograph, 96, 112)))
        assert found.is_close and found.common >= 29 and half.unet.last_convolution.weight.dtype == torch.float16

    def test_a_difference_is_seen(self, detector, photograph):
        other = copy.deepcopy(detector)
        with torch.no_grad():
            other.unet.last_convolution.weight[:-1] *= torch.linspace(0.5, 1.5, 128)[:, None, None, None]
        found = compare_with_detector(make_model(other, 100), detector, as_input(crop(photograph, 64, 80)))
        assert not found.is_close and found.descriptors > 0.01

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"n": 0}, "n must be a positive integer, got 0"),
            ({"window_size": 4}, "window_size must be an odd positive integer, got 4"),
            ({"score_threshold": float("nan")}, "score_threshold must be a number, got nan"),
            ({"border": -1}, "border must be 0 or more pixels, got -1"),
            ({"size": (0, 5)}, r"size must be a width and a height of at least 1 pixel, got \(0, 5\)"),
            ({"size": (8,)}, r"size must be a width and a height of at least 1 pixel, got \(8,\)"),
            ({"size": "8x8"}, "size must be an integer, got str '8'"),
            ({"n": "3"}, "n must be an integer, got str '3'"),
            ({"window_size": 5.0}, "window_size must be an integer, got float 5.0"),
            ({"score_threshold": None}, "score_threshold must be a number, got NoneType None"),
        ],
    )
    def test_wrong_arguments(self, detector, arguments, message):
        with pytest.raises((ValueError, TypeError), match=message):
            make_model(detector, **arguments)

    def test_weights_in_half_a_type_give_a_model_in_float32(self, detector):
        halves = DISKDetector.from_pretrained({name: value.half() for name, value in detector.state_dict().items()})
        constants = {each.name: each.data_type for each in make_model(halves, 5).graph.initializer}
        assert constants["unet.path_down.0.1.3.weight"] == onnx.TensorProto.FLOAT

    def test_networks_that_have_no_such_form(self, detector):
        with pytest.raises(TypeError, match="detector must be a DISKDetector, of a single scale, got Multiscale"):
            make_model(MultiscaleDetector(DISKDetector()), n=5)
        with pytest.raises(ValueError, match="norm='instance' to be exported, got 'valid'"):
            make_model(DISKDetector(norm="valid"))
        with pytest.raises(ValueError, match=r"detector must have the network .* got Conv2d"):
            make_model(DISKDetector(desc_dim=4, unet=nn.Conv2d(3, 5, 1)))
        changed = copy.deepcopy(detector)
        changed.unet.path_up[0].conv[1] = nn.ReLU()
        with pytest.raises(ValueError, match=r"unet.path_up.0.conv must hold an InstanceNorm and a PReLU .* and ReLU"):
            make_model(changed)
        changed = copy.deepcopy(detector)
        changed.unet.path_down[1][1][3] = nn.Conv2d(16, 32, 5, padding=2)
        with pytest.raises(ValueError, match=r"unet.path_down.1.1.3 must be a convolution .*padding='same'"):
            make_model(changed)
