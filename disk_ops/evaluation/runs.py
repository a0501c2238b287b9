"""Runs of evaluations, with results kept in files.

Each item's records are kept, so that a run that stopped, or one with a method more, does only what is missing. Under
``torchrun`` processes share the work and find each other's results there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor
from tqdm import tqdm

from disk_ops.evaluation.errors import EvaluationError
from disk_ops.evaluation.features import Features, Matcher
from disk_ops.evaluation.methods import Method
from disk_ops.evaluation.protocol import Item, Protocol, Record
from disk_ops.group import Group
from disk_ops.io.images import ImageError
from disk_ops.io.output import whole_file

CACHE = "cache"
"""Folder of the records of items, in the folder of results."""
CACHE_VERSION = 3  # to be raised when records of equal settings mean something else
RATIOS: tuple[float | None, ...] = (None, 0.98, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
"""Thresholds of the ratio test that :func:`choose_ratios` tries. Of equally good ones it takes the first."""

Ratios = Mapping[tuple[str, int], float | None]
"""The ratio threshold of each method (by name) and number of keypoints."""
Report = Callable[[str, str], None]
"""Called with the name of what failed, and why."""


@dataclass(frozen=True)
class Choice:
    """A ratio threshold that was chosen, with the scores of all that were tried."""

    ratio: float | None
    scores: dict[str, float]  # by threshold, as text


class _Unit(NamedTuple):
    """What is computed and kept as one."""

    method: Method
    n: int
    item: Item
    ratio: float | None

    def __str__(self) -> str:
        ratio = "" if self.ratio is None else f", ratio {self.ratio:g}"
        return f"{self.item.name} ({self.method.name}, n {self.n}{ratio})"

    @property
    def family(self) -> tuple[str, int]:
        """What shares work on an item."""
        return self.method.family or self.method.name, self.n


@dataclass
class Run:
    """What a run needs to know.

    Attributes:
        protocol: what is measured.
        folder: of the results; the cache lies in it, and is shared by all processes.
        group: the processes that share the work.
        report: is told about each item that fails; the others go on.
        quiet: no progress bar.
        failed: names of what failed, of all processes.
    """

    protocol: Protocol
    folder: Path
    group: Group = field(default_factory=Group)
    report: Report = lambda name, reason: None
    quiet: bool = False
    failed: list[str] = field(default_factory=list)

    def records(
        self,
        methods: Sequence[Method],
        ns: Sequence[int],
        ratios: Ratios | float | None = None,
        items: Sequence[Item] | None = None,
    ) -> list[Record]:
        """The records of all items, methods and numbers of keypoints, computed where they are not in the cache yet.

        Args:
            methods: with names of their own.
            ns: numbers of keypoints per image.
            ratios: threshold of the ratio test: one for all, or one for each method and number; None: no test.
            items: of the protocol; by default all.

        Returns:
            In the main process, the records in the order of methods, numbers and items; items that failed have none.
            In the other processes nothing.

        Raises:
            EvaluationError: the cache can't be written, or isn't shared by the processes.
        """
        chosen = list(self.protocol.items()) if items is None else list(items)
        units = [
            _Unit(method, n, item, ratios[method.name, n] if isinstance(ratios, Mapping) else ratios)
            for method in methods
            for n in ns
            for item in chosen
        ]
        failed = self._compute(units, "evaluate")
        if not self.group.is_main:
            return []
        return [record for unit in units if str(unit) not in failed for record in self._gathered(unit)]

    def choose_ratios(
        self,
        methods: Sequence[Method],
        ns: Sequence[int],
        items: Sequence[Item],
    ) -> dict[tuple[str, int], Choice]:
        """For each method and number of keypoints the ratio threshold with the best score, on validation items only.

        Args:
            methods: with names of their own.
            ns: numbers of keypoints per image.
            items: of validation, none of which is in the test.

        Returns:
            The same in all processes. Equal scores: the loosest threshold of them.

        Raises:
            EvaluationError: no validation item could be evaluated with some method.
        """
        # All thresholds of an image come one after the other: its features are made once.
        units = [_Unit(method, n, item, ratio) for method in methods for n in ns for item in items for ratio in RATIOS]
        failed = self._compute(units, "validate")
        outcome: Any = None
        if self.group.is_main:
            try:
                outcome = self._choose(units, failed)
            except EvaluationError as error:
                outcome = error
        outcome = self.group.broadcast(outcome)
        if isinstance(outcome, EvaluationError):
            raise outcome
        choices: dict[tuple[str, int], Choice] = outcome
        return choices

    def _choose(self, units: Sequence[_Unit], failed: set[str]) -> dict[tuple[str, int], Choice]:
        broken = {(unit.method.name, unit.n, unit.item.name) for unit in units if str(unit) in failed}
        found: dict[tuple[str, int], dict[float | None, list[Record]]] = {}
        for unit in units:
            scores = found.setdefault((unit.method.name, unit.n), {})
            records = scores.setdefault(unit.ratio, [])
            if (unit.method.name, unit.n, unit.item.name) not in broken:
                records += self._gathered(unit)
        choices = {}
        for (name, n), records_of in found.items():
            if not all(records_of.values()):
                raise EvaluationError(f"--ratio auto: no validation item could be evaluated with {name}, n {n}")
            scores_of = {ratio: self.protocol.score(records) for ratio, records in records_of.items()}
            best = max(RATIOS, key=lambda ratio: scores_of[ratio])  # the first of equal ones
            choices[name, n] = Choice(best, {_ratio_text(ratio): score for ratio, score in scores_of.items()})
        return choices

    def _compute(self, units: Sequence[_Unit], what: str) -> set[str]:
        """Compute what the cache lacks, this process its share of it; return what failed in any process."""
        cache = self.folder / CACHE
        # One process looks, so that all divide the same list, whatever the others have added meanwhile.
        missing = self.group.broadcast(
            [index for index, unit in enumerate(units) if self._stored(unit) is None] if self.group.is_main else []
        )
        if missing:
            try:
                cache.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise EvaluationError(f"{cache} can't be made: {error.strerror or error}") from error
        own = _in_families([units[index] for index in _shares(missing, units, self.group.size)[self.group.rank]])
        failed = []
        disable = True if self.quiet or not self.group.is_main else None
        with tqdm(total=len(own), desc=what, unit="item", disable=disable) as progress:
            for unit in _with_memory(own):
                progress.set_postfix_str(f"{unit.method.name} n={unit.n} {unit.item.name}")
                try:
                    records = self.protocol.evaluate(
                        unit.item, unit.method, unit.n, Matcher(unit.ratio, self.group.device)
                    )
                except Exception as error:  # one item's trouble is no reason to lose the others'
                    failed.append(str(unit))
                    self.report(str(unit), _reason(error))
                else:
                    self._store(unit, records)
                progress.update()
        everywhere = [name for names in self.group.gather(failed) for name in names]
        self.failed += everywhere
        return set(everywhere)

    def _gathered(self, unit: _Unit) -> list[Record]:
        """A unit's records from the cache, with what all records have."""
        records = self._stored(unit)
        if records is None:
            raise EvaluationError(
                f"{self.folder / CACHE} lacks the results of {unit}: it must be one folder for all processes"
            )
        common = {"method": unit.method.name, "n": unit.n, "ratio": unit.ratio, "item": unit.item.name}
        return [{**common, **record} for record in records]

    def _stored(self, unit: _Unit) -> list[Record] | None:
        """Records of the cache; None if there are none, or the file is damaged."""
        key = self._key(unit)
        try:
            content = json.loads(self._path(key).read_bytes())
        except (OSError, ValueError):
            return None
        return content["records"] if isinstance(content, dict) and content.get("key") == key else None

    def _store(self, unit: _Unit, records: Sequence[Record]) -> None:
        key = self._key(unit)
        with whole_file(self._path(key)) as file:
            file.write(json.dumps({"key": key, "records": list(records)}, allow_nan=False).encode())

    def _path(self, key: Any) -> Path:
        text = json.dumps(key, sort_keys=True)
        return self.folder / CACHE / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"

    def _key(self, unit: _Unit) -> Any:
        """All that a result depends on, in the form in which JSON gives it back."""
        key = {
            "version": CACHE_VERSION,
            "protocol": self.protocol.name,
            "settings": self.protocol.settings,
            "item": unit.item.name,
            "files": [_stamp(path) for path in unit.item.files],
            "method": unit.method.fingerprint,
            "n": unit.n,
            "ratio": unit.ratio,
        }
        return json.loads(json.dumps(key))


def run(
    protocol: Protocol,
    methods: Sequence[Method],
    ns: Sequence[int],
    folder: Path,
    ratios: Ratios | float | None = None,
    group: Group | None = None,
    report: Report = lambda name, reason: None,
    quiet: bool = False,
) -> list[Record]:
    """The records of a protocol: :meth:`Run.records` of all items, with the arguments of :class:`Run`."""
    return Run(protocol, folder, group or Group(), report, quiet).records(methods, ns, ratios)


def _shares(missing: Sequence[int], units: Sequence[_Unit], size: int) -> list[list[int]]:
    """Divide what is missing between processes. What belongs to the same image and family of methods stays together."""
    groups: dict[tuple[tuple[str, int], str], list[int]] = {}
    for index in missing:
        unit = units[index]
        groups.setdefault((unit.family, unit.item.name), []).append(index)
    shares: list[list[int]] = [[] for _ in range(size)]
    for number, group in enumerate(groups.values()):
        shares[number % size] += group
    return shares


def _in_families(units: Sequence[_Unit]) -> list[_Unit]:
    """The units in an order in which a family of methods does an item at a time."""
    families: dict[tuple[str, int], int] = {}
    items: dict[str, int] = {}
    for unit in units:
        families.setdefault(unit.family, len(families))
        items.setdefault(unit.item.name, len(items))
    return sorted(units, key=lambda unit: (families[unit.family], items[unit.item.name]))


def _with_memory(units: Sequence[_Unit]) -> Iterator[_Unit]:
    """The units, with methods that remember the features of an item for as long as the next unit needs them too."""
    previous: _Unit | None = None
    for index, unit in enumerate(units):
        following = units[index + 1] if index + 1 < len(units) else None
        if previous is not None and _same_features(previous, unit):
            remembering = previous.method
        elif following is not None and _same_features(unit, following):
            remembering = _remembering(unit.method)
        else:
            remembering = unit.method
        previous = unit._replace(method=remembering)
        yield previous


def _same_features(unit: _Unit, other: _Unit) -> bool:
    return (unit.method.name, unit.n, unit.item) == (other.method.name, other.n, other.item)


def _remembering(method: Method) -> Method:
    memory: dict[tuple[bytes, tuple[int, ...], int], Features] = {}

    def extract(image: Tensor, n: int) -> Features:
        key = hashlib.sha256(image.contiguous().numpy().tobytes()).digest(), tuple(image.shape), n
        if key not in memory:
            memory[key] = method.extract(image, n)
        return memory[key]

    return replace(method, function=extract)


def _stamp(path: Path) -> list[Any]:
    """What changes when a file does."""
    try:
        status = path.stat()
    except OSError:
        return [path.name, None, None]
    return [path.name, status.st_size, status.st_mtime_ns]


def _reason(error: Exception) -> str:
    text = str(error).strip() or "no reason given"
    expected = isinstance(error, EvaluationError | ImageError | OSError)
    return text if expected else f"{type(error).__name__}: {text}"


def _ratio_text(ratio: float | None) -> str:
    return "none" if ratio is None else f"{ratio:g}"
