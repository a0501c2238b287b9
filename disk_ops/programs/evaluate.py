"""``disk-ops evaluate``: features side by side on data with ground truth."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from disk_ops.evaluation.ablation import Ablation
from disk_ops.evaluation.environment import describe_environment
from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.homography_protocol import HomographyProtocol, without_excluded
from disk_ops.evaluation.homography_sets import SetError, find_homography_sets
from disk_ops.evaluation.methods import Method, MethodSpec, parse_methods
from disk_ops.evaluation.pose_protocol import PoseProtocol
from disk_ops.evaluation.posed import Selection
from disk_ops.evaluation.protocol import Item, Protocol, Table
from disk_ops.evaluation.reconstruction import ReconstructionProtocol
from disk_ops.evaluation.reconstruction_scenes import find_scenes
from disk_ops.evaluation.report import print_tables, refuse_other_results, write_report
from disk_ops.evaluation.robust import check_method
from disk_ops.evaluation.rotation import RotationProtocol
from disk_ops.evaluation.runs import CACHE, Choice, Run
from disk_ops.evaluation.splitting import split_items
from disk_ops.evaluation.variants import detections
from disk_ops.group import DeviceError, Group, join
from disk_ops.programs.common import (
    OK,
    SOME_FAILED,
    Failures,
    UserError,
    counted,
    note,
    pick_device,
    printable,
    quiet_opencv,
)
from disk_ops.workers import this_worker

_NAMED = 5  # items of validation


class Task(NamedTuple):
    """What is to be measured."""

    title: str
    test: Protocol
    validation: Protocol | None  # that --ratio auto chooses by, if it is other data than a part of the test's
    variants: Callable[[Sequence[MethodSpec], torch.device], list[Method]] | None = None  # of the methods named


def run(arguments: argparse.Namespace) -> int:
    """Run the program; see ``disk-ops evaluate --help``."""
    quiet_opencv()
    folder: Path = arguments.output
    try:
        return _run(arguments)
    except EvaluationError as error:
        raise UserError(str(error)) from error
    except KeyboardInterrupt:
        if (folder / CACHE).is_dir():
            note(f"interrupted: what is done is kept in {folder / CACHE}; the same command goes on")
        raise


def _run(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.output
    _check(arguments)
    specs = parse_methods(arguments.method)
    ns = list(dict.fromkeys(arguments.n))
    group = _join(arguments.device)
    try:
        failures = Failures()
        task = _task(arguments, failures, group)
        methods = (task.variants or _load)(specs, group.device)
        items, ratios, choices = _ratios(arguments, task, methods, ns, group, failures)
        measuring = Run(task.test, folder, group, failures.add, arguments.quiet)
        records = measuring.records(methods, ns, ratios, items)
        _add_others(failures, measuring)
        if not group.is_main:
            return OK
        if not records:
            raise UserError("nothing could be evaluated")
        tables = [*task.test.tables(records), *_ratio_tables(choices)]
        print_tables(tables)
        page = write_report(
            folder,
            task.title,
            records,
            tables,
            task.test.plots(records),
            task.test.pictures(records, methods) if arguments.pictures else (),
            describe_environment(arguments.command, task.test, methods, ns, arguments.ratio, group.device),
        )
        print(f"{page}: {counted(len(records), 'record')}, {len(failures):,} failed")
        return SOME_FAILED if failures else OK
    finally:
        group.leave()


def _load(specs: Sequence[MethodSpec], device: torch.device) -> list[Method]:
    return [spec.load(device) for spec in specs]


def _add_others(failures: Failures, done: Run) -> None:
    """Count what failed in other processes, which have told it."""
    failures.names += [name for name in done.failed if name not in failures.names]


def _check(arguments: argparse.Namespace) -> None:
    folder: Path = arguments.output
    if folder.exists() and not folder.is_dir():
        raise UserError(f"-o {folder} is a file, a folder is needed")
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"-o {folder} can't be written: no permission to write to {parent}")
    refuse_other_results(folder, _measured(arguments))
    if getattr(arguments, "ransac", None) is not None:
        try:
            check_method(arguments.ransac, essential=getattr(arguments, "geometry", "") == "essential")
        except ValueError as error:
            raise UserError(f"--ransac {arguments.ransac}: {error}") from error
    if arguments.validation is not None and arguments.ratio != "auto":
        raise UserError("--validation is of use with --ratio auto only")


def _join(device: str) -> Group:
    """This process, and those that torchrun started with it."""
    if this_worker().size == 1:
        return Group(device=pick_device(device))
    try:
        return join(device)
    except DeviceError as error:
        raise UserError(f"--device {error}") from error


def _ratios(
    arguments: argparse.Namespace,
    task: Task,
    methods: Sequence[Method],
    ns: Sequence[int],
    group: Group,
    failures: Failures,
) -> tuple[list[Item], Mapping[tuple[str, int], float | None] | float | None, dict[tuple[str, int], Choice]]:
    """The items of the test, the thresholds of the ratio test, and how they were chosen, if they were."""
    items = task.test.items()
    if arguments.ratio != "auto":
        return items, arguments.ratio, {}
    if task.validation is None:
        validation, items, separate = split_items(items)
        if group.is_main and not separate:
            note("the data for validation has images of the test: give other data by --validation to keep them apart")
    else:
        validation = task.validation.items()
        tested = {file.resolve() for item in items for file in item.files}
        common = [file for item in validation for file in item.files if file.resolve() in tested]
        if common:
            raise UserError(f"--validation {arguments.validation} shares files with the test, such as {common[0]}")
    choosing = Run(task.validation or task.test, arguments.output, group, failures.add, arguments.quiet)
    choices = choosing.choose_ratios(methods, ns, validation)
    _add_others(failures, choosing)
    if group.is_main:
        names = ", ".join(item.name for item in validation[:_NAMED])
        more = f" and {len(validation) - _NAMED:,} more" if len(validation) > _NAMED else ""
        note(f"ratio thresholds chosen on {names}{more}, not in the test")
    return items, {key: choice.ratio for key, choice in choices.items()}, choices


def _ratio_tables(choices: Mapping[tuple[str, int], Choice]) -> list[Table]:
    if not choices:
        return []
    tried = list(next(iter(choices.values())).scores)
    rows: list[tuple[str | float | int | None, ...]] = [
        (method, n, "none" if choice.ratio is None else f"{choice.ratio:g}", *choice.scores.values())
        for (method, n), choice in choices.items()
    ]
    remark = "The score of the validation data with each threshold; the best one is used in the test."
    return [Table("Ratio thresholds", ("method", "n", "chosen", *tried), rows, remark)]


# ---------------------------------------------------------------------------------------------------------- protocols
class _Telling(NamedTuple):
    """What a protocol says while it looks for data; all processes find the same, so one of them tells it."""

    failures: Failures
    is_main: bool

    def note(self, text: str) -> None:
        if self.is_main:
            note(text)

    def failed(self, error: SetError) -> None:
        if self.is_main:
            self.failures.add(str(error.path), error.reason)


def _task(arguments: argparse.Namespace, failures: Failures, group: Group) -> Task:
    is_ablation = arguments.protocol == "ablation"
    variants = detections(arguments.cells, arguments.windows) if is_ablation else []
    title, make = _PROTOCOLS[_measured(arguments)]
    telling = _Telling(failures, group.is_main)
    validation = None if arguments.validation is None else make(arguments, arguments.validation, telling)
    test = make(arguments, arguments.data, telling)
    title = f"{title}: {printable(str(arguments.data))}"
    if not is_ablation:
        return Task(title, test, validation)
    ablation = Ablation(test, variants)
    return Task(f"Ablation. {title}", ablation, validation, ablation.methods)


def _measured(arguments: argparse.Namespace) -> str:
    """The name of the protocol that measures."""
    return str(arguments.measure if arguments.protocol == "ablation" else arguments.protocol)


def _homography(arguments: argparse.Namespace, folder: Path, telling: _Telling) -> Protocol:
    sets = find_homography_sets(folder, telling.failed)
    if not arguments.all_scenes:
        sets, excluded = without_excluded(sets)
        if excluded:
            names = ", ".join(entry.name for entry in excluded)
            telling.note(f"left out as in the paper (--all-scenes takes them): {names}")
    return HomographyProtocol(sets, arguments.max_size, arguments.ransac, arguments.ransac_threshold)


def _pose(arguments: argparse.Namespace, path: Path, telling: _Telling) -> Protocol:
    if arguments.images is not None and arguments.data.is_dir():
        raise UserError(f"--images is of use with a list of pairs only, {arguments.data} is a folder")
    limit = None if arguments.pairs_per_scene == "all" else arguments.pairs_per_scene
    made = PoseProtocol(
        path,
        arguments.geometry,
        arguments.ransac,
        arguments.ransac_threshold,
        arguments.max_size,
        Selection(limit, arguments.min_covisibility),
        arguments.images if path.is_file() else None,
    )
    for each in made.notes:
        telling.note(each)
    return made


def _rotation(arguments: argparse.Namespace, folder: Path, telling: _Telling) -> Protocol:
    return RotationProtocol(folder, arguments.step, arguments.max_size, telling.failed)


def _reconstruct(arguments: argparse.Namespace, folder: Path, telling: _Telling) -> Protocol:
    return ReconstructionProtocol(
        find_scenes(folder),
        arguments.max_size,
        arguments.known_intrinsics,
        arguments.max_error,
        arguments.single_camera,
    )


_PROTOCOLS: dict[str, tuple[str, Callable[[argparse.Namespace, Path, _Telling], Protocol]]] = {
    "homography": ("Homographies", _homography),
    "pose": ("Relative poses", _pose),
    "rotation": ("Rotation", _rotation),
    "reconstruct": ("Reconstructions", _reconstruct),
}
