"""What was measured in each cell: from run folders, and from one small JSON file per table."""

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from derts.config import TrainConfig
from derts.config_file import with_values
from derts.errors import DertsError
from derts.files import parse_json, write_atomically
from derts.paper.cells import NAMES, Cell, Setting, cells, with_references
from derts.paper.runs import GridRun, Scale, point, run_key

NUMBERS: dict[str, Callable[[Any], float | None]] = {
    "seed": int,
    "updates": int,
    "weights_of_update": int,
    "seconds_per_update": lambda value: None if value is None else float(value),
    "questions": int,
    "random_share": lambda value: None if value is None else round(float(value), 4),
}
"""Fields of a CellResult that a row of a file has as they are."""
DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError)


@dataclass(frozen=True)
class CellResult:
    """One cell with one seed: right answers of each test task, and how they were come by.

    `weights_of_update` were evaluated; `random_share` of the updates after the warm-up trained on
    random tasks.
    """

    seed: int
    updates: int
    correct: tuple[int, ...]
    questions: int
    seconds_per_update: float | None
    machine: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, Any] = field(default_factory=dict)
    weights_of_update: int = 0
    random_share: float | None = None

    def setting(self, group: str, name: str, default: Any = None) -> Any:
        """A value of the run's config, as it was recorded."""
        return self.config.get(group, {}).get(name, default)

    @property
    def accuracy(self) -> float:
        """Mean over test tasks, percent."""
        return 100 * sum(self.correct) / (self.questions * len(self.correct))

    @property
    def only_warm_up(self) -> bool:
        """Whether training had not come to the strategy yet: random tasks up to here."""
        return 0 < self.weights_of_update <= int(self.setting("strategy", "warmup", 0))

    @property
    def committed(self) -> bool:
        """Whether a commit is known to hold the code that made this."""
        return self.code.get("dirty") is False

    @property
    def measured_on(self) -> str:
        """The machine, and the precision where it is not the usual one."""
        name = str(self.machine.get("accelerator", self.machine.get("processor")))
        precision = self.setting("hardware", "precision", "float32")
        return name if precision == "float32" else f"{name}, in {precision}"

    def value(self, metric: str) -> float | None:
        """The number that a table shows."""
        return self.accuracy if metric == "accuracy" else self.seconds_per_update


Results = dict[tuple[Setting, float], dict[int, CellResult]]
"""By setting and share of training, then by seed."""
Known = Mapping[tuple[str, int], CellResult]
"""By the key of a run and the updates it was trained for."""


def result_file(folder: Path, name: str, scale: Scale) -> Path:
    return folder / f"reproduce-{name}{scale.suffix}.json"


def result_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("reproduce-*.json"))
    return [file for file in files if not file.stem.endswith("-curves")]


def save_results(
    path: Path, name: str, found: Sequence[Cell], results: Results, notes: Sequence[str]
) -> list[Path]:
    """Write a table's results: configs once, and per cell and seed one array of right answers.

    Returns the files written: where the old file has results that the new one has not, a copy of
    it as well.
    """
    configs: dict[str, Any] = {}
    makers: dict[str, Any] = {}
    rows = []
    for cell in found:
        for _, one in sorted(results.get(cell.key, {}).items()):
            numbers = {number: getattr(one, number) for number in NUMBERS}
            row = {
                "cell": cell.label,
                "config": _share(configs, {**one.config, "seed": "as in the row"}),
                "maker": _share(makers, {"code": dict(one.code), "machine": dict(one.machine)}),
                **{number: value for number, value in numbers.items() if value is not None},
                "correct": one.correct,
            }
            rows.append(json.dumps(row, separators=(",", ":")))
    head = {"table": name, "notes": list(notes), "configs": configs, "makers": makers}
    lines = ",\n".join(rows)
    text = f'{json.dumps(head, separators=(",", ":"))[:-1]},\n"rows":[\n{lines}\n]}}\n'
    copies = _keep_what_is_lost(path, results)
    write_atomically(path, text.encode())
    return [*copies, path]


def _share(kept: dict[str, Any], value: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]
    kept[digest] = value
    return digest


def _keep_what_is_lost(file: Path, results: Results) -> list[Path]:
    try:
        old = load_results(file)[1]
    except DertsError:
        return []  # not there, or damaged
    pairs = [(results.get(key, {}).get(seed), old[key][seed]) for key in old for seed in old[key]]
    if all(new and new.correct == one.correct for new, one in pairs):
        return []
    numbers = (f"-{number}" if number else "" for number in itertools.count())
    names = (file.with_name(f"earlier-{file.stem}{number}.json") for number in numbers)
    copy = next(name for name in names if not name.exists())
    write_atomically(copy, file.read_bytes())
    return [copy]


def load_results(path: Path) -> tuple[str, Results, list[str]]:
    """What `save_results` wrote: the table's name, its results and notes."""
    results: Results = {}
    digests = path.with_name("digests.json")
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        # commits of results that do not name theirs, by the digest of their code
        commits = parse_json(digests.read_text(encoding="utf-8")) if digests.exists() else {}
        name = content["table"]
        if name not in NAMES:
            raise ValueError(f"no table is called {name!r}")
        cell_of = {cell.label: cell for cell in with_references(cells(name))}
        for row in content["rows"]:
            cell = cell_of.get(row["cell"])
            if cell is not None:  # else of a recipe that has changed since
                config = {**content["configs"][row["config"]], "seed": row["seed"]}
                maker = content["makers"][row["maker"]]
                if commit := commits.get(maker["code"].get("source")):
                    maker["code"] |= {"commit": commit, "dirty": False}
                one = _result(row, config, maker)
                results.setdefault(cell.key, {})[row["seed"]] = one
        return name, results, [str(note) for note in content["notes"]]
    except FileNotFoundError:
        fix = "run derts reproduce first, or leave out --from"
        raise DertsError(f"no results at {path}: {fix}") from None
    except DAMAGED as error:
        cause = f"is not a result file of derts reproduce, or is damaged ({type(error).__name__}"
        raise DertsError(f"{path} {cause}: {error}): write it again") from None


def _result(row: dict[str, Any], config: dict[str, Any], maker: dict[str, Any]) -> CellResult:
    """A row of a file; a ValueError or TypeError where it cannot be one."""
    correct = tuple(map(int, row["correct"]))
    values: dict[str, Any] = {name: kind(row.get(name)) for name, kind in NUMBERS.items()}
    if not correct or not 0 <= min(correct) <= max(correct) <= values["questions"]:
        raise ValueError(f"the row of {row['cell']!r} has impossible values")
    machine, code = dict(maker["machine"]), dict(maker["code"])
    return CellResult(**values, correct=correct, machine=machine, config=config, code=code)


def known_results(folder: Path) -> Known:
    """What result files hold of runs whose folders are gone, known by today's configs."""
    files = result_files(folder)
    if not files:
        what = "--known takes a folder of reproduce-*.json files"
        raise DertsError(f"no results at {folder}: {what}, such as OUT/report")
    known = {}
    for seeds in (seeds for file in files for seeds in load_results(file)[1].values()):
        for one in seeds.values():
            try:
                config = with_values(TrainConfig(), one.config, "a result file")
                known[run_key(config, str(one.config.get("data"))), one.updates] = one
            except DertsError:
                continue  # of a version whose settings are no longer known
    return known


def known_of(known: Known, cell: Cell, run: GridRun) -> CellResult | None:
    """What is known of a run for a cell; no times, which are those of another machine."""
    key = run_key(run.config, run.dataset), point(run.config, cell.fraction)
    return known.get(key) if cell.metric == "accuracy" else None


def collect(found: Sequence[Cell], runs: Sequence[GridRun], known: Known) -> Results:
    """What run folders hold of some cells and, where they hold nothing, what is known."""
    results: Results = {}
    for cell, run in itertools.product(found, runs):
        if run.setting == cell.setting:
            file = run.result_at(cell.fraction)
            one = _read(file, run) if file.is_file() else known_of(known, cell, run)
            if one is not None:
                results.setdefault(cell.key, {})[run.config.seed] = one
    return results


def _read(file: Path, run: GridRun) -> CellResult:
    try:
        result = parse_json(file.read_text(encoding="utf-8"))
        config = {**result["config"], "data": run.dataset}
        questions = config["tasks"]["way"] * config["evaluation"]["query"]
        row = {
            **result,
            "cell": str(run),
            "correct": [round(value * questions / 100) for value in result["accuracies"]],
            "questions": questions,
        }
        return _result(row, config, result)
    except DAMAGED as error:
        damage = f"{file} is damaged ({type(error).__name__}: {error})"
        raise DertsError(f"{damage}: remove {run.folder}, run again") from None
