"""Structure from motion with pycolmap: stored or computed features to COLMAP databases and reconstructions."""

from disk_ops.sfm.cameras import CameraOptions, ExifCameras, KnownCameras
from disk_ops.sfm.colmap import SfmError
from disk_ops.sfm.database import DatabaseSummary, SfmImage, Verification, build_database
from disk_ops.sfm.mapping import MappingOptions, ModelSummary, map_incrementally, summarize_model
from disk_ops.sfm.stored import StoredFeatures

__all__ = [
    "CameraOptions",
    "DatabaseSummary",
    "ExifCameras",
    "KnownCameras",
    "MappingOptions",
    "ModelSummary",
    "SfmError",
    "SfmImage",
    "StoredFeatures",
    "Verification",
    "build_database",
    "map_incrementally",
    "summarize_model",
]
