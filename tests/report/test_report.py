"""The report's page as a file: what it holds, what it must never hold."""

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from derts.cli import run
from derts.clock import TRAINING_PHASES
from derts.config import TrainConfig
from derts.data import glyphs
from derts.errors import DertsError
from derts.report import pictures
from derts.report.figures import PHASE_COLORS, as_svg
from derts.report.page import make_report
from derts.report.pool_map import tasks_of_round
from derts.report.read import (
    comparison_table,
    finished_results,
    group_runs,
    read_runs,
    what_it_did,
)
from derts.training import train
from derts.training.result import parts_of_rounds
from derts.training.run_folder import Event, Run
from tests.tiny import tiny

pytestmark = pytest.mark.slow


class Collector(HTMLParser):
    """Every tag with its attributes, and whether they close in order."""

    VOID = frozenset({"meta", "link", "br", "circle", "path", "use", "rect", "line", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def copy_of(run_folder: Path, target: Path, *replacements: tuple[str, str]) -> Path:
    """A copy of a run, with other texts in its config."""
    shutil.copytree(run_folder, target)
    config = target / "config.toml"
    text = config.read_text()
    for old, new in replacements:
        assert text.count(old) == 1
        text = text.replace(old, new)
    config.write_text(text)
    return target


def test_every_phase_of_training_has_a_colour() -> None:
    assert PHASE_COLORS.keys() == set(TRAINING_PHASES)


def change_events(run_folder: Path, change: Callable[[Event], Event]) -> None:
    """Rewrite a run's log, line by line."""
    log = run_folder / "events.jsonl"
    events = [change(json.loads(line)) for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps(event) + "\n" for event in events))


def test_the_demo_leaves_a_page_that_needs_nothing_else(demo_folder: Path) -> None:
    page = (demo_folder / "report.html").read_text()
    collector = Collector()
    collector.feed(page)
    assert collector.open == []
    addresses = [
        value or ""
        for _, attributes in collector.tags
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href")
    ]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    outside = set(re.findall(r"https?://[^\"' <)]+", page))
    assert outside <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    identifiers = [attributes["id"] for _, attributes in collector.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    for expected in ("Summary", "against random", "seconds of training", "The pool as a map"):
        assert expected in page
    assert "Selected and unselected tasks" in page  # the data is at hand, so there are pictures


def test_the_page_says_what_the_demo_printed(demo_folder: Path) -> None:
    page = (demo_folder / "report.html").read_text()
    results = json.loads((demo_folder / "results.json").read_text())["runs"]
    assert [found["variant"] for found in results] == ["random", "derts"] * 2
    printed_table = (demo_folder / "report.txt").read_text()
    assert "against random" in printed_table
    assert printed_table.count("±") >= 3
    groups = group_runs(read_runs([demo_folder]))
    assert [group.name for group in groups] == ["random", "derts"]
    assert [run.config.seed for run in groups[1].runs] == [0, 1]
    read = finished_results(groups)
    for name in ("random", "derts"):
        told = [found for found in results if found["variant"] == name]
        for key in ("seed", "accuracy"):
            assert [found[key] for found in told] == [found[key] for found in read[name]]
        for ours, theirs in zip(read[name], told, strict=True):
            assert ours["noise"]["kept"] == pytest.approx(theirs["noise"]["kept"], abs=1e-5)
    assert comparison_table(read)[2][2] in page


def test_pictures_only_of_the_very_data(demo_folder: Path) -> None:
    history = read_runs([demo_folder / "derts-seed0"])[0]
    record = history.newest_round
    assert record is not None
    found = tasks_of_round(history.config, record, {})
    assert not isinstance(found, str)
    given = found[1].mislabelled()  # the record has what is left after votes
    assert len(given) == len(record.mislabelled)
    assert bool((given > 0.5).any())
    assert float(record.mislabelled.mean()) < 0.1
    other = glyphs(characters=120, images_per_character=20, seed=5)["train"]
    reason = tasks_of_round(history.config, record, {history.config.data: other})
    assert isinstance(reason, str)
    assert "not the data" in reason


def test_pictures_of_tasks_that_were_drawn_without_wrong_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(rows: torch.Tensor, labels: torch.Tensor, *_: object) -> SimpleNamespace:
        fourth = torch.arange(0, len(labels), 4)
        left = labels.index_fill(0, fourth, -1)
        found = {"probability": (left >= 0).float(), "kept": lambda *_: left}
        return SimpleNamespace(share_wrong=0.25, confused=0, **found)

    monkeypatch.setattr("derts.training.label_looks.judge", judge)
    monkeypatch.setattr("derts.training.label_looks.FEWEST_UPDATES", 1)
    train(tiny(strategy={"name": "derts", "select": "greedy"}), tmp_path / "run", quiet=True)
    history = read_runs([tmp_path / "run"])[0]
    assert history.named("labels")[-1]["left_out"] > 0
    record = history.newest_round
    assert record is not None
    assert record.labels is not None
    found = tasks_of_round(history.config, record, {})
    assert not isinstance(found, str)
    assert bool((record.labels[found[1].support] >= 0).all())
    for labels in (record.labels[1:], record.labels + 100, record.labels.float()):
        other = tasks_of_round(history.config, replace(record, labels=labels), {})
        assert "not the data" in str(other)
    nothing = replace(record, labels=torch.full_like(record.labels, -1))
    assert "not at hand" in str(tasks_of_round(history.config, nothing, {}))


def test_a_run_whose_data_is_gone_still_has_a_report(demo_folder: Path, tmp_path: Path) -> None:
    gone = copy_of(
        demo_folder / "derts-seed0", tmp_path / "gone", ('"glyphs-120x20"', '"<b>gone$"')
    )
    page = make_report([gone]).page
    assert "No pictures: the run&#x27;s data is not at hand" in page
    assert "<b>gone" not in page
    assert "data:image" not in page
    again = make_report([gone], data="glyphs-120x20").page
    assert "data:image" in again


def test_names_cannot_break_out_of_the_page(demo_folder: Path, tmp_path: Path) -> None:
    odd = copy_of(demo_folder / "derts-seed0", tmp_path / "a&b<script>x")
    page = make_report([odd]).page
    assert "a&amp;b&lt;script&gt;x" in page
    assert page.count("<script") == 1
    assert page.count("</script>") == 1


def test_print_quality_figures_and_unfinished_runs(
    demo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = copy_of(demo_folder / "derts-seed1", tmp_path / "cut")
    (cut / "result.json").unlink()
    words = ["report", str(demo_folder / "random-seed0"), str(cut)]
    assert run([*words, "-o", str(tmp_path / "r.html"), "--png", str(tmp_path / "png")]) == 0
    assert str(tmp_path / "r.html") in capsys.readouterr().out
    assert "at update 45 of 45" in (tmp_path / "r.html").read_text()
    figures = list((tmp_path / "png").glob("*.png"))
    assert len(figures) >= 8
    for path in figures:
        with Image.open(path) as figure:
            assert figure.width > 1400


def test_the_page_explains_its_numbers(demo_folder: Path) -> None:
    page = make_report([demo_folder]).page
    text = re.sub(r"<[^>]*>|\s+", " ", page)
    assert "guessing gives 20" in text
    assert "chance: a class is guessed" in text
    assert "the chart of the time is of the whole run" in text
    assert "Wrong labels kept: of the labels in the tasks that were trained on" in text
    assert "how many tasks of the pool it stands for" in text
    assert "clean test" not in text


def test_what_says_nothing_is_left_out(demo_folder: Path, tmp_path: Path) -> None:
    plain = copy_of(
        demo_folder / "random-seed0", tmp_path / "r", ('noise = "tasks:0.6"', 'noise = "none"')
    )
    made = make_report([plain])
    assert "time" not in made.figures  # one bar of one colour
    assert "wrong labels kept" not in made.page
    assert "time" in make_report([demo_folder / "derts-seed0"]).figures


def test_time_that_judging_labels_takes_has_its_bar(demo_folder: Path, tmp_path: Path) -> None:
    odd = copy_of(demo_folder / "derts-seed0", tmp_path / "odd")
    judged = {"update": 0.2, "labels": 1.0}
    change_events(odd, lambda one: one | {"seconds": judged} if "seconds" in one else one)
    assert ">labels</text>" in as_svg("time", make_report([odd]).figures["time"])


def test_the_same_runs_give_the_same_page(demo_folder: Path) -> None:
    assert make_report([demo_folder]).page == make_report([demo_folder]).page


def test_a_damaged_record_and_an_empty_run_are_named(demo_folder: Path, tmp_path: Path) -> None:
    bad = copy_of(demo_folder / "derts-seed0", tmp_path / "bad")
    newest = Run.open(bad).round_files()[-1]
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.raises(DertsError, match=r"round-.* is damaged"):
        make_report([bad])
    empty = Run(tmp_path / "empty", TrainConfig())
    empty.clear()
    with pytest.raises(DertsError, match="has logged nothing yet"):
        make_report([empty.path])


@pytest.mark.parametrize("line", ["[]", '{"event": "update", "update": 3}', '{"update": "x"}'])
def test_a_foreign_line_in_the_log_is_named(line: str, demo_folder: Path, tmp_path: Path) -> None:
    odd = copy_of(demo_folder / "random-seed0", tmp_path / "odd")
    with (odd / "events.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DertsError, match=r"line \d+ of .*events\.jsonl is no event"):
        make_report([odd])


def test_runs_that_differ_in_hardware_alone_are_told_apart(
    demo_folder: Path, tmp_path: Path
) -> None:
    random = demo_folder / "random-seed0"
    change = ('precision = "float32"', 'precision = "bfloat16"')
    twin = copy_of(random, tmp_path / "twin", change)
    groups = group_runs(read_runs([random, twin]))
    assert [group.name for group in groups] == [
        f"random precision={name}" for name in ("float32", "bfloat16")
    ]
    assert len(comparison_table(finished_results(groups))) == 3
    groups = group_runs(read_runs([demo_folder / "derts-seed0", twin]))
    assert [group.name for group in groups] == ["random", "derts"]


def test_settings_of_the_same_name_are_told_apart(demo_folder: Path, tmp_path: Path) -> None:
    derts = demo_folder / "derts-seed0"
    changes = (
        ('weights = "calibrated"', 'weights = "none"'),
        ('weights = "automatic"', 'weights = "best"'),
    )
    first, second = group_runs(read_runs([derts, copy_of(derts, tmp_path / "twin", *changes)]))
    assert "evaluation.weights=automatic" in first.name
    assert "strategy.weights=none" in second.name


def test_a_run_judged_by_earlier_weights_says_so(demo_folder: Path, tmp_path: Path) -> None:
    twin = copy_of(demo_folder / "random-seed0", tmp_path / "twin")
    result = json.loads((twin / "result.json").read_text())
    assert "weights of update" not in make_report([twin]).page
    (twin / "result.json").write_text(json.dumps(result | {"weights_of_update": 15}))
    assert "(weights of update 15)" in make_report([twin]).page


def test_the_page_tells_which_parts_of_the_method_acted(demo_folder: Path, tmp_path: Path) -> None:
    page = make_report([demo_folder]).page
    assert "<h2>What derts did</h2>" in page
    assert "Every task was drawn at random." in page
    assert re.search(r"The majority vote relabelled \d+\.\d% of the labels\.", page)
    odd = copy_of(demo_folder / "derts-seed0", tmp_path / "odd")
    parts = {"votes": None, "drop": {"dropped": 0.25}, "balance": True, "select": "random"}
    change_events(odd, lambda event: event | {"parts": parts} if "round" in event else event)
    with (odd / "events.jsonl").open("a") as log:
        log.write(json.dumps({"event": "note", "text": "votes cannot work: <few images>"}) + "\n")
    page = make_report([odd]).page
    (history,) = read_runs([odd])
    rounds = history.named("round")
    told = what_it_did(history.config, len(rounds), parts_of_rounds(rounds))
    assert "25.0% of the tasks looked noisy and were dropped. Classes were balanced. " in told
    assert told.endswith("Tasks were drawn at random, because selecting does not pay here.")
    assert "<li>votes cannot work: &lt;few images&gt;</li>" in page


def test_runs_without_a_seed_in_common_have_a_page(demo_folder: Path) -> None:
    page = make_report([demo_folder / "random-seed0", demo_folder / "derts-seed1"]).page
    assert "Seeds: random has 0; derts has 1." in page
    words = re.sub(r"base64,[^\"']*", "", page.partition("<h2>Learning")[0])
    assert "nan" not in words


def test_long_names_leave_room_for_the_figures(demo_folder: Path, tmp_path: Path) -> None:
    twin = copy_of(demo_folder / "random-seed0", tmp_path / "twin")
    text = (twin / "config.toml").read_text()
    for name in ("shot", "query", "meta_batch", "warmup", "pool", "checkpoint_every"):
        text = re.sub(rf"^{name} = (\d+)$", rf"{name} = \g<1>1", text, flags=re.M)
    (twin / "config.toml").write_text(text)
    made = make_report([demo_folder / "random-seed0", twin])  # a warning would be an error
    assert "meta_batch=" in made.page
    whole = {group.name for group in group_runs(read_runs([demo_folder / "random-seed0", twin]))}
    for name, figure in made.figures.items():
        if not name.startswith("map"):
            assert figure.axes[0].get_position().width > 0.4, name
        if name != "time":
            texts = {text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()}
            assert texts - {"chance: a class is guessed"} == whole


def test_a_caption_under_a_picture_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(pictures, "save_figure", lambda figure, *_, **__: drawn.append(figure))
    caption = "example: a rather long name of a class, number 03"
    pictures.draw_sheet([Image.new("L", (8, 8))], [caption], tmp_path / "a.png", "title")
    assert drawn[0].axes[0].texts[0].get_text().replace("\n", " ") == caption


def test_a_run_whose_updates_were_skipped_has_a_page(demo_folder: Path, tmp_path: Path) -> None:
    """An event of nothing but skipped updates has no loss: a gap in the curve, no refusal."""
    odd = copy_of(demo_folder / "derts-seed0", tmp_path / "run")
    missing = ("loss", "accuracy", "gradient_norm")
    change_events(
        odd,
        lambda event: (
            {key: value for key, value in event.items() if key not in missing}
            if (event["event"], event["update"]) == ("update", 10)
            else event
        ),
    )
    assert "Training loss" in make_report([odd, demo_folder / "derts-seed1"]).page
    (history,) = read_runs([odd])
    curve = history.curve("update", "loss")
    assert math.isnan(curve[0][1])
    assert not any(math.isnan(value) for _, value in curve[1:])


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("result.json", "accuracy", None),
        ("result.json", "interval", "wide"),
        ("result.json", "updates", 10**400),
        ("result.json", "split", 3),
        ("result.json", "code", []),
        ("result.json", "accuracies", 7),
        ("events.jsonl", "noise", {}),
        ("events.jsonl", "parts", 3),
        ("events.jsonl", "pool", 0),
        ("events.jsonl", "update", 10**400),
        ("events.jsonl", "seconds", {"update": None}),
    ],
)
@pytest.mark.parametrize("command", [["report", "-o", "page.html"], ["compare"]])
def test_altered_numbers_are_one_line(
    file: str, key: str, value: object, command: list[str], demo_folder: Path, in_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    odd = copy_of(demo_folder / "derts-seed0", in_folder / "run") / file
    lines = odd.read_text().splitlines() if file == "events.jsonl" else [odd.read_text()]
    found = [json.loads(line) for line in lines]
    odd.write_text(
        "\n".join(json.dumps(one | {key: value} if key in one else one) for one in found)
    )
    assert run([command[0], "run", *command[1:]]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert file in line
    assert not (in_folder / "page.html").exists()
