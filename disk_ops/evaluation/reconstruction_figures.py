"""Plots and pictures of the reconstruction protocol's records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from disk_ops.drawing import draw_keypoints, landmark_colors, to_picture
from disk_ops.evaluation.camera_errors import camera_centres
from disk_ops.evaluation.methods import Method
from disk_ops.evaluation.pictures import pictured, spread
from disk_ops.evaluation.protocol import Picture, Plot, Record, labelled
from disk_ops.evaluation.reconstruction_scenes import Scene
from disk_ops.io.images import downscale, limited_size, read_image, size_of, to_rgb_float

_BARS = (  # title, key, factor
    ("landmarks", "landmarks", 1.0),
    ("track length", "track_length", 1.0),
    ("median position error in % of the scene", "position_median_relative", 100.0),
)


def pack_flags(flags: npt.NDArray[np.bool_]) -> str:
    """Flags ``[N]`` as a short text; see :func:`unpack_flags`."""
    return np.packbits(flags).tobytes().hex()


def unpack_flags(text: str, count: int) -> npt.NDArray[np.bool_]:
    """The first ``count`` flags of a text of :func:`pack_flags`."""
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8))[:count].astype(np.bool_)


def reconstruction_plots(records: Sequence[Record], scenes: Mapping[str, Scene]) -> list[Plot]:
    """Bars of each scene, and of up to three scenes the cameras beside the true ones."""
    bars = [plot for title, key, factor in _BARS if (plot := _bars(records, title, key, factor)).series]
    known = [record for record in records if record["camera_positions"] and record["item"] in scenes]
    maps = [_map([record for record in known if record["item"] == item], scenes[item]) for item in spread(known)]
    return [*bars, *maps]


def _bars(records: Sequence[Record], title: str, key: str, factor: float) -> Plot:
    series: dict[str, tuple[list[Any], list[float]]] = {}
    for label, group in labelled(records):
        known = [record for record in group if record[key] is not None]
        if known:
            series[label] = ([record["item"] for record in known], [record[key] * factor for record in known])
    return Plot(title, "scene", title, "bars", series)


def _map(records: Sequence[Record], scene: Scene) -> Plot:
    """Where the cameras stand, seen along the direction in which the true ones are spread least."""
    truth = camera_centres([camera.R for camera in scene.cameras.values()], [c.t for c in scene.cameras.values()])
    centre = truth.mean(axis=0)
    axes = np.linalg.svd(truth - centre, full_matrices=False)[2][:2]  # [2, 3]

    def seen(positions: npt.ArrayLike) -> tuple[list[Any], list[float]]:
        x, y = axes @ (np.asarray(positions, np.float64).reshape(-1, 3) - centre).T
        return x.tolist(), y.tolist()

    series = {"truth": seen(truth)}
    for label, group in labelled(records):
        series[label] = seen(list(group[0]["camera_positions"].values()))
    unit = "units of the truth"
    return Plot(f"Cameras of {scene.name}", f"widest direction ({unit})", f"second ({unit})", "points", series)


def landmark_pictures(
    records: Sequence[Record], scenes: Mapping[str, Scene], methods: Sequence[Method], max_size: int | None
) -> Iterator[tuple[str, Picture]]:
    """The middle image of up to three scenes, with the keypoints of each method: blue ones became landmarks, not red.

    Features are made again; those of which a record doesn't tell are not shown.
    """
    there = [record for record in records if record["item"] in scenes]
    for item in spread(there):
        for method, group in pictured(there, item, methods):
            record = group[0]
            pixels = read_image(scenes[item].folder / record["pictured"])
            smaller = downscale(pixels, limited_size(size_of(pixels), max_size))
            features = method.extract(torch.from_numpy(to_rgb_float(smaller)), record["n"])
            count = len(features.keypoints)
            if count != record["pictured_keypoints"]:
                continue
            landmarks = unpack_flags(record["pictured_landmarks"], count)
            picture = draw_keypoints(
                to_picture(smaller),
                features.keypoints.float().numpy(),
                np.arange(count, 0, -1.0) if features.scores is None else features.scores.float().numpy(),
                colors=landmark_colors(landmarks),
            )
            told = f"{int(landmarks.sum()):,} of {count:,} keypoints became landmarks (blue)"
            yield f"{item}, {record['pictured']}: {method.name}, {told}", picture
