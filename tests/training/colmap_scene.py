"""COLMAP reconstructions of the plane, with images that are exact under their camera model."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import posed_scene

SIZE = (320, 240)
MODELS = {
    "PINHOLE": [340, 350, 158.6, 121.7],
    "SIMPLE_PINHOLE": [340, 158.6, 121.7],
    "SIMPLE_RADIAL": [340, 158.6, 121.7, -0.12],
    "OPENCV": [340, 350, 158.6, 121.7, -0.2, 0.05, 0.003, -0.002],
    "OPENCV_FISHEYE": [250, 255, 158.6, 121.7, 0.02, -0.01, 0.002, 0.001],
    "FISHEYE": [250, 255, 158.6, 121.7],  # without coefficients, and yet no pinhole
    "FULL_OPENCV": [340, 350, 158.6, 121.7, 0.1, 0.02, 0.001, 0.002, 0.01, 0.02, 0.01, 0.005],
}


def make_scene(
    folder: Path,
    model: str = "PINHOLE",
    count: int = 4,
    sparse: str = "sparse",
    text: bool = False,
    size: tuple[int, int] = SIZE,
    names: str = "{}.png",
    shared_camera: bool = True,
) -> np.ndarray:
    """Write a reconstruction and images that are exact under its camera model; returns depth [count, h, w]."""
    import pycolmap  # not everywhere

    reconstruction = pycolmap.Reconstruction()
    points = posed_scene.points_on_plane()
    factor = np.array([size[0] / SIZE[0]] * 20)
    focals_and_centre = {"SIMPLE_PINHOLE": 3, "SIMPLE_RADIAL": 3}.get(model, 4)
    params = [p * factor[i] if i < focals_and_centre else p for i, p in enumerate(MODELS[model])]
    seen: dict[int, list[tuple[int, int]]] = {}
    depths = []
    for index in range(count):
        camera = pycolmap.Camera(model=model, width=size[0], height=size[1], params=params, camera_id=index + 1)
        if index == 0 or not shared_camera:
            reconstruction.add_camera_with_trivial_rig(camera)
        camera_id = 1 if shared_camera else index + 1
        R, t = posed_scene.pose(index)
        x, y = np.meshgrid(np.arange(size[0]) + 0.5, np.arange(size[1]) + 0.5)
        rays = np.ones((size[1], size[0], 3))
        rays[:, :, :2] = camera.cam_from_img(np.stack([x, y], -1).reshape(-1, 2)).reshape(size[1], size[0], 2)
        grey, depth = posed_scene.render(rays, R, t)
        depths.append(depth)
        name = names.format(index)
        (folder / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / "images" / name), grey)
        pixels = camera.img_from_cam(points @ R.T + t)
        visible = np.flatnonzero(((pixels > 0) & (pixels < size)).all(1))
        for position, point in enumerate(visible):
            seen.setdefault(int(point), []).append((index + 1, position))
        image = pycolmap.Image(name=name, keypoints=pixels[visible], camera_id=camera_id, image_id=index + 1)
        reconstruction.add_image_with_trivial_frame(image, pycolmap.Rigid3d(pycolmap.Rotation3d(R), t))
    for point, elements in seen.items():
        track = pycolmap.Track([pycolmap.TrackElement(*element) for element in elements])
        reconstruction.add_point3D(points[point], track)
    (folder / sparse).mkdir(parents=True, exist_ok=True)
    (reconstruction.write_text if text else reconstruction.write_binary)(str(folder / sparse))
    return np.array(depths)
