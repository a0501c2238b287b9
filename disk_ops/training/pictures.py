"""Pictures of a training: where the network sees keypoints, and which of its matches are right.

Pictures are RGB uint8 arrays [H, W, 3].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import combinations

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from disk_ops import drawing
from disk_ops.detector import DISKDetector
from disk_ops.drawing import Picture, Points
from disk_ops.features import DISKFeatures
from disk_ops.matching import MutualNearestNeighbor
from disk_ops.ops import MatchGeometry
from disk_ops.reference_reward import RewardRule, rewards_of_pairs
from disk_ops.training.data.sample import Sample

RIGHT, WRONG, UNKNOWN = (40, 175, 70), (225, 45, 45), (50, 100, 235)  # green, red, blue, as in the paper
_DOUBT, _SURE = np.array([200.0, 40, 90]), np.array([255.0, 215, 70])  # colours of a score's probability
_GAP = 12  # pixels between two images
_STRIP = 24  # pixels of the text below
_SMALLEST, _LARGEST = 400, 800  # images with matches are shown twice as large below, and reduced to this above

PairGeometry = Callable[[int, int, Sequence[DISKFeatures]], MatchGeometry]


def match_rewards(
    geometry: MatchGeometry,
    idxs: Tensor,  # [K, 2] int64 rows of keypoints1 and keypoints2
) -> Tensor:
    """Rewards of given matches ``[K]``, by the definition that :func:`disk_ops.ops.expected_reward` has.

    Example:
        >>> points = torch.tensor([[3.0, 4.0], [9.0, 9.0]])
        >>> geometry = MatchGeometry(points, points, warped1=points, warped2=points)
        >>> match_rewards(geometry, torch.tensor([[0, 0], [0, 1]]))
        tensor([ 1.0000, -0.2500])
    """
    first, second = idxs.unbind(1)

    def rows(points: Tensor | None, chosen: Tensor) -> Tensor | None:
        return None if points is None else points[chosen][:, None]  # [K, 1, 2]: each match is a pair of images with one

    rule = RewardRule(
        None,
        rows(geometry.keypoints1, first),
        rows(geometry.keypoints2, second),
        rows(geometry.warped1, first),
        rows(geometry.warped2, second),
        None if geometry.fundamental is None else geometry.fundamental[None],
        geometry.epsilon,
        geometry.lambda_tp,
        geometry.lambda_fp,
        geometry.rule == "official",
    )
    precision = torch.promote_types(geometry.keypoints1.dtype, torch.float32)
    return rewards_of_pairs(rule, torch.zeros(len(idxs), 1, 1, dtype=precision, device=idxs.device)).flatten()


def heatmap_picture(
    image: Tensor,  # [3, H, W] uint8 RGB
    heatmap: Tensor,  # [1, H, W] logits
) -> Picture:
    """The image, and beside it the probability at which each pixel, once proposed, is accepted as a keypoint.

    Probability goes from the dark image at 0 over crimson to gold at 1.
    """
    picture = _rgb(image)
    probability = heatmap[0].detach().float().sigmoid().nan_to_num(0).cpu().numpy()[:, :, None]
    grey = picture @ np.array([0.299, 0.587, 0.114])
    ground = 0.35 * np.repeat(grey[:, :, None], 3, axis=2)
    mixed = ground + (_DOUBT + (_SURE - _DOUBT) * probability - ground) * np.sqrt(probability)
    gap = np.full((len(picture), _GAP, 3), 255, dtype=np.uint8)
    return np.concatenate([picture, gap, np.rint(mixed).astype(np.uint8)], axis=1)


def matches_picture(
    sample: Sample,
    pair: tuple[int, int],
    features1: DISKFeatures,
    features2: DISKFeatures,
    idxs: Tensor,  # [K, 2] int64 rows of the features of both
    rewards: Tensor,  # [K]
    title: str = "",
    max_lines: int = 100,
) -> Picture:
    """Two images of a sample with their matches: right ones green, wrong ones red, and blue where that isn't known.

    Args:
        sample: whose images are shown.
        pair: which two of them.
        features1: features of the first.
        features2: features of the second.
        idxs: matches.
        rewards: positive for right matches, negative for wrong ones, 0 where that isn't known.
        title: stands below the picture before the numbers of matches.
        max_lines: of more matches, as many are joined by lines, spread over the first image; all are drawn as points.
    """
    if len(idxs) != len(rewards):
        raise ValueError(f"rewards must be of the {len(idxs)} matches, got {len(rewards)}")
    kinds = torch.sign(rewards).cpu().numpy().astype(int)
    points = [
        features.keypoints.detach().float().cpu().numpy()[idxs[:, side].cpu().numpy()]
        for side, features in enumerate((features1, features2))
    ]
    left, right = (_rgb(sample.images[image]) for image in pair)
    picture = _draw(left, right, points[0], points[1], kinds, max_lines)
    counts = [(RIGHT, 1, "right"), (WRONG, -1, "wrong"), (UNKNOWN, 0, "unknown")]
    numbers = [(color, int((kinds == kind).sum()), name) for color, kind, name in counts]
    text = [(f"{number} {name}", color) for color, number, name in numbers if number or name != "unknown"]
    return _with_text(picture, [(title, (60, 60, 60)), *text] if title else text)


@torch.no_grad()
def training_pictures(
    detector: DISKDetector,
    sample: Sample,
    reward: PairGeometry,
    step: int,
    n: int = 512,
) -> dict[str, Picture]:
    """What the network makes of a sample: the heatmap of its first image, and the matches of each pair of images.

    Nothing is drawn at random, and nothing of the network changes.

    Args:
        detector: the network.
        sample: images and their geometry.
        reward: called as ``reward(i, j, features)`` for a pair of images and the features of all.
        step: stands below the pictures.
        n: features of an image, the best ones; matched to mutual nearest neighbours.

    Returns:
        Pictures by name: ``heatmap``, ``matches/0-1``, ...
    """
    weight = next(detector.parameters())
    features: list[DISKFeatures] = []
    pictures: dict[str, Picture] = {}
    for image, mask in zip(sample.images, sample.mask, strict=True):  # one by one: no more memory than a step takes
        pixels = image[None].to(weight.device, weight.dtype) / 255
        if not features:
            pictures["heatmap"] = heatmap_picture(image, detector.heatmap_and_dense_descriptors(pixels)[0][0])
        features += detector(pixels, n=n, mask=mask[None].to(weight.device))
    for i, j in combinations(range(len(features)), 2):
        idxs = MutualNearestNeighbor()(features[i].descriptors, features[j].descriptors)[1]
        # Penalties that rise from 0 don't tell wrong from unknown at first.
        geometry = dataclasses.replace(reward(i, j, features), lambda_tp=1.0, lambda_fp=-1.0)
        rewards = match_rewards(geometry, idxs)
        title = f"step {step:,}: "
        pictures[f"matches/{i}-{j}"] = matches_picture(sample, (i, j), features[i], features[j], idxs, rewards, title)
    return pictures


def _rgb(
    image: Tensor,  # [3, H, W] uint8
) -> Picture:
    return np.ascontiguousarray(image.permute(1, 2, 0).cpu().numpy(), dtype=np.uint8)


def _draw(
    left: Picture,
    right: Picture,
    points0: Points,
    points1: Points,
    kinds: npt.NDArray[np.int64],  # [K] 1 right, -1 wrong, 0 unknown
    max_lines: int,
) -> Picture:
    """The images side by side with their matches, the right ones on top."""
    longest = max(left.shape[:2])
    factor = min(1.0, _LARGEST / longest) if longest > _SMALLEST else 2.0  # points need some room
    left, right = (drawing.paler(drawing.resize_picture(image, factor)) for image in (left, right))
    offset = np.array([left.shape[1] + _GAP, 0], dtype=np.float32)
    on0, on1 = drawing.scale_points(points0, factor), drawing.scale_points(points1, factor) + offset
    canvas = np.concatenate([left, np.full((len(left), _GAP, 3), 255, dtype=np.uint8), right], axis=1)
    large = drawing.enlarge(canvas)
    colors = np.array([UNKNOWN, RIGHT, WRONG], dtype=np.uint8)[kinds]
    height = np.array([0, 2, 1])[kinds]
    lines = drawing.choose_spread(on0, max_lines)
    drawing.draw_lines(large, on0, on1, colors, lines[np.argsort(height[lines], kind="stable")])
    order = np.argsort(height, kind="stable")
    for points in (on0, on1):
        drawing.draw_points(large, points[order], colors[order], 2.0)
    return drawing.reduce_to(large, canvas)


def _with_text(picture: Picture, parts: Sequence[tuple[str, tuple[int, int, int]]]) -> Picture:
    """The picture with a line of text of several colours below it."""
    strip: npt.NDArray[np.uint8] = np.full((_STRIP, picture.shape[1], 3), 255, dtype=np.uint8)
    x, font, scale = 6, cv2.FONT_HERSHEY_SIMPLEX, 0.5
    for text, color in parts:
        cv2.putText(strip, text, (x, _STRIP - 8), font, scale, color, 1, cv2.LINE_AA)
        x += cv2.getTextSize(text, font, scale, 1)[0][0] + 14
    return np.concatenate([picture, strip])
