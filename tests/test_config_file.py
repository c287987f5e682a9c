"""Configs from presets and TOML files."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from derts.commands.parse import parse
from derts.commands.train import TrainOptions
from derts.config import LearnerConfig, TaskConfig, TrainConfig
from derts.config_file import PRESETS, apply_presets, read_config, to_toml, with_values
from derts.errors import DertsError

ODD = TrainConfig(
    data='a "quoted" \\ path\twith\nodd ünïcode',
    tasks=TaskConfig(classes=("a'b", 'c"d'), noise="swap:1e-7"),
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
    path.write_text('updates = 7\n[hardware]\ndevice = "cpu"\n')
    config = read_config(path, apply_presets(["demo", "gpu"]))
    assert config.updates == 7
    assert config.hardware.precision == "bfloat16"
    assert config.hardware.device == "cpu"


PAPERS = {
    "name": "derts", "warmup": 500, "pool": 3200, "pool_images": 0, "ratio": 0.3, "votes": False,
    "judge": "none", "drop": "none", "balance": False, "select": "stochastic",
    "estimate": "logit-theta", "weights": "counts",
}  # fmt: skip
OTHER = """
[strategy]
name = "ats"
warmup = 7
pool = 40
ratio = 0.9
select = "uniform"
[learner]
name = "anil"
smoothing = 0.5
"""


@pytest.mark.parametrize("before", ["--preset derts", "--preset laptop derts", "--config c.toml"])
def test_the_preset_paper_is_the_papers_whatever_was_set_before(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(OTHER)

    def section(*words: str) -> dict[str, object]:
        words = (*before.split(), "--preset", "paper", "--learner.name", "anil", *words)
        options = parse(TrainOptions, words, "train")
        run = options.run.resolved()
        assert run.learner.smoothing == 0
        return asdict(run.strategy)

    assert section() == PAPERS
    assert section("--strategy.warmup", "3") == {**PAPERS, "warmup": 3}  # said on purpose


@pytest.mark.parametrize(
    ("learner", "noise", "warmup"),
    [
        ("anil", {}, 500),
        ("protonet", {}, 100),
        ("protonet", {"noise": "swap:3.02"}, 100),
        ("protonet", {"noise": "swap:5.62"}, 200),
        ("anil", {"noise": "swap:5.62"}, 1000),
        ("anil", {"noise": "none"}, 500),
        ("anil", {"noise": "tasks:0.6"}, 1000),
    ],
)
def test_the_papers_warm_up_depends_on_learner_and_noise(
    learner: str, noise: dict[str, object], warmup: int
) -> None:
    values = {"learner": {"name": learner}, "tasks": noise}
    config = with_values(apply_presets(["derts", "paper"]), values, "test").resolved()
    assert config.strategy.warmup == warmup
    assert config.resolved() == config


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
        ("[optimiser]\nlr = nan", "lr is nan"),
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
