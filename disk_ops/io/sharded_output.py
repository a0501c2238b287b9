"""An output that several processes write together, each a shard, without waiting for one another."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from disk_ops.io.hdf5 import open_h5, stored_shards, temporary_of, write_index
from disk_ops.io.journal import JournalError, JournalReader, Settings, is_being_written
from disk_ops.io.output import Contents, OutputError, ResumableOutput, Stamps, Whole, check_writable, part_of
from disk_ops.io.shards import (
    failures_of,
    has_shards,
    parts_of,
    real_path,
    refuse_if_in_work,
    remnants_of,
    remove_shards,
    shard_path,
    shards_folder,
    shards_of,
)
from disk_ops.workers import Worker


def open_output(
    output: Path, settings: Settings, contents: Contents, worker: Worker, *, resume: bool, overwrite: bool
) -> ResumableOutput:
    """The output as this process writes it: a plain file, or its shard where several processes work or have worked."""
    if worker.size > 1:
        if overwrite:
            raise OutputError(
                f"several processes can't --overwrite: delete {output} and {shards_folder(output)} first, if they exist"
            )
        return ShardedOutput(real_path(output), settings, contents, worker, resume=resume)
    if overwrite:
        refuse_if_in_work(output)
    elif resume:
        # With shards, a partial file of the whole is that of an interrupted run with --overwrite.
        if not part_of(output).exists() and (has_shards(output) or indexed_shards(output)):
            return ShardedOutput(real_path(output), settings, contents, worker, resume=True)
    elif has_shards(output) and not output.exists():
        raise OutputError(
            f"{shards_folder(output)} is left of an interrupted run of several processes: use --resume to go on, "
            "or --overwrite to start afresh"
        )
    return ResumableOutput(output, settings, resume=resume, overwrite=overwrite)


def indexed_shards(path: Path) -> list[Path]:
    """The shards of an index; none of any other file."""
    if not path.exists():
        return []
    with open_h5(path, shards=False) as file:
        return [path.parent / name for name in stored_shards(file)]


class ShardedOutput(ResumableOutput):
    """One process's shard, and the index of all of them, which the last process to be done writes.

    A process is the last one if no other has a partial file and everything that was asked for is stored, or is in a
    list of failures. Where several find that, they write the same index.

    What is left of a run with another number of processes is taken over by process 0: an output, or partial file, of
    one process becomes shard 0 of 1, and partial shards are finished.
    """

    def __init__(self, whole: Path, settings: Settings, contents: Contents, worker: Worker, *, resume: bool) -> None:
        self.whole = whole
        self.settings = dict(settings)
        self._contents = contents
        self._size = worker.size
        if worker.size > 1:
            self._afresh = f"delete {whole} and {shards_folder(whole)}"
        shard = shard_path(whole, worker.rank, worker.size)
        self._failed = shard.with_suffix(".failed")
        check_writable(whole)
        if resume:
            self.lost = [path for path in indexed_shards(whole) if not path.exists()]
            for path in (whole, *shards_of(whole)):
                self._check_file(path)
        else:
            self._refuse_leftovers(shard)
        shards_folder(whole).mkdir(exist_ok=True)
        self._failed.unlink(missing_ok=True)
        if resume and worker.is_main:
            self._adopt_part()
            self._adopt_file()
        super().__init__(shard, settings, resume=resume, overwrite=False)
        try:
            for remnant in remnants_of(whole):
                if remnant.name.startswith(f"{shard.stem}."):
                    remnant.unlink()
            if resume and worker.is_main:
                self._finish_lost_parts()
        except BaseException:
            self._release()
            raise

    def stored(self, contents: Contents) -> Stamps:
        """What is there from earlier runs, whichever process made it, and from other processes so far."""
        stored: Stamps = {}
        # In this order, as process 0 may be taking over: what vanishes here comes up further down.
        self._add_file(stored, self.whole)
        self._add_part(stored, part_of(self.whole))
        for part in parts_of(self.whole):
            if part != self.part:
                self._add_part(stored, part)
        for shard in shards_of(self.whole):
            self._add_file(stored, shard)
        self._add(stored, {key: contents.of_record(self.journal.read(key)) for key in self.journal})
        return stored

    def conclude(
        self, contents: Contents, failed: Sequence[str], missing: Callable[[Stamps], Iterable[str]]
    ) -> Whole | None:
        """Finish this shard, and write the index if all the others are finished, too."""
        if failed:
            temporary = part_of(self._failed)
            temporary.write_text(json.dumps(list(failed)))
            os.replace(temporary, self._failed)
        self.finish(contents.write)
        whole = None
        state: list[tuple[str, int, int]] | None = None
        while (now := self._state()) != state:  # in case that an older list would have replaced a newer one
            state = now
            whole = self._write_index(missing)
            if whole is None:
                return None
        for path in failures_of(self.whole):
            path.unlink(missing_ok=True)
        if whole is not None and whole.records == 0:
            remove_shards(self.whole)
        return whole

    def _write_index(self, missing: Callable[[Stamps], Iterable[str]]) -> Whole | None:
        """Write the index if everything is there, else return None."""
        if parts_of(self.whole) or part_of(self.whole).exists() or self._is_to_adopt(self.whole):
            return None
        stored: Stamps = {}
        places: dict[str, str] = {}
        shards = shards_of(self.whole)
        names = [f"{shards_folder(self.whole).name}/{shard.name}" for shard in shards]
        for shard, name in zip(shards, names, strict=True):
            places.update(dict.fromkeys(self._add_file(stored, shard), name))
        failed = self._all_failed()
        if set(missing(stored)) - failed:
            return None
        if stored:
            temporary = self.output.with_suffix(".index.tmp")
            try:
                write_index(temporary, self.settings, names, places.items())
                os.replace(temporary, self.whole)
            finally:
                temporary.unlink(missing_ok=True)
        return Whole(len(shards), len(stored), sorted(failed - set(stored)))

    def _state(self) -> list[tuple[str, int, int]]:
        """What changes when a shard does."""
        return [(shard.name, (stat := shard.stat()).st_mtime_ns, stat.st_size) for shard in shards_of(self.whole)]

    def _all_failed(self) -> set[str]:
        names: set[str] = set()
        for path in failures_of(self.whole):
            with contextlib.suppress(FileNotFoundError):  # another process has just completed the output
                names.update(json.loads(path.read_text()))
        return names

    def _add(self, stored: Stamps, more: Stamps) -> list[str]:
        """Add names; of two results for one the current one is taken. Returns the names that were taken."""
        is_current = self._contents.is_current
        taken = [name for name in more if name not in stored or not is_current(name, stored[name])]
        stored.update((name, more[name]) for name in taken)
        return taken

    def _add_file(self, stored: Stamps, path: Path) -> list[str]:
        """Add what a plain file or shard holds; an index holds nothing but what its shards do."""
        if not path.exists() or indexed_shards(path):
            return []
        with open_h5(path) as file:
            self._compare_file(path, file)
            return self._add(stored, self._contents.of_file(file))

    def _add_part(self, stored: Stamps, part: Path) -> None:
        with contextlib.suppress(FileNotFoundError), JournalReader(part) as journal:
            if journal.settings:
                self._compare(part, journal.settings.get("settings", {}))
            self._add(stored, {key: self._contents.of_record(journal.read(key)) for key in journal})

    def _refuse_leftovers(self, shard: Path) -> None:
        """Raise unless all that exists can be of other processes of this run."""
        if self.whole.exists():
            raise OutputError(f"{self.whole} exists already: use --resume to add what is missing, or {self._afresh}")
        own = (shard, part_of(shard))
        others = [
            path for path in (*parts_of(self.whole), *shards_of(self.whole)) if path in own or self._is_of_others(path)
        ]
        for path in (part_of(self.whole), *others):
            if path.exists():
                raise OutputError(f"{path} is left of an interrupted run: use --resume to go on, or {self._afresh}")

    def _check_existing(self, resume: bool, overwrite: bool) -> None:
        """Nothing more: `_refuse_leftovers` has looked."""

    def _check_file(self, path: Path) -> None:
        """Raise if it was made with other settings."""
        if path.exists():
            with open_h5(path, shards=False) as file:
                self._compare_file(path, file)

    def _is_to_adopt(self, path: Path) -> bool:
        """Whether it is one plain file, and there is no shard 0 of 1 yet."""
        return path.exists() and not indexed_shards(path) and not shard_path(self.whole, 0, 1).exists()

    def _adopt_part(self) -> None:
        """Make the partial file of one process a part of shard 0 of 1."""
        part, adopted = part_of(self.whole), part_of(shard_path(self.whole, 0, 1))
        if not part.exists():
            return
        if is_being_written(part):
            raise JournalError(f"{part} is being written by another disk-ops")
        with JournalReader(part) as journal:
            self._compare(part, journal.settings.get("settings", self.settings))
            if journal.settings.get("replaces", False):
                raise OutputError(
                    f"{part} is left of an interrupted run with --overwrite: finish that in one process, or delete it"
                )
        if adopted.exists():
            raise OutputError(f"{part} and {adopted} are both left of interrupted runs: delete one of them")
        temporary_of(self.whole).unlink(missing_ok=True)  # if it was killed while it wrote the HDF5 file
        os.rename(part, adopted)

    def _adopt_file(self) -> None:
        """Make the output of one process shard 0 of 1, too; it stays where it is until the index is complete."""
        if not self._is_to_adopt(self.whole):
            return
        adopted = shard_path(self.whole, 0, 1)
        temporary = adopted.with_suffix(".h5.tmp")
        try:
            temporary.unlink(missing_ok=True)
            try:
                os.link(self.whole, temporary)
            except OSError:  # no hard links there
                shutil.copyfile(self.whole, temporary)
            # Once more: it could have become an index, and must not replace what that is of.
            if self._is_to_adopt(temporary):
                os.rename(temporary, adopted)
        finally:
            temporary.unlink(missing_ok=True)

    def _finish_lost_parts(self) -> None:
        """Finish partial shards of another number of processes, and delete what else these have left.

        What they couldn't do is tried again now.
        """
        for part in filter(self._is_of_others, parts_of(self.whole)):
            with ResumableOutput(part.with_suffix(""), self.settings, resume=True, overwrite=False) as lost:
                lost.finish(self._contents.write)
        for path in filter(self._is_of_others, (*failures_of(self.whole), *remnants_of(self.whole))):
            path.unlink(missing_ok=True)

    def _is_of_others(self, path: Path) -> bool:
        """Whether a file is of a run with another number of processes."""
        return f"-of-{self._size:05}." not in path.name
