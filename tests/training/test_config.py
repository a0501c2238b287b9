"""The configuration of a training: presets, files, single settings, sources."""

from __future__ import annotations

import dataclasses
import os

import pytest

from disk_ops.checkpoint import DEFAULT_CHECKPOINT
from disk_ops.training.config import (
    config_from_mapping,
    config_to_mapping,
    config_to_toml,
    presets,
    read_config,
)
from disk_ops.training.data.kinds import KINDS
from disk_ops.training.export import read_record
from disk_ops.training.folder import write_config
from disk_ops.training.settings import SettingsError

PRESETS = [
    *("paper", "photos-general", "photos-gpu", "photos-larger", "photos-rotation", "photos-small", "photos-start"),
    *("photos-turned", "photos-turned-larger", "photos-zoomed"),
]


def test_presets_are_bundled():
    assert presets() == PRESETS


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_survives_its_own_toml(preset, tmp_path):
    config = read_config(preset, ["photos:somewhere"])
    path = tmp_path / "config.toml"
    path.write_text(config_to_toml(config), encoding="utf-8")
    assert read_config(path) == config
    assert config_from_mapping(config_to_mapping(config)) == config


@pytest.mark.parametrize(
    ("weights", "chain"),
    [
        ("general", ["photos-general", "photos-zoomed", "photos-larger", "photos-start"]),
        ("rotation", ["photos-rotation", "photos-turned-larger", "photos-turned", "photos-start"]),
    ],
)
def test_bundled_weights_are_those_of_their_presets(weights, chain):
    """Each record holds that of the weights that it began with, up to random ones.

    Records name the preset that they began with, and are otherwise as their preset says.
    """
    record = read_record(weights)
    for number, preset in enumerate(chain, 1):
        config, made_by = read_config(preset, ["photos:photos"]), config_from_mapping(record["config"])
        [source] = made_by.source
        source = dataclasses.replace(source, options=dataclasses.replace(source.options, path="photos"))
        assert dataclasses.replace(made_by, preset=config.preset, source=(source,)) == config
        assert record["steps"] == config.steps
        assert ("origin" in record) == bool(config.model.init) == (number < len(chain))
        record = record["origin"]["record"] if number < len(chain) else None


def test_both_bundled_weights_began_with_the_same():
    """So that ``make weights`` trains those once."""
    general, rotation = read_record("general"), read_record("rotation")
    first = [record["origin"]["record"]["origin"]["record"]["origin"] for record in (general, rotation)]
    assert first[0] == first[1] and "origin" not in first[0]["record"]


@pytest.mark.parametrize("preset", ["paper", "photos-small"])
def test_without_data_the_toml_shows_what_each_kind_can_be_told(preset, tmp_path):
    text = config_to_toml(read_config(preset))
    head, examples = text.split("# where the data comes from: fill in one or more of these\n")
    path = tmp_path / "config.toml"
    path.write_text(head + "".join(f"{line[2:]}\n" for line in examples.splitlines()), encoding="utf-8")
    config = read_config(path)
    assert [source.kind for source in config.source] == list(KINDS)
    [photos] = read_config(preset, ["photos:somewhere"]).source  # as the preset has them
    assert dataclasses.replace(config.source[0].options, path="somewhere") == photos.options


def test_examples_can_be_read(repository):
    folder = repository / "python" / "examples"
    configs = {path.name: read_config(path, ["rgbd:somewhere", "photos:elsewhere"]) for path in folder.glob("*.toml")}
    assert set(configs) == {"posed.toml", "fine_tune.toml"}
    posed, photos = (source.options for source in configs["posed.toml"].source)
    assert posed.path == "somewhere" and posed.augments and photos.path == "elsewhere"
    posed, photos = (source.options for source in configs["fine_tune.toml"].source)
    assert not posed.augments and photos.holdout == 0.2 and configs["fine_tune.toml"].model.init == DEFAULT_CHECKPOINT


def test_paper_has_the_schedule_of_the_paper():
    config = read_config("paper")
    assert (config.data.width, config.data.height, config.data.images, config.data.batch_size) == (768, 768, 3, 2)
    assert (config.reward.lambda_tp, config.reward.lambda_fp, config.reward.lambda_kp) == (1.0, -0.25, -0.001)
    assert (config.reward.cell, config.reward.epsilon) == (8, 1.5)
    epoch = 5000  # steps
    assert config.schedule.ramp_steps == 5 * epoch
    assert (config.schedule.theta_start, config.schedule.theta_end) == (15.0, 50.0)
    assert config.schedule.theta_steps == 20 * epoch
    assert config.optimizer == dataclasses.replace(type(config.optimizer)(), learning_rate=1e-4)
    assert config.optimizer.decay == "constant" and config.optimizer.ema == 0 and config.optimizer.clip == 0


def test_every_setting_has_a_comment():
    def check(cls):
        for field in dataclasses.fields(cls):
            default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
            if dataclasses.is_dataclass(default):
                check(type(default))
            elif field.name != "source":
                assert field.metadata.get("comment"), f"{cls.__name__}.{field.name}"

    check(type(read_config("paper")))
    for kind in KINDS.values():
        check(kind.config)


def test_a_byte_order_mark_is_no_error(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbfsteps = 3\r\n")
    assert read_config(path).steps == 3


def test_a_path_need_not_be_utf_8(tmp_path):
    config = read_config("photos-small", [os.fsdecode(b"photos:caf\xe9")])
    write_config(config, tmp_path / "mine.toml")
    assert read_config(tmp_path / "mine.toml") == config
    assert os.fsencode(config.source[0].options.path) == b"caf\xe9"


def test_file_changes_a_preset(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('preset = "photos-small"\n[optimizer]\nclip = 7.0\n[[source]]\nkind = "photos"\npath = "x"\n')
    config, preset = read_config(path), read_config("photos-small")
    assert config.optimizer == dataclasses.replace(preset.optimizer, clip=7.0)
    assert config.data == preset.data
    assert [source.options.path for source in config.source] == ["x"]


def test_data_replaces_the_sources(tmp_path):
    config = read_config("paper", ["scenes:here", str(tmp_path)])
    assert [(source.kind, source.options.path) for source in config.source] == [
        ("scenes", "here"),
        ("photos", str(tmp_path)),
    ]


def test_single_settings():
    config = read_config(
        "paper",
        ["photos:a", "photos:b"],
        ["seed=5", "optimizer.decay=cosine", "source.1.weight=2.5", "source.0.use=train"],
    )
    assert (config.seed, config.optimizer.decay) == (5, "cosine")
    assert [(source.weight, source.use) for source in config.source] == [(1.0, "train"), (2.5, "both")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("nothing.toml",),
            "nothing.toml is neither a file nor a preset "
            f"({', '.join(PRESETS)})",
        ),
        (("paper", ["photo:x"]), "KIND:PATH with KIND among photos, scenes"),
        (("paper", [], ["steps"]), "key=value, got 'steps'"),
        (("paper", [], ["optimizer.learning=1"]), "optimizer.learning; did you mean optimizer.learning_rate?"),
        (("paper", [], ["steps.x=1"]), "unknown setting steps.x"),
        (("paper", [], ["source.0.weight=1"]), "there are 0 sources"),
        (("paper", ["photos:x"], ["source.1.weight=1"]), "there is 1 source, counted from 0"),
        (("paper", [], ["steps=" + 2000 * "["]), "steps must be an integer, got '[["),
        (("paper", [], ["optimizer.learning_rate=1e39"]), "learning_rate must be above 0 and at most 1, got 1e+39"),
        (("paper", ["photos:x"], ["source.0.weight=0"]), "source.0.weight must be positive, got 0.0"),
        (("paper", ["photos:x"], ["source.0.scales=[1,2]"]), "source.0.scales; did you mean source.0.scale?"),
        (("paper", [], ["steps=0"]), "steps must be positive, got 0"),
        (("paper", [], ["data.images=1"]), "data.images must be at least 2, got 1"),
        (("paper", [], ["optimizer.ema=1"]), "optimizer.ema must be from 0"),
        (("paper", [], ["reward.cell=65"]), "reward.cell must be from 1 to 64, got 65"),
    ],
)  # fmt: skip
def test_errors_name_the_setting(arguments, message):
    with pytest.raises(SettingsError) as error:
        read_config(*arguments)
    assert message in str(error.value)


def test_broken_toml_names_the_file(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("steps = = 3")
    with pytest.raises(SettingsError, match=r"broken\.toml can't be read"):
        read_config(path)
    path.write_text("steps = " + 2000 * "[")
    with pytest.raises(SettingsError, match=r"broken\.toml can't be read"):
        read_config(path)
    path.write_text('preset = "papr"')
    with pytest.raises(SettingsError, match="preset must be one of"):
        read_config(path)
    path.write_text("source = 3")
    with pytest.raises(SettingsError, match="source must be a list of tables"):
        read_config(path)
    path.write_text('[[source]]\npath = "x"')
    with pytest.raises(SettingsError, match=r"source\.0\.kind must be one of"):
        read_config(path)


def test_defaults_are_for_all_sources_of_a_kind(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[defaults.photos]\nflip = 0.25\nrotation = 3.0\n")
    config = read_config(path, ["photos:a", "scenes:b", "photos:c"], ["source.0.rotation=5.0"])
    assert [getattr(source.options, "flip", None) for source in config.source] == [0.25, None, 0.25]
    assert [config.source[i].options.rotation for i in (0, 2)] == [5.0, 3.0]
    config = read_config(path, ["photos:a"], ["defaults.photos.rotation=7.0"])
    assert config.source[0].options.rotation == 7.0
    path.write_text("[defaults.photos]\nflop = 0.25\n")
    with pytest.raises(SettingsError, match=r"unknown setting defaults\.photos\.flop; did you mean"):
        read_config(path)
    path.write_text("[defaults.foto]\nflip = 0.25\n")
    with pytest.raises(SettingsError, match=r"unknown setting defaults\.foto; there are: photos"):
        read_config(path)
