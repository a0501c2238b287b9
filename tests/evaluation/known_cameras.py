"""A scene of known points and cameras, written in the forms in which posed pairs come."""

from __future__ import annotations

import json
import math
from pathlib import Path

import cv2
import numpy as np
from oracle import write_numbered
from posing import rotation

from disk_ops.evaluation.features import Matcher
from disk_ops.evaluation.pose_protocol import PoseProtocol

SIZE = (640, 480)
K = np.array([[500.0, 0, 322.5], [0, 510, 235.25], [0, 0, 1]])
RNG = np.random.default_rng(3)
POINTS = np.column_stack([RNG.uniform(-3, 3, 300), RNG.uniform(-2, 2, 300), RNG.uniform(6, 14, 300)])


def camera(index: int) -> tuple[np.ndarray, np.ndarray]:
    """R and t of a camera, 10 degrees from the next."""
    R = rotation([0, 1, 0], 10.0 * index)
    return R, np.array([-0.8 * index, 0.1 * index, 0.2 * index])


def project(index: int, size: tuple[int, int], turns: int = 0) -> np.ndarray:
    """The points [N, 2] in the image of a camera in any size, turned by quarters."""
    R, t = camera(index)
    pixels = (POINTS @ R.T + t) @ K.T
    pixels = pixels[:, :2] / pixels[:, 2:]
    upright = size if turns % 2 == 0 else size[::-1]
    pixels = (pixels + 0.5) * (upright[0] / SIZE[0], upright[1] / SIZE[1]) - 0.5
    for _ in range(turns):  # as numpy.rot90: the last column becomes the first row
        pixels = np.column_stack([pixels[:, 1], upright[0] - 1 - pixels[:, 0]])
        upright = upright[::-1]
    return pixels


def write_images(folder: Path, count: int, names: str = "{}.png") -> None:
    for index in range(count):
        write_numbered(folder / names.format(index), index, SIZE)


def write_cameras(folder: Path, count: int = 3, size: tuple[int, int] = SIZE, **more) -> None:
    """A folder with cameras.json and images/."""
    write_images(folder / "images", count)
    cameras = {}
    for index in range(count):
        R, t = camera(index)
        cameras[f"{index}.png"] = {"R": R.tolist(), "t": t.tolist(), "K": K.tolist()}
        cameras[f"{index}.png"] |= {"width": size[0], "height": size[1]}
    (folder / "cameras.json").write_text(json.dumps({"cameras": cameras, **more}))


def list_line(first: str, second: str, indices=(0, 1), turns=(0, 0)) -> str:
    (R1, t1), (R2, t2) = camera(indices[0]), camera(indices[1])
    T = np.eye(4)
    T[:3, :3] = R2 @ R1.T
    T[:3, 3] = t2 - T[:3, :3] @ t1
    numbers = " ".join(repr(float(value)) for value in (*K.ravel(), *K.ravel(), *T.ravel()))
    return f"{first} {second} {turns[0]} {turns[1]} {numbers}"


def evaluate(protocol: PoseProtocol, method, n: int = 1000) -> list[dict]:
    common = {"method": method.name, "n": n, "ratio": None}
    return [
        {**common, "item": item.name, **record}
        for item in protocol.items()
        for record in protocol.evaluate(item, method, n, Matcher())
    ]


def write_colmap(folder: Path, model: str, params: list[float]) -> None:
    """Three images with dots at 3D points; image i sees the points from 50 i to 50 i + 149."""
    import pycolmap

    reconstruction = pycolmap.Reconstruction()
    lens = pycolmap.Camera(model=model, width=SIZE[0], height=SIZE[1], params=params, camera_id=1)
    reconstruction.add_camera_with_trivial_rig(lens)
    tracks: dict[int, list[tuple[int, int]]] = {}
    (folder / "images").mkdir()
    for index in range(3):
        R, t = camera(index)
        pixels = np.asarray(lens.img_from_cam(POINTS @ R.T + t))
        picture = np.full(SIZE[::-1], 40, np.uint8)
        for x, y in pixels[:5] - 0.5 if math.isfinite(pixels.sum()) else ():
            cv2.circle(picture, (round(x * 16), round(y * 16)), 48, 255, cv2.FILLED, cv2.LINE_AA, 4)
        cv2.imwrite(str(folder / "images" / f"{index}.png"), picture)
        seen = range(50 * index, 50 * index + 150)
        for position, point in enumerate(seen):
            tracks.setdefault(point, []).append((index + 1, position))
        image = pycolmap.Image(name=f"{index}.png", keypoints=pixels[list(seen)], camera_id=1, image_id=index + 1)
        reconstruction.add_image_with_trivial_frame(image, pycolmap.Rigid3d(pycolmap.Rotation3d(R), t))
    for point, elements in tracks.items():
        reconstruction.add_point3D(POINTS[point], pycolmap.Track([pycolmap.TrackElement(*each) for each in elements]))
    (folder / "sparse").mkdir()
    reconstruction.write_binary(str(folder / "sparse"))


def dots_of(image) -> np.ndarray:
    """Centres [N, 2] of bright dots."""
    grey = image.mean(0).numpy()
    _, labels = cv2.connectedComponents((grey > 0.4).astype(np.uint8))
    weights = np.clip(grey - 0.2, 0, None)
    centres = []
    for label in range(1, labels.max() + 1):
        y, x = np.nonzero(labels == label)
        centres.append([np.average(x, weights=weights[y, x]), np.average(y, weights=weights[y, x])])
    return np.array(centres).reshape(-1, 2)
