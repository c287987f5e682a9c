"""The recipes: every number of the paper, the paper's settings, what can be asked for."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from derts.errors import DertsError
from derts.paper.collecting import measured_jobs
from derts.paper.job import Folders, make_config, make_jobs, measured_to, point_file, to_run
from derts.paper.known import Known
from derts.paper.numbers import paper
from derts.paper.recipe import NAMES, Cell, cells, chosen_names, keep_only, read_recipe
from derts.paper.scale import Scale, parse_datasets

TABLES = {name: read_recipe(name)["paper"] for name in NAMES if name.startswith("table")}
OURS = {"random": ["random"], "us": ["us"], "ats": ["ats"], "derts": ["paper", "derts"]}


def theirs(row: dict[str, Any], strategy: str) -> tuple[Any, ...]:
    whole = row["dataset"] == "tiered-imagenet" or row["classes"] == 64
    return (
        row["dataset"], row["way"], row["shot"], row["backbone"], row["learner"], strategy,
        0 if whole else row["classes"], row["noise"], row["iterations"], row.get("ratio", 0.3),
        row.get("weights", True), row["accuracy"], row["ci95"],
    )  # fmt: skip


def ours(cell: Cell) -> tuple[Any, ...]:
    setting = cell.setting
    return (
        setting.dataset, setting.way, setting.shot, setting.backbone, setting.learner,
        setting.strategy, setting.classes, setting.noise, round(cell.fraction * setting.updates),
        setting.ratio, setting.weights, cell.paper, cell.paper_interval,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "seen_anew", "weights"),
    [
        ("table1", False, "last"),
        ("table3", True, "best"),
        ("table4", True, "last"),
        ("table7", True, "last"),
        ("figure2", True, "last"),
        ("table8", True, "best"),
    ],
)
def test_few_classes_and_noisy_tasks_are_seen_anew(
    name: str, seen_anew: bool, weights: str
) -> None:
    for cell in cells(name):
        config = make_config(cell.setting, 0, Scale({}))
        assert (config.augment.mirror, config.augment.shift > 0) == (seen_anew, seen_anew)
        assert config.evaluation.weights == weights
        assert config.validate_every > 0


def test_there_is_a_recipe_for_every_table_of_the_paper() -> None:
    assert sorted(TABLES.values()) == sorted(paper()["tables"])


@pytest.mark.parametrize("name", [name for name in TABLES if name != "table2"])
def test_every_accuracy_of_the_paper_is_one_cell_of_each_of_our_strategies(name: str) -> None:
    rows = paper()["tables"][TABLES[name]]["cells"]
    expected = Counter(theirs(row, own) for row in rows for own in OURS[row["strategy"]])
    found = Counter(ours(cell) for cell in cells(name) if cell.paper is not None)
    assert found == expected
    assert set(found.values()) == {1}


def test_every_time_of_the_paper_is_one_cell_of_each_of_our_strategies() -> None:
    rows = paper()["tables"]["table2_time"]["cells"]
    expected = {
        (own, row["seconds_per_iteration"]) for row in rows for own in OURS[row["strategy"]]
    }
    found = [(cell.setting.strategy, cell.paper) for cell in cells("table2")]
    assert set(found) == expected
    assert len(found) == len(expected)


def test_what_is_not_in_the_paper_is_the_ablations_baseline_and_table_4_along_the_way() -> None:
    extra = [cell for name in TABLES for cell in cells(name) if cell.paper is None]
    of_table4 = [cell for cell in extra if cell.table == "table4"]
    assert [(cell.table, cell.setting.strategy) for cell in extra if cell not in of_table4] == [
        ("table5", "random")
    ]
    assert of_table4 == [cell for cell in cells("table4") if cell.fraction < 1]


def test_configs_hold_what_the_paper_states() -> None:
    setup = paper()["setup"]
    for cell in (cell for name in NAMES for cell in cells(name)):
        config = make_config(cell.setting, 0, Scale({}))
        noise, learner = str(cell.setting.noise), config.learner
        assert config.meta_batch == setup["meta_batch"]
        assert config.strategy.pool == setup["pool_size"]
        assert config.strategy.warmup == setup["warmup_iterations_by_noise"][noise][learner.name]
        assert config.tasks.class_budget == cell.setting.classes
        assert (config.tasks.noise == "swap") == (cell.setting.noise > 0)
        if learner.name == "anil":
            assert learner.inner_steps == setup["inner_steps"]["anil"]
            assert learner.inner_lr == setup["learning_rates"]["anil"]["inner"]
        if cell.setting.strategy == "paper" and cell.table != "table5":
            assert round(config.strategy.ratio * config.strategy.pool) == setup["selected"]
            assert config.strategy.weights == "counts"
            dropped = "norm" if cell.setting.noise else "none"
            assert config.strategy.drop_score == dropped
            assert config.strategy.drop_value == setup["threshold_multiplier"]


def test_no_weights_and_ratios_reach_the_config() -> None:
    found = {
        (config.strategy.ratio, config.strategy.weights)
        for cell in cells("table5")
        if cell.setting.strategy == "paper"
        for config in [make_config(cell.setting, 0, Scale({}))]
    }
    ratios = {(ratio, "counts") for ratio in (0.1, 0.2, 0.3, 0.5)}
    assert found == ratios | {(0.3, "none")}


def test_with_16_classes_derts_alone_turns_them_unless_asked_for() -> None:
    mini = parse_datasets(["mini=stores/mini"])
    for name, scale, turning in (
        ("table3", Scale(mini), {"derts"}),
        ("table3", Scale(mini, presets=("turned",)), set(OURS["derts"]) | {"random", "us", "ats"}),
        ("table3", Scale(parse_datasets(["glyphs"])), set()),
        ("table8", Scale(mini), set()),  # 32 classes, with which it cost accuracy
        ("table1", Scale(mini), set()),
    ):
        found = {
            cell.setting.strategy
            for cell in cells(name)
            if cell.setting.dataset == "mini-imagenet"
            and make_config(cell.setting, 0, scale).tasks.turned
        }
        assert found == turning, name


def test_derts_selects_where_it_pays_but_where_the_selection_is_the_subject() -> None:
    for cell in (cell for name in NAMES for cell in cells(name)):
        setting = cell.setting
        always = setting.strategy == "paper" or cell.table in ("table5", "case-study")
        if setting.strategy in OURS["derts"]:
            config = make_config(setting, 0, Scale({}))
            assert config.strategy.selects == ("always" if always else "where-it-pays")


def test_warm_ups_and_random_runs_are_called_what_they_always_were(tmp_path: Path) -> None:
    data = parse_datasets(["mini=stores/mini"])
    found = keep_only(cells("table1"), ["learner=anil,shot=5,dataset=mini-imagenet,fraction=1"])
    jobs = make_jobs(found, [0], Scale(data), Folders(tmp_path)).values()
    assert {job.warmup.name for job in jobs} == {"811db7580b"}
    digests = {job.setting.strategy: job.folder.name[-10:] for job in jobs}
    assert digests["random"] == "811db7580b"
    assert (digests["paper"], digests["us"], digests["ats"]) == (
        "cce3b50a5d",
        "e11524a64b",
        "59e07637fe",
    )


def test_runs_with_swapped_labels_from_before_selects_count(tmp_path: Path) -> None:
    from derts.config_file import to_toml

    data = parse_datasets(["mini=stores/mini"])
    for name, counts in (("table4", True), ("table1", False)):
        found = keep_only(cells(name), ["strategy=derts", "shot=5", "learner=anil",
                                        "dataset=mini-imagenet", "fraction=1"])  # fmt: skip
        jobs = make_jobs(found, [0], Scale(data), Folders(tmp_path)).values()
        for number, job in enumerate(jobs):
            folder = tmp_path / "mini-imagenet" / f"{name}-{number}"
            folder.mkdir(parents=True)
            line = 'selects = "where-it-pays"\n'
            assert line in to_toml(job.config)
            (folder / "config.toml").write_text(to_toml(job.config).replace(line, ""))
        again = make_jobs(found, [0], Scale(data), Folders(tmp_path)).values()
        assert all((job.folder.name.startswith(name)) == counts for job in again)


def test_tables_share_runs_and_a_run_is_known_by_what_matters(tmp_path: Path) -> None:
    data = parse_datasets(["mini=stores/mini", "tiered=stores/tiered"])
    together = [
        cell for name in ("table1", "table2", "table5", "case-study") for cell in cells(name)
    ]
    jobs = make_jobs(together, [0], Scale(data), Folders(tmp_path))
    alone = make_jobs(cells("table1"), [0], Scale(data), Folders(tmp_path))
    assert len(to_run(jobs)) == len(to_run(alone)) + 9  # what table 5 adds
    job = next(iter(alone.values()))
    folders, dataset = Folders(tmp_path), job.setting.dataset
    elsewhere = replace(
        job.config, data="moved", hardware=replace(job.config.hardware, device="cpu"), log_every=3
    )
    assert folders.of(job.setting, elsewhere, dataset) == job.folder
    rounder = replace(job.config, hardware=replace(job.config.hardware, precision="bfloat16"))
    for other in (rounder, replace(job.config, seed=1), replace(job.config, updates=9)):
        assert folders.of(job.setting, other, dataset) != job.folder


def test_a_run_is_recognised_when_settings_were_added_since(tmp_path: Path) -> None:
    data = parse_datasets(["mini=stores/mini"])
    found = keep_only(cells("table3"), ["strategy=derts", "shot=5", "learner=anil"])
    (job,) = make_jobs(found, [0], Scale(data), Folders(tmp_path)).values()
    from derts.config_file import to_toml

    folder = tmp_path / "mini-imagenet" / "a-name-of-its-own"
    folder.mkdir(parents=True)
    text = to_toml(job.config)
    assert "weight_cap = 0.0\n" in text
    (folder / "config.toml").write_text(text.replace("weight_cap = 0.0\n", ""))
    (again,) = make_jobs(found, [0], Scale(data), Folders(tmp_path)).values()
    assert again.folder == folder
    (folder / "config.toml").write_text(text.replace("weight_cap = 0.0\n", "weight_cap = 9.0\n"))
    (other,) = make_jobs(found, [0], Scale(data), Folders(tmp_path)).values()
    assert other.folder == job.folder


@pytest.mark.parametrize("further", ["first", "second"])
@pytest.mark.parametrize("by", ["result-0003000.json", "checkpoints/update-0002000.ckpt"])
def test_of_two_folders_of_one_run_the_one_that_got_further_counts(
    by: str, further: str, tmp_path: Path
) -> None:
    from derts.config_file import to_toml

    data = parse_datasets(["mini=stores/mini"])
    found = keep_only(cells("table3"), ["strategy=derts", "shot=5", "learner=anil"])
    (job,) = make_jobs(found, [0], Scale(data), Folders(tmp_path)).values()
    for name in ("first", "second"):
        folder = tmp_path / "mini-imagenet" / name
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "config.toml").write_text(to_toml(job.config))
        point_file(folder, 1000).write_text("{}")
        if name == further:
            (folder / by).write_text("{}")
    (again,) = make_jobs(found, [0], Scale(data), Folders(tmp_path)).values()
    assert again.folder.name == further


def test_a_report_is_of_all_seeds_there_are_and_of_the_precision_they_have(tmp_path: Path) -> None:
    from derts.config_file import to_toml

    found = keep_only(cells("table3"), ["strategy=derts", "shot=5", "learner=anil"])
    data = parse_datasets(["mini=stores/mini"])
    plain, gpu = Scale(data), Scale(data, presets=("gpu",))
    for seed in (0, 4):
        ((_, job),) = make_jobs(found, [seed], gpu, Folders(tmp_path)).items()
        job.folder.mkdir(parents=True)
        (job.folder / "config.toml").write_text(to_toml(job.config))
        point_file(job.folder, 10000).write_text("{}")
    for asked in (plain, gpu):
        jobs = measured_jobs(found, [0, 1], asked, Folders(tmp_path), Known())
        assert {seed: measured_to(job.folder) for (_, seed), job in jobs.items()} == {
            0: 10000,
            1: 0,
            4: 10000,
        }
    # what is to be run is in the precision asked for
    assert len(to_run(make_jobs(found, [0, 4], plain, Folders(tmp_path)))) == 2
    assert not to_run(make_jobs(found, [0, 4], gpu, Folders(tmp_path)))
    # and once one run is there in it, so is the report
    (job,) = make_jobs(found, [0], plain, Folders(tmp_path)).values()
    job.folder.mkdir()
    (job.folder / "config.toml").write_text(to_toml(job.config))
    point_file(job.folder, 1000).write_text("{}")
    jobs = measured_jobs(found, [0], plain, Folders(tmp_path), Known())
    assert [measured_to(job.folder) for job in jobs.values()] == [1000, 0]


def test_cells_are_picked_by_weights_and_by_all_classes() -> None:
    bare = keep_only(cells("table5"), ["weights=no"])
    assert {cell.setting.variant for cell in bare} == {"paper, no weights", "derts, no weights"}
    every = cells("table1")
    for word in ("all", "64", "0"):
        assert keep_only(every, [f"classes={word}"]) == every
    with pytest.raises(DertsError, match="classes is 16"):
        keep_only(cells("table3"), ["classes=64"])


def test_a_run_made_before_a_setting_is_known_by_what_it_was_then(tmp_path: Path) -> None:
    data = parse_datasets(["mini=stores/mini"])
    only = ["strategy=random", "noise=0.4", "dataset=mini-imagenet"]
    jobs = make_jobs(keep_only(cells("table4"), only), [0], Scale(data), Folders(tmp_path))
    from derts.config_file import to_toml

    for job in jobs.values():
        folder = tmp_path / "mini-imagenet" / f"old-{job.setting.learner}"
        folder.mkdir(parents=True)
        lines = to_toml(job.config).splitlines()
        old = [line for line in lines if not line.startswith("smoothing =")]
        assert len(old) == len(lines) - 1
        (folder / "config.toml").write_text("\n".join(old))
    again = make_jobs(keep_only(cells("table4"), only), [0], Scale(data), Folders(tmp_path))
    found = {job.setting.learner: job.folder.name for job in again.values()}
    assert found["protonet"] == "old-protonet"  # nothing is smoothed, then as now
    assert found["anil"] != "old-anil"


def test_only_random_paper_and_derts_come_before_us_and_ats(tmp_path: Path) -> None:
    data = parse_datasets(["mini=m", "tiered=t"])
    jobs = to_run(make_jobs(cells("table1"), range(2), Scale(data), Folders(tmp_path)))
    late = [job.setting.strategy in ("us", "ats") for job in jobs]
    assert late == sorted(late)
    assert any(late)
    first = [job.config.seed for job in jobs if job.setting.strategy == "derts"]
    assert first == sorted(first)


def test_a_run_is_trained_only_as_far_as_the_cells_asked_for(tmp_path: Path) -> None:
    found = keep_only(cells("table1"), ["fraction=0.1", "shot=5", "dataset=mini"])
    jobs = make_jobs(found, [0], Scale(parse_datasets(["mini=m"])), Folders(tmp_path))
    assert {job.until for job in jobs.values()} == {1000}
    assert {job.config.updates for job in jobs.values()} == {10000}


@pytest.mark.parametrize(
    ("word", "said"),
    [("learner", "key=value"), ("colour=red", "key=value"), ("shot=7", "shot is 1 or 5")],
)
def test_filters_that_make_no_sense(word: str, said: str) -> None:
    with pytest.raises(DertsError, match=said):
        keep_only(cells("table1"), [word])


def test_names_that_make_no_sense() -> None:
    assert chosen_names(["all"]) == NAMES
    with pytest.raises(DertsError, match="did you mean table4"):
        chosen_names(["tabel4"])
    with pytest.raises(DertsError, match="nothing to reproduce"):
        chosen_names([])
    for words in (["mini"], ["mini=a", "glyphs"], ["omniglot=x"]):
        with pytest.raises(DertsError, match="--dataset"):
            parse_datasets(words)
