"""``disk-ops reconstruct``: a folder of photographs to cameras and points."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from disk_ops.io.hdf5 import image_names, open_h5, stored_descriptors, stored_sources
from disk_ops.io.output import OutputError, part_of
from disk_ops.io.shards import remove_shards
from disk_ops.programs import extract, match
from disk_ops.programs.common import (
    DETECTION,
    OK,
    SOME_FAILED,
    Failures,
    UserError,
    counted,
    load_detector,
    note,
    pick_device,
    refuse_ignored,
)
from disk_ops.programs.export_colmap import describe_database, sfm_options
from disk_ops.sfm.cameras import ExifCameras
from disk_ops.sfm.colmap import require_pycolmap
from disk_ops.sfm.database import open_database, remove_database, stored_origin, summarize_database
from disk_ops.sfm.mapping import MappingOptions
from disk_ops.sfm.reconstruction import (
    DATABASE,
    MODELS,
    SUMMARY,
    SfmOptions,
    database_origin,
    export_database,
    map_database,
    mapped_before,
)
from disk_ops.workers import this_worker

FEATURES, MATCHES = "features.h5", "matches.h5"
STAGES = 4
_EXTRACTION = (*DETECTION, "mask_dir", "max_memory", "dtype", "batch_size", "num_workers")
_MATCHING = ("exhaustive", "sequential", "pair_pattern", "pairs", "quadratic_overlap", "loop_closure", "ratio")
_SHARED: dict[str, Any] = {"layout": "hloc", "resume": True, "overwrite": False}  # of extract and match


def run(arguments: argparse.Namespace) -> int:
    """Run the program; see ``disk-ops reconstruct --help``."""
    require_pycolmap()
    if this_worker().size > 1:
        raise UserError(
            "reconstruct is the work of one process: share disk-ops extract and match out under torchrun, and give "
            "their results with --features and --matches"
        )
    folder: Path = arguments.output
    if not arguments.images.is_dir():
        raise UserError(f"{arguments.images} is not a folder")
    mapping = MappingOptions(fix_intrinsics=arguments.fix_cameras, threads=arguments.mapper_threads)
    options = replace(sfm_options(arguments), mapping=mapping)
    if arguments.matches and not arguments.features:
        raise UserError("--matches needs the --features that were matched")
    _refuse_ignored(arguments)
    ExifCameras(options.cameras)  # a wrong model or parameters are said before hours of work
    _check_inputs(folder, arguments)
    _prepare(folder, arguments)
    failures = Failures()
    features, matches, failed = _features_and_matches(folder, arguments)
    with _resume_hint(folder):
        _announce(3, "verification")
        _make_database(folder / DATABASE, features, matches, arguments, options, failures)
        _announce(4, "mapping")
        figures = mapped_before(folder, options.mapping)
        if figures is None:
            figures = map_database(folder, arguments.images, options.mapping, quiet=arguments.quiet)
        else:
            print(f"{folder / MODELS}: done before")
    registered = _print_models(folder, figures)
    return SOME_FAILED if failed or failures or not registered else OK


def _refuse_ignored(arguments: argparse.Namespace) -> None:
    """Raise if there is an option for work that isn't done."""
    if arguments.features:
        # Matching takes the device, too.
        names = [name for name in _EXTRACTION if name != "device" or arguments.matches]
        refuse_ignored(arguments, names, "with --features: nothing is extracted")
    if arguments.matches:
        refuse_ignored(arguments, _MATCHING, "with --matches: nothing is matched")


def _check_inputs(folder: Path, arguments: argparse.Namespace) -> None:
    """Raise where features can't be extracted or matched as asked, before earlier results are removed."""
    device = pick_device(arguments.device)
    if arguments.matches:
        with open_h5(arguments.matches):
            pass
    if arguments.features:
        with open_h5(arguments.features) as file:
            names, where = image_names(file), f"{arguments.features} holds the features of"
    else:
        names = [image.name for image in extract.chosen_images(_extraction(folder, arguments)).images]
        where = f"{arguments.images} holds"
        load_detector(arguments.weights, device, arguments.dtype, arguments.subpixel)
    if not arguments.matches:
        # All pairs of many images take memory, and can't be wrong if there is one.
        is_chosen = arguments.pairs is not None or arguments.pair_pattern is not None
        match.wanted_pairs(names if is_chosen else names[:2], arguments, where)


def _prepare(folder: Path, arguments: argparse.Namespace) -> None:
    """Make the folder, and see that no results in it would be lost."""
    names = (FEATURES, MATCHES, DATABASE, MODELS, SUMMARY)
    results = [place for name in names for place in (folder / name, part_of(folder / name)) if place.exists()]
    if results and not (arguments.resume or arguments.overwrite):
        raise OutputError(
            f"{folder} holds {results[0].name} already: use --resume to go on with it, or --overwrite to start afresh"
        )
    if arguments.resume:
        _check_own(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"the folder {folder} can't be made: {error.strerror}") from error
    if arguments.overwrite:
        given = [path.resolve() for path in (arguments.features, arguments.matches) if path is not None]
        for place in results:
            if place.is_dir():
                shutil.rmtree(place)
            elif place.resolve() not in given:
                place.unlink()
        for result, kept in ((folder / FEATURES, arguments.features), (folder / MATCHES, arguments.matches)):
            if kept is None or kept.resolve() != result.resolve():
                remove_shards(result)
        for database in (folder / DATABASE, part_of(folder / DATABASE)):
            remove_database(database)


def _check_own(folder: Path) -> None:
    """See that a database and models that would be replaced are ours, and not those of a project of COLMAP."""
    foreign = []
    if (folder / DATABASE).exists() and stored_origin(folder / DATABASE) is None:
        foreign.append(DATABASE)
    if (folder / MODELS).exists() and not (folder / SUMMARY).exists():
        foreign.append(MODELS)
    if foreign:
        raise OutputError(
            f"{folder / foreign[0]} was not made by disk-ops reconstruct: "
            "use another folder, or --overwrite to replace it"
        )


def _extraction(folder: Path, arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments of `disk-ops extract` for the features."""
    own = {"images": [arguments.images], "output": folder / FEATURES, "exclude": [folder]}
    return argparse.Namespace(**{**vars(arguments), **_SHARED, **own})


def _features_and_matches(folder: Path, arguments: argparse.Namespace) -> tuple[Path, Path, bool]:
    """Extract and match as `disk-ops extract` and `disk-ops match` do, as far as files aren't given.

    Returns:
        The files, and whether something failed.
    """
    features, matches = arguments.features or folder / FEATURES, arguments.matches or folder / MATCHES
    status = OK
    _announce(1, "features")
    if arguments.features:
        print(f"{features}: given")
    else:
        before = _sources(features)
        old_matches = _tells_nothing(matches)
        status |= extract.run(_extraction(folder, arguments))
        if not features.exists():
            raise UserError(f"none of the images in {arguments.images} could be used")
        after = _sources(features)
        if old_matches and any(after[name] != source for name, source in before.items() if name in after):
            note(f"images changed since they were matched: {matches} is made again")
            for old in (matches, part_of(matches)):
                old.unlink(missing_ok=True)
    _announce(2, "matches")
    if arguments.matches:
        print(f"{matches}: given")
    else:
        status |= match.run(
            argparse.Namespace(**{**vars(arguments), **_SHARED, "features": features, "output": matches})
        )
        if not matches.exists():
            raise UserError("none of the pairs could be matched")
    return features, matches, status != OK


def _sources(features: Path) -> dict[str, str | None]:
    """What the features that are there were made of."""
    if not features.exists():
        return {}
    with open_h5(features) as file:
        return stored_sources(file)


def _tells_nothing(matches: Path) -> bool:
    """Whether there are matches of an earlier version, which didn't store of which features they are."""
    if not matches.exists():
        return False
    with open_h5(matches) as file:
        return None in stored_descriptors(file).values()


def _make_database(
    database: Path,
    features: Path,
    matches: Path,
    arguments: argparse.Namespace,
    options: SfmOptions,
    failures: Failures,
) -> None:
    done = stored_origin(database) == database_origin(features, matches, options)
    if done:
        with open_database(database) as opened:
            summary = summarize_database(opened)
    else:
        images, quiet = arguments.images, arguments.quiet
        summary = export_database(
            features, matches, images, database, options, failures.add, note, resume=True, quiet=quiet
        )
    print(f"{database}: {describe_database(summary)}{', done before' if done else ''}")


def _print_models(folder: Path, figures: dict[str, Any]) -> int:
    """Print the models and return the number of registered images of the best, which is 0 if there is none."""
    models = figures["models"]
    if not models:
        print(
            "nothing could be reconstructed: no two images have enough matches that agree, from places far enough "
            f"apart. {folder / DATABASE} holds what was matched; more keypoints (--n) or larger images (--max-size) "
            "may help"
        )
        return 0
    for number, model in enumerate(models):
        print(
            f"{folder / MODELS / str(number)}: {model['registered']:,} of {counted(figures['images'], 'image')}, "
            f"{counted(model['landmarks'], 'landmark')}, track length {model['track_length']:.2f}, "
            f"reprojection error {model['reprojection_error']:.2f} px"
        )
    return int(models[0]["registered"])


def _announce(stage: int, what: str) -> None:
    print(f"[{stage}/{STAGES}] {what}", flush=True)


@contextmanager
def _resume_hint(folder: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        tqdm.write(
            f"interrupted: what is done is kept in {folder}; run the same command with --resume to go on",
            file=sys.stderr,
        )
        raise
