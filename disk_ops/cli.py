"""The ``disk-ops`` command. Its arguments are in ``disk_ops.arguments``, the work is done by ``disk_ops.programs``."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import shlex
import sys
from collections.abc import Sequence

from disk_ops.arguments import build_parser

# What a full or write-protected disk gives in the middle of the work: no fault of the program.
_DISK_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP}
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a program and return its exit status; without ``argv`` that of the process, which may end here."""
    status = _main(argv)
    if argv is None and "disk_ops.group" in sys.modules:  # not imported where nothing has: that takes seconds
        importlib.import_module("disk_ops.group").end_process(status)
    return status


def _main(argv: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = build_parser().parse_args(_with_negative_numbers(given))
    arguments.command = shlex.join(["disk-ops", *given])
    for stream in (sys.stdout, sys.stderr):  # file names may hold what the terminal's encoding can't show
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`| head`). Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        return _fail(arguments.program, str(error), 1)


def _with_negative_numbers(given: Sequence[str]) -> list[str]:
    """The arguments with ``--option -inf`` as ``--option=-inf``: argparse takes -inf, or -1e-3, for an option."""
    joined: list[str] = []
    for text in given:
        if joined and _is_option(joined[-1]) and _is_negative_number(text):
            joined[-1] += f"={text}"
        else:
            joined.append(text)
    return joined


def _is_option(text: str) -> bool:
    return text.startswith("--") and len(text) > 2 and "=" not in text


def _is_negative_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.startswith("-")


def _run(arguments: argparse.Namespace) -> int:
    program = importlib.import_module(f"disk_ops.programs.{arguments.program.replace('-', '_')}")
    common = importlib.import_module("disk_ops.programs.common")
    try:
        status = int(program.run(arguments))
        sys.stdout.flush()
        return status
    except common.USER_ERRORS as error:
        return _fail(arguments.program, common.printable(str(error)), common.USAGE)


def _fail(program: str, message: str, status: int) -> int:
    print(f"disk-ops {program}: error: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
