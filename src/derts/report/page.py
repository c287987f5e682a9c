"""One self-contained HTML page about some runs: no network, opens from disk."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from derts import __version__
from derts.config_file import to_toml
from derts.files import write_atomically
from derts.report.figures import as_svg, draw_figures
from derts.report.pool_map import RANDOM, Atlas, PoolView, pool_views
from derts.report.read import (
    KEPT_COLUMN,
    RunGroup,
    comparison_table,
    finished_results,
    group_runs,
    read_runs,
    settings_table,
    what_it_did,
)
from derts.report.tables import html_page, html_table, page_part
from derts.training.result import parts_of_rounds
from derts.training.run_folder import CHANGED

KEPT = (
    "Wrong labels kept: of the labels in the tasks that were trained on, how many are wrong. It is "
    "known only because the noise was added by these runs themselves."
)
SUMMARY = (
    "Accuracy in % on {split} tasks, labelled as the data is; guessing gives {chance}. ± is the "
    "95% interval over seeds (Student's t); differences are paired, seed by seed. ms/update is "
    "training time after the warm-up and the slow first updates; the chart of the time is of the "
    "whole run. Click a heading to sort."
)
BAND = (
    "Lines are means over seeds, bands reach from the lowest seed to the highest. Strategies train "
    "on different tasks: compare them by validation and test tasks, which are the same for all."
)
MAP = (
    "One dot is one task; hover over it, or touch it, to see its images. Each column is a class as "
    "labelled when the task was drawn; a red frame marks a wrong label. γ is a task's weight in "
    "training: how many tasks of the pool it stands for, divided by the mean."
)
GRIDS = "A row is a task, one support image per class as labelled; a red frame marks a wrong label."


@dataclass(frozen=True)
class ReportPage:
    """A page, and the figures on it by name."""

    page: str
    figures: dict[str, Any]

    def save(self, path: Path | str) -> Path:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, self.page.encode())
        return path


def make_report(
    runs: Sequence[Path | str], *, data: str | None = None, data_changed: bool = False
) -> ReportPage:
    """A page about run folders (or folders of run folders).

    data          where the training images are now, if not where the runs were trained with them
    data_changed  even if the data was prepared anew since
    """
    histories = read_runs(runs)
    for history in histories:
        if history.run.data_changed():  # where it is missing, the page has no pictures
            history.run.data(data, data_changed)
    groups = group_runs(histories)
    figures = draw_figures(groups)
    atlas = Atlas()
    views = pool_views(groups, atlas, data)
    sections = [
        _heading(groups),
        _summary(groups),
        _figures("Learning", figures, ("validation", "accuracy", "loss"), BAND),
        _figures("Where the time went", figures, ("time",)),
        _pools(views, figures),
        _again(groups),
    ]
    body = "\n".join(filter(None, sections))
    end = f'<div id="tip" role="status" hidden></div><script>{page_part("page.js")}</script>'
    footer = f"<footer>Written by derts {__version__}.</footer>"
    return ReportPage(
        html_page("derts report", f"{body}\n{footer}{end}", "".join(atlas.rules)), figures
    )


def _heading(groups: Sequence[RunGroup]) -> str:
    config = groups[0].config
    runs = [(group, run) for group in groups for run in group.runs]
    tasks = f"{config.tasks.way}-way {config.tasks.shot}-shot"
    about = f"{config.learner.name} on {Path(config.data).name}, {tasks}; {len(runs)} run"
    about += "s" if len(runs) > 1 else ""
    did = ""
    for group in groups:
        rounds = [event for run in group.runs for event in run.named("round")]
        if told := what_it_did(group.config, len(rounds), parts_of_rounds(rounds)):
            did += f"<p><b>{escape(group.name)}</b>: {escape(told)}</p>"
    notes = dict.fromkeys(
        note if len(groups) == 1 else f"{group.name}: {note}"
        for group, run in runs
        for note in (*run.summary["notes"], *([CHANGED] if run.run.data_changed() else []))
    )
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    did += f"<p>Notes of the runs:</p><ul>{items}</ul>" if notes else ""
    did = f"<h2>What derts did</h2>{did}" if did else ""
    return f"<h1>derts report</h1><p>{escape(about)}</p>{did}"


def _summary(groups: Sequence[RunGroup]) -> str:
    found = "<h2>Summary</h2>"
    histories = [run for group in groups for run in group.runs]
    splits = [run.result["split"] for run in histories if run.result is not None]
    if splits:
        rows = comparison_table(finished_results(groups))
        ways = sorted({group.config.tasks.way for group in groups})
        chance = " or ".join(f"{100 / way:.0f}" for way in ways)
        about = SUMMARY.format(split=splits[0], chance=chance)
        about += f" {KEPT}" if KEPT_COLUMN in rows[0] else ""
        found += f"<p>{escape(about)}</p>{html_table(rows)}"
        if len({tuple(group.seeds) for group in groups}) > 1:
            each = (f"{group.name} has {', '.join(map(str, group.seeds))}" for group in groups)
            about = f"Seeds: {'; '.join(each)}. A difference is over the seeds that both have."
            found += f"<p>{escape(about)}</p>"
    rows = [("run", "strategy", "seed", "status", "updates", "accuracy")]
    for run in histories:
        chosen = (run.result or {}).get("weights_of_update", run.last_update)
        best = f" (weights of update {chosen})" if chosen != run.last_update else ""
        name, seed = run.config.strategy.name, str(run.config.seed)
        rows.append((run.name, name, seed, run.status, str(run.last_update), run.reached + best))
    return f"{found}<details open><summary>Every run</summary>{html_table(rows)}</details>"


def _figures(
    title: str, figures: Mapping[str, Any], prefixes: tuple[str, ...], about: str = ""
) -> str:
    shown = "".join(
        f"<figure><figcaption>{escape(one.get_label())}</figcaption>{as_svg(name, one)}</figure>"
        for name, one in figures.items()
        if name.startswith(prefixes)
    )
    text = f"<p>{about}</p>" if about else ""
    return f'<h2>{title}</h2>{text}<div class="figures">{shown}</div>' if shown else ""


def _pools(views: Sequence[PoolView], figures: Mapping[str, Any]) -> str:
    grids = "".join(view.grids() for view in views)
    maps = "".join(view.map() for view in views if not view.record.random)
    names = (escape(view.group.name) for view in views if view.record.random)
    found = "".join(f"<h2>Nothing was chosen: {name}</h2><p>{RANDOM}</p>" for name in names)
    if maps:
        found += f'<h2>The pool as a map</h2><p>{MAP}</p><div class="figures maps">{maps}</div>'
    found += f"<h2>Selected and unselected tasks</h2><p>{GRIDS}</p>{grids}" if grids else ""
    return found + _figures("Wrong labels", figures, ("noise",))


def _again(groups: Sequence[RunGroup]) -> str:
    settings = settings_table(groups)
    found = "<h2>Settings, and how to run it again</h2>"
    found += f"<p>What tells the groups apart:</p>{html_table(settings)}" if settings else ""
    for group in groups:
        run = group.runs[0]
        made = [(run.result or {}).get(name, {}) for name in ("code", "machine")]
        by = "; ".join(f"{name} {value}" for part in made for name, value in part.items())
        command = f"derts train --config {run.run.path / 'config.toml'} --out NEW-FOLDER"
        found += (
            f"<details><summary>{escape(group.name)}, seeds {', '.join(map(str, group.seeds))}"
            "</summary><p>Save these settings as config.toml, or use the run's own; --seed changes "
            f"the seed.</p><pre>{escape(command)}</pre><pre>{escape(to_toml(run.config))}</pre>"
            f"<p>{escape(by)}</p></details>"
        )
    return found
