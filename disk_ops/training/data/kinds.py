"""The kinds of data sources and where each is defined."""

from __future__ import annotations

from typing import Any, NamedTuple

from disk_ops.training.data.colmap import ScenesConfig, ScenesSource
from disk_ops.training.data.disk_dataset import DiskDatasetConfig, DiskDatasetSource
from disk_ops.training.data.homography_sets import HomographySetsConfig, HomographySetsSource
from disk_ops.training.data.photos import PhotosConfig, PhotosSource
from disk_ops.training.data.rgbd import RgbdConfig, RgbdSource


class Kind(NamedTuple):
    """The settings of a kind of source, and what makes the source."""

    config: type
    source: Any  # (config, frame, split) -> Source


KINDS = {
    "photos": Kind(PhotosConfig, PhotosSource),
    "scenes": Kind(ScenesConfig, ScenesSource),
    "disk-dataset": Kind(DiskDatasetConfig, DiskDatasetSource),
    "rgbd": Kind(RgbdConfig, RgbdSource),
    "homography": Kind(HomographySetsConfig, HomographySetsSource),
}
