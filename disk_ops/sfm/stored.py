"""Features and matches of HDF5 files, as databases are made of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
from tqdm import tqdm

from disk_ops.io.hdf5 import StorageError, flat_name, image_names, read_keypoints, read_matches, stored_pairs
from disk_ops.io.images import ImageError, read_image, size_of
from disk_ops.io.inputs import natural_key
from disk_ops.pairs import Pair
from disk_ops.sfm.colmap import SfmError
from disk_ops.sfm.database import Failed, MatchedPair, SfmImage


class StoredFeatures:
    """The images and matches of two open files.

    Args:
        features: of ``disk-ops extract`` or hloc.
        matches: of ``disk-ops match`` or hloc, of these features.
        folder: of the image files; the names in ``features`` are relative to it.
        failed: is told of what can't be used; the rest goes on.
        quiet: show no progress of reading images and matches.

    Raises:
        SfmError: there is no image, or no pair, that could be used.
    """

    def __init__(
        self, features: h5py.File, matches: h5py.File, folder: Path, failed: Failed, quiet: bool = True
    ) -> None:
        self._features, self._matches, self._failed = features, matches, failed
        self._disable = True if quiet else None  # None: where there is no terminal
        self._there = {name: folder / name for name in sorted(image_names(features), key=natural_key)}
        if not self._there:
            raise SfmError(f"{features.filename} holds no features")
        self.names = [name for name, path in self._there.items() if path.is_file()]
        if not self.names:
            first = next(iter(self._there.values()))
            raise SfmError(
                f"none of the {len(self._there)} images of {features.filename} is in {folder} "
                f"(looked for {first}, for example)"
            )
        self.pairs, self.others = self._find_pairs()
        if not self.pairs:
            raise SfmError(f"{matches.filename} holds no pair of the images of {features.filename} in {folder}")

    def images(self) -> Iterator[SfmImage]:
        """The images whose files are there, in natural order of their names."""
        for name, path in tqdm(self._there.items(), unit="image", disable=self._disable):
            if not path.is_file():
                self._failed(name, f"no such file: {path}")
                continue
            try:
                keypoints, size = read_keypoints(self._features, name)
                yield SfmImage(name, path, size or size_of(read_image(path)), keypoints)
            except (StorageError, ImageError) as error:
                self._failed(name, error)

    def matched_pairs(self) -> Iterator[MatchedPair]:
        """The matches of these images."""
        for first, second in tqdm(self.pairs, unit="pair", disable=self._disable):
            try:
                yield MatchedPair(first, second, read_matches(self._matches, first, second)[0])
            except (StorageError, KeyError, ValueError) as error:
                self._failed(f"{first} - {second}", error)

    def _find_pairs(self) -> tuple[list[Pair], int]:
        """The pairs of images that are there, and the number of those of images that the features don't hold."""
        owners: dict[str, list[str]] = {}
        for name in self._there:
            owners.setdefault(flat_name(name), []).append(name)
        pairs, others = [], 0
        there = set(self.names)
        for stored in sorted(stored_pairs(self._matches), key=natural_key):
            candidates = [owners.get(flat, []) for flat in stored.split("/")]
            clashing = next((names for names in candidates if len(names) > 1), None)
            if not all(candidates):
                others += 1
            elif clashing:
                self._failed(stored, f"{clashing[0]} and {clashing[1]} have the same name in match files; rename one")
            elif candidates[0][0] in there and candidates[1][0] in there:
                pairs.append((candidates[0][0], candidates[1][0]))
        return pairs, others
