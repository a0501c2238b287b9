"""Does loading keep up with training? Real trainings of the preset ``photos-small``, with one worker process.

``python python/benchmarks/bench_loading.py [--data FOLDER] [--steps 150]``

For each kind of data: the time to load a sample in one process (images from the cache, and from files), the time of a
step, and the part of it that the training waits for its worker, which shares the processors with it. First steps, in
which the worker starts, are left out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from harness import RESULTS, ROOT, Row, environment, write_json

from disk_ops.group import Group
from disk_ops.training.config import TrainingConfig, read_config
from disk_ops.training.data.loading import AHEAD, load_batches
from disk_ops.training.data.mixture import Mixture
from disk_ops.training.data.opening import open_data
from disk_ops.training.logs import NullLog
from disk_ops.training.memory import keep_freed_memory
from disk_ops.training.trainer import Trainer

DATA = ROOT.parent / "shared" / "data"
KINDS = {"photographs": "photos:photos", "posed images with depth": "rgbd:depth", "posed images": "rgbd:pose/strecha"}
_LOADED = 24  # samples that are timed in one process


class Recorder(NullLog):
    """Keeps what each step took: the whole, and waiting for data."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds_of_steps: list[float] = []
        self.waited: list[float] = []
        self._last = time.perf_counter()

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Take the times of a step."""
        now = time.perf_counter()
        self.seconds_of_steps.append(now - self._last)
        self.waited.append(values["data_seconds"])
        self._last = now


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the data (default: ../shared/data)")
    parser.add_argument("--steps", type=int, default=150, help="of each training (default 150)")
    parser.add_argument("--json", type=Path, default=RESULTS / "loading_cpu.json", help="where the result goes")
    arguments = parser.parse_args()
    if arguments.steps <= 2 * AHEAD:
        parser.error(f"--steps must be above {2 * AHEAD}, got {arguments.steps}")
    keep_freed_memory()
    rows = [measure(name, f"{where.replace(':', f':{arguments.data}/')}", arguments.steps)
            for name, where in KINDS.items()]  # fmt: skip
    for row in rows:
        print(row)
    steps = "" if arguments.steps == 150 else f" --steps {arguments.steps}"
    command = f"python python/benchmarks/bench_loading.py{steps}"
    write_json({"benchmark": "bench_loading", "command": command, **environment(), "rows": rows}, arguments.json)


def measure(name: str, source: str, steps: int) -> Row:
    """One kind of data."""
    # No early steps: small images would be trained on and loaded at another pace.
    settings = [f"steps={steps}", "data.early_steps=0", "data.workers=1"]
    settings += ["validation.every=0", f"checkpoint.every={steps}"]
    config = read_config("photos-small", [source], settings)
    data = open_data(config, report=lambda text: None)
    mixture = Mixture(data.training, data.weights, config.seed)
    from_files = statistics.median(seconds_to_load(mixture))
    from_cache = statistics.median(seconds_to_load(mixture))
    recorder = train(config, steps)
    settled = slice(2 * AHEAD, None)
    step = statistics.fmean(recorder.seconds_of_steps[settled])
    waiting = statistics.fmean(recorder.waited[settled])
    return {
        "data": name,
        "images": f"{config.data.images} x {config.data.width} x {config.data.height}",
        "load_from_files_ms": round(1e3 * from_files, 1),
        "load_from_cache_ms": round(1e3 * from_cache, 1),
        "step_ms": round(1e3 * step, 1),
        "waiting_ms": round(1e3 * waiting, 1),
    }


def seconds_to_load(mixture: Mixture) -> list[float]:
    """How long each of the first samples takes in this process."""
    times = []
    for position in range(_LOADED):
        started = time.perf_counter()
        mixture[position]
        times.append(time.perf_counter() - started)
    return times


def train(config: TrainingConfig, steps: int) -> Recorder:
    """Some steps as ``disk-ops train`` makes them."""
    recorder = Recorder()
    data = open_data(config, report=lambda text: None)
    batches = load_batches(data.stages(config), config.data.batch_size, range(steps), workers=config.data.workers)
    with tempfile.TemporaryDirectory() as folder:
        Trainer(config, Path(folder), Group(0, 1, torch.device("cpu")), recorder).run(batches)
    return recorder


if __name__ == "__main__":
    main()
