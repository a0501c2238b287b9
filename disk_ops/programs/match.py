"""``disk-ops match``: mutual nearest neighbours of stored features, for many pairs, into one HDF5 file."""

from __future__ import annotations

import argparse
import shlex
import time
from collections import OrderedDict
from collections.abc import Sequence
from itertools import combinations
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
    stored_pairs,
    stored_settings,
)
from disk_ops.io.inputs import natural_key
from disk_ops.io.output import ResumableOutput, check_writable
from disk_ops.programs.common import (
    OK,
    SOME_FAILED,
    Failures,
    UserError,
    counted,
    note,
    pick_device,
    resume_hint,
)

Pair = tuple[str, str]

_BLOCK = 32  # images per side of the blocks in which all pairs are visited
_CACHE_BYTES = 1 << 30


def read_pairs(path: Path) -> list[Pair]:
    """Read a pairs file: two image names a line.

    The names are separated by a tab, or by spaces if neither contains any; names with spaces can also be quoted
    as in a shell. Empty lines and lines that begin with ``#`` are skipped.

    Raises:
        UserError: when the file can't be read or a line doesn't hold two names.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise UserError(f"--pairs {path}: {reason}") from error
    pairs = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        names = _split_names(line)
        if len(names) != 2:
            raise UserError(
                f"--pairs {path}, line {number}: two image names are expected, got {line.strip()!r} "
                "(separate names that contain spaces by a tab, or quote them)"
            )
        pairs.append((names[0], names[1]))
    if not pairs:
        raise UserError(f"--pairs {path}: holds no pairs")
    return pairs


def _split_names(line: str) -> list[str]:
    if "\t" in line:
        return [name.strip() for name in line.split("\t") if name.strip()]
    names = line.split()
    if len(names) == 2 or not set("\"'") & set(line):
        return names
    try:
        return shlex.split(line)
    except ValueError:  # an unclosed quote
        return names


def exhaustive_pairs(names: Sequence[str]) -> list[Pair]:
    """All pairs, block by block, so that the features of few images are needed at a time."""
    pairs = combinations(range(len(names)), 2)
    ordered = sorted(pairs, key=lambda pair: (pair[0] // _BLOCK, pair[1] // _BLOCK, pair))
    return [(names[i], names[j]) for i, j in ordered]


def sequential_pairs(names: Sequence[str], ahead: int) -> list[Pair]:
    """Each image with the next ``ahead`` ones."""
    return [(names[i], names[j]) for i in range(len(names)) for j in range(i + 1, min(i + 1 + ahead, len(names)))]


class DescriptorCache:
    """Descriptors of the images used last, on the device, up to a number of bytes."""

    def __init__(self, file: h5py.File, device: torch.device, max_bytes: int = _CACHE_BYTES) -> None:
        self._file = file
        self._device = device
        self._max_bytes = max_bytes
        self._bytes = 0
        self._held: OrderedDict[str, torch.Tensor] = OrderedDict()

    def __getitem__(self, name: str) -> torch.Tensor:  # [N, D]
        if name in self._held:
            self._held.move_to_end(name)
            return self._held[name]
        descriptors = torch.from_numpy(read_features(self._file, name).descriptors).to(self._device)
        self._held[name] = descriptors
        self._bytes += descriptors.nbytes
        while self._bytes > self._max_bytes and len(self._held) > 1:
            self._bytes -= self._held.popitem(last=False)[1].nbytes
        return descriptors


@torch.inference_mode()
def match_descriptors(
    matcher: MutualNearestNeighbor,
    desc0: torch.Tensor,  # [N, D]
    desc1: torch.Tensor,  # [M, D]
) -> tuple[npt.NDArray[np.signedinteger], npt.NDArray[np.float16]]:
    """Match two images.

    Returns:
        ``matches0`` [N], the index of each descriptor's partner or -1, and ``matching_scores0`` [N] = (1 + cos) / 2.
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
    start = time.perf_counter()
    output: Path = arguments.output
    check_writable(output)
    if output.exists() and arguments.features.exists() and output.samefile(arguments.features):
        raise UserError(f"{output} is the features file and the output as well")
    device = pick_device(arguments.device)
    failures = Failures()
    with open_h5(arguments.features) as file:
        pairs = _wanted_pairs(file, arguments)
        settings = {
            "program": "disk-ops match",
            "ratio": arguments.ratio,
            "layout": arguments.layout,
            "features": (stored_settings(file) or {}).get("weights"),
        }
        hint = resume_hint(output, "pairs")
        with hint, ResumableOutput(output, settings, resume=arguments.resume, overwrite=arguments.overwrite) as result:
            todo, done = _remaining(pairs, result, failures)
            cache = DescriptorCache(file, device)
            matcher = MutualNearestNeighbor(arguments.ratio)
            written, matches = _match_all(cache, matcher, todo, result, failures, arguments.quiet)
            result.finish(match_writer(arguments.layout))
    seconds = time.perf_counter() - start
    parts = [counted(written, "pair"), counted(matches, "match")]
    if done:
        parts.append(f"{done:,} done before")
    parts.append(f"{len(failures):,} failed")
    speed = f" ({written / seconds:.1f} pairs/s)" if written else ""
    print(f"{output if written or done else 'nothing written'}: {', '.join(parts)}, {seconds:.1f} s{speed}")
    return SOME_FAILED if failures else OK


def _wanted_pairs(file: h5py.File, arguments: argparse.Namespace) -> list[Pair]:
    if arguments.pairs is not None:
        return read_pairs(arguments.pairs)
    names = sorted(image_names(file), key=natural_key)
    if len(names) < 2:
        raise UserError(f"{arguments.features} holds the features of {counted(len(names), 'image')}; two are needed")
    if arguments.sequential is not None:
        return sequential_pairs(names, arguments.sequential)
    return exhaustive_pairs(names)


def _remaining(pairs: list[Pair], result: ResumableOutput, failures: Failures) -> tuple[list[Pair], int]:
    """The pairs to match, each once, and the number of those already done. Impossible ones become failures."""
    if result.journal.dropped_bytes:
        note(f"{result.part}: the last result was only half written when the program was stopped; it is made again")
    stored = (result.already_stored(stored_pairs) or set()) | set(result.journal)
    todo: list[Pair] = []
    done = 0
    owners: dict[str, str] = {}
    seen: set[Pair] = set()
    for name0, name1 in pairs:
        if (name0, name1) in seen or (name1, name0) in seen:
            continue
        seen.add((name0, name1))
        if name0 == name1:
            failures.add(f"{name0} - {name1}", "an image can't be matched with itself")
            continue
        clashes = [name for name in (name0, name1) if owners.setdefault(flat_name(name), name) != name]
        if clashes:
            first = owners[flat_name(clashes[0])]
            failures.add(f"{name0} - {name1}", f"{clashes[0]} and {first} have the same name in match files")
        elif pair_name(name0, name1) in stored or pair_name(name1, name0) in stored:
            done += 1
        else:
            todo.append((name0, name1))
    return todo, done


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
        result.journal.append(pair_name(name0, name1), {"matches0": matches0, "matching_scores0": scores0})
        pairs += 1
        matches += int((matches0 >= 0).sum())
    return pairs, matches
