"""Which pairs of a scene are used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from disk_ops.io.inputs import stable_number


@dataclass(frozen=True)
class Selection:
    """How pairs of a scene are chosen.

    Args:
        limit: at most so many of a scene; ``None``: all.
        min_covisibility: pairs that have less in common aren't used, where that is known. 0.1 is what the Image
            Matching Challenge takes.
        seed: of the draw.
    """

    limit: int | None = 500
    min_covisibility: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be a positive number of pairs, got {self.limit}")
        if not 0 <= self.min_covisibility <= 1:
            raise ValueError(f"min_covisibility must be from 0 to 1, got {self.min_covisibility}")

    def choose(
        self,
        scene: str,
        pairs: npt.NDArray[np.integer],  # [P, 2] numbers of images
        covisibility: npt.NDArray[np.floating] | None,  # [P]
    ) -> npt.NDArray[np.int64]:
        """Numbers ``[Q]`` of the pairs to use, in order of the images; the same for the same scene and numbers."""
        candidates = np.arange(len(pairs))
        if covisibility is not None:
            # The edge of a bin belongs to it, though 0.3 of 10 points isn't 3 / 10 to the last bit.
            candidates = np.flatnonzero(np.asarray(covisibility) >= self.min_covisibility - 1e-9)
        if self.limit is not None and len(candidates) > self.limit:
            rng = np.random.default_rng((self.seed, int(stable_number(scene) * 2**53)))
            candidates = rng.choice(candidates, self.limit, replace=False)
        return np.asarray(candidates[np.lexsort((pairs[candidates, 1], pairs[candidates, 0]))], np.int64)

    def __str__(self) -> str:
        return (
            f"of each scene the pairs with a covisibility of at least {self.min_covisibility:g} where it is known "
            "(3D points in common, divided by those of the image that sees fewer; the overlap of depth maps; or what a "
            "list says), and all pairs where it isn't; "
            + ("none is left out" if self.limit is None else f"of more than {self.limit}, so many drawn at random")
            + f" (seed {self.seed})"
        )
