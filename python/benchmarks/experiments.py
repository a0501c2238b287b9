"""What helps in training the bundled weights: short trainings that differ in one thing, by one budget and one measure.

``python python/benchmarks/experiments.py [NAME ...] [--photos FOLDER] [--scenes FOLDER] [--begin FILE]``

All go on from what photos-start made, the first part of ``make weights``, with the preset photos-turned, shortened, for
the same number of view pixels, with the learning rate down to 0. They are measured on views of the photographs that are
held out, never on a test set, which differ in four ways: by the F-score of correct mutual nearest neighbours, which
falls with wrong and with lost ones, and by their share, both averaged over 1 to 5 pixels. The seeds of the first rows
tell how far results scatter. Scenes are reconstructed by ``disk-ops reconstruct FOLDER/multiview/PLACE -o
runs/multiview/PLACE --n 2048 --ratio 0.95``; places of which few images were registered were left out. What is done
already is kept, so this can be interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from harness import RESULTS, ROOT, Row, environment, write_json
from tqdm import tqdm

from disk_ops import DISKDetector, MultiscaleDetector
from disk_ops.checkpoint import weights_digest
from disk_ops.scenes.errors import DataError
from disk_ops.training import TrainingConfig, read_config, train
from disk_ops.training.data.photos import PhotosConfig, PhotosSource
from disk_ops.training.data.sample import Frame
from disk_ops.training.folder import LAST
from disk_ops.training.settings import SettingsError
from disk_ops.training.validation import SourceSamples, Validator

PHOTOS = ROOT.parent / "shared" / "data" / "photos"
STEPS = 500  # of three views of 256 x 256 pixels; larger steps are fewer
BASE = (
    *("schedule.ramp_start=0", "schedule.ramp_steps=0", "validation.every=0"),
    *("optimizer.learning_rate=3e-4", "optimizer.warmup_steps=50", "optimizer.ema=0.99"),
)

# Views that differ in one way each, beside moderate differences in all others.
MODERATE = {"scale": (0.7, 1.4), "rotation": 15.0, "full_rotation": 0.0, "perspective": 25.0, "photometric": 0.7}
CONDITIONS: dict[str, dict[str, Any]] = {
    "upright": {},
    "turned": {"full_rotation": 1.0},
    "zoomed": {"scale": (0.35, 1.5)},
    "degraded": {"photometric": 1.0, "blur": (0.7, 3.0), "noise": (0.7, 0.1), "jpeg": (0.7, 75.0)},
}
FRAME, N = Frame(448, 448, 2), 1024


class Experiment(NamedTuple):
    """One change of the settings."""

    change: str
    settings: tuple[str, ...] = ()
    kept: str = ""  # what was made of the result
    scenes: float = 0.0  # share of samples from reconstructed scenes
    trained: bool = True  # else the weights as they are
    weights: str = ""  # bundled ones, instead of those with which all begin


EXPERIMENTS = {
    "before": Experiment("(what all begin with)", trained=False),
    "general": Experiment("(`general`, for comparison)", trained=False, weights="general"),
    "rotation": Experiment("(`rotation`, for comparison)", trained=False, weights="rotation"),
    "base": Experiment("none"),
    "seed": Experiment("another seed", ("seed=3",)),
    "pairs": Experiment("pairs, not triplets", ("data.images=2",), "no"),
    "batch": Experiment("batches of two triplets", ("data.batch_size=2",), "no"),
    "frames": Experiment("384 × 384 pixels", ("data.width=384", "data.height=384"), "yes"),
    "cell": Experiment("cells of 4 pixels", ("reward.cell=4",), "no"),
    "theta": Experiment("θ = 100", ("schedule.theta_end=100",), "no"),
    "epsilon": Experiment("ε = 3 pixels", ("reward.epsilon=3.0",), "no"),
    "exact": Experiment("ε = 1 pixel", ("reward.epsilon=1.0",), "1.2 in the end"),
    "mismatches": Experiment("λ_fp = -0.3", ("reward.lambda_fp=-0.3",), "yes, -0.2 in the end"),
    "lenient": Experiment("λ_fp = -0.05", ("reward.lambda_fp=-0.05",), "no"),
    "keypoints": Experiment("λ_kp = -0.03", ("reward.lambda_kp=-0.03",), "no: fewer keypoints, not better ones"),
    "upright": Experiment("no full rotations", ("defaults.photos.full_rotation=0.0",), "for `general`, nearly"),
    "turned": Experiment(
        "all views fully rotated", ("defaults.photos.full_rotation=1.0",), "for `rotation`, half of them"
    ),
    "zoom": Experiment("scales 0.3 to 1.8", ("defaults.photos.scale=[0.3, 1.8]",), "yes"),
    "unzoomed": Experiment("scales 0.8 to 1.25", ("defaults.photos.scale=[0.8, 1.25]",), "no"),
    "tilt": Experiment("tilts up to 45°", ("defaults.photos.perspective=45.0",), "yes"),
    "mild": Experiment("half the photometric strength", ("defaults.photos.photometric=0.45",), "no"),
    "blur": Experiment("blur in half the views", ("defaults.photos.blur=[0.5, 3.5]",), "in 30 % of them"),
    "rate": Experiment("learning rate 1e-3", ("optimizer.learning_rate=1e-3",), "no"),
    "unclipped": Experiment("gradients of any length", ("optimizer.clip=0.0",), "no"),
    "average": Experiment("no mean of weights", ("optimizer.ema=0.0",), "no: as good"),
    "scenes": Experiment(
        "a quarter of samples from posed scenes",
        (
            *("defaults.scenes.fit=crop", "defaults.scenes.zoom=[1.0, 2.2]", "defaults.scenes.rotation=10.0"),
            *("defaults.scenes.covisibility=[0.1, 0.85]", "defaults.scenes.tuples_per_scene=60"),
        ),
        "no",
        scenes=0.25,
    ),
}


def main() -> int:
    """Run what isn't done yet, print the table, write the JSON after each."""
    arguments = parse()
    try:
        validators = {name: validator(arguments.photos, changes) for name, changes in CONDITIONS.items()}
        rows = known_rows(arguments.json)
        for name in tqdm(arguments.names, unit="experiment", disable=None):
            config = configured(EXPERIMENTS[name], arguments)
            row: Row = {"name": name, **described(EXPERIMENTS[name], config)}
            if any(row.items() <= known.items() for known in rows):
                continue
            row |= measured(EXPERIMENTS[name], config, arguments.output / name, validators)
            rows = [known for known in rows if known["name"] != name] + [row]
            rows.sort(key=lambda each: list(EXPERIMENTS).index(each["name"]))
            write(rows, arguments.json)
    except (DataError, SettingsError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for row in rows:
        print(f"{row['change']:40} " + " ".join(f"{row[key]:.3f}" for key in (*CONDITIONS, "mean", "correct")))
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"among {', '.join(EXPERIMENTS)} (default: all)")
    parser.add_argument("--photos", type=Path, default=PHOTOS, help="photographs (default: ../shared/data/photos)")
    parser.add_argument("--scenes", type=Path, default=ROOT / "runs" / "multiview", help="reconstructed scenes")
    parser.add_argument("--begin", type=Path, default=ROOT / "runs" / "start" / LAST, help="weights of photos-start")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "experiments", help="folder of the trainings")
    parser.add_argument("--json", type=Path, default=RESULTS / "experiments.json", help="where the result goes")
    arguments = parser.parse_args()
    arguments.names = arguments.names or list(EXPERIMENTS)
    if unknown := [name for name in arguments.names if name not in EXPERIMENTS]:
        parser.error(f"NAME must be among {', '.join(EXPERIMENTS)}, got {' '.join(unknown)}")
    return arguments


def configured(experiment: Experiment, arguments: argparse.Namespace) -> TrainingConfig:
    """The settings, with as many steps as make the budget."""
    data = [f"photos:{arguments.photos}", *([f"scenes:{arguments.scenes}"] if experiment.scenes else [])]
    settings = [f"model.init={experiment.weights or arguments.begin}", *BASE, *experiment.settings]
    if experiment.scenes:
        images = arguments.photos.resolve() / "multiview" / "{scene}"
        settings += [f"source.0.weight={1 - experiment.scenes}", f"source.1.weight={experiment.scenes}"]
        settings += ["reward.supervision=epipolar", f"defaults.scenes.images={images}", "defaults.scenes.holdout=0.2"]
    shape = read_config("photos-turned", data, settings).data
    pixels = shape.images * shape.batch_size * shape.width * shape.height
    steps = round(STEPS * 3 * 256**2 / pixels)
    return read_config("photos-turned", data, [*settings, f"steps={steps}"])


def described(experiment: Experiment, config: TrainingConfig) -> Row:
    """What makes an experiment this one: where it begins and what is changed."""
    begin = weights_digest(DISKDetector.from_pretrained(config.model.init).state_dict())
    return {
        "change": experiment.change,
        "settings": list(experiment.settings),
        "base": list(BASE),
        "steps": config.steps if experiment.trained else 0,
        "weights": begin,
    }


def measured(experiment: Experiment, config: TrainingConfig, folder: Path, validators: dict[str, Validator]) -> Row:
    """Train, and measure what came of it."""
    if not experiment.trained:
        return {"minutes": 0.0, **accuracy(DISKDetector.from_pretrained(config.model.init), validators)}
    started = time.perf_counter()
    train(config, folder, existing="overwrite" if folder.exists() else "refuse", quiet=True)
    minutes = (time.perf_counter() - started) / 60
    return {"minutes": round(minutes, 1), **accuracy(DISKDetector.from_pretrained(folder / LAST), validators)}


def accuracy(detector: DISKDetector | MultiscaleDetector, validators: dict[str, Validator]) -> dict[str, float]:
    """The F-score in each condition, its mean, and the mean share of correct matches."""
    found = {name: validate(detector) for name, validate in validators.items()}
    scores = {name: metrics["fscore5"] for name, metrics in found.items()}
    mean, correct = (fmean(values) for values in (scores.values(), (each["auc5"] for each in found.values())))
    return {name: round(score, 4) for name, score in {**scores, "mean": mean, "correct": correct}.items()}


def validator(photos: Path, changes: dict[str, Any]) -> Validator:
    """One pair of views of each held-out photograph, always the same."""
    source = PhotosSource(PhotosConfig(path=str(photos), **{**MODERATE, **changes}), FRAME, "val")
    return Validator(SourceSamples(source, len(source.files)), n=N)


def known_rows(path: Path) -> list[Row]:
    """What was measured before."""
    return list(json.loads(path.read_text())["rows"]) if path.exists() else []


def write(rows: list[Row], path: Path) -> None:
    for row in rows:
        row["kept"] = EXPERIMENTS[row["name"]].kept
    command = "python python/benchmarks/experiments.py"
    write_json({"benchmark": "experiments", "command": command, **environment(), "rows": rows}, path)


if __name__ == "__main__":
    sys.exit(main())
