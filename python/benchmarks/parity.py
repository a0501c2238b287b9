"""How far the detector's features are from those of kornia's DISK in float32, on real photographs.

``python python/benchmarks/parity.py [--data FOLDER] [--sets NAME ...] [--precision float32 ...] [--max-size 1024]``

Of each image: the share of kornia's 2048 keypoints that are found too, the largest difference of a score, relative to
the image's largest score, and the largest difference of a descriptor's element, at keypoints of both. And the matching
accuracy (AUC up to 5 pixels, mutual nearest neighbours) of each on the pairs of the homography sets.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import kornia.feature as KF
import torch
from accuracy import DATA, chosen_sets
from harness import RESULTS, environment, write_json
from torch import Tensor
from tqdm import tqdm

from disk_ops import DISKDetector
from disk_ops.evaluation.features import Features
from disk_ops.evaluation.homography import evaluate_set, summarize

N = 2048
KORNIA = "kornia float32"


class Recorder:
    """Extracts features and keeps them, with their scores."""

    def __init__(self, network: DISKDetector | KF.DISK, precision: torch.dtype) -> None:
        self._network, self._precision = network.to(precision), precision
        self.features: list[dict[tuple[int, int], tuple[float, Tensor]]] = []

    @torch.inference_mode()
    def __call__(
        self,
        image: Tensor,  # [3, H, W]
    ) -> Features:
        found = self._network(image[None].to(self._precision), n=N, pad_if_not_divisible=True)[0]
        descriptors = found.descriptors.float()
        places = [(int(x), int(y)) for x, y in found.keypoints.tolist()]
        self.features.append(
            dict(zip(places, zip(found.detection_scores.tolist(), descriptors, strict=True), strict=True))
        )
        return Features(found.keypoints.float(), descriptors)


def differences(mine: Recorder, kornia: Recorder) -> dict[str, float]:
    """Over all images."""
    shares, scores, descriptors = [], [], []
    for found, expected in zip(mine.features, kornia.features, strict=True):
        both = found.keys() & expected.keys()
        shares.append(len(both) / max(1, len(expected)))
        largest = max(score for score, _ in expected.values())
        scores += [abs(found[place][0] - expected[place][0]) / largest for place in both]
        descriptors += [float((found[place][1] - expected[place][1]).abs().max()) for place in both]
    return {
        "same_keypoints": sum(shares) / len(shares),
        "least_same_keypoints": min(shares),
        "score": max(scores),
        "descriptor": max(descriptors),
    }


def main() -> None:
    """Measure and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of sets (default: ../shared/data/homography)")
    parser.add_argument("--sets", nargs="*", default=[], help="only sets with these folder names")
    parser.add_argument("--precision", nargs="*", default=["float32"], help="float32, bfloat16, float16")
    parser.add_argument("--max-size", type=int, default=1024, help="longest edge in pixels (default 1024)")
    parser.add_argument("--json", type=Path, default=RESULTS / "parity_cpu.json", help="where the result goes")
    arguments = parser.parse_args()
    detector = DISKDetector.from_pretrained()
    layered = KF.DISK().eval()
    layered.load_state_dict(detector.state_dict())
    recorders = {KORNIA: Recorder(layered, torch.float32)}
    recorders |= {
        f"disk_ops {name}": Recorder(DISKDetector.from_pretrained(), getattr(torch, name))
        for name in arguments.precision
    }
    sets = chosen_sets(arguments.data, arguments.sets)
    pairs: dict[str, list[Any]] = {name: [] for name in recorders}
    progress = tqdm(total=len(sets) * len(recorders), unit="set", disable=None)
    for entry in sets:
        for name, recorder in recorders.items():
            pairs[name] += evaluate_set(entry, recorder, arguments.max_size)
            progress.update()
    progress.close()
    rows = []
    for name, recorder in recorders.items():
        row = {"implementation": name, "images": len(recorder.features), "auc5": summarize(pairs[name]).auc5}
        rows.append(row if name == KORNIA else row | differences(recorder, recorders[KORNIA]))
        print(rows[-1])
    write_json({"benchmark": "parity", "command": command(arguments), **environment(), "rows": rows}, arguments.json)


def command(arguments: argparse.Namespace) -> str:
    """What gives these numbers again where the data lies at its default place."""
    options = [*(("--sets", *arguments.sets) if arguments.sets else ())]
    options += ["--precision", *arguments.precision] if arguments.precision != ["float32"] else []
    options += ["--max-size", str(arguments.max_size)] if arguments.max_size != 1024 else []
    return " ".join(["python python/benchmarks/parity.py", *options])


if __name__ == "__main__":
    main()
