"""``disk-ops train``: train features from photographs or posed images."""

from __future__ import annotations

import argparse
from pathlib import Path

from disk_ops.checkpoint import read_state_dict
from disk_ops.group import GroupError, is_lost_process
from disk_ops.io.output import check_writable
from disk_ops.programs.common import (
    DTYPES,
    OK,
    UserError,
    counted,
    is_out_of_memory,
    note,
    printable,
    quiet_opencv,
)
from disk_ops.scenes.errors import DataError
from disk_ops.training.config import TrainingConfig, config_to_toml, presets, read_config
from disk_ops.training.data.loading import AHEAD
from disk_ops.training.data.opening import open_data
from disk_ops.training.export import check_export, export_weights, read_record
from disk_ops.training.folder import (
    BEST,
    CONFIG,
    LAST,
    Existing,
    check_folder,
    is_own,
    is_same_training,
    stored_config,
    write_config,
)
from disk_ops.training.guards import TrainingError
from disk_ops.training.memory import activation_bytes, keep_freed_memory
from disk_ops.training.run import join_training, train
from disk_ops.training.settings import SettingsError
from disk_ops.training.state import StateError, has_checkpoint
from disk_ops.training.trainer import Outcome
from disk_ops.training.validation import SourceSamples

INTERRUPTED = 130


def run(arguments: argparse.Namespace) -> int:
    """Run the program; see ``disk-ops train --help``."""
    quiet_opencv()
    try:
        return _run(arguments)
    except (SettingsError, DataError, StateError, TrainingError, GroupError) as error:
        raise UserError(str(error)) from error
    except Exception as error:
        if is_lost_process(error):
            raise UserError("another process of this training has ended: what it said tells why") from error
        if not is_out_of_memory(error):
            raise
        kept = arguments.output is not None and has_checkpoint(arguments.output)
        raise UserError(
            "memory is short: set compute.memory_gb to compute images one by one, or lower data.width and "
            f"data.height{'; the last checkpoint is kept' if kept else ''}"
        ) from error


def _run(arguments: argparse.Namespace) -> int:
    config = _read_config(arguments)
    if arguments.write_config is not None:
        check_writable(arguments.write_config)
        if arguments.write_config.exists() and not arguments.overwrite:
            raise UserError(f"{arguments.write_config} exists already: use --overwrite to replace it")
        write_config(config, arguments.write_config)
        print(printable(f"wrote {arguments.write_config}"))
        return OK
    if arguments.dry_run:
        _describe(config)
        return OK
    if arguments.output is None:
        raise UserError("-o FOLDER is needed: where the training is kept")
    existing: Existing = "resume" if arguments.resume else "overwrite" if arguments.overwrite else "refuse"
    group = join_training(config)
    try:
        if arguments.export is not None:
            group.all_or_none(lambda: _check_export(arguments, config, existing) if group.is_main else None)
        if group.device.type == "cpu":
            keep_freed_memory()
        outcome = train(config, arguments.output, group, existing=existing, quiet=arguments.quiet)
        return _finish(arguments, config, outcome) if group.is_main else OK
    finally:
        group.leave()


def _read_config(arguments: argparse.Namespace) -> TrainingConfig:
    if arguments.config is not None:
        return read_config(arguments.config, arguments.data or (), arguments.set or ())
    if arguments.resume and arguments.output is not None:
        stored = arguments.output / CONFIG
        if stored.is_file() and stored.stat().st_size:
            return read_config(stored, arguments.data or (), arguments.set or ())
        config = stored_config(arguments.output, note)
        if config is not None and not arguments.data and not arguments.set:
            return config
    raise UserError(f"a configuration is needed: a TOML file or a preset ({', '.join(presets())})")


def _check_export(arguments: argparse.Namespace, config: TrainingConfig, existing: Existing) -> None:
    """Raise where the weights can't be exported at the end, or would replace what has nothing to do with them."""
    path: Path = arguments.export
    check_folder(arguments.output, existing)  # it may be meant to lie there
    check_export(path, overwrite=existing != "refuse")
    if is_own(arguments.output, path):
        raise UserError(f"--export {path} is a file of the training itself: give another name")
    if existing == "resume" and path.exists() and not _is_export(path, config):
        raise UserError(f"--export {path} exists already and is no export of this training: give another name")


def _is_export(path: Path, config: TrainingConfig) -> bool:
    try:
        record = read_record(path)
    except (OSError, ValueError):
        return False
    return record is not None and is_same_training(config, record.get("config", {}))


def _finish(arguments: argparse.Namespace, config: TrainingConfig, outcome: Outcome) -> int:
    folder: Path = arguments.output
    if not outcome.finished:
        note(
            f"stopped after step {outcome.step:,} of {config.steps:,}; all is kept in {folder}. "
            "The same command with --resume goes on"
        )
        return INTERRUPTED
    weights = folder / BEST if (folder / BEST).exists() else folder / LAST
    if arguments.export is not None:
        record, dtype = read_record(weights) or {}, DTYPES[arguments.export_dtype]
        export_weights(read_state_dict(weights), arguments.export, record, overwrite=True, dtype=dtype)
        weights = arguments.export
    print(printable(f"trained {counted(config.steps, 'step')}; the weights are in {weights}"))
    return OK


def _describe(config: TrainingConfig) -> None:
    """What a training would do, without doing it."""
    from disk_ops import DISKDetector

    print(printable(config_to_toml(config)))
    data = open_data(config, note)
    print("# data")
    for (name, size), weight in zip(data.sizes, data.weights, strict=True):
        print(f"#   train: {printable(name)}: {counted(size, 'item')} a pass, weight {weight:g}")
    for source in data.validation:
        samples = SourceSamples(source, config.validation.samples, config.seed, note)
        samples.check()
        print(f"#   validation: {printable(source.name)}: {counted(len(samples), 'sample')}")
    detector = DISKDetector(config.model.desc_dim)
    frame = config.data
    pairs = frame.images * (frame.images - 1) // 2 * frame.batch_size
    print("# training")
    print(f"#   {config.steps:,} steps of {counted(frame.batch_size, 'sample')}, {counted(pairs, 'pair')} a step")
    print(f"#   {counted(sum(p.numel() for p in detector.parameters()), 'parameter')}")
    activations = activation_bytes(detector, frame.width, frame.height, frame.images)
    limit = config.compute.memory_gb * 2**30
    if 0 < limit < activations:
        print(f"#   a sample's activations, {activations / 2**30:.2f} GiB, are above memory_gb: "
              f"{activations / frame.images / 2**30:.2f} GiB with images computed again one by one")  # fmt: skip
    else:
        print(f"#   {activations / 2**30:.2f} GiB for a sample's activations; gradients take about as much again")
    loading = max(1, frame.workers)  # each has its own cache; early photos share theirs with the later
    cached = loading * sum(source.options.cache_mb * 1e6 for source in config.source if source.use != "val")
    ahead = frame.workers * AHEAD * frame.batch_size * frame.images * frame.width * frame.height * 4
    print(f"#   up to {(cached + ahead) / 2**30:.2f} GiB for decoded images and for samples that are loaded ahead")
