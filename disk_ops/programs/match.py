"""``disk-ops match``: mutual nearest neighbours of stored features, for many pairs, into one HDF5 file."""

from __future__ import annotations

import argparse
import hashlib
import time
from collections import OrderedDict
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from disk_ops import MutualNearestNeighbor
from disk_ops.io.hdf5 import (
    StorageError,
    flat_name,
    image_names,
    match_writer,
    open_h5,
    pair_name,
    read_features,
    stored_descriptors,
    stored_settings,
)
from disk_ops.io.inputs import InputError
from disk_ops.io.journal import Arrays
from disk_ops.io.output import Contents, ResumableOutput, Stamps, check_writable
from disk_ops.io.sharded_output import open_output
from disk_ops.pairs import BLOCK, Pair, PairSelection
from disk_ops.programs.common import (
    OK,
    Failures,
    Summary,
    UserError,
    counted,
    note,
    pick_device,
    resume_hint,
    tell_losses,
)
from disk_ops.workers import Worker, stopped_by_launcher, this_worker

_CACHE_BYTES = 1 << 30


class DescriptorCache:
    """Descriptors of the images used last, on the device, up to a number of bytes; and digests of them."""

    def __init__(self, file: h5py.File, device: torch.device, max_bytes: int = _CACHE_BYTES) -> None:
        self._file = file
        self._device = device
        self._max_bytes = max_bytes
        self._bytes = 0
        self._held: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._digests: dict[str, str] = {}

    def __getitem__(self, name: str) -> torch.Tensor:  # [N, D]
        if name in self._held:
            self._held.move_to_end(name)
            return self._held[name]
        descriptors = torch.from_numpy(self._read(name)).to(self._device)
        self._held[name] = descriptors
        self._bytes += descriptors.nbytes
        while self._bytes > self._max_bytes and len(self._held) > 1:
            self._bytes -= self._held.popitem(last=False)[1].nbytes
        return descriptors

    def stamp(self, name0: str, name1: str) -> str:
        """What tells the descriptors of a pair from others: all that matches depend on, besides the settings."""
        for name in (name0, name1):
            if name not in self._digests:
                self._read(name)
        return f"{self._digests[name0]} {self._digests[name1]}"

    def _read(self, name: str) -> npt.NDArray[np.float32]:
        descriptors = read_features(self._file, name).descriptors
        if name not in self._digests:
            data = str(descriptors.shape).encode() + descriptors.tobytes()
            self._digests[name] = hashlib.blake2b(data, digest_size=8).hexdigest()
        return descriptors


@torch.inference_mode()
def match_descriptors(
    matcher: MutualNearestNeighbor,
    desc0: torch.Tensor,  # [N, D]
    desc1: torch.Tensor,  # [M, D]
) -> tuple[npt.NDArray[np.signedinteger], npt.NDArray[np.float16]]:
    """Match two images.

    Returns:
        ``matches0`` [N], the index of each descriptor's partner or -1, and ``matching_scores0`` [N] = (1 + cos) / 2
        for descriptors of unit length.
    """
    distances, indices = matcher(desc0, desc1)  # [K, 1], [K, 2]
    small = len(desc1) <= np.iinfo(np.int16).max + 1
    matches0 = np.full(len(desc0), -1, dtype=np.int16 if small else np.int32)
    scores0 = np.zeros(len(desc0), dtype=np.float16)
    index0, index1 = indices.cpu().numpy().T
    matches0[index0] = index1
    # For unit vectors |a - b|^2 = 2 - 2 cos.
    scores0[index0] = 1.0 - distances[:, 0].float().square().cpu().numpy() / 4.0
    return matches0, scores0


def run(arguments: argparse.Namespace) -> int:
    """Run the program; see ``disk-ops match --help``."""
    worker = this_worker()
    output: Path = arguments.output
    check_writable(output)
    if output.exists() and arguments.features.exists() and output.samefile(arguments.features):
        raise UserError(f"{output} is the features file and the output as well")
    with open_h5(arguments.features) as file:
        where = f"{arguments.features} holds the features of"
        pairs, failures = _possible_pairs(wanted_pairs(image_names(file), arguments, where), worker)
        if pairs and not _share(pairs, worker):
            note(f"{worker} has nothing to do: there are fewer pairs than processes")
            return OK
        with stopped_by_launcher(worker):
            return _run(arguments, file, pairs, failures, worker)


def _run(arguments: argparse.Namespace, file: h5py.File, pairs: list[Pair], failures: Failures, worker: Worker) -> int:
    start = time.perf_counter()
    device = pick_device(arguments.device, worker)
    settings = {
        "program": "disk-ops match",
        "ratio": arguments.ratio,
        "layout": arguments.layout,
        "features": (stored_settings(file) or {}).get("weights"),
    }
    cache = DescriptorCache(file, device)
    contents = _contents(pairs, image_names(file), cache, arguments.layout)
    resume = arguments.resume or worker.restarted
    with (
        open_output(
            arguments.output, settings, contents, worker, resume=resume, overwrite=arguments.overwrite
        ) as result,
        resume_hint(result, "pairs"),
    ):
        tell_losses(result)
        mine, stored = _share(pairs, worker), result.stored(contents)
        todo = _to_do(mine, stored, contents)
        done = len(mine) - len(set(map(frozenset, todo)))
        if worker.is_main:
            todo += _changed_others(pairs, image_names(file), stored, contents)
        _tell(todo, stored, worker)
        matcher = MutualNearestNeighbor(arguments.ratio)
        quiet = arguments.quiet or not worker.is_main
        made, matches = _match_all(cache, matcher, todo, result, failures, quiet)
        whole = result.conclude(
            contents,
            failures.names,
            lambda stored: [f"{name0} - {name1}" for name0, name1 in _to_do(pairs, stored, contents)],
        )
    seconds = time.perf_counter() - start
    return Summary(arguments.output, "pair", "match", made, matches, done, failures, seconds).conclude(worker, whole)


def pair_selection(arguments: argparse.Namespace) -> PairSelection:
    """The choice of pairs that was made; see `disk_ops.arguments.shared.add_pairs`."""
    if arguments.sequential is None and (arguments.quadratic_overlap or arguments.loop_closure is not None):
        option = "--quadratic-overlap" if arguments.quadratic_overlap else "--loop-closure"
        raise UserError(f"{option} needs --sequential K")
    return PairSelection(
        arguments.pairs,
        arguments.sequential,
        arguments.quadratic_overlap,
        arguments.loop_closure,
        arguments.pair_pattern,
    )


def wanted_pairs(names: list[str], arguments: argparse.Namespace, where: str) -> list[Pair]:
    """The pairs of images that were asked for, as they are written in a file or follow from the names.

    Args:
        names: of the images that there are.
        arguments: with the choice of pairs.
        where: the images are, for messages.

    Raises:
        UserError: there are none, or the choice can't be understood.
    """
    selection = pair_selection(arguments)
    if selection.file is None and len(names) < 2:
        raise UserError(f"{where} {counted(len(names), 'image')}; two are needed")
    try:
        return selection.pairs(names)
    except InputError as error:
        option = "--pairs " if selection.file is not None else "--pair-"
        raise UserError(f"{option}{error}") from error


def _possible_pairs(pairs: list[Pair], worker: Worker) -> tuple[list[Pair], Failures]:
    """The pairs that can be matched, each once. Impossible ones become failures, of the main process only."""
    possible: list[Pair] = []
    failures = Failures()
    owners: dict[str, str] = {}
    seen: set[Pair] = set()
    for name0, name1 in pairs:
        if (name0, name1) in seen or (name1, name0) in seen:
            continue
        seen.add((name0, name1))
        reason = ""
        if name0 == name1:
            reason = "an image can't be matched with itself"
        elif clashes := [name for name in (name0, name1) if owners.setdefault(flat_name(name), name) != name]:
            reason = f"{clashes[0]} and {owners[flat_name(clashes[0])]} have the same name in match files"
        if not reason:
            possible.append((name0, name1))
        elif worker.is_main:
            failures.add(f"{name0} - {name1}", reason)
    return possible, failures


def _share(pairs: list[Pair], worker: Worker) -> list[Pair]:
    """The pairs of this process: runs of pairs, which often have an image in common."""
    return worker.share(pairs, run=max(1, min(BLOCK, len(pairs) // (8 * worker.size))))


def _contents(pairs: list[Pair], names: list[str], cache: DescriptorCache, layout: str) -> Contents:
    """Matches of these pairs: good as long as the descriptors are those that were matched."""
    owners = _owners(chain(chain.from_iterable(pairs), names))  # those to be matched come first

    def is_current(pair: str, stamp: str | None) -> bool:
        flat0, _, flat1 = pair.partition("/")
        if stamp is None or flat0 not in owners or flat1 not in owners:
            return True  # there is nothing to compare
        try:
            return cache.stamp(owners[flat0], owners[flat1]) == stamp
        except StorageError:  # said when the pair is matched
            return False

    def of_record(arrays: Arrays) -> str | None:
        return arrays["features"].item().decode() if "features" in arrays else None

    return Contents(match_writer(layout), stored_descriptors, of_record, is_current)


def _owners(names: Iterable[str]) -> dict[str, str]:
    """The first of the images that has a name in match files, by that name."""
    owners: dict[str, str] = {}
    for name in names:
        owners.setdefault(flat_name(name), name)
    return owners


def _to_do(pairs: list[Pair], stored: Stamps, contents: Contents) -> list[Pair]:
    """The pairs that are not stored, in either order, and those of other features, in the order they are stored in."""
    todo = []
    for name0, name1 in pairs:
        there = [pair for pair in ((name0, name1), (name1, name0)) if pair_name(*pair) in stored]
        old = [pair for pair in there if not contents.is_current(pair_name(*pair), stored[pair_name(*pair)])]
        todo += old if there else [(name0, name1)]
    return todo


def _changed_others(pairs: list[Pair], names: list[str], stored: Stamps, contents: Contents) -> list[Pair]:
    """The pairs that weren't asked for this time, but are stored with matches of other features."""
    changed = [pair.partition("/") for pair, stamp in stored.items() if not contents.is_current(pair, stamp)]
    if not changed:
        return []
    owners = _owners(chain(chain.from_iterable(pairs), names))
    asked = set(map(frozenset, pairs))
    others = [(owners[flat0], owners[flat1]) for flat0, _, flat1 in changed]  # all of them are there
    return [pair for pair in others if frozenset(pair) not in asked]


def _tell(todo: list[Pair], stored: Stamps, worker: Worker) -> None:
    """Say what becomes of stored matches besides those that are good."""
    changed = sum(pair_name(*pair) in stored for pair in todo)
    if changed:
        note(f"{counted(changed, 'pair')} matched again: the features changed since")
    unknown = sum(stamp is None for stamp in stored.values())
    if unknown and worker.is_main:
        note(
            f"{counted(unknown, 'pair')} stored by an earlier version, which didn't tell of which features: kept as "
            "good; if the features changed since, use --overwrite"
        )


def _match_all(
    cache: DescriptorCache,
    matcher: MutualNearestNeighbor,
    todo: list[Pair],
    result: ResumableOutput,
    failures: Failures,
    quiet: bool,
) -> tuple[int, int]:
    """Work through the pairs; returns how many were matched, and the number of matches found."""
    pairs = matches = 0
    for name0, name1 in tqdm(todo, unit="pair", disable=True if quiet else None):
        try:
            desc0, desc1 = cache[name0], cache[name1]
            if desc0.shape[1] != desc1.shape[1]:
                raise StorageError(f"descriptors of {desc0.shape[1]} and {desc1.shape[1]} dimensions")
        except StorageError as error:
            failures.add(f"{name0} - {name1}", error)
            continue
        matches0, scores0 = match_descriptors(matcher, desc0, desc1)
        stamp = np.asarray(cache.stamp(name0, name1).encode())
        arrays = {"matches0": matches0, "matching_scores0": scores0, "features": stamp}
        result.journal.append(pair_name(name0, name1), arrays)
        pairs += 1
        matches += int((matches0 >= 0).sum())
    return pairs, matches
