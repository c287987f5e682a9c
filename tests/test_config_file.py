"""Configs from presets and TOML files."""

from dataclasses import replace
from pathlib import Path

import pytest

from derts.config import LearnerConfig, TaskConfig, TrainConfig
from derts.config_file import PRESETS, apply_presets, read_config, to_toml, with_values
from derts.errors import DertsError

ODD = TrainConfig(
    data='a "quoted" \\ path\twith\nodd ünïcode',
    tasks=TaskConfig(classes=("a'b", 'c"d'), noise="swap", swap_rate=1e-7),
    learner=LearnerConfig("maml", first_order=True),
)


@pytest.mark.parametrize("config", [TrainConfig(), ODD, ODD.resolved()])
def test_toml_round_trip_gives_the_same_config(config: TrainConfig, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert read_config(path) == config


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_is_valid(name: str) -> None:
    assert apply_presets([name]) != TrainConfig()


def test_later_presets_and_files_win(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("updates = 7\n[hardware]\ncompile = false\n")
    config = read_config(path, apply_presets(["demo", "gpu"]))
    assert config.updates == 7
    assert config.hardware.precision == "bfloat16"
    assert not config.hardware.compile


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("update = 3", "unknown setting update; did you mean updates"),
        ("[tasks]\nwya = 3", r"unknown setting tasks.wya; did you mean tasks.way"),
        ("tasks = 3", "tasks must be a table"),
        ("updates = 'many'", "updates is 'many': it must be of type int"),
        ("updates = true", "updates is True"),
        ("updates = 0", "--updates is 0: it must be between 1 and"),
        ("[tasks]\nnoise = 'loud'", "choose one of none, swap, tasks"),
        ("[optimiser]\nlr = -1", "--optimiser.lr is -1.0: it must be between"),
        ("[optimiser]\nclip = nan", "clip is nan"),
        ("[strategy]\nratio = 2.0", "strategy.ratio is 2.0"),
        ("seed = 99999999999999999999999", "--seed is"),
        ("updates = ", "not a TOML file"),
    ],
)
def test_mistakes_are_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(DertsError, match=message):
        read_config(path)


def test_missing_files_and_presets_are_named(tmp_path: Path) -> None:
    with pytest.raises(DertsError, match="no config file at"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(DertsError, match="no preset 'fast': choose from"):
        apply_presets(["fast"])


def test_resolving_fills_in_what_depends_on_the_learner() -> None:
    config = replace(TrainConfig(), learner=LearnerConfig("anil", inner_lr=0.1)).resolved()
    assert config.learner.inner_lr == 0.1
    assert config.learner.feature_scale == 0.1
    assert config.optimiser.lr == 0.005
    assert config.learner.smoothing == 0.5
    assert TrainConfig().resolved().learner.smoothing == 0
    assert config.resolved() == config
    assert with_values(config, {"updates": 5}, "here").updates == 5
