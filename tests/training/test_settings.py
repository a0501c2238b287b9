"""Settings: TOML to dataclasses and back, and errors that name the key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest

from disk_ops.training.settings import SettingsError, from_mapping, setting, to_mapping, to_toml

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib


@dataclass(frozen=True)
class Inner:
    rate: float = setting(0.5, "how fast")
    kind: Literal["a", "b"] = setting("a", "which")

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ValueError(f"rate must be at least 0, got {self.rate}")


@dataclass(frozen=True)
class Outer:
    steps: int = setting(3, "how many")
    on: bool = setting(True, "whether")
    name: str = setting('with "quotes"', "what")
    span: tuple[float, float] = setting((0.5, 1.0), "from and to")
    names: tuple[str, ...] = setting((), "several")
    inner: Inner = field(default_factory=Inner)


def test_toml_round_trip_keeps_every_value():
    settings = Outer(7, False, 'ü\\ "x" \x7f\t\x00', (1.0, 2.5), ("p", "q"), Inner(1e-7, "b"))
    assert from_mapping(Outer, tomllib.loads(to_toml(settings))) == settings
    assert from_mapping(Outer, to_mapping(settings)) == settings


def test_toml_carries_every_comment():
    text = to_toml(Outer())
    for comment in ("how many", "whether", "what", "from and to", "several", "how fast", "which"):
        assert f"# {comment}\n" in text


def test_missing_keys_get_defaults():
    assert from_mapping(Outer, {"inner": {"kind": "b"}}) == Outer(inner=Inner(kind="b"))


def test_integers_are_legal_numbers():
    assert from_mapping(Outer, {"inner": {"rate": 2}}).inner.rate == 2.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": 1}, "unknown setting step; did you mean steps?"),
        ({"inner": {"rat": 1}}, "unknown setting inner.rat; did you mean inner.rate?"),
        ({"zzz": 1}, "unknown setting zzz; there are: steps, on"),
        ({"steps": 1.5}, "steps must be an integer, got 1.5"),
        ({"steps": True}, "steps must be an integer, got True"),
        ({"on": 1}, "on must be true or false, got 1"),
        ({"name": 1}, "name must be a text, got 1"),
        ({"inner": {"rate": "fast"}}, "inner.rate must be a number, got 'fast'"),
        ({"inner": {"rate": float("nan")}}, "inner.rate must be a finite number"),
        ({"inner": {"rate": 10**400}}, "inner.rate must be a finite number"),
        ({"inner": {"rate": -1}}, "inner.rate must be at least 0, got -1.0"),
        ({"inner": {"kind": "c"}}, "inner.kind must be one of 'a', 'b', got 'c'"),
        ({"inner": 3}, "inner must be a table, got 3"),
        ({"span": [1.0]}, "span must have 2 entries"),
        ({"span": 1.0}, "span must be a list"),
        ({"names": ["a", 1]}, "names must be a text, got 1"),
    ],
)
def test_errors_name_the_key(values, message):
    with pytest.raises(SettingsError) as error:
        from_mapping(Outer, values)
    assert message in str(error.value)
