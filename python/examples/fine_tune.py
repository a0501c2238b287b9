"""Fine-tune a checkpoint on photographs of your own, and measure on held-out ones what that gave.

    python fine_tune.py photos/ -o runs/mine [--others other_photos/] [--set steps=1200] [--resume]

It is ``disk-ops train fine_tune.toml --data photos/ -o runs/mine`` (further options go there), and then a comparison of
the first and the last weights; no validation has chosen the last. Pairs are views of one photograph by random
homographies; a fifth of the photographs is held out. The accuracy is the share of correct matches, averaged over 1 to 5
pixels. --others measures on photographs of another kind, too: there, features may be worse than before.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

from disk_ops import DISKDetector
from disk_ops.cli import main as disk_ops
from disk_ops.scenes.errors import DataError
from disk_ops.training import TrainingConfig, read_config
from disk_ops.training.data.photos import PhotosSource
from disk_ops.training.data.sample import Frame
from disk_ops.training.folder import LAST
from disk_ops.training.settings import SettingsError
from disk_ops.training.validation import SourceSamples, Validator


def held_out(config: TrainingConfig, others: Path | None = None) -> PhotosSource:
    """The photographs that the training hasn't seen, or all of another folder."""
    options = config.source[0].options
    if others is not None:
        options = dataclasses.replace(options, path=str(others), holdout=1.0)
    return PhotosSource(options, Frame(config.data.width, config.data.height, config.data.images), "val")


def accuracies(source: PhotosSource, weights: str | Path, config: TrainingConfig) -> list[float]:
    """The accuracy on three views of each photograph, other ones than in validation."""
    detector = DISKDetector.from_pretrained(weights)
    samples = SourceSamples(source, len(source.files), config.seed + 1)
    return [
        Validator([sample], n=config.validation.n)(detector)["auc5"]
        for sample in tqdm(samples, desc=f"measuring {Path(weights).name}", delay=1)
    ]


def report(source: PhotosSource, config: TrainingConfig, output: Path) -> None:
    before, after = (np.array(accuracies(source, weights, config)) for weights in (config.model.init, output / LAST))
    error = (after - before).std(ddof=1) / np.sqrt(len(after)) if len(after) > 1 else np.nan
    means = f"accuracy {before.mean():.3f} before, {after.mean():.3f} after, {after.mean() - before.mean():+.3f}"
    print(f"{source.config.path}, {len(after)} photographs: {means} (standard error {error:.3f})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path, help="a folder, searched with its subfolders")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the training")
    parser.add_argument("--config", default=Path(__file__).with_suffix(".toml"), help="default: fine_tune.toml")
    parser.add_argument("--others", type=Path, help="a folder of photographs of another kind")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    arguments, options = parser.parse_known_args()
    data = f"photos:{arguments.photographs}"
    try:
        config = read_config(arguments.config, [data], arguments.set)
        if not config.model.init:
            raise SettingsError("model.init must name the weights to begin with, such as start")
        sources = (
            [held_out(config)] if arguments.others is None else [held_out(config), held_out(config, arguments.others)]
        )
        options += [word for text in arguments.set for word in ("--set", text)]
        status = disk_ops(["train", str(arguments.config), "--data", data, "-o", str(arguments.output), *options])
        if status != 0:
            return status
        for source in sources:
            report(source, config, arguments.output)
    except (SettingsError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
