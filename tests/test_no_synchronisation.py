"""Between image and padded result nothing on CUDA waits for the GPU, or looks at what it computes.

Without a GPU the detector runs on meta tensors, which have shapes and no values, with the kernels that CUDA has, and
each operation is looked at. (Fake tensors of device cuda can't be indexed by a torch that was built without CUDA.)
"""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from disk_ops import DISKDetector, MultiscaleDetector, _images, model
from disk_ops.ops import blocks

GPU = "meta"
# Operations that read values, or whose results have shapes that depend on them.
READS = {"_local_scalar_dense", "item", "nonzero", "masked_select", "unique", "unique_consecutive", "_unique2", "equal"}
READS |= {"unique_dim", "is_nonzero", "nonzero_static", "allclose", "bincount", "repeat_interleave"}
BLOCK_OPS = {"block_norm", "block_convolution", "block_patches"}


class Watch(TorchDispatchMode):
    """Notes the operations, and raises at one for which the host has to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        self.seen.append(name)
        given = devices((args, kwargs))
        if name in READS and GPU in given:
            raise AssertionError(f"{name} waits for the GPU")
        if name == "nms_topk":
            assert args[1] is not None, "nms_topk without n makes as many columns as there are maxima"
        result = func(*args, **kwargs)
        if GPU in given and devices(result) == {"cpu"}:
            raise AssertionError(f"{name} copies to the host")
        if given == {"cpu"} and GPU in devices(result):
            blocking = not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
            assert not blocking, f"{name} waits for a copy to the GPU"
        return result


def devices(values) -> set[str]:
    return {value.device.type for value in tree_leaves(values) if isinstance(value, torch.Tensor)}


class TorchWithoutAutocast:
    """torch, but autocast, which knows no device "meta", is off. (Dynamo would keep what torch itself is given.)"""

    def is_autocast_enabled(self, device: str) -> bool:
        return False

    def __getattr__(self, name: str):
        return getattr(torch, name)


@pytest.fixture
def gpu(monkeypatch):
    """Tensors on a device without values by default, with the kernels of a CUDA build."""
    monkeypatch.setitem(blocks.KERNEL_DTYPES, GPU, (torch.float32, torch.float16, torch.bfloat16))
    for module in (_images, model):
        monkeypatch.setattr(module, "torch", TorchWithoutAutocast())
    with torch.device(GPU):
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("given", ["nothing", "mask", "image_size", "image_size on the GPU"])
@pytest.mark.parametrize("norm", ["instance", "valid"])
def test_nothing_waits(gpu, dtype, given, norm):
    detector = DISKDetector(norm=norm).to(dtype).eval()
    images = torch.empty(2, 3, 70, 90, dtype=dtype)
    arguments = {
        "nothing": {},
        "mask": {"mask": torch.empty(2, 1, 70, 90)},
        "image_size": {"image_size": torch.tensor([[90, 70], [30, 7]], device="cpu")},
        "image_size on the GPU": {"image_size": torch.empty(2, 2, dtype=torch.int64)},
    }[given]
    with torch.no_grad(), Watch() as watch:
        features = detector.forward_padded(images, 100, **arguments)
    assert features.keypoints.device.type == GPU and features.descriptors.shape == (2, 100, 128)
    assert features.descriptors.dtype == dtype
    seen = [name for name in watch.seen if name in BLOCK_OPS]
    if norm == "valid":
        assert "nms_topk" in watch.seen and not seen
    else:  # 8 norms, 8 convolutions and the heatmap's, one call for all patches
        assert sorted(seen) == ["block_convolution"] * 9 + ["block_norm"] * 8 + ["block_patches"]
        assert not {"native_batch_norm", "upsample_bilinear2d", "avg_pool2d", "convolution"} & set(watch.seen)


@pytest.mark.parametrize("given", ["nothing", "mask", "image_size", "border"])
def test_nothing_waits_at_several_scales(gpu, given):
    images = torch.empty(2, 3, 70, 90)
    arguments = {
        "nothing": {},
        "mask": {"mask": torch.empty(2, 1, 70, 90)},
        "image_size": {"image_size": torch.empty(2, 2, dtype=torch.int64)},
        "border": {"border": 3},
    }[given]
    with torch.no_grad(), Watch():
        features = MultiscaleDetector(DISKDetector()).forward_padded(images, 100, **arguments)
    assert features.keypoints.shape == (2, 100, 2) and features.keypoints.device.type == GPU


def test_what_waits_is_found(gpu):
    values = torch.empty(3)
    for wait in (lambda: values.sum().item(), lambda: values.nonzero(), lambda: values.cpu(), lambda: bool(values[0])):
        with pytest.raises((AssertionError, NotImplementedError), match=r"waits|copies|copy out"), Watch():
            wait()


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_on_a_gpu(device, dtype):
    """As PyTorch itself sees it."""
    detector = DISKDetector.from_pretrained(device=device).to(dtype)
    images = torch.rand(2, 3, 70, 90, device=device, dtype=dtype)
    size, mask = torch.tensor([[60, 50], [90, 70]], device=device), torch.rand(2, 1, 70, 90, device=device) > 0.2
    with torch.no_grad():
        detector.forward_padded(images, 100)  # cuDNN chooses, which may wait
        torch.cuda.set_sync_debug_mode("error")
        try:
            for arguments in ({}, {"mask": mask}, {"image_size": size}):
                detector.forward_padded(images, 100, **arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")
