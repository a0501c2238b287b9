"""Incremental mapping: a COLMAP database to models, and their figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from disk_ops.sfm.colmap import SfmError, quiet_colmap, require_pycolmap
from disk_ops.sfm.database import open_database, summarize_database


@dataclass(frozen=True)
class MappingOptions:
    """How models are made.

    Attributes:
        fix_intrinsics: keep focal lengths and distortion as they are in the database.
        seed: of all that is random.
        threads: with one, repeated runs give equal results; with more, sums are rounded differently each time.
    """

    fix_intrinsics: bool = False
    seed: int = 0
    threads: int = 1


@dataclass(frozen=True)
class ModelSummary:
    """Figures of a model, those of the paper's table of ETH's benchmark among them."""

    registered: int  # images with a pose, which see landmarks
    landmarks: int  # 3D points
    observations: int
    track_length: float  # observations of a landmark, mean
    reprojection_error: float  # pixels, mean over landmarks of their mean


def map_incrementally(
    database: Path, images: Path | None, output: Path, options: MappingOptions, *, quiet: bool = True
) -> list[Any]:
    """Reconstruct cameras and points from the verified matches of a database.

    Args:
        database: of :func:`disk_ops.sfm.build_database`, for example.
        images: folder of the images, for the colours of points; ``None``: without colours.
        output: existing folder that COLMAP writes its models to.
        options: how.
        quiet: show no progress.

    Returns:
        The models as ``pycolmap.Reconstruction``, that with most images first; none where no two images fit together.
        Each of their registered images sees points.

    Raises:
        SfmError: COLMAP can't use the database.
    """
    pycolmap = require_pycolmap()
    with open_database(database) as opened:
        summary = summarize_database(opened)
    if not summary.verified_pairs:
        return []
    count = summary.images
    colmap = _colmap_options(options, images is not None)
    # Where only two images match, all points are seen by two, which COLMAP would ignore.
    colmap.triangulation.ignore_two_view_tracks = summary.verified_pairs > 1
    pycolmap.set_random_seed(options.seed)
    with quiet_colmap(), tqdm(total=count, unit="image", disable=True if quiet else None) as bar:

        def registered() -> None:
            bar.update(min(1, count - bar.n))  # an image can be tried in several models

        try:
            models = pycolmap.incremental_mapping(
                database,
                images or output,  # some folder that exists
                output,
                colmap,
                initial_image_pair_callback=lambda: bar.update(min(2, count - bar.n)),
                next_image_callback=registered,
            )
        except (ValueError, RuntimeError) as error:
            raise SfmError(f"{database}: COLMAP can't map it: {error}") from error
    for model in models.values():
        _deregister_blind_images(model)
    # Equal sizes in the order of COLMAP, so that the result is always the same.
    return sorted(
        (models[number] for number in sorted(models) if models[number].num_points3D()),
        key=lambda model: (model.num_reg_images(), model.num_points3D()),
        reverse=True,
    )


def _deregister_blind_images(model: Any) -> None:
    """Take the poses from images that see no point any more, as COLMAP does itself in models of 20 images and more."""
    for image in list(model.images.values()):
        if image.has_pose and not image.num_points3D:
            model.deregister_frame(image.frame_id)


def _colmap_options(options: MappingOptions, colors: bool) -> Any:
    pycolmap = require_pycolmap()
    colmap = pycolmap.IncrementalPipelineOptions()
    colmap.extract_colors = colors
    colmap.random_seed = options.seed
    colmap.mapper.random_seed = options.seed
    colmap.triangulation.random_seed = options.seed
    colmap.num_threads = options.threads
    colmap.mapper.num_threads = options.threads
    if options.fix_intrinsics:
        colmap.ba_refine_focal_length = colmap.ba_refine_extra_params = colmap.ba_refine_principal_point = False
        colmap.mapper.abs_pose_refine_focal_length = colmap.mapper.abs_pose_refine_extra_params = False
    return colmap


def summarize_model(model: Any) -> ModelSummary:
    """The figures of a ``pycolmap.Reconstruction``."""
    return ModelSummary(
        registered=model.num_reg_images(),
        landmarks=model.num_points3D(),
        observations=model.compute_num_observations(),
        track_length=float(model.compute_mean_track_length()),
        reprojection_error=float(model.compute_mean_reprojection_error()),
    )


def write_models(models: list[Any], folder: Path) -> None:
    """Write models into folders 0, 1, ... in COLMAP's binary form, each with its points as ``points3D.ply``."""
    for number, model in enumerate(models):
        place = folder / str(number)
        place.mkdir(parents=True)
        model.write_binary(place)
        model.export_PLY(place / "points3D.ply")
