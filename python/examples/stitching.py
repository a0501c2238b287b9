"""Stitch photographs of one view into a panorama, by homographies between neighbours.

    python stitching.py left.jpg middle.jpg right.jpg -o panorama.png [--crop]

Each photograph overlaps the next one, and all are taken from one place (or show one plane), up to about 120 degrees in
all. The middle one stays as it is, and the others are warped to it. ``kornia.contrib.ImageStitcher`` works with these
features too; it keeps to the rows of the first photograph, here the picture holds all of each, and seams are blended.
"""

from __future__ import annotations

import argparse
import sys
from itertools import pairwise
from pathlib import Path

import cv2
import kornia
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from disk_ops import DISKDetector, MutualNearestNeighbor
from disk_ops.arguments.values import positive
from disk_ops.checkpoint import DEFAULT_CHECKPOINT
from disk_ops.drawing import save_picture, to_picture
from disk_ops.evaluation.features import DetectorExtractor
from disk_ops.evaluation.homography import warp
from disk_ops.evaluation.robust import estimate_homography
from disk_ops.io.images import downscale, limited_size, size_of, to_rgb_float

Matrix = npt.NDArray[np.float64]  # [3, 3]
# Many keypoints average their errors out, so those that the network would rather reject are taken, too.
SCORE_THRESHOLD = -20.0
MIN_INLIERS = 15  # matches of two photographs that agree with one homography; without overlap up to about 10 do,
MIN_SHARE = 0.15  # or more where parts look alike, but then few of all matches in what would be the common area


class StitchingError(Exception):
    """Photographs that can't be stitched, and why."""


def read_photograph(path: Path, max_size: int) -> Tensor:
    """Return a photograph [3, H, W], turned upright as its EXIF entry says."""
    data = np.frombuffer(path.read_bytes(), np.uint8)
    pixels = cv2.imdecode(data, cv2.IMREAD_COLOR) if data.size else None
    if pixels is None:
        raise StitchingError(f"{path} is no image that can be decoded")
    pixels = downscale(pixels[:, :, ::-1], limited_size(size_of(pixels), max_size))
    return torch.from_numpy(to_rgb_float(pixels))


def homographies_to_middle(images: list[Tensor], detector: DISKDetector, n: int = 4096) -> list[Matrix]:
    """Return, for each image [3, H, W], the homography from its pixels to those of the middle image."""
    extractor = DetectorExtractor(detector, n, score_threshold=SCORE_THRESHOLD)
    matcher = MutualNearestNeighbor(ratio=0.95)
    features = [extractor(image) for image in images]
    to_first: list[Matrix] = [np.eye(3)]
    for i, (first, second) in enumerate(pairwise(features)):
        pairs = matcher(first.descriptors, second.descriptors)[1]
        points = first.keypoints[pairs[:, 0]], second.keypoints[pairs[:, 1]]
        found = estimate_homography(points[1].numpy(), points[0].numpy(), threshold=2.0)
        inliers = 0 if found is None else int(found.inliers.sum())
        print(f"photographs {i + 1} and {i + 2}: {len(pairs)} matches, {inliers} agree with one homography")
        if found is None or inliers < max(MIN_INLIERS, MIN_SHARE * common(points[1], found.matrix, images[i])):
            raise StitchingError(f"photographs {i + 1} and {i + 2} don't overlap, or not enough")
        to_first.append(to_first[-1] @ found.matrix)
    return [np.linalg.inv(to_first[len(images) // 2]) @ matrix for matrix in to_first]


def common(points: Tensor, homography: Matrix, image: Tensor) -> int:
    """How many of the points [N, 2] a homography takes into an image [3, H, W]."""
    warped = warp(points, homography)
    return int(((warped >= 0) & (warped < torch.tensor([image.shape[2], image.shape[1]]))).all(1).sum())


def blend(images: list[Tensor], homographies: list[Matrix]) -> tuple[Tensor, Tensor]:
    """Warp images [3, H, W] into one and return it, with a mask [height, width] of what they cover."""
    sizes = [image.shape[-2:] for image in images]
    corners = torch.cat([
        warp(torch.tensor([[0.0, 0], [w - 1, 0], [0, h - 1], [w - 1, h - 1]]), homography)
        for (h, w), homography in zip(sizes, homographies, strict=True)
    ])  # fmt: skip
    low, high = corners.amin(0).floor(), corners.amax(0).ceil()
    width, height = (high - low + 1).tolist()
    if not width * height < 20 * sum(h * w for h, w in sizes):  # infinite, where a corner lies behind the plane
        raise StitchingError("the photographs don't lie in one plane: the angle is too wide, or a match is wrong")
    shift = np.array([[1, 0, -low[0]], [0, 1, -low[1]], [0, 0, 1]])
    total = torch.zeros(4, int(height), int(width))
    for image, (h, w), homography in zip(images, sizes, homographies, strict=True):
        ramps = [torch.minimum(torch.arange(1, n + 1), torch.arange(n, 0, -1)) / n for n in (h, w)]
        weight = torch.minimum(ramps[0][:, None], ramps[1])  # falls to the edges, so seams are smooth
        matrix = torch.from_numpy(shift @ homography).float()
        weighted = torch.cat([image * weight, weight[None]])[None]
        total += kornia.geometry.warp_perspective(weighted, matrix[None], (int(height), int(width)))[0]
    covered = total[3] > 1e-6
    return torch.where(covered, total[:3] / total[3].clamp(min=1e-6), 0), covered


def inner_box(covered: Tensor) -> tuple[slice, slice]:
    """Return rows and columns of a rectangle inside a mask [H, W]: the emptiest edge is cut off until none is empty."""
    top, left, bottom, right = 0, 0, *covered.shape
    while top < bottom and left < right:
        box = covered[top:bottom, left:right]
        empty = torch.stack([1 - edge.float().mean() for edge in (box[0], box[-1], box[:, 0], box[:, -1])])
        if not empty.any():
            break
        edge = int(empty.argmax())
        top, bottom, left, right = top + (edge == 0), bottom - (edge == 1), left + (edge == 2), right - (edge == 3)
    return slice(top, bottom), slice(left, right)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="+", type=Path, help="in the order in which they overlap")
    parser.add_argument("-o", "--output", type=Path, default=Path("panorama.png"))
    parser.add_argument("--crop", action="store_true", help="cut the black borders off")
    parser.add_argument("--max-size", type=positive, default=1600, help="longest edge; larger photographs are reduced")
    parser.add_argument("--weights", default=DEFAULT_CHECKPOINT, help="checkpoint of DISK")
    arguments = parser.parse_args()
    if len(arguments.images) < 2:
        parser.error("at least two photographs are needed")
    try:
        images = [read_photograph(path, arguments.max_size) for path in arguments.images]
        device = "cuda" if torch.cuda.is_available() else "cpu"
        detector = DISKDetector.from_pretrained(arguments.weights, device, subpixel=True)
        panorama, covered = blend(images, homographies_to_middle(images, detector))
        if arguments.crop:
            rows, columns = inner_box(covered)
            panorama = panorama[:, rows, columns]
        save_picture(arguments.output, to_picture(panorama.permute(1, 2, 0).numpy()))
    except (StitchingError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"{arguments.output}: {panorama.shape[2]} x {panorama.shape[1]} pixels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
