"""``disk-ops show``: a picture of the keypoints of one image, or of the matches of two; with a model, of the truth."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
import torch

from disk_ops import MutualNearestNeighbor
from disk_ops.drawing import (
    Colors,
    Picture,
    Points,
    draw_keypoints,
    draw_matches,
    error_colors,
    landmark_colors,
    save_picture,
    to_picture,
)
from disk_ops.evaluation.robust import estimate_fundamental
from disk_ops.io import images as image_io
from disk_ops.io.hdf5 import Features, image_names, open_h5, read_features, read_matches
from disk_ops.io.images import ImageError
from disk_ops.io.inputs import ImageFile, utf8_name
from disk_ops.io.output import check_writable
from disk_ops.multiscale import at_scales
from disk_ops.programs.common import (
    DETECTION,
    OK,
    UserError,
    counted,
    load_detector,
    note,
    number_of_keypoints,
    pick_device,
    quiet_opencv,
    refuse_ignored,
)
from disk_ops.programs.extract import Extractor, prepare
from disk_ops.sfm.landmarks import Model, ModelImage, match_errors

WRONG = 5.0
"""Pixels above which a match is wrong by the model."""


@dataclass(frozen=True)
class View:
    """An image with its features."""

    name: str  # as in the feature file, or the path of the image
    picture: Picture
    features: Features


def epipolar_inliers(
    points0: npt.NDArray[np.float32],  # [K, 2]
    points1: npt.NDArray[np.float32],  # [K, 2]
    threshold: float = 1.0,
) -> npt.NDArray[np.bool_]:
    """Which matches agree with one fundamental matrix (MAGSAC++) up to ``threshold`` pixels: bool [K]."""
    found = estimate_fundamental(points0, points1, threshold=threshold, iterations=20_000)
    return np.zeros(len(points0), dtype=np.bool_) if found is None else found.inliers


def match(features0: Features, features1: Features, ratio: float | None) -> npt.NDArray[np.int64]:
    """Mutual nearest neighbours of two images: indices [K, 2]."""
    descriptors = (torch.from_numpy(features.descriptors) for features in (features0, features1))
    with torch.inference_mode():
        return np.asarray(MutualNearestNeighbor(ratio)(*descriptors)[1].numpy())


def detect(extractor: Extractor, path: Path, max_size: int | None) -> Features:
    """The features of an image file."""
    arrays = extractor([prepare(ImageFile(path, "image"), max_size, None)])[0]
    size = arrays["image_size"].tolist()
    return Features(arrays["keypoints"], arrays["descriptors"], arrays["scores"], (size[0], size[1]))


def run(arguments: argparse.Namespace) -> int:
    """Run the program; see ``disk-ops show --help``."""
    quiet_opencv()
    _check(arguments)
    pictures = [_read_picture(path) for path in arguments.images]
    posed = [] if arguments.model is None else _posed(arguments, pictures)
    if arguments.features is None:
        views = _detected(arguments, pictures)
    else:
        with open_h5(arguments.features) as file:
            views = [_stored(file, path, picture) for path, picture in zip(arguments.images, pictures, strict=True)]
    _check_known(posed, views)
    if len(views) == 1:
        picture, found = _draw_one(views[0], posed, arguments)
    else:
        picture, found = _draw_pair(views[0], views[1], posed, arguments)
    try:
        save_picture(arguments.output, picture)
    except OSError as error:
        raise UserError(f"{arguments.output}: {error}") from error
    print(f"{arguments.output}: {found}")
    return OK


def _check(arguments: argparse.Namespace) -> None:
    if len(arguments.images) > 2:
        raise UserError(f"one image (keypoints) or two images (matches) can be shown, got {len(arguments.images)}")
    if len(arguments.images) == 1:
        refuse_ignored(arguments, ("verify", "ratio", "max_lines"), "with one image: it is for the matches of two")
    if arguments.matches is not None and (arguments.features is None or len(arguments.images) != 2):
        raise UserError("--matches needs two images, and --features with the keypoints that were matched")
    if arguments.features is not None:
        refuse_ignored(arguments, DETECTION, "with --features, which holds the keypoints as they are shown")
    if arguments.matches is not None:
        refuse_ignored(arguments, ("ratio",), "with --matches, which are shown as they are")
    check_writable(arguments.output)
    inputs = [*arguments.images, *filter(None, [arguments.features, arguments.matches])]
    for path in inputs:
        if arguments.output.exists() and path.exists() and arguments.output.samefile(path):
            raise UserError(f"{arguments.output} is an input and the output as well")


def _read_picture(path: Path) -> Picture:
    try:
        return to_picture(image_io.read_image(path))
    except ImageError as error:
        raise UserError(f"{path}: {error}") from error


def _detected(arguments: argparse.Namespace, pictures: list[Picture]) -> list[View]:
    device = pick_device(arguments.device)
    detector, _ = load_detector(arguments.weights, device, subpixel=arguments.subpixel)
    n = number_of_keypoints(arguments)
    scaled = at_scales(detector, arguments.scales)
    extractor = Extractor(scaled, device, torch.float32, n, arguments.window_size, arguments.score_threshold)
    return [
        View(str(path), picture, detect(extractor, path, arguments.max_size))
        for path, picture in zip(arguments.images, pictures, strict=True)
    ]


def _posed(arguments: argparse.Namespace, pictures: list[Picture]) -> list[ModelImage]:
    """The images in the model."""
    model = Model(arguments.model)
    posed = []
    for path, picture in zip(arguments.images, pictures, strict=True):
        image = model.image(find_name(model.names, path, str(model.folder), "camera"))
        size = image_io.size_of(picture)
        if image.size != size:
            raise UserError(
                f"{path} has {size[0]}x{size[1]} pixels, but in {model.folder} {image.name} has "
                f"{image.size[0]}x{image.size[1]}"
            )
        posed.append(image)
    return posed


def _check_known(posed: list[ModelImage], views: list[View]) -> None:
    """Say where the model was made of other keypoints, which is why few have become landmarks."""
    for image, view in zip(posed, views, strict=False):
        count = len(view.features.keypoints)
        known = int(image.known(view.features.keypoints).sum())
        if known < count:
            note(f"{view.name}: the model was made of other features: it has {known:,} of {counted(count, 'keypoint')}")


def _stored(file: h5py.File, path: Path, picture: Picture) -> View:
    name = find_name(image_names(file), path, str(file.filename))
    features = read_features(file, name)
    size = image_io.size_of(picture)
    if features.image_size is not None and tuple(features.image_size) != size:
        width, height = features.image_size
        raise UserError(
            f"{path} has {size[0]}x{size[1]} pixels, but the features of {name} in {file.filename} are of an image of "
            f"{width}x{height}"
        )
    return View(name, picture, features)


def find_name(names: list[str], path: Path, where: str, what: str = "features") -> str:
    """The name in a feature file or model that means this image: the longest that the path ends with."""
    parts = tuple(map(utf8_name, path.absolute().parts))
    fitting = [name for name in names if tuple(name.split("/")) == parts[-len(name.split("/")) :]]
    if fitting:
        return max(fitting, key=len)
    similar = [name for name in names if name.split("/")[-1] == parts[-1]]
    if len(similar) == 1:
        return similar[0]
    if similar:
        raise UserError(f"{path}: {where} has several images of that name: {', '.join(similar)}")
    some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    raise UserError(f"{path}: no {what} of this image in {where}, which has {some or 'none at all'}")


def _draw_one(view: View, posed: list[ModelImage], arguments: argparse.Namespace) -> tuple[Picture, str]:
    features = view.features
    found = f"{counted(len(features.scores), 'keypoint')} of {view.name}"
    colors: Colors | None = None
    if posed:
        is_landmark = np.isfinite(posed[0].landmarks(features.keypoints)[:, 0])
        colors = landmark_colors(is_landmark)
        found += f", {int(is_landmark.sum()):,} of which became landmarks (blue)"
    return draw_keypoints(view.picture, features.keypoints, features.scores, arguments.max_width, colors), found


def _draw_pair(view0: View, view1: View, posed: list[ModelImage], arguments: argparse.Namespace) -> tuple[Picture, str]:
    if arguments.matches is not None:
        with open_h5(arguments.matches) as file:
            pairs = read_matches(file, view0.name, view1.name)[0]
        counts = (len(view0.features.keypoints), len(view1.features.keypoints))
        if len(pairs) and (pairs.max(axis=0) >= counts).any():
            raise UserError(f"{arguments.matches} was not made from {arguments.features}: it has more keypoints")
    else:
        pairs = match(view0.features, view1.features, arguments.ratio)
    points0 = view0.features.keypoints[pairs[:, 0]]
    points1 = view1.features.keypoints[pairs[:, 1]]
    found = f"{counted(len(pairs), 'match')} of {view0.name} and {view1.name}"
    if arguments.verify:
        inliers = epipolar_inliers(points0, points1)
        points0, points1 = points0[inliers], points1[inliers]
        found += f", {len(points0):,} of which agree with one fundamental matrix and are shown"
    colors: Colors | None = None
    if posed:
        points0, points1, colors, counts_by_truth = _by_truth(posed, points0, points1)
        found += f": {counts_by_truth}"
    picture = draw_matches(
        view0.picture, view1.picture, points0, points1, arguments.max_width, arguments.max_lines, colors
    )
    return picture, found


def _by_truth(
    posed: list[ModelImage],
    points0: Points,  # [K, 2]
    points1: Points,  # [K, 2]
) -> tuple[Points, Points, Colors, str]:
    """The matches with the best by the model last, so that they lie on top, their colours, and how many are right."""
    errors = match_errors(posed[0], posed[1], points0, points1)
    unknown, wrong = int(np.isnan(errors).sum()), int((errors > WRONG).sum())
    told = f"{len(errors) - unknown - wrong:,} within {WRONG:g} pixels (green to yellow), {wrong:,} wrong (red), "
    order = np.argsort(-np.nan_to_num(errors, nan=np.inf), kind="stable")
    return points0[order], points1[order], error_colors(errors[order], WRONG), f"{told}{unknown:,} unknown (blue)"
