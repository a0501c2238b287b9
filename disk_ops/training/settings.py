"""Settings as nested dataclasses that are read from TOML and written back with their comments.

A field is made by :func:`setting`, which gives it a default and the comment that explains it. Unknown keys, wrong types
and values that a dataclass refuses are :class:`SettingsError` with the key's full name.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class SettingsError(Exception):
    """A setting that can't be used; the message names it."""


def setting(default: Any, comment: str) -> Any:
    """A field of a dataclass of settings: its default, and what a user reads about it."""
    return dataclasses.field(default=default, metadata={"comment": comment})


def from_mapping(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Make a dataclass of settings from a mapping as TOML gives it; what is missing gets its default."""
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    arguments = {}
    for key, value in values.items():
        if key not in fields:
            raise SettingsError(f"unknown setting {prefix}{key}{_suggestion(key, fields, prefix)}")
        arguments[key] = _convert(value, hints[key], prefix + key)
    try:
        return cls(**arguments)
    except ValueError as error:
        raise SettingsError(f"{prefix}{error}") from error


def _suggestion(key: str, known: Mapping[str, Any], prefix: str) -> str:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"; did you mean {prefix}{close[0]}?" if close else f"; there are: {', '.join(known)}"


def _convert(value: Any, hint: Any, name: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise SettingsError(f"{name} must be a table, got {value!r}")
        return from_mapping(typing.cast(type, hint), value, f"{name}.")
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise SettingsError(f"{name} must be a list, got {value!r}")
        if inner[-1] is Ellipsis:
            return tuple(_convert(entry, inner[0], name) for entry in value)
        if len(value) != len(inner):
            raise SettingsError(f"{name} must have {len(inner)} entries, got {value!r}")
        return tuple(_convert(entry, kind, name) for entry, kind in zip(value, inner, strict=True))
    if origin is typing.Literal:
        if value not in inner:
            raise SettingsError(f"{name} must be one of {', '.join(map(repr, inner))}, got {value!r}")
        return value
    if origin is types.UnionType or origin is typing.Union:  # X | None has no TOML form: a missing key is None
        return None if value is None else _convert(value, inner[0], name)
    return _convert_scalar(value, hint, name)


def _convert_scalar(value: Any, hint: type, name: str) -> Any:
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:  # an integer that is too large
            number = math.inf
        if not math.isfinite(number):
            raise SettingsError(f"{name} must be a finite number, got {value!r}")
        return number
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    what = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}.get(hint, hint.__name__)
    raise SettingsError(f"{name} must be {what}, got {value!r}")


def to_mapping(settings: Any) -> dict[str, Any]:
    """The inverse of :func:`from_mapping`: tables, lists and scalars."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return to_mapping(value)
        return [plain(entry) for entry in value] if isinstance(value, tuple) else value

    return {field.name: plain(getattr(settings, field.name)) for field in dataclasses.fields(settings)}


def to_toml(settings: Any, name: str = "") -> str:
    """The settings as TOML in which each key carries its comment; fields that have none are left out."""
    scalars, tables = [], []
    for field in dataclasses.fields(settings):
        value, full = getattr(settings, field.name), f"{name}.{field.name}".lstrip(".")
        if dataclasses.is_dataclass(value):
            tables.append(f"\n{_comment(field)}[{full}]\n{to_toml(value, full)}")
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            tables += [f"\n{_comment(field)}[[{full}]]\n{to_toml(entry, full)}" for entry in value]
        elif "comment" in field.metadata:
            scalars.append(f"{field.name} = {_toml_value(value)}  # {field.metadata['comment']}\n")
    return "".join(scalars + tables)


def _comment(field: dataclasses.Field[Any]) -> str:
    return f"# {field.metadata['comment']}\n" if "comment" in field.metadata else ""


def _toml_value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")  # TOML forbids it, JSON doesn't
    return repr(value)
