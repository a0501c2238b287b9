"""Match two photographs with DISK features and LightGlue, through kornia, with weights from a file.

    python lightglue.py first.jpg second.jpg --lightglue disk_lightglue.pth [--disk checkpoint] [--save matches.png]

LightGlue's weights for DISK (``disk_lightglue.pth`` of https://github.com/cvg/LightGlue/releases) belong to the DISK
weights that it was trained with, so pass these with --disk. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import kornia.feature as KF
import torch
from torch import Tensor

from disk_ops import DISKDetector, DISKFeatures
from disk_ops.checkpoint import DEFAULT_CHECKPOINT
from disk_ops.io.images import read_image, to_rgb_float


class LocalLightGlueMatcher(KF.LightGlueMatcher):
    """``kornia.feature.LightGlueMatcher("disk")`` with weights from a state dict; kornia's own constructor downloads.

    Args:
        weights: as released, or of a ``kornia.feature.LightGlue``.
        conf: keyword arguments of ``kornia.feature.LightGlue``, such as ``filter_threshold``.
    """

    def __init__(self, weights: dict[str, Tensor], **conf: Any) -> None:
        KF.GeometryAwareDescriptorMatcher.__init__(self, "disk")
        self.feature_name, self.params = "disk", conf
        no_download: Any = None  # with a name, LightGlue would fetch weights
        self.matcher = KF.LightGlue(no_download, **{**conf, "input_dim": 128})
        renamed = {}
        for key, value in weights.items():
            for part in ("self_attn", "cross_attn"):  # self_attn.3.x in the release is transformers.3.self_attn.x here
                if key.startswith(f"{part}."):
                    _, layer, rest = key.split(".", 2)
                    key = f"transformers.{layer}.{part}.{rest}"
            renamed[key] = value
        missing, unexpected = self.matcher.load_state_dict(renamed, strict=False)
        missing = [key for key in missing if key != "confidence_thresholds"]  # computed, not learned
        if missing or unexpected:
            raise ValueError(
                f"these are no weights of LightGlue for DISK: missing {missing[:3]}, unknown {unexpected[:3]}"
            )
        self.eval()


@torch.inference_mode()
def match(
    matcher: KF.LightGlueMatcher,
    features1: DISKFeatures,
    features2: DISKFeatures,
    size1: tuple[int, int],  # (height, width)
    size2: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """Return scores ``[K, 1]`` and pairs of indices ``[K, 2]``."""
    lafs1, lafs2 = (KF.laf_from_center_scale_ori(features.keypoints[None]) for features in (features1, features2))
    return matcher(features1.descriptors, features2.descriptors, lafs1, lafs2, hw1=size1, hw2=size2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", nargs=2, type=Path)
    parser.add_argument("--lightglue", type=Path, required=True, help="weights of LightGlue for DISK")
    parser.add_argument("--disk", default=DEFAULT_CHECKPOINT, help="checkpoint of DISK")
    parser.add_argument("--n", type=int, default=2048)
    parser.add_argument("--save", type=Path, help="write a picture of the matches")
    arguments = parser.parse_args()

    detector = DISKDetector.from_pretrained(arguments.disk)
    matcher = LocalLightGlueMatcher(torch.load(arguments.lightglue, map_location="cpu", weights_only=True))
    images = [torch.from_numpy(to_rgb_float(read_image(path))) for path in arguments.images]
    with torch.inference_mode():
        features = [detector(image[None], n=arguments.n)[0] for image in images]
    scores, pairs = match(matcher, *features, *(tuple(image.shape[1:]) for image in images))
    print(f"{features[0].n} and {features[1].n} keypoints, {len(pairs)} matches, mean score {scores.mean():.2f}")
    if arguments.save:
        import cv2

        pixels = [cv2.imread(str(path)) for path in arguments.images]
        keypoints = [found.to_cv_keypoints() for found in features]
        drawn = [cv2.DMatch(int(one), int(two), 0.0) for one, two in pairs]
        cv2.imwrite(str(arguments.save), cv2.drawMatches(pixels[0], keypoints[0], pixels[1], keypoints[1], drawn, None))


if __name__ == "__main__":
    main()
