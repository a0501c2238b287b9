"""Follow something flat (a poster, a facade, a page) through a video or a folder of frames.

    python tracking.py video.mp4 --box 120,80,300,200 -o tracked.mp4    # x, y, width, height in the first frame
    python tracking.py frames/ --target poster.jpg -o tracked.mp4       # a picture of it

Writes a video with its outline, and beside it tracked.csv: the homography from pixels of the target (the box or the
picture) to those of each frame, empty where it isn't found. ``kornia.tracking.HomographyTracker`` shows each frame to
the detector as the target was seen last, so it may turn and come nearer, as long as it does so frame by frame.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import kornia.feature as KF
import numpy as np
import numpy.typing as npt
import torch
from kornia.geometry import RANSAC
from kornia.tracking import HomographyTracker
from tqdm import tqdm

from disk_ops import DISKDetector, DISKLocalFeature, MutualNearestNeighbor
from disk_ops.arguments.values import positive
from disk_ops.checkpoint import DEFAULT_CHECKPOINT
from disk_ops.evaluation.homography import warp
from disk_ops.io.images import Size, limited_size, size_of, to_rgb_float
from disk_ops.io.inputs import InputError, list_images
from disk_ops.io.output import OutputError, check_writable, whole_file
from disk_ops.scenes.cameras import scaling

Picture = npt.NDArray[np.uint8]  # [H, W, 3] BGR
Matrix = npt.NDArray[np.float64]  # [3, 3]
MIN_INLIERS, MIN_SHARE = 20, 0.2  # matches that agree with the homography: their number, and their share of all


class TrackingError(Exception):
    """What can't be used, and why."""


class PlaneTracker:
    """Finds a flat target in frames that follow one another.

    Args:
        detector: of keypoints.
        target: a picture of it.
        edge: longest edge of the target as the detector sees it; best about that in the (reduced) frames.
        max_size: longest edge of frames; larger ones are reduced for the detector.
    """

    def __init__(self, detector: DISKDetector, target: Picture, edge: int, max_size: int) -> None:
        matcher = KF.LocalFeatureMatcher(DISKLocalFeature(detector), MutualNearestNeighbor(ratio=0.95))
        self.tracker = HomographyTracker(matcher, matcher, RANSAC("homography", inl_th=2.0), MIN_INLIERS)
        self.device, self.max_size = next(detector.parameters()).device, max_size
        self.size = size_of(target)
        self.to_reduced = scaling(self.size, limited_size(self.size, edge))
        self.last: Matrix | None = None
        self.tracker.set_target(self._image(target, limited_size(self.size, edge)))
        keypoints = int((self.tracker.target_initial_representation["responses"] != 0).sum())  # the rest is padding
        if keypoints < MIN_INLIERS:
            raise TrackingError(f"the target has {keypoints} keypoints, {MIN_INLIERS} are needed: take a larger part")

    @torch.inference_mode()
    def __call__(self, frame: Picture) -> Matrix | None:
        """Return the homography from pixels of the target to those of the frame, None where it isn't found."""
        # as it was seen last, else anywhere; before it was found for the first time, in several sizes
        tries = [(None, 1.0), (None, 0.6), (None, 1.6)] if self.last is None else [(self.last, 1.0), (None, 1.0)]
        for before, scale in tries:
            width, height = limited_size(size_of(frame), self.max_size)
            size = max(1, round(scale * width)), max(1, round(scale * height))
            image, to_image = self._image(frame, size), scaling(size_of(frame), size)
            prior = None if before is None else to_image @ before @ np.linalg.inv(self.to_reduced)
            self.tracker.previous_homography = None if prior is None else torch.from_numpy(prior).to(image)
            found, is_found = self.tracker(image)
            if is_found and self.tracker.inliers_num >= MIN_SHARE * self.tracker.keypoints0_num:
                matrix = np.linalg.inv(to_image) @ found.double().cpu().numpy() @ self.to_reduced
                corners = outline(self.size, matrix)
                if np.isfinite(corners).all() and cv2.isContourConvex(corners):
                    self.last = np.asarray(matrix / matrix[2, 2])
                    return self.last
        return None

    def _image(self, pixels: Picture, size: Size) -> torch.Tensor:
        smaller = size[0] < pixels.shape[1]
        resized = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA if smaller else cv2.INTER_CUBIC)
        return torch.from_numpy(to_rgb_float(resized[:, :, ::-1]))[None].to(self.device)


def outline(size: Size, matrix: Matrix) -> npt.NDArray[np.float32]:
    """Where a homography takes the corners of a picture of a size, [4, 2]."""
    right, bottom = size[0] - 1, size[1] - 1
    return warp(torch.tensor([[0, 0], [right, 0], [right, bottom], [0, bottom]]), matrix).float().numpy()


def read_picture(path: Path) -> Picture:
    data = np.frombuffer(path.read_bytes(), np.uint8)
    pixels = cv2.imdecode(data, cv2.IMREAD_COLOR) if data.size else None
    if pixels is None:
        raise TrackingError(f"{path} is no image that can be decoded")
    return np.asarray(pixels, np.uint8)


def read_frames(source: Path) -> Iterator[tuple[str, Picture]]:
    """Names and pixels of the frames of a video or a folder, in their order."""
    if source.is_dir():
        yield from ((file.name, read_picture(file.path)) for file in list_images([source]).images)
        return
    video, number = cv2.VideoCapture(str(source)), 0
    while (answer := video.read())[0]:
        yield f"{number}", np.asarray(answer[1], np.uint8)
        number += 1
    if not number:
        raise TrackingError(f"{source}: no such folder, or no video that can be decoded")


def cut_out(box: str, frame: Picture) -> Picture:
    """The part of a frame that X,Y,W,H says."""
    try:
        x, y, width, height = map(int, box.split(","))
    except ValueError:
        raise TrackingError(f"--box must be four integers X,Y,W,H, got {box!r}") from None
    if min(x, y) < 0 or min(width, height) < 1 or x + width > frame.shape[1] or y + height > frame.shape[0]:
        raise TrackingError(f"--box {box} doesn't lie in the first frame of {frame.shape[1]} x {frame.shape[0]} pixels")
    return frame[y : y + height, x : x + width].copy()


def draw(frame: Picture, size: Size, matrix: Matrix | None) -> Picture:
    drawn, width = frame.copy(), max(2, max(frame.shape) // 250)
    if matrix is None:
        cv2.putText(drawn, "lost", (3 * width, 15 * width), cv2.FONT_HERSHEY_SIMPLEX, width / 2, (60, 60, 230), width)
    else:
        cv2.polylines(drawn, [np.rint(outline(size, matrix)).astype(np.int32)], True, (90, 200, 60), width, cv2.LINE_AA)
    return drawn


def track(arguments: argparse.Namespace, rows: list[list[object]]) -> None:
    """Write the video, and a row for each frame; what is done until an error or Ctrl-C is kept."""
    check_writable(arguments.output)
    detector = DISKDetector.from_pretrained(arguments.weights, "cuda" if torch.cuda.is_available() else "cpu")
    rate = cv2.VideoCapture(str(arguments.source)).get(cv2.CAP_PROP_FPS) if arguments.source.is_file() else 25.0
    part = arguments.output.with_stem(f"{arguments.output.stem}.part")  # the ending says which kind of video
    tracker, video = None, None
    try:
        for name, frame in tqdm(read_frames(arguments.source), unit=" frames", delay=1):
            if tracker is None or video is None:
                target = cut_out(arguments.box, frame) if arguments.box else read_picture(arguments.target)
                size, seen = size_of(frame), max(limited_size(size_of(frame), arguments.max_size))
                edge = round(max(size_of(target)) * seen / max(size)) if arguments.box else seen // 2
                tracker = PlaneTracker(detector, target, max(1, edge), arguments.max_size)
                video = cv2.VideoWriter(str(part), cv2.VideoWriter.fourcc(*"mp4v"), rate or 25.0, size)
                if not video.isOpened():
                    raise TrackingError(f"{arguments.output} can't be written as a video; take a name such as out.mp4")
            matrix = tracker(frame)
            video.write(cv2.resize(draw(frame, tracker.size, matrix), size))
            rows.append([name, *([""] * 9 if matrix is None else matrix.ravel().tolist())])
    finally:
        if rows and video is not None:
            video.release()
            part.replace(arguments.output)
            text = io.StringIO(newline="")
            csv.writer(text).writerow(["frame", *(f"h{row}{column}" for row in "123" for column in "123")])
            csv.writer(text).writerows(rows)
            with whole_file(arguments.output.with_suffix(".csv")) as file:
                file.write(text.getvalue().encode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a video, or a folder of frames")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--box", metavar="X,Y,W,H", help="the target in the first frame, in pixels")
    target.add_argument("--target", type=Path, help="a picture of the target")
    parser.add_argument("-o", "--output", type=Path, default=Path("tracked.mp4"), help="default: %(default)s")
    parser.add_argument("--max-size", type=positive, default=1024, help="longest edge of what the detector sees")
    parser.add_argument("--weights", default=DEFAULT_CHECKPOINT, help="checkpoint of DISK")
    arguments = parser.parse_args()
    if arguments.output.resolve() == arguments.source.resolve():
        parser.error("the output would replace the source")
    status, rows = 0, list[list[object]]()
    try:
        track(arguments, rows)
    except (TrackingError, InputError, OutputError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        status = 130
    if rows:
        found = sum(row[1] != "" for row in rows)
        print(f"{arguments.output}: found in {found} of {len(rows)} frames")
    return status


if __name__ == "__main__":
    sys.exit(main())
