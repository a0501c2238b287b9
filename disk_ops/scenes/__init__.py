"""Images with known cameras as they lie on disk: COLMAP models, cameras.json, depth maps."""
