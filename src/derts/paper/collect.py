"""What was measured in each cell: from run folders, and from one small JSON file per table."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from derts.config import TrainConfig
from derts.config_file import with_values
from derts.errors import DertsError
from derts.files import write_atomically
from derts.paper.cells import NAMES, Cell, Setting, cells, with_references
from derts.paper.recipes import Scale, run_key
from derts.paper.runs import GridRun, Runs, point


@dataclass(frozen=True)
class CellResult:
    """One cell with one seed: right answers of each test task, and how they were come by."""

    seed: int
    updates: int
    correct: tuple[int, ...]
    questions: int
    seconds_per_update: float | None
    seconds: float
    machine: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    weights_of_update: int = 0
    """The update whose weights were evaluated."""
    random_share: float | None = None
    """Share of the updates after the warm-up that trained on tasks of random sampling."""

    def setting(self, group: str, name: str, default: Any = None) -> Any:
        """A value of the run's config, as it was recorded."""
        return self.config.get(group, {}).get(name, default)

    @property
    def accuracy(self) -> float:
        """Mean over test tasks, percent."""
        return 100 * sum(self.correct) / (self.questions * len(self.correct))

    @property
    def augmented(self) -> tuple[bool, int]:
        """Whether training images were flipped at random, and by how many pixels translated."""
        flips = self.setting("augment", "horizontal_flip", False)
        return bool(flips), int(self.setting("augment", "translation", 0))

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


def result_file(folder: Path, name: str, scale: Scale) -> Path:
    """Where a table's results are kept as JSON."""
    return folder / f"reproduce-{name}{scale.suffix}.json"


def save_results(
    path: Path, name: str, found: Sequence[Cell], results: Results, notes: Sequence[str]
) -> None:
    """Write a table's results: configs once, and per cell and seed one array of right answers."""
    configs: dict[str, Any] = {}
    makers: dict[str, Any] = {}
    rows = []
    for cell in found:
        for seed, one in sorted(results.get((cell.setting, cell.fraction), {}).items()):
            share = {} if one.random_share is None else {"random_share": round(one.random_share, 4)}
            maker = {"code": dict(one.code), "machine": dict(one.machine)}
            rows.append(
                {
                    "cell": cell.label,
                    "seed": seed,
                    "updates": one.updates,
                    "weights_of_update": one.weights_of_update,
                    "config": _share(configs, {**one.config, "seed": "as in the row"}),
                    "maker": _share(makers, maker),
                    "seconds_per_update": one.seconds_per_update,
                    "seconds_with_evaluation": round(one.seconds, 6),
                    "questions": one.questions,
                    **share,
                    "correct": list(one.correct),
                }
            )
    head = {"table": name, "notes": list(notes), "configs": configs, "makers": makers}
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    text = f'{json.dumps(head, separators=(",", ":"))[:-1]},\n"rows":[\n{lines}\n]}}\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())


def _share(kept: dict[str, Any], value: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]
    kept[digest] = value
    return digest


def keep_what_is_lost(file: Path, results: Results) -> list[Path]:
    """Before a result file is written anew: a copy, if it has results that the new one has not.

    They may be the only trace of runs that are gone, or of an earlier recipe.
    """
    try:
        old = load_results(file)[1]
    except DertsError:
        return []  # not there, or damaged
    now = {(key, seed): one for key, seeds in results.items() for seed, one in seeds.items()}
    before = {(key, seed): one for key, seeds in old.items() for seed, one in seeds.items()}
    if all(run in now and now[run].correct == one.correct for run, one in before.items()):
        return []
    numbers = (f"-{number}" if number else "" for number in itertools.count())
    names = (file.with_name(f"earlier-{file.stem}{number}.json") for number in numbers)
    copy = next(name for name in names if not name.exists())
    write_atomically(copy, file.read_bytes())
    return [copy]


def load_results(path: Path) -> tuple[str, Results, list[str]]:
    """What `save_results` wrote: the table's name, its results and notes."""
    results: Results = {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        name = content["table"]
        if name not in NAMES:
            raise ValueError(f"no table is called {name!r}")
        cell_of = {cell.label: cell for cell in with_references(cells(name))}
        for row in content["rows"]:
            cell = cell_of.get(row["cell"])
            if cell is not None:  # else of a recipe that has changed since
                config = {**content["configs"][row["config"]], "seed": row["seed"]}
                one = _result(row, config, content["makers"][row["maker"]])
                results.setdefault((cell.setting, cell.fraction), {})[row["seed"]] = one
        return name, results, [str(note) for note in content["notes"]]
    except FileNotFoundError:
        raise DertsError(
            f"no results at {path}: run derts reproduce first, or leave out --from"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DertsError(
            f"{path} is not a result file of derts reproduce, or is damaged "
            f"({type(error).__name__}: {error}): write it again"
        ) from None


def _result(row: dict[str, Any], config: dict[str, Any], maker: dict[str, Any]) -> CellResult:
    """A row of a file; a ValueError where it cannot be one."""
    correct, questions = tuple(map(int, row["correct"])), int(row["questions"])
    each, share = row["seconds_per_update"], row.get("random_share")
    if not correct or not 0 <= min(correct) <= max(correct) <= questions:
        raise ValueError(f"the row of {row['cell']!r} has impossible values")
    return CellResult(
        int(row["seed"]),
        int(row["updates"]),
        correct,
        questions,
        None if each is None else float(each),
        float(row["seconds_with_evaluation"]),
        dict(maker["machine"]),
        config,
        dict(maker["code"]),
        int(row["weights_of_update"]),
        None if share is None else float(share),
    )


class KnownResults:
    """What result files hold of runs whose folders are gone, such as those of a lent machine.

    Results are known by their config, so that only those of today's recipes count.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.results: dict[tuple[str, int], CellResult] = {}
        self.seeds: set[int] = set()
        if folder is None:
            return
        files = sorted(folder.glob("reproduce-*.json"))
        files = [file for file in files if not file.stem.endswith("-curves")]
        if not files:
            raise DertsError(
                f"no results at {folder}: --known takes a folder of reproduce-*.json files, such "
                "as OUT/report of an earlier derts reproduce"
            )
        for file in files:
            for by_seed in load_results(file)[1].values():
                for one in by_seed.values():
                    self._keep(one)

    def _keep(self, one: CellResult) -> None:
        try:
            config = with_values(TrainConfig(), one.config, "a result file")
            key = run_key(config, str(one.config.get("data")))
        except DertsError:
            return  # of a version whose settings are no longer known
        self.seeds.add(one.seed)
        self.results[key, one.updates] = one

    def of(self, cell: Cell, run: GridRun) -> CellResult | None:
        """What is known of a run for a cell; no times, which are those of another machine."""
        if cell.metric != "accuracy":
            return None
        return self.results.get(
            (run_key(run.config, run.dataset), point(run.config, cell.fraction))
        )


def collect(found: Sequence[Cell], runs: Runs, known: KnownResults) -> Results:
    """What run folders hold of some cells and, where they hold nothing, what is known."""
    results: Results = {}
    for cell in found:
        for (setting, seed), run in runs.items():
            if setting == cell.setting:
                file = run.result_at(cell.fraction)
                one = _read(file, run) if file.is_file() else known.of(cell, run)
                if one is not None:
                    results.setdefault((setting, cell.fraction), {})[seed] = one
    return results


def _read(file: Path, run: GridRun) -> CellResult:
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
        config = result["config"]
        questions = config["tasks"]["way"] * config["evaluation"]["query"]
        return CellResult(
            result["seed"],
            result["updates"],
            tuple(round(value * questions / 100) for value in result["accuracies"]),
            questions,
            result["seconds_per_update"],
            sum(result["seconds"].values()) / result["updates"],
            result["machine"],
            {**config, "data": run.dataset},
            result["code"],
            result.get("weights_of_update", result["updates"]),
            result.get("random_share"),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DertsError(
            f"{file} is damaged ({type(error).__name__}: {error}): remove {run.folder}, run again"
        ) from None
