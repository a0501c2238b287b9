"""The training loop: samples to features, features to expected reward, reward to weights.

A step depends on nothing but the weights, the optimiser's state and the step's number: samples are a function of
their position, and each image has its own generator to draw keypoints from. So a training that is killed and resumed
ends with the same weights, and one on several processes equals one process up to the order of sums.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from disk_ops.detector import DISKDetector
from disk_ops.evaluation.features import evaluation_mode
from disk_ops.features import SampledFeatures
from disk_ops.group import Group
from disk_ops.training.config import TrainingConfig, config_to_mapping
from disk_ops.training.data.mixture import Broken, Loaded
from disk_ops.training.export import export_weights, training_record
from disk_ops.training.folder import BEST
from disk_ops.training.guards import Degeneration, SkippedSteps, StopOnSignal
from disk_ops.training.logs import NullLog, TrainingLog
from disk_ops.training.loss import PolicyGradientLoss
from disk_ops.training.memory import activation_bytes
from disk_ops.training.network import average_weights, compile_network, make_detector, origin
from disk_ops.training.pictures import training_pictures
from disk_ops.training.schedule import Annealing, annealing
from disk_ops.training.state import save_checkpoint
from disk_ops.training.supervision import PairRewards
from disk_ops.training.validation import Validator

_TALLY = ("loss", "reward", "matches", "correct", "judged", "keypoints", "cells", "images", "pairs")
_SCORED_BY = "fscore5"  # to be changed when scores of equal settings mean something else
_SAMPLING = 2  # stream of random numbers, beside those of the data


class Outcome(NamedTuple):
    """How a training ended."""

    step: int  # steps done
    finished: bool  # False: stopped by a signal
    best: float  # best validation score; -inf without validation


class Trainer:
    """Trains a detector by policy gradient (DISK, section 3), visible from :meth:`run` down.

    Args:
        config: everything that decides what is learned.
        folder: where checkpoints go.
        group: the processes of this training.
        log: where progress is told.
        validator: measures the detector on held-out data; None: never.
        sources: names and sizes of the sources of data, for the record.
        previous: the :meth:`state` to go on from.
    """

    def __init__(
        self,
        config: TrainingConfig,
        folder: Path,
        group: Group,
        log: TrainingLog | NullLog | None = None,
        validator: Validator | None = None,
        sources: Sequence[tuple[str, int]] = (),
        previous: Mapping[str, Any] | None = None,
    ) -> None:
        self.config, self.folder, self.group = config, folder, group
        self.log, self.validator, self.sources = log or NullLog(), validator, sources
        self.detector = make_detector(config.model, config.seed, previous is not None).to(group.device)
        self.origin = origin(config.model, self.detector) if previous is None else previous.get("origin")
        self.parameters = list(self.detector.parameters())
        self.optimizer = torch.optim.Adam(self.parameters, lr=config.optimizer.learning_rate)
        self.average = average_weights(self.detector, config.optimizer.ema) if config.optimizer.ema else None
        self.start, self.best = 0, -math.inf
        self.validated = 0  # step of the last validation
        self.metrics: Mapping[str, float] = {}  # of the last validation
        self.skipped, self.degeneration = SkippedSteps(), Degeneration()
        self._reported: set[str] = set()  # broken files
        data = config.data
        needed = activation_bytes(self.detector, data.width, data.height, data.images)
        self.recompute = 0 < config.compute.memory_gb * 2**30 < needed
        if config.compute.compile:
            compile_network(self.detector)
        if previous is not None:
            self._load(previous)

    # ------------------------------------------------------------------------------------------------- the loop

    def run(self, batches: Iterator[Sequence[Loaded]]) -> Outcome:
        """Train from ``self.start`` to the end, or until a signal asks to stop; both save a checkpoint.

        A checkpoint is saved before validation as well, so that no step is lost if that fails; what goes on from it
        validates first.
        """
        config, step = self.config, self.start
        with StopOnSignal(self.group.is_main) as signals:
            self.validate_if_due(step)
            while step < config.steps:
                waited = time.perf_counter()
                batch = next(batches)
                waited = time.perf_counter() - waited
                stop = self.step(step, batch, signals.requested, waited)
                step += 1
                last = stop or step == config.steps
                if last or self.validation_due(step) or _due(step, config.checkpoint.every):
                    self.save(step)
                if stop and step < config.steps:  # what goes on from here validates first
                    break
                self.validate_if_due(step)
        return Outcome(step, step == config.steps, self.best)

    def step(self, step: int, batch: Sequence[Loaded], stop: bool = False, waited: float = 0.0) -> bool:
        """Make one optimiser step from the samples of all processes; return whether one of them asks to stop."""
        config = self.config
        values = annealing(step, config.steps, config.schedule, config.optimizer)
        torch.manual_seed(config.seed + step)  # nothing here draws from it; a network of your own might
        self.optimizer.zero_grad(set_to_none=False)
        tally, bad = dict.fromkeys(_TALLY, 0.0), []
        broken = [file for loaded in batch for file in loaded.broken if file.path not in self._reported]
        for loaded in batch:
            mine = self.backward(loaded, values)
            if not np.isfinite(mine["loss"]):
                bad.append(loaded.sample.name)
            for name, value in mine.items():
                tally[name] += value
        tally = self._share({**tally, "stop": float(stop), "bad": float(len(bad)), "broken": float(len(broken))})
        if tally["broken"]:
            self._report(broken)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, config.optimizer.clip or math.inf)
        usable = not tally["bad"] and bool(norm.isfinite())
        if not usable:
            scenes = bad if tally["bad"] else [loaded.sample.name for loaded in batch]
            self.log.note(self.skipped.bad(step + 1, [name for part in self.group.gather(scenes) for name in part]))
        else:
            self.skipped.good()
            for group in self.optimizer.param_groups:
                group["lr"] = values.learning_rate
            self.optimizer.step()
            if self.average is not None:
                self.average.update_parameters(self.detector)
        lambda_fp, lambda_kp = config.reward.lambda_fp * values.ramp, config.reward.lambda_kp * values.ramp
        self.degeneration.check(tally["keypoints"], tally["cells"], lambda_kp, lambda_fp)
        self.log.step(step + 1, {
            "loss": tally["loss"], "reward": tally["reward"] / max(1.0, tally["pairs"]),
            "matches": tally["matches"] / max(1.0, tally["pairs"]),
            "keypoints": tally["keypoints"] / max(1.0, tally["images"]),
            "correct": tally["correct"] / tally["judged"] if tally["judged"] else float("nan"),
            "lambda_fp": lambda_fp, "lambda_kp": lambda_kp, "theta": values.theta,
            "learning_rate": values.learning_rate, "grad_norm": float(norm), "pairs": tally["pairs"],
            "data_seconds": waited, "skipped": float(not usable),
        })  # fmt: skip
        return tally["stop"] > 0

    def backward(self, loaded: Loaded, values: Annealing) -> dict[str, float]:
        """Add the gradient of one sample's loss to that of the weights; return what the log shows of it."""
        config, sample = self.config, loaded.sample
        images = sample.images.to(self.group.device, non_blocking=True).float() / 255
        mask = sample.mask.to(self.group.device, non_blocking=True)
        features = self._sample_features(images, mask, loaded.position)
        rewards = PairRewards(config.reward, sample, self.group.device, values.ramp)
        loss_of = PolicyGradientLoss(config.reward.lambda_kp * values.ramp, config.reward.penalize)
        loss, statistics = loss_of(features, lambda i, j: rewards.of(features, i, j), values.theta)
        loss = loss / config.data.batch_size
        if loss.isfinite():
            loss.backward()
        rows, columns = (math.ceil(size / config.reward.cell) for size in images.shape[-2:])
        reward, matches = float(statistics.reward), float(statistics.matches)
        correct = rewards.correct(reward, matches)
        return {
            "loss": float(loss.detach()), "reward": reward, "matches": matches, "correct": correct or 0.0,
            "judged": 0.0 if correct is None else matches, "keypoints": float(statistics.keypoints),
            "cells": float(len(images) * rows * columns), "images": float(len(images)),
            "pairs": float(statistics.pairs),
        }  # fmt: skip

    def _sample_features(
        self,
        images: Tensor,  # [T, 3, H, W]
        mask: Tensor,  # [T, 1, H, W]
        position: int,
    ) -> list[SampledFeatures]:
        seeds = np.random.SeedSequence((self.config.seed, _SAMPLING, position)).generate_state(len(images), np.uint64)
        everywhere = bool(mask.all())

        def draw(chosen: slice) -> list[SampledFeatures]:
            generators = [torch.Generator().manual_seed(int(seed >> 1)) for seed in seeds[chosen]]
            keep = None if everywhere else mask[chosen]
            with torch.autocast(images.device.type, torch.bfloat16, enabled=self.config.compute.amp):
                return self.detector.sample(images[chosen], generators, keep, self.config.reward.cell)

        if not self.recompute:
            return draw(slice(None))
        each = [
            checkpoint(draw, slice(i, i + 1), use_reentrant=False, preserve_rng_state=False) for i in range(len(images))
        ]
        return [features for (features,) in each]

    def _share(self, tally: dict[str, float]) -> dict[str, float]:
        """Sum gradients and tally over all processes in one exchange, so that none can wait for another in vain."""
        if self.group.size == 1:
            return tally
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
        numbers = torch.tensor(list(tally.values()), device=self.group.device)
        flat = torch.cat([numbers, *(gradient.flatten() for gradient in gradients)])
        self.group.sum(flat)
        numbers, *parts = flat.split([len(tally), *(gradient.numel() for gradient in gradients)])
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)
        return dict(zip(tally, numbers.tolist(), strict=True))

    # ------------------------------------------------------------------------- validation and what is kept

    @property
    def result(self) -> DISKDetector:
        """The detector that is validated and exported: that of averaged weights where there are such."""
        averaged = None if self.average is None else self.average.module
        return averaged if isinstance(averaged, DISKDetector) else self.detector

    def validation_due(self, step: int) -> bool:
        """Whether the settings say so, and it hasn't been done after that step."""
        every = self.config.validation.every
        return every > 0 and step != self.validated and (step == self.config.steps or _due(step, every))

    def validate_if_due(self, step: int) -> None:
        """Validate, and save what came of it, where it is due."""
        if self.validation_due(step):
            self.validate(step)
            self.save(step)

    def validate(self, step: int) -> None:
        """Measure the detector; the best one so far is kept as ``best.safetensors``."""
        if self.group.is_main and self.validator is not None:
            with self.log.paused():
                self.metrics = self.validator(self.result)
                self.log.validation(step, self.metrics)
                self.log.pictures(step, lambda: self._pictures(step))
            if self.metrics["score"] > self.best:
                self.best = self.metrics["score"]
                self.export(self.folder / BEST, step)
        self.best = self.group.broadcast(self.best)
        self.validated = step

    def export(self, path: Path, step: int) -> None:
        """Write the weights that users take, with the record of how they were made."""
        record = training_record(
            config_to_mapping(self.config), step, self.log.seconds, self.metrics, self.sources, self.origin
        )
        export_weights(self.result.state_dict(), path, record, overwrite=True)

    def _pictures(self, step: int) -> dict[str, Any]:
        assert self.validator is not None
        sample = next(iter(self.validator.samples), None)
        if sample is None:
            return {}
        rewards = PairRewards(self.config.reward, sample, self.group.device)
        with evaluation_mode(self.result):
            return training_pictures(self.result, sample, lambda i, j, found: rewards.of(found, i, j), step)

    def save(self, step: int) -> None:
        """Write all that the rest of the training depends on."""
        if self.group.is_main:
            save_checkpoint(self.folder, step, self.state(), self.config.checkpoint.keep)
        self.group.wait()

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds. The weights of the result lie where released checkpoints have them."""
        return {
            "extractor": self.result.state_dict(),
            "detector": self.detector.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "best": self.best,
            "scored_by": _SCORED_BY,
            "validated": self.validated,
            "metrics": dict(self.metrics),
            "skipped": [self.skipped.total, self.skipped.in_a_row],
            "degeneration": self.degeneration.steps,
            "config": config_to_mapping(self.config),
            "origin": self.origin,
        }

    def _load(self, content: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` gave."""
        self.detector.load_state_dict(content["detector"])
        self.optimizer.load_state_dict(content["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(content["average"])
        self.start, self.metrics = content["step"], content["metrics"]
        if content.get("scored_by") == _SCORED_BY:
            self.best = content["best"]
        self.validated = content.get("validated", self.start)  # earlier versions saved after validation only
        self.skipped = SkippedSteps(*content["skipped"])
        self.degeneration = Degeneration(content["degeneration"])

    def _report(self, broken: Sequence[Broken]) -> None:
        """Name the files that this process or another couldn't use, each once."""
        for path, reason in (file for part in self.group.gather(list(broken)) for file in part):
            if path not in self._reported:
                self._reported.add(path)
                self.log.note(f"{path} can't be used: {reason}")


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
