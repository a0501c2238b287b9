"""Which options the user gave: a program that would ignore one has to tell it from a default."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


def note_given(parser: argparse.ArgumentParser) -> None:
    """Keep in ``given`` of the parsed arguments the options that the user gives, by their names there.

    Call it before arguments are added.
    """
    for action in (None, "store"):
        parser.register("action", action, _Store)
    parser.register("action", "store_true", _StoreTrue)


def _note(namespace: argparse.Namespace, action: argparse.Action) -> None:
    if action.option_strings:
        namespace.given = {**getattr(namespace, "given", {}), action.dest: action.option_strings[-1]}


class _Store(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: object) -> None:
        setattr(namespace, self.dest, values)
        _note(namespace, self)


class _StoreTrue(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, const=True, default=False, help=help)

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: object) -> None:
        setattr(namespace, self.dest, True)
        _note(namespace, self)
