"""``disk-ops merge``: one plain HDF5 file of what several processes made."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tqdm import tqdm

from disk_ops.io.output import OutputError, check_writable
from disk_ops.io.shards import merge, real_path, refuse_if_unfinished, remove_shards, shards_folder
from disk_ops.programs.common import OK


def run(arguments: argparse.Namespace) -> int:
    """Run the program; see ``disk-ops merge --help``."""
    index = real_path(arguments.file)
    in_place = arguments.output is None
    output: Path = index if in_place else arguments.output
    check_writable(output)
    if in_place:
        refuse_if_unfinished(index)
    elif output.exists():
        if index.exists() and output.samefile(index):
            raise OutputError(f"{output} is the input and the output: without -o the file itself becomes plain")
        if not arguments.overwrite:
            raise OutputError(f"{output} exists already: use --overwrite to replace it, or another name")
    bar: tqdm[Any]
    with tqdm(unit="group", disable=True if arguments.quiet else None) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        merge(index, output, show)
    if in_place:
        remove_shards(index)
        print(f"{output}: now one file, without {shards_folder(index)}")
    else:
        print(f"{output}: one file; {index} and {shards_folder(index)} are as they were")
    return OK
