"""The configuration of a training: what can be set, with defaults, presets and the TOML form."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from disk_ops.training.data.kinds import KINDS
from disk_ops.training.schedule import OptimizerConfig, ScheduleConfig
from disk_ops.training.settings import SettingsError, from_mapping, setting, to_mapping, to_toml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PRESETS = Path(__file__).parent / "presets"


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    desc_dim: int = setting(128, "descriptor dimension")
    init: str = setting("", "checkpoint (name or file) to start from; empty: random weights")

    def __post_init__(self) -> None:
        if self.desc_dim < 1:
            raise ValueError(f"desc_dim must be positive, got {self.desc_dim}")


@dataclass(frozen=True)
class DataConfig:
    """Samples and how they are loaded."""

    width: int = setting(768, "pixels; all images of a sample have this size")
    height: int = setting(768, "pixels")
    images: int = setting(3, "images of a sample, of which all pairs count: 2, 3 (triplets, as in the paper) or more")
    batch_size: int = setting(2, "samples of one step, over all processes")
    early_steps: int = setting(
        0, "steps at the start that are made easier: features are learned from nothing sooner ..."
    )
    early_size: int = setting(0, "... on smaller images, of this width and height (0: as later) ...")
    early_difficulty: float = setting(1.0, "... and views whose augmentation is only this part of its ranges")
    workers: int = setting(1, "processes that load data, for each training process; 0: load in between")

    def __post_init__(self) -> None:
        for name, least in (("width", 16), ("height", 16), ("images", 2), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("workers", "early_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.early_size and self.early_size < 16:
            raise ValueError(f"early_size must be 0 or at least 16, got {self.early_size}")
        if not 0 <= self.early_difficulty <= 1:
            raise ValueError(f"early_difficulty must be from 0 to 1, got {self.early_difficulty}")


@dataclass(frozen=True)
class RewardConfig:
    """Rewards of matches and the price of keypoints (DISK, section 3)."""

    cell: int = setting(8, "pixels; each cell of the grid proposes one keypoint")
    epsilon: float = setting(1.5, "pixels; how far off a correct match may be")
    lambda_tp: float = setting(1.0, "reward of a correct match")
    lambda_fp: float = setting(-0.25, "reward of an incorrect match")
    lambda_kp: float = setting(-0.001, "reward of each keypoint")
    penalize: Literal["pair", "image"] = setting("pair", "count lambda_kp for each 'pair' of an image, or per 'image'")
    supervision: Literal["depth", "epipolar"] = setting(
        "depth", "of posed images: 'depth' where it is known, or 'epipolar' geometry alone"
    )
    rule: Literal["paper", "official"] = setting(
        "paper", "depth: mismatches on the epipolar line where depth is known are incorrect ('paper') or 0 ('official')"
    )

    def __post_init__(self) -> None:
        if not 1 <= self.cell <= 64:
            raise ValueError(f"cell must be from 1 to 64, got {self.cell}")
        if not self.epsilon > 0:
            raise ValueError(f"epsilon must be positive, got {self.epsilon}")


@dataclass(frozen=True)
class ValidationConfig:
    """Measuring on held-out data, which picks the best checkpoint."""

    every: int = setting(5000, "steps between validations; 0: none")
    samples: int = setting(50, "samples of each source")
    n: int = setting(2048, "keypoints of an image")
    width: int = setting(0, "pixels; 0: as in training")
    height: int = setting(0, "pixels; 0: as in training")

    def __post_init__(self) -> None:
        for name in ("every", "width", "height"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        for name in ("samples", "n"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")


@dataclass(frozen=True)
class CheckpointConfig:
    """State on disk, from which a training goes on."""

    every: int = setting(1000, "steps between checkpoints")
    keep: int = setting(3, "checkpoints to keep besides the best")
    log_every: int = setting(10, "steps that a row of history.csv averages")

    def __post_init__(self) -> None:
        for name in ("every", "keep", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")


@dataclass(frozen=True)
class ComputeConfig:
    """Where and how it is computed; nothing here changes what is learned, except rounding."""

    device: str = setting("auto", "auto, cpu, cuda, cuda:1, ...")
    amp: bool = setting(False, "network in bfloat16; sampling, distances and loss stay in float32")
    compile: bool = setting(False, "torch.compile the network")
    memory_gb: float = setting(0.0, "limit for the network's activations: images are computed again one by one in the "
                                    "backward pass where a sample needs more; 0: no limit")  # fmt: skip

    def __post_init__(self) -> None:
        if self.memory_gb < 0:
            raise ValueError(f"memory_gb must be at least 0, got {self.memory_gb}")


@dataclass(frozen=True)
class SourceConfig:
    """Where data comes from: a kind, how much of it, and the options of the kind."""

    kind: str
    options: Any  # the kind's own dataclass
    weight: float = 1.0
    use: Literal["both", "train", "val"] = "both"


@dataclass(frozen=True)
class TrainingConfig:
    """All that a training depends on. See :func:`read_config`."""

    preset: str = setting("", "the preset that this was made from")
    seed: int = setting(0, "of everything random: weights, data order, augmentation, sampling")
    steps: int = setting(300000, "optimiser steps")
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    source: tuple[SourceConfig, ...] = ()

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be positive, got {self.steps}")
        if not 0 <= self.seed < 2**62:
            raise ValueError(f"seed must be from 0 to 2^62, got {self.seed}")


def read_config(
    path_or_preset: str | Path,
    data: Iterable[str] = (),
    settings: Iterable[str] = (),
) -> TrainingConfig:
    """Read a configuration.

    Args:
        path_or_preset: a TOML file, or the name of a preset. A file may name a preset (``preset = "paper"``), whose
            values it then changes. Tables ``[defaults.photos]`` and so on hold options for all sources of a kind.
        data: sources as ``kind:path``, or paths of photographs, in place of those of the file.
        settings: single settings as ``key=value``, such as ``optimizer.learning_rate=3e-4`` or ``source.0.weight=2``;
            the value is written as in TOML, texts also without quotes.

    Raises:
        SettingsError: a setting is unknown or has a wrong value; the message names it.
    """
    values = _read_toml(path_or_preset)
    sources = [_data_argument(argument) for argument in data]
    if sources:
        values["source"] = sources
    texts = list(settings)
    for early in (True, False):  # defaults first, as they are put into the sources
        for text in texts:
            if text.strip().startswith("defaults.") == early:
                _set(values, text)
        if early:
            _add_defaults(values)
    return config_from_mapping(values)


def presets() -> list[str]:
    """Names of the bundled presets."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def config_from_mapping(values: Mapping[str, Any]) -> TrainingConfig:
    """Make a configuration from tables as TOML gives them: the inverse of :func:`config_to_mapping`."""
    tables = values.get("source", [])
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise SettingsError(f"source must be a list of tables ([[source]]), got {tables!r}")
    config = from_mapping(TrainingConfig, {key: value for key, value in values.items() if key != "source"})
    sources = tuple(_source_from_mapping(table, f"source.{i}.") for i, table in enumerate(tables))
    return dataclasses.replace(config, source=sources)


def config_to_mapping(config: TrainingConfig) -> dict[str, Any]:
    """The configuration as tables, lists and scalars."""
    mapping = to_mapping(dataclasses.replace(config, source=()))
    mapping["source"] = [
        {"kind": source.kind, "weight": source.weight, "use": source.use, **to_mapping(source.options)}
        for source in config.source
    ]
    return mapping


def config_to_toml(config: TrainingConfig) -> str:
    """The whole configuration as TOML, each setting with its comment; without data, what each kind can be told."""
    text = to_toml(dataclasses.replace(config, source=()))
    for source in config.source:
        text += f"\n# where the data comes from\n{_source_to_toml(source)}"
    if not config.source:
        text += "\n# where the data comes from: fill in one or more of these\n"
        defaults = _load(PRESETS / f"{config.preset}.toml").get("defaults", {}) if config.preset else {}
        for kind in KINDS:
            options: Any = from_mapping(KINDS[kind].config, defaults.get(kind, {}))
            example = _source_to_toml(SourceConfig(kind, options))
            text += "".join(f"# {line}\n" for line in example.splitlines()) + "#\n"
    return text


def _source_to_toml(source: SourceConfig) -> str:
    return (
        "[[source]]\n"
        f'kind = "{source.kind}"  # one of {", ".join(KINDS)}\n'
        f"weight = {source.weight}  # share of the samples, relative to the other sources\n"
        f'use = "{source.use}"  # "train", "val" (validation) or "both", with a part held out for validation\n'
        f"{to_toml(source.options)}"
    )


def _read_toml(path_or_preset: str | Path) -> dict[str, Any]:
    if str(path_or_preset) in presets():
        return {**_load(PRESETS / f"{path_or_preset}.toml"), "preset": str(path_or_preset)}
    path = Path(path_or_preset)
    if not path.is_file():
        raise SettingsError(f"{path} is neither a file nor a preset ({', '.join(presets())})")
    values = _load(path)
    preset = values.get("preset", "")
    if not preset:
        return values
    if preset not in presets():
        raise SettingsError(f"preset must be one of {', '.join(presets())}, got {preset!r} in {path}")
    return _merge(_load(PRESETS / f"{preset}.toml"), values)


def _add_defaults(values: dict[str, Any]) -> None:
    """Put the options that ``[defaults.KIND]`` gives for all sources of a kind into them."""
    defaults, sources = values.pop("defaults", {}), values.get("source", [])
    if not isinstance(defaults, Mapping) or not all(isinstance(table, Mapping) for table in defaults.values()):
        raise SettingsError(f"defaults must be tables of options by kind ([defaults.photos]), got {defaults!r}")
    for kind, table in defaults.items():
        if kind not in KINDS:
            raise SettingsError(f"unknown setting defaults.{kind}; there are: {', '.join(KINDS)}")
        from_mapping(KINDS[kind].config, table, f"defaults.{kind}.")  # names what is wrong where it stands
    if isinstance(sources, list):
        values["source"] = [
            {**defaults.get(str(table.get("kind")), {}), **table} if isinstance(table, Mapping) else table
            for table in sources
        ]


def _load(path: Path) -> dict[str, Any]:
    try:
        # Editors may put a byte-order mark in front, and a path need not be UTF-8.
        return tomllib.loads(path.read_bytes().decode("utf-8-sig", "surrogateescape"))
    except (OSError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{path} can't be read: {error}") from error


def _merge(base: dict[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; lists and scalars are replaced."""
    merged = dict(base)
    for key, value in change.items():
        both = isinstance(value, Mapping) and isinstance(base.get(key), dict)
        merged[key] = _merge(base[key], value) if both else value
    return merged


def _data_argument(text: str) -> dict[str, Any]:
    kind, colon, path = text.partition(":")
    if colon and kind in KINDS:
        return {"kind": kind, "path": path}
    if colon and not Path(text).exists():
        raise SettingsError(
            f"data must be a folder of photographs or KIND:PATH with KIND among {', '.join(KINDS)}, got {text!r}"
        )
    return {"kind": "photos", "path": text}


def _set(values: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals:
        raise SettingsError(f"a setting must be written as key=value, got {text!r}")
    if key.strip() == "preset":
        raise SettingsError("preset can't be set: give it in place of the configuration, or in the file")
    *tables, last = key.strip().split(".")
    values.setdefault("source", [])
    place: Any = values
    for i, name in enumerate(tables):
        if isinstance(place, list):
            if not name.isdecimal() or int(name) >= len(place):
                raise SettingsError(f"unknown setting {key.strip()}: {_number_of_sources(len(place))}, counted from 0")
            place = place[int(name)]
        elif isinstance(place, dict):
            place = place.setdefault(name, {})
        else:
            raise SettingsError(f"unknown setting {key.strip()}: {'.'.join(tables[:i])} has no parts")
    if not isinstance(place, dict):
        raise SettingsError(f"unknown setting {key.strip()}")
    place[last] = _parse(value.strip())


def _number_of_sources(number: int) -> str:
    return "there is 1 source" if number == 1 else f"there are {number} sources"


def _parse(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _source_from_mapping(table: Mapping[str, Any], prefix: str) -> SourceConfig:
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise SettingsError(f"{prefix}kind must be one of {', '.join(KINDS)}, got {kind!r}")
    own = {field.name: table[field.name] for field in dataclasses.fields(_SourceTable) if field.name in table}
    common = from_mapping(_SourceTable, own, prefix)
    options: Any = from_mapping(
        KINDS[kind].config, {key: value for key, value in table.items() if key not in own and key != "kind"}, prefix
    )
    return SourceConfig(kind, options, common.weight, common.use)


@dataclass(frozen=True)
class _SourceTable:
    """What all kinds of sources have."""

    weight: float = 1.0
    use: Literal["both", "train", "val"] = "both"

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ValueError(f"weight must be positive, got {self.weight}")
