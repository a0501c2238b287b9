"""Images that are too large to be computed at once: the same features, tile by tile, under a limit of memory."""

from disk_ops.tiled.detection import detect_tiled
from disk_ops.tiled.memory import Limit, limit_for

__all__ = ["Limit", "detect_tiled", "limit_for"]
