"""The reconstruction protocol: incremental structure from motion of whole scenes, as in the paper's ETH-COLMAP table.

Of each scene, all pairs of images are matched, the matches verified and the scene mapped by COLMAP:

- ``registered``: images with a pose in the model with most images, of ``images``; ``models``: how many there are;
- ``landmarks``, ``track_length``: 3D points and the mean number of images that see one;
- ``reprojection_error``: mean over landmarks, in pixels of the image files;
- ``matches`` and ``verified_pairs`` that it was made of.

Where true cameras are known, errors of the registered ones after alignment by a similarity: ``position_median``,
``position_max`` in the units of the truth, ``position_median_relative`` and ``position_max_relative`` as parts of
``extent``, the largest distance of two true cameras, ``rotation_median`` and ``rotation_max`` in degrees; and
``camera_positions``, the aligned ones. They are None (or empty) where there is no truth, or fewer than three cameras to
align. ``pictured`` is the image that reports show, with which of its keypoints became landmarks.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from disk_ops.evaluation.camera_errors import camera_errors
from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.features import Features, Matcher
from disk_ops.evaluation.methods import Method
from disk_ops.evaluation.protocol import (
    Cell,
    Item,
    Picture,
    Plot,
    Protocol,
    Record,
    Table,
    by_method,
    comparable,
    left_out,
    mean,
)
from disk_ops.evaluation.reconstruction_figures import landmark_pictures, pack_flags, reconstruction_plots
from disk_ops.evaluation.reconstruction_scenes import Scene, TrueCamera
from disk_ops.io.images import ImageError, Size, downscale, limited_size, read_image, size_of, to_original, to_rgb_float
from disk_ops.scenes.cameras import scaling
from disk_ops.sfm import (
    CameraOptions,
    ExifCameras,
    KnownCameras,
    MappingOptions,
    SfmError,
    SfmImage,
    Verification,
    build_database,
    map_incrementally,
    summarize_model,
)
from disk_ops.sfm.cameras import Cameras
from disk_ops.sfm.colmap import require_pycolmap
from disk_ops.sfm.database import MatchedPair

_SHOWN = (  # column, key, factor, which is better
    ("images", "images", 1.0, None),
    ("registered", "registered", 1.0, "max"),
    ("landmarks", "landmarks", 1.0, "max"),
    ("track length", "track_length", 1.0, "max"),
    ("reprojection error", "reprojection_error", 1.0, "min"),
    ("position %", "position_median_relative", 100.0, "min"),
    ("position max %", "position_max_relative", 100.0, "min"),
    ("rotation", "rotation_median", 1.0, "min"),
    ("rotation max", "rotation_max", 1.0, "min"),
)
_COLUMNS = ("method", "n", *(column for column, *_ in _SHOWN))
_BEST: dict[str, Any] = {column: better for column, _, _, better in _SHOWN if better}
_NOTE = (
    "All pairs matched; COLMAP's verification and incremental mapping. Reprojection error in pixels of the files. "
    "Position: median and maximum error of the cameras after alignment, in percent of the largest distance of two true "
    "cameras; rotation likewise, in degrees."
)


class ReconstructionProtocol(Protocol):
    """Reconstruct each scene from all pairs of its images.

    Args:
        scenes: of :func:`disk_ops.evaluation.reconstruction_scenes.find_scenes`; each is an item.
        max_size: features are made of images that are downscaled to this longest edge; None: never.
        known_intrinsics: where true cameras are known, use their intrinsics and keep them; images of such a scene
            whose camera isn't known are left out.
        max_error: of verification, in pixels of the image files.
        single_camera: where intrinsics aren't known or used, one camera took all images of a scene.
        seed: of verification and mapping.

    Raises:
        SfmError: pycolmap isn't installed.
    """

    name = "reconstruct"

    def __init__(
        self,
        scenes: Sequence[Scene],
        max_size: int | None = 1600,
        known_intrinsics: bool = True,
        max_error: float = 4.0,
        single_camera: bool = False,
        seed: int = 0,
    ) -> None:
        self.scenes = {scene.name: scene for scene in scenes}
        self.max_size, self.known_intrinsics, self.single_camera = max_size, known_intrinsics, single_camera
        self.verification = Verification(max_error, seed, threads=torch.get_num_threads())
        self.settings = {
            "max_size": max_size,
            "known_intrinsics": known_intrinsics,
            "max_error": max_error,
            "single_camera": single_camera,
            "seed": seed,
            "pycolmap": str(require_pycolmap().__version__),
        }

    def items(self) -> list[Item]:
        """One for each scene."""
        return [Item(name, scene.files) for name, scene in self.scenes.items()]

    def evaluate(self, item: Item, method: Method, n: int, matcher: Matcher) -> list[Record]:
        """One record of the scene."""
        scene = self.scenes[item.name]
        known = self.known_intrinsics and bool(scene.cameras)
        names = [name for name in scene.images if name in scene.cameras or not known]
        features: dict[str, Features] = {}
        images = []
        for name in names:
            image, features[name] = _extract(scene.folder / name, name, self.max_size, method, n)
            images.append(image)
        pairs = [
            MatchedPair(one, two, matcher(features[one], features[two]).numpy()) for one, two in combinations(names, 2)
        ]
        sizes = {image.name: image.size for image in images}
        cameras: Cameras = (
            KnownCameras(_intrinsics(scene, sizes)) if known else ExifCameras(CameraOptions(single=self.single_camera))
        )
        try:
            return [self._reconstruct(scene, images, pairs, cameras, fixed=known)]
        except SfmError as error:
            raise EvaluationError(f"scene {scene.name}: {error}") from error

    def _reconstruct(
        self, scene: Scene, images: list[SfmImage], pairs: list[MatchedPair], cameras: Cameras, fixed: bool
    ) -> Record:
        mapping = MappingOptions(fix_intrinsics=fixed, seed=self.verification.seed)
        with tempfile.TemporaryDirectory() as place:
            database, output = Path(place) / "database.db", Path(place) / "sparse"
            output.mkdir()
            contents = build_database(database, {}, lambda: images, lambda: pairs, cameras, self.verification, _refuse)
            models = map_incrementally(database, None, output, mapping)
        record: Record = {
            "images": len(images),
            "models": len(models),
            "matches": contents.matches,
            "verified_pairs": contents.verified_pairs,
            **_figures(models),
        }
        best = models[0] if models else None
        return {**record, **_errors(best, scene.cameras), **_pictured(best, images[len(images) // 2])}

    def tables(self, records: Sequence[Record]) -> list[Table]:
        """A table for each scene, and means over all of them if there are several."""
        names = list(dict.fromkeys(record["item"] for record in records))
        tables = [
            Table(name, _COLUMNS, _rows([record for record in records if record["item"] == name]), _NOTE, _BEST)
            for name in names
        ]
        if len(names) > 1:
            compared, lost = comparable(records)
            compared = _known_for_all(compared)
            note = f"Means over the scenes where all methods have a value.{left_out(lost, 'scenes')} {_NOTE}"
            tables.append(Table("all scenes", _COLUMNS, _rows(compared), note, _BEST))
        return tables

    def plots(self, records: Sequence[Record]) -> list[Plot]:
        """Bars of landmarks, track length, and errors of cameras where they are known, with where these are."""
        return reconstruction_plots(records, self.scenes)

    def pictures(self, records: Sequence[Record], methods: Sequence[Method]) -> Iterator[tuple[str, Picture]]:
        """The middle image of up to three scenes with the keypoints of each method; those in blue became landmarks."""
        return landmark_pictures(records, self.scenes, methods, self.max_size)

    def score(self, records: Sequence[Record]) -> float:
        """Mean over scenes of the share of registered images times the logarithm of all observations of landmarks."""
        return float(
            np.mean(
                [
                    record["registered"]
                    / record["images"]
                    * math.log1p(record["landmarks"] * (record["track_length"] or 0))
                    for record in records
                ]
            )
        )


def _extract(path: Path, name: str, max_size: int | None, method: Method, n: int) -> tuple[SfmImage, Features]:
    """Features of a downscaled image; the keypoints of the `SfmImage` are in pixels of the file."""
    try:
        pixels = read_image(path)
    except ImageError as error:
        raise EvaluationError(f"{path}: {error}") from error
    original = size_of(pixels)
    size = limited_size(original, max_size)
    features = method.extract(torch.from_numpy(to_rgb_float(downscale(pixels, size))), n)
    keypoints = to_original(features.keypoints.numpy().astype(np.float32), size, original)
    return SfmImage(name, path, original, keypoints), features


def _intrinsics(scene: Scene, sizes: dict[str, Size]) -> dict[str, np.ndarray]:
    """K ``[3, 3]`` of each image, for pixels of its file."""
    return {
        name: camera.K if camera.size is None else scaling(camera.size, sizes[name]) @ camera.K
        for name, camera in scene.cameras.items()
        if name in sizes
    }


def _refuse(name: str, reason: object) -> None:
    raise SfmError(f"{name}: {reason}")


def _figures(models: list[Any]) -> dict[str, Any]:
    if not models:
        return {"registered": 0, "landmarks": 0, "track_length": None, "reprojection_error": None}
    figures = asdict(summarize_model(models[0]))
    return {key: figures[key] for key in ("registered", "landmarks", "track_length", "reprojection_error")}


def _errors(model: Any | None, cameras: dict[str, TrueCamera]) -> dict[str, Any]:
    """Errors of the registered cameras whose truth is known, and their positions in its frame."""
    poses = {} if model is None else dict(_poses(model))
    names = [name for name in sorted(poses) if name in cameras]
    errors = camera_errors(
        [poses[name][0] for name in names],
        [poses[name][1] for name in names],
        [cameras[name].R for name in names],
        [cameras[name].t for name in names],
    )
    result: dict[str, Any] = {}
    for key in ("position", "rotation"):
        values = None if errors is None else getattr(errors, f"{key}s")
        result[f"{key}_median"] = None if values is None else float(np.median(values))
        result[f"{key}_max"] = None if values is None else float(np.max(values))
    extent = None if errors is None else errors.extent
    for key in ("position_median", "position_max"):
        value = result[key]
        result[f"{key}_relative"] = None if value is None or not extent else value / extent
    aligned = {} if errors is None else dict(zip(names, errors.aligned.tolist(), strict=True))
    return {**result, "extent": extent, "camera_positions": aligned}


def _pictured(model: Any | None, image: SfmImage) -> dict[str, Any]:
    """Which keypoints of the image that is shown in reports became landmarks."""
    flags = np.zeros(len(image.keypoints), np.bool_)
    found = None if model is None else model.find_image_with_name(image.name)
    if found is not None and found.has_pose:
        flags[[index for index, point in enumerate(found.points2D) if point.has_point3D()]] = True
    return {
        "pictured": image.name,
        "pictured_keypoints": len(flags),
        "pictured_landmarks": pack_flags(flags),
    }


def _poses(model: Any) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray]]]:
    """Name, R and t of each registered image of a ``pycolmap.Reconstruction``."""
    for image_id in model.reg_image_ids():
        image = model.image(image_id)
        pose = image.cam_from_world()
        yield image.name, (np.asarray(pose.rotation.matrix()), np.asarray(pose.translation))


def _rows(records: Sequence[Record]) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for method, n, group in by_method(records):
        means = [(mean(record[key] for record in group), factor) for _, key, factor, _ in _SHOWN]
        rows.append((method, n, *(_whole(value, factor) for value, factor in means)))
    return rows


def _known_for_all(records: Sequence[Record]) -> list[Record]:
    """The records, without the values of a scene that some method lacks: or to fail there would better its mean."""
    lacking = {(record["item"], key) for record in records for _, key, _, _ in _SHOWN if record[key] is None}
    return [
        {key: None if (record["item"], key) in lacking else value for key, value in record.items()}
        for record in records
    ]


def _whole(value: float | None, factor: float) -> float | int | None:
    """A mean in the unit of its column; one of counts that is a whole number as such."""
    if value is None:
        return None
    scaled = value * factor
    return int(scaled) if factor == 1 and scaled.is_integer() else scaled
