"""Ours beside the paper's: rows for settings, columns for strategies; as Markdown, HTML, text."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from derts.errors import printable
from derts.paper.cells import Cell, Setting, cells, read_recipe
from derts.paper.collect import CellResult, Results, load_results
from derts.report.tables import html_page, html_table, markdown_table, table_text
from derts.statistics import over_seeds, paired_by_seed

COLUMNS = {
    "random": "random",
    "random-votes": "random + votes",
    "paper": "the paper's rule",
    "derts": "derts",
    "us": "US",
    "ats": "ATS",
}
"""Strategies as tables show them. The first four are in every table."""
ALWAYS = 4
HEAD = ("setting", "learner", "training", "by")
NOT_RUN, SAME_AS_RANDOM, WIN = "not run", "= random", "🟢 "
DIGITS = {"accuracy": 2, "seconds": 3}
LEGEND = {
    "accuracy": (
        "Accuracy in % on clean test tasks of unseen classes. ± is the 95% interval: the paper's "
        "over test tasks, ours over seeds. Differences are paired by seed. Green: at least the "
        "paper's number, after as many updates where the paper has such a number."
    ),
    "seconds": (
        "Seconds per update after the warm-up, evaluation and checkpoints left out. ± is the 95% "
        "interval over seeds. The paper's are of an NVIDIA A6000. Green: at most the paper's."
    ),
}
STRATEGY_NOTE = (
    "The paper's DERTS is in the column of its rule, which we run to the letter; `derts` is ours. "
    "random + votes: random tasks, relabelled by majority vote as in `derts`; with clean labels "
    "that is random sampling."
)
UNCOMMITTED = " °"
UNCOMMITTED_NOTE = "°: by code of which no commit is known."
BEST_WEIGHTS = (
    "Every run is evaluated with those of its weights that were best on validation classes, "
    "evaluated several times after the warm-up."
)
STYLE = "body { max-width: 90rem } td:nth-child(-n+4) { text-align: left }"


@dataclass(frozen=True)
class TableReport:
    """A table with its title and what is to be known about it.

    Texts of cells begin with WIN where ours is at least the paper's.
    """

    name: str
    title: str
    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def markdown(report: TableReport) -> str:
    notes = "".join(f"{note}\n\n" for note in report.notes)
    table = markdown_table([report.heading, *report.rows], len(HEAD))
    return f"## {report.name}: {report.title}\n\n{notes}{table}\n"


def as_html(report: TableReport) -> str:
    """The report as one page that needs no other file; everything in it is escaped."""

    def kind(row: int, column: int) -> str:
        text = report.rows[row][column]
        if text.startswith(WIN):
            return " class='win'"
        return " class='missing'" if text == NOT_RUN else ""

    rows = [[text.removeprefix(WIN) for text in row] for row in report.rows]
    table = html_table([report.heading, *rows], kind)
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in report.notes)
    title = f"{report.name}: {report.title}"
    return html_page(title, f"<h1>{html.escape(title)}</h1>{notes}\n{table}", STYLE)


def print_report(report: TableReport) -> None:
    table = table_text([report.heading, *report.rows], len(HEAD))
    print(f"{report.name}: {report.title}\n\n{table}\n")
    print("\n".join(map(printable, report.notes)), end="\n\n")


def read_report(path: Path, asked: Sequence[Cell] | None = None) -> TableReport:
    """The report of a table from the JSON file that a run of the grid wrote; all cells or some."""
    name, results, notes = load_results(path)
    return table_report(name, cells(name) if asked is None else asked, results, notes)


def table_report(
    name: str,
    asked: Sequence[Cell],
    results: Results,
    notes: Sequence[str] = (),
    *,
    only_run: bool = False,
) -> TableReport:
    """Rows for each setting, learner and point of training; a column for each strategy.

    `only_run` leaves out rows and columns of which nothing was run.
    """
    recipe = read_recipe(name)
    places = dict.fromkeys((replace(cell.setting, strategy=""), cell.fraction) for cell in asked)
    points = [_Point(name, place, at, results) for place, at in places]
    points = [point for point in points if point.made or not only_run]
    shown = {strategy for point in points for strategy in COLUMNS if point.seeds[strategy]}
    shown |= set() if only_run else {strategy for point in points for strategy in point.recipe}
    columns = [one for at, one in enumerate(COLUMNS) if at < ALWAYS or one in shown]
    made = [one for point in points for one in point.made]
    makers = "; ".join(sorted({one.measured_on for one in made}))
    told = [LEGEND[recipe["metric"]], STRATEGY_NOTE, *_about(made), *notes]
    told += [f"Measured on: {makers}."] if makers else []
    return TableReport(
        name,
        recipe["title"],
        (*HEAD, *(COLUMNS[strategy] for strategy in columns), "seeds", "updates"),
        tuple(row for point in points for row in point.rows(columns)),
        tuple(told),
    )


def _about(made: Sequence[CellResult]) -> Iterable[str]:
    """What runs have in common that a reader must know."""
    if any(one.setting("evaluation", "weights") == "best" for one in made):
        yield BEST_WEIGHTS
    names = ("horizontal_flip", "translation")
    for flips, pixels in sorted(
        {tuple(one.setting("augment", x, 0) for x in names) for one in made}
    ):
        parts = ["random horizontal flips"] if flips else []
        parts += [f"random translations of up to {pixels} pixels"] if pixels else []
        if parts:
            yield f"Augmentation, whatever the strategy: {' and '.join(parts)}."
    if any(one.setting("tasks", "rotated") for one in made):
        yield "Each class is four: as it is, and rotated by 90, 180 and 270 degrees."
    if not all(one.committed for one in made):
        yield UNCOMMITTED_NOTE
    shares = [one.random_share for one in made if one.random_share]
    if shares:
        yield (
            f"`derts` trained on random tasks in {100 * sum(shares) / len(shares):.0f}% of its "
            "updates after the warm-up: there was nothing to relabel, to drop or to select."
        )


class _Point:
    """One point of training: our results by strategy and seed, and the paper's numbers."""

    def __init__(self, name: str, setting: Setting, at: float, results: Results) -> None:
        self.setting, self.at, self.metric = setting, at, read_recipe(name)["metric"]
        self.seeds = {one: results.get((setting.of(one), at), {}) for one in COLUMNS}
        self.made = [one for seeds in self.seeds.values() for one in seeds.values()]
        self.updates = sorted({one.updates for one in self.made})
        self.glyphs = any(one.config.get("data") == "glyphs" for one in self.made)
        self.values: dict[str, dict[int, float]] = {}
        self.recipe: set[str] = set()
        self.theirs: dict[str, Cell] = {}
        for strategy in COLUMNS:
            found = {seed: one.value(self.metric) for seed, one in self.seeds[strategy].items()}
            self.values[strategy] = {seed: x for seed, x in found.items() if x is not None}
            mine = [cell for cell in cells(name) if cell.setting == setting.of(strategy)]
            here = [cell for cell in mine if cell.fraction == at]
            self.recipe |= {strategy} if here else set()
            # after as many updates as ours, where the paper has such a number
            as_far = [cell for cell in mine if [cell.updates] == self.updates]
            known = [cell for cell in (*here, *as_far) if cell.paper is not None]
            self.theirs |= {strategy: known[-1]} if known else {}
        self.most = max(map(len, self.values.values()))

    def rows(self, columns: Sequence[str]) -> Iterable[tuple[str, ...]]:
        """The paper's numbers, ours, and our differences to random sampling."""
        place = f"glyphs for {self.setting.place}" if self.glyphs else self.setting.place
        place += f", {self.setting.variant}" if self.setting.variant else ""
        head = (place, self.setting.learner, f"{100 * self.at:g}%")
        if self.theirs:
            after = " or ".join(map(str, sorted({one.updates for one in self.theirs.values()})))
            yield (*head, "paper", *map(self._paper, columns), "", after)
        wanted = round(self.at * self.setting.updates)
        after = " or ".join(map(str, self.updates or [wanted]))
        if not self.theirs and self.updates not in ([], [wanted]):
            after += f" (recipe {wanted})"
        yield (*head, "ours", *map(self._ours, columns), str(self.most or ""), after)
        gains = [*map(self._gain, columns)]
        if any(gains):
            yield (*head, "ours − random", *gains, "", "")

    def _paper(self, strategy: str) -> str:
        cell = self.theirs.get(strategy)
        if cell is None or strategy == "derts":
            return ""
        interval = "" if cell.paper_interval is None else f" ± {cell.paper_interval:.2f}"
        return f"{cell.paper:.2f}{interval}"

    def _ours(self, strategy: str) -> str:
        values, cell = list(self.values[strategy].values()), self.theirs.get(strategy)
        if not values:
            if strategy == "random-votes" and not self.setting.noise:
                return SAME_AS_RANDOM
            return NOT_RUN if strategy in {"random", *self.recipe} else ""
        ours = over_seeds(values)
        text = ours.shown("", DIGITS[self.metric])
        text += f" ({len(values)} of {self.most} seeds)" if len(values) < self.most else ""
        text += "" if all(one.committed for one in self.seeds[strategy].values()) else UNCOMMITTED
        if cell is None or cell.paper is None or self.glyphs:
            return text
        gain = round(ours.mean, 2) - cell.paper  # as exact as the paper's own numbers
        return WIN + text if (gain >= 0 if self.metric == "accuracy" else gain <= 0) else text

    def _gain(self, strategy: str) -> str:
        found = paired_by_seed(self.values[strategy], self.values["random"])
        if strategy == "random" or found is None:
            return ""
        if all(one.only_warm_up for one in self.seeds[strategy].values()):
            return "warm-up only"
        return found.shown("+", DIGITS[self.metric])
