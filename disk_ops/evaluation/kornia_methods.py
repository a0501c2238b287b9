"""The local features of kornia, with weights from files.

Each model names the weight files that it needs, as kornia stores them in torch hub's cache. A checkpoint that the user
gives is the file, or a folder with the files under these names. All give keypoints whose integers are pixel centres.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from disk_ops.checkpoint import weights_digest
from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.features import Features

Weights = Mapping[str, Mapping[str, Any]]
"""State dicts by file name."""
Extract = Callable[[Tensor, int], Features]
"""An image ``[3, H, W]`` and the number of features to its features."""


@dataclass(frozen=True)
class KorniaModel:
    """A model of kornia."""

    files: tuple[str, ...]  # as kornia names them in torch hub's cache
    build: Callable[[Weights, torch.device], tuple[nn.Module, Extract]]


def find_kornia_weights(model: str, checkpoint: str) -> list[Path]:
    """The weight files of a model, in the order of ``KORNIA_MODELS[model].files``.

    Args:
        model: a key of ``KORNIA_MODELS``.
        checkpoint: a file or a folder; empty for torch hub's cache.

    Raises:
        EvaluationError: one is not there.
    """
    files = KORNIA_MODELS[model].files
    path = Path(checkpoint).expanduser() if checkpoint else Path(torch.hub.get_dir()) / "checkpoints"
    if path.is_file() and len(files) == 1:
        return [path]
    if path.is_file():
        raise EvaluationError(
            f"--method kornia:{model}: needs a folder with {' and '.join(files)}, got the file {checkpoint}"
        )
    missing = [file for file in files if not (path / file).is_file()]
    if not missing:
        return [path / file for file in files]
    if checkpoint and not path.exists():
        raise EvaluationError(f"--method kornia:{model}: there is no file or folder {checkpoint}")
    where = "" if checkpoint else " (torch hub's cache)"
    wanted = "the weight file" if len(files) == 1 else "a folder with the weight files"
    raise EvaluationError(
        f"--method kornia:{model}: {path}{where} has no {' and no '.join(missing)}. Nothing is downloaded: "
        f"give {wanted} as kornia:{model}:PATH"
    )


def load_kornia(model: str, checkpoint: str, device: torch.device) -> tuple[Extract, str]:
    """Load a model.

    Returns:
        What extracts features, and a fingerprint of the weights' values and kornia's version.

    Raises:
        EvaluationError: a weight file is not there or can't be used.
    """
    try:
        import kornia
    except ImportError as error:
        raise EvaluationError(f"--method kornia:{model} needs kornia: pip install kornia ({error})") from error

    paths = find_kornia_weights(model, checkpoint)
    weights = {file: _read(path) for file, path in zip(KORNIA_MODELS[model].files, paths, strict=True)}
    try:
        module, extract = KORNIA_MODELS[model].build(weights, device)
    except (RuntimeError, KeyError) as error:
        # torch tells of each weight in a line, below a heading.
        lines = [line.strip() for line in str(error).strip().splitlines()]
        reason = " ".join(lines[:2])[:200] if isinstance(error, RuntimeError) else f"no {error} in the file"
        raise EvaluationError(f"{', '.join(map(str, paths))} doesn't fit kornia's {model}: {reason}") from error
    module.to(device).eval()
    fingerprint = f"kornia {model} {weights_digest(module.state_dict())} {device.type} {kornia.__version__}"

    @torch.inference_mode()
    def extract_on_device(image: Tensor, n: int) -> Features:
        keypoints, descriptors, scores = extract(image.to(device), n)
        assert scores is not None
        order = scores.argsort(descending=True, stable=True)[:n]
        return Features(keypoints[order].float().cpu(), descriptors[order].float().cpu(), scores[order].float().cpu())

    return extract_on_device, fingerprint


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files make the reader fail in every way there is
        raise EvaluationError(f"{path} is not a readable checkpoint: {type(error).__name__}") from error
    if not isinstance(content, Mapping):
        raise EvaluationError(f"{path} is not a checkpoint: it holds a {type(content).__name__}, not a state dict")
    return content


def _aliked(name: str) -> KorniaModel:
    file = f"{name}.pth"

    def build(weights: Weights, device: torch.device) -> tuple[nn.Module, Extract]:
        from kornia.feature import ALIKED

        models: dict[int, ALIKED] = {}  # by the number of keypoints, which is a property of the model

        def model(n: int) -> ALIKED:
            if n not in models:
                # With the threshold 0 the n best maxima are taken. The grid is no weight: kornia computes it.
                models[n] = ALIKED(name, max_num_keypoints=n, detection_threshold=0).to(device).eval()
                missing, unknown = models[n].load_state_dict(dict(weights[file]), strict=False)
                if unknown or set(missing) - {"dkd.hw_grid"}:
                    raise RuntimeError(f"{len(missing)} weights are missing, {len(unknown)} are unknown")
            return models[n]

        def extract(image: Tensor, n: int) -> Features:
            found = model(n)(image[None])[0]
            return Features(found.keypoints, found.descriptors, found.keypoint_scores)

        return model(1), extract

    return KorniaModel((file,), build)


def _xfeat(weights: Weights, device: torch.device) -> tuple[nn.Module, Extract]:
    from kornia.feature import XFeat

    model = XFeat()
    state = dict(weights["xfeat.pt"])
    # verlab's file holds the network alone, kornia's own state dict has it under "net".
    (model if any(name.startswith("net.") for name in state) else model.net).load_state_dict(state)

    def extract(image: Tensor, n: int) -> Features:
        found = model.detectAndCompute(image[None], top_k=n)[0]
        # The image is resized to multiples of 32, and kornia maps the corners of pixels back as if they were centres.
        scale = [max(size // 32 * 32, 32) / size for size in (image.shape[2], image.shape[1])]
        shift = (1 / found["keypoints"].new_tensor(scale) - 1) / 2
        return Features(found["keypoints"] + shift, found["descriptors"], found["scores"])

    return model, extract


def _dedode(weights: Weights, device: torch.device) -> tuple[nn.Module, Extract]:
    from kornia.feature import DeDoDe

    model = DeDoDe("L", "B", amp_dtype=torch.float32)
    model.detector.load_state_dict(dict(weights["dedode_detector_L_v2.pth"]))
    model.descriptor.load_state_dict(dict(weights["dedode_descriptor_B.pth"]))

    def extract(image: Tensor, n: int) -> Features:
        keypoints, scores, descriptors = model(image[None], n)
        # Its integers are the corners of pixels, and its descriptors have any length.
        return Features(keypoints[0] - 0.5, nn.functional.normalize(descriptors[0], dim=1), scores[0])

    return model, extract


def _disk(file: str) -> KorniaModel:
    def build(weights: Weights, device: torch.device) -> tuple[nn.Module, Extract]:
        from kornia.feature import DISK

        model = DISK()
        model.load_state_dict(dict(weights[file]["extractor"]))

        def extract(image: Tensor, n: int) -> Features:
            found = model(image[None], n, pad_if_not_divisible=True)[0]
            return Features(found.keypoints, found.descriptors, found.detection_scores)

        return model, extract

    return KorniaModel((file,), build)


def _keynet(weights: Weights, device: torch.device) -> tuple[nn.Module, Extract]:
    import kornia.feature as KF
    from kornia.color import rgb_to_grayscale

    orientation, shape, hardnet = KF.OriNet(False), KF.LAFAffNetShapeEstimator(False, False), KF.HardNet(False)
    orienter = KF.LAFOrienter(angle_detector=orientation)
    detector = KF.KeyNetDetector(False, ori_module=orienter, aff_module=shape)
    cast(nn.Module, detector.model).load_state_dict(dict(weights["keynet_pytorch.pth"]["state_dict"]))
    for part, file in ((orientation, "OriNet.pth"), (shape, "AffNet.pth")):
        missing, _ = part.load_state_dict(dict(weights[file]["state_dict"]), strict=False)  # the files hold more
        if missing:
            raise RuntimeError(f"{file} lacks {len(missing)} weights")
    hardnet.load_state_dict(dict(weights["checkpoint_liberty_with_aug.pth"]["state_dict"]))
    model = KF.LocalFeature(detector, KF.LAFDescriptor(hardnet, patch_size=32, grayscale_descriptor=True))

    def extract(image: Tensor, n: int) -> Features:
        detector.num_features = n
        grey = rgb_to_grayscale(image[None])  # as the descriptor makes it
        lafs, responses, descriptors = model(grey)
        filled = responses[0] > 0  # the other slots are padding
        return Features(KF.get_laf_center(lafs)[0][filled], descriptors[0][filled], responses[0][filled])

    return model, extract


KORNIA_MODELS: dict[str, KorniaModel] = {
    **{name: _aliked(name) for name in ("aliked-t16", "aliked-n16", "aliked-n16rot", "aliked-n32")},
    "xfeat": KorniaModel(("xfeat.pt",), _xfeat),
    "dedode": KorniaModel(("dedode_detector_L_v2.pth", "dedode_descriptor_B.pth"), _dedode),
    "disk": _disk("depth-save.pth"),
    "keynet-affnet-hardnet": KorniaModel(
        ("keynet_pytorch.pth", "AffNet.pth", "OriNet.pth", "checkpoint_liberty_with_aug.pth"), _keynet
    ),
}
"""The models by name. ``dedode`` is the second version's detector with the descriptor B."""
