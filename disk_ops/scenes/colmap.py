"""COLMAP reconstructions: the images that can be used, with their cameras and what each sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from disk_ops.scenes.colmap_files import read_model, scene_root
from disk_ops.scenes.depth_maps import find_depth, list_files
from disk_ops.scenes.undistortion import Lens, lens_of


class Model(NamedTuple):
    """What is used of a reconstruction."""

    names: tuple[str, ...]  # of the images
    images: Path  # the folder
    depth: Path | None  # the folder
    maps: tuple[str, ...]  # of each image, in the folder of depth
    lenses: tuple[Lens, ...]
    lens: np.ndarray  # [N] which one each image has
    R: np.ndarray  # [N, 3, 3]
    t: np.ndarray  # [N, 3]
    seen: tuple[np.ndarray, ...]  # for each image [P] int64: the 3D points that it sees
    typical_depth: np.ndarray  # [N] median of the points that it sees


def read_scene(
    folder: Path,
    images: str = "images",
    depth: str = "",
    undistort: bool = True,
    excludes: Callable[[str], bool] = lambda name: False,
) -> tuple[Model, str]:
    """Read the images of a reconstruction that can be used, and a note on the others.

    Args:
        folder: of the model, see :func:`disk_ops.scenes.colmap_files.find_model`.
        images: folder of the images, absolute or in that of the scene.
        depth: folder of depth maps likewise; images without one aren't used. ``""``: none.
        undistort: images of cameras that aren't pinholes are to be undistorted; false: their distortion is ignored.
        excludes: names of images that aren't used.

    Raises:
        DataError: the model can't be read.
    """
    reconstruction = read_model(folder)
    image_folder = scene_root(folder) / images
    depth_folder = scene_root(folder) / depth if depth else None
    files, maps = list_files(image_folder), list_files(depth_folder) if depth_folder else frozenset()
    lenses = {id: lens_of(camera, undistort) for id, camera in sorted(reconstruction.cameras.items())}
    usable, left_out = [], dict[str, int]()
    for image in sorted(reconstruction.images.values(), key=lambda image: str(image.name)):
        why = None
        if not image.has_pose or excludes(image.name):
            continue
        if image.name not in files:
            why = f"not found in {image_folder}"
        elif depth_folder and find_depth(maps, image.name) is None:
            why = f"without depth map in {depth_folder}"
        elif lenses[image.camera_id] is None:
            why = f"of a camera that can't be used ({reconstruction.cameras[image.camera_id].model.name})"
        if why:
            left_out[why] = left_out.get(why, 0) + 1
        else:
            usable.append(image)
    note = ", ".join(f"{count} images {why}" for why, count in left_out.items())
    names = tuple(image.name for image in usable)
    seen, R, t, typical = _geometry(reconstruction, usable)
    used = sorted({image.camera_id for image in usable})
    model = Model(
        names=names,
        images=image_folder,
        depth=depth_folder,
        maps=tuple(str(find_depth(maps, name)) for name in names) if depth_folder else (),
        lenses=tuple(lens for id in used if (lens := lenses[id]) is not None),
        lens=np.array([used.index(image.camera_id) for image in usable], np.int64),
        R=R,
        t=t,
        seen=tuple(seen),
        typical_depth=typical,
    )
    return model, note


def _geometry(reconstruction: Any, images: list[Any]) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    """For each image the points that it sees, R, t, and the median depth of the points."""
    points = reconstruction.points3D
    ids = np.fromiter(points.keys(), np.int64, len(points))
    order = np.argsort(ids)
    xyz = np.array([point.xyz for point in points.values()], np.float64).reshape(-1, 3)[order]
    ids = ids[order]
    seen, R, t = [], np.zeros((len(images), 3, 3)), np.zeros((len(images), 3))
    typical = np.full(len(images), np.nan)
    for index, image in enumerate(images):
        pose = image.cam_from_world() if callable(image.cam_from_world) else image.cam_from_world
        R[index], t[index] = pose.rotation.matrix(), pose.translation
        seen.append(np.array([point.point3D_id for point in image.get_observation_points2D()], np.int64))
        depth = xyz[np.searchsorted(ids, seen[-1])] @ R[index, 2] + t[index, 2]
        if (depth > 0).any():
            typical[index] = np.median(depth[depth > 0])
    return seen, R, t, typical
