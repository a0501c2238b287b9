"""Images that are too large to be computed at once: the same features, tile by tile, under a limit of memory."""

from disk_ops.tiled.detection import check_tiling, detect_tiled
from disk_ops.tiled.memory import Limit, limit_for

__all__ = ["Limit", "check_tiling", "detect_tiled", "limit_for"]
