"""The arguments of the ``disk-ops`` command. Nothing heavy is imported here, so that ``--help`` is there at once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from disk_ops.arguments.evaluation import add_evaluate
from disk_ops.arguments.export import add_export_onnx
from disk_ops.arguments.features import add_demo, add_extract, add_match, add_merge, add_show
from disk_ops.arguments.sfm import add_export_colmap, add_reconstruct
from disk_ops.arguments.training import add_train

PROGRAMS = (
    *("extract", "match", "merge", "show", "demo", "train", "evaluate"),
    *("export-onnx", "export-colmap", "reconstruct"),
)


def build_parser() -> argparse.ArgumentParser:
    """The command line of all the programs."""
    parser = argparse.ArgumentParser(
        prog="disk-ops", description="DISK local features: extract, match, show, train, reconstruct."
    )
    parser.add_argument("--version", action=_Version, help="show the version and exit")
    commands = parser.add_subparsers(dest="program", required=True, metavar="{" + ",".join(PROGRAMS) + "}")
    add_extract(commands)
    add_match(commands)
    add_merge(commands)
    add_show(commands)
    add_demo(commands)
    add_train(commands)
    add_evaluate(commands)
    add_export_onnx(commands)
    add_export_colmap(commands)
    add_reconstruct(commands)
    return parser


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from disk_ops import __version__

        print(f"disk-ops {__version__}")
        parser.exit()
