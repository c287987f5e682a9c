"""Configs: the paper's settings, the same data for every strategy, what makes two runs one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from derts.config import TrainConfig
from derts.config_file import with_values
from derts.errors import DertsError
from derts.paper.cells import NAMES, Cell, cells, keep_only, read_json
from derts.paper.collect import result_file, result_files
from derts.paper.runs import (
    Scale,
    class_list,
    make_config,
    make_runs,
    parse_datasets,
    run_key,
    seeds_in,
    to_run,
    warmup_key,
)

MINI = parse_datasets(["mini=stores/mini"])
EVERY = [cell for name in NAMES for cell in cells(name) if cell.fraction == 1]


def config_of(cell: Cell, **scale: Any) -> TrainConfig:
    return make_config(cell.setting, 0, Scale(scale.pop("data", {}), **scale))


def test_configs_hold_what_the_paper_states() -> None:
    setup = read_json("paper.json")["setup"]
    for cell in EVERY:
        config, noise = config_of(cell), str(cell.setting.noise)
        learner, strategy = config.learner, config.strategy
        assert config.meta_batch == setup["meta_batch"]
        assert strategy.pool == setup["pool_size"]
        assert strategy.warmup == setup["warmup_iterations_by_noise"][noise][learner.name]
        assert config.tasks.classes == class_list(cell.setting.classes)
        assert (config.tasks.noise_kind == "swap") == (cell.setting.noise > 0)
        if learner.name == "anil":
            assert learner.inner_steps == setup["inner_steps"]["anil"]
            assert learner.inner_lr == setup["learning_rates"]["anil"]["inner"]
        if cell.setting.strategy == "paper" and cell.table != "table5":
            assert round(strategy.ratio * strategy.pool) == setup["selected"]
            assert strategy.weights == "counts"
            assert strategy.drop == ("paper" if cell.setting.noise else "none")
            assert not strategy.votes


@pytest.mark.parametrize("presets", [(), ("augment",), ("rotated",)])
def test_every_strategy_has_the_same_data(presets: tuple[str, ...]) -> None:
    by_place: dict[object, set[object]] = {}
    for cell in EVERY:
        config = config_of(cell, presets=presets)
        data = config.tasks, config.augment, config.evaluation, config.validate_every
        by_place.setdefault((cell.table, cell.setting.place, cell.setting.learner), set()).add(data)
        assert config.tasks.rotated == ("rotated" in presets)
    assert all(len(found) == 1 for found in by_place.values())


@pytest.mark.parametrize(
    ("name", "augmented", "weights"),
    [("table1", False, "last"), ("table3", True, "best"), ("table4", True, "last")],
)
def test_few_classes_and_noisy_tasks_are_augmented(
    name: str, augmented: bool, weights: str
) -> None:
    for cell in (cell for cell in EVERY if cell.table == name):
        config = config_of(cell)
        assert config.augment.active == augmented
        assert config.evaluation.weights == weights
        assert config.validate_every > 0
        assert not config_of(cell, data=parse_datasets(["glyphs"])).augment.active


def test_ratios_weights_and_the_selection_reach_the_config() -> None:
    found = {
        (config.strategy.ratio, config.strategy.weights, config.strategy.select)
        for cell in cells("table5")
        if cell.setting.strategy == "derts"
        for config in [config_of(cell)]
    }
    ratios = {(ratio, "calibrated", "greedy") for ratio in (0.1, 0.2, 0.3, 0.5)}
    assert found == ratios | {(0.3, "none", "greedy")}
    usual = keep_only(cells("table1"), ["strategy=derts"])
    assert {config_of(cell).strategy.select for cell in usual} == {"where-it-pays"}


def test_presets_that_make_another_experiment_are_refused() -> None:
    with pytest.raises(DertsError, match="changes strategy, which the recipes decide"):
        config_of(EVERY[0], presets=("gpu", "derts"))


def test_a_run_is_known_by_what_matters() -> None:
    (cell,) = keep_only(cells("table4"), ["strategy=random-votes,learner=anil,noise=0.4,"
                                          "dataset=mini,fraction=1"])  # fmt: skip
    config = config_of(cell)

    def key(group: str = "", **values: Any) -> str:
        part = replace(getattr(config, group), **values) if group else None
        return run_key(replace(config, **({group: part} if group else values)), "mini-imagenet")

    same = {
        key(),
        key(data="moved"),
        key(checkpoint_every=3),
        key(validate_every=3),
        key("hardware", device="cpu"),
        key("strategy", weights="none"),  # which random-votes does not read
    }
    assert len(same) == 1
    others = {
        key(seed=1),
        key(updates=9),
        key("optimiser", lr=0.123),
        key("learner", smoothing=0.0),
        key("strategy", pool=9),
        key("strategy", name="derts"),
        run_key(config, "tiered-imagenet"),
    }
    assert len(others - same) == 7
    best = replace(config, evaluation=replace(config.evaluation, weights="best"))
    assert run_key(best, "d") != run_key(replace(best, validate_every=3), "d")


def test_tables_share_runs_and_strategies_share_warm_ups(tmp_path: Path) -> None:
    data = parse_datasets(["mini=stores/mini", "tiered=stores/tiered"])
    together = [
        cell for name in ("table1", "table2", "table5", "case-study") for cell in cells(name)
    ]
    runs = make_runs(together, [0], Scale(data), tmp_path)
    alone = make_runs(cells("table1"), [0], Scale(data), tmp_path)
    assert len(to_run(runs)) == len(to_run(alone)) + 9  # what table 5 adds
    of_setting = {run.setting: run for run in alone}
    for run in alone:
        random = of_setting[run.setting.of("random")]
        assert run.warmup == random.warmup
        assert warmup_key(run.config, "d") == run_key(random.config, "d")


def test_us_and_ats_come_last_and_seeds_one_after_the_other(tmp_path: Path) -> None:
    runs = to_run(make_runs(cells("table1"), range(2), Scale(MINI), tmp_path))
    late = [run.setting.strategy in ("us", "ats") for run in runs]
    assert late == sorted(late)
    first = [run.config.seed for run in runs if run.setting.strategy == "derts"]
    assert first == sorted(first)


def test_a_run_is_trained_only_as_far_as_the_cells_asked_for(tmp_path: Path) -> None:
    found = keep_only(cells("table1"), ["fraction=0.1", "shot=5", "dataset=mini"])
    runs = make_runs(found, [0, 4], Scale(MINI), tmp_path)
    assert {run.until for run in runs} == {1000}
    assert {run.config.updates for run in runs} == {10000}
    for run in runs:
        run.folder.mkdir(parents=True, exist_ok=True)
    assert seeds_in(tmp_path) == {0, 4}


def test_files_of_different_scales_do_not_meet() -> None:
    glyphs = parse_datasets(["glyphs"])
    scales = [Scale(MINI), Scale(MINI, 0.25), Scale(glyphs), Scale(MINI, presets=("rotated",))]
    assert len({result_file(Path(), "table1", scale) for scale in scales}) == 4
    gpu = result_file(Path(), "table1", Scale(MINI, presets=("gpu",)))
    assert gpu.name == "reproduce-table1.json"


RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("file", result_files(RESULTS), ids=lambda file: file.stem)
def test_every_stored_result_is_of_a_config_that_is_still_read(file: Path) -> None:
    # else `--known results` runs it again
    for config in json.loads(file.read_text())["configs"].values():
        read = with_values(TrainConfig(), {**config, "seed": 0}, file.name)
        assert run_key(read, config["data"])
