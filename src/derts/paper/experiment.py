"""What one command asks for: names, cells, runs; its plan, its reports."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from derts.errors import DertsError
from derts.files import parse_json, write_atomically
from derts.paper import collect
from derts.paper.cells import Cell, cells, keep_only, read_recipe, with_references
from derts.paper.figures import DRAWN, draw_pictures
from derts.paper.report import as_html, markdown, print_report, read_report, table_report
from derts.paper.runs import GridRun, Scale, make_runs, point, seeds_in, to_run
from derts.progress import clock_text
from derts.report.tables import table_text


class Experiment:
    """Cells that are asked for, and the runs that they need; nothing is run or written yet.

    Reports are of whole tables, with all of their runs that are there already.

    >>> from pathlib import Path
    >>> asked = Experiment(["table3", "table8"], ["learner=anil", "shot=1"], range(3),
    ...                    Scale({}), Path("runs"))
    >>> len(asked.cells), len(asked.runs)
    (10, 30)
    """

    def __init__(
        self,
        names: Sequence[str],
        only: Sequence[str],
        seeds: Sequence[int],
        scale: Scale,
        out: Path,
        known: Path | None = None,
    ) -> None:
        self.seeds, self.scale, self.out = seeds, scale, out
        self.cells = keep_only([cell for name in names for cell in cells(name)], only)
        self.names = [name for name in names if any(cell.table == name for cell in self.cells)]
        self.runs = make_runs(self.cells, seeds, scale, out)
        self.known: collect.Known = {} if known is None else collect.known_results(known)

    def runs_of(self, cell: Cell) -> list[GridRun]:
        """The runs that a cell is the mean of."""
        return [run for run in self.runs if run.setting == cell.setting]

    def is_known(self, cell: Cell, run: GridRun) -> bool:
        """Whether a result file tells what a cell needs of a run: never pictures."""
        return cell.table not in DRAWN and collect.known_of(self.known, cell, run) is not None

    def lacking(self, cell: Cell) -> list[GridRun]:
        """The runs of a cell of which no result is there."""
        mine = (run for run in self.runs_of(cell) if not self.is_known(cell, run))
        return [run for run in mine if not run.result_at(cell.fraction).exists()]

    def to_run(self) -> list[GridRun]:
        """The runs that are not finished and whose data is given."""
        have = [run for run in self.runs if run.setting.dataset in self.scale.data]
        if not have:
            needed = sorted({run.setting.dataset.partition("-")[0] for run in self.runs})
            words = " ".join(f"--dataset {name}=PATH" for name in needed)
            stores = f"{words} (stores that derts data prepare wrote)"
            small = "--dataset glyphs for a small run on built-in data"
            raise DertsError(f"no data for these cells: add {stores}, or {small}")
        lacking = {run.folder for cell in self.cells for run in self.lacking(cell)}
        return [run for run in to_run(have) if run.folder in lacking]

    def told_of_known(self) -> str:
        """How much of what is asked for result files tell."""
        wanted = [self.is_known(cell, run) for cell in self.cells for run in self.runs_of(cell)]
        hint = ": its own may be of another --preset, --updates-scale, --dataset or recipe"
        return f"--known has {sum(wanted)} of {len(wanted)} results{'' if any(wanted) else hint}"

    def plan(self, devices: Sequence[str]) -> str:
        """Every cell with its state and estimated time, as text.

        A run's time is counted once: in the first cell that needs it.
        """
        rows: list[tuple[str, ...]] = [("cell", "updates", "estimated time", "state")]
        counted: dict[Path, int] = {}
        total, finished, assumed = 0.0, 0, ""
        for cell in self.cells:
            mine, lacking = self.runs_of(cell), self.lacking(cell)
            updates, work, word = point(mine[0].config, cell.fraction), 0.0, ""
            for run in lacking:
                seconds, word = estimated_seconds(run, devices[0])
                before = counted.get(run.folder, 0)
                work += seconds * max(0, updates - before)
                counted[run.folder] = max(updates, before)
            state = f"{len(lacking)} of {len(mine)} seeds to run" if lacking else "finished"
            state += ", in a run counted above" if lacking and not work else ""
            if lacking and cell.setting.dataset not in self.scale.data:
                state += f"; needs --dataset {cell.setting.dataset.partition('-')[0]}=PATH"
            name = f"{cell.table:<10}  {cell.setting}, at {100 * cell.fraction:g}%"
            rows.append((name, str(updates), f"{clock_text(work)}{word}" if work else "", state))
            total, finished, assumed = total + work, finished + (not lacking), assumed or word
        where = f"{len(devices)} × {devices[0]}" if len(set(devices)) == 1 else ", ".join(devices)
        told = "; (assumed) times are not measured: recipes/common.toml states them"
        return (
            f"{table_text(rows)}\n\n{len(self.cells)} cells, {finished} finished; "
            f"about {clock_text(total / len(devices))} left on {where}{told if assumed else ''}"
        )

    def write_reports(self, source: Path | None) -> list[Path]:
        """Print reports of the cells asked for; write those of the whole tables; the files written.

        Markdown, HTML and, unless they come from files in `source`, JSON. A table has all runs that
        are there, whatever seed, and those of random sampling.
        """
        folder = self.out / "report"
        files = {name: collect.result_file(folder, name, self.scale).name for name in self.names}
        runs: list[GridRun] = []
        held: collect.Results = {}
        if source is None:
            whole = with_references([cell for name in self.names for cell in cells(name)])
            known = {one.seed for one in self.known.values()}
            seeds = sorted({*self.seeds, *seeds_in(self.out), *known})
            runs = make_runs(whole, seeds, self.scale, self.out)
            held = collect.collect(whole, runs, self.known)
        elif not any((source / name).is_file() for name in files.values()):
            there = ", ".join(file.name for file in collect.result_files(source)) or "none"
            lacks = f"it has no {', '.join(files.values())}; there are {there}"
            fix = "-x0.5: add --updates-scale 0.5; -augment: add --preset augment"
            raise DertsError(f"no results at {source}: {lacks} ({fix})")
        folder.mkdir(parents=True, exist_ok=True)
        written: list[Path] = []
        for name in self.names:
            asked = [cell for cell in self.cells if cell.table == name]
            file, made = folder / files[name], (source or folder) / files[name]
            if source is None:
                table = with_references(cells(name))
                written += collect.save_results(file, name, table, held, self.scale.notes())
            elif not made.is_file():
                print_report(table_report(name, asked, {}, [f"There is no {made}."]))
                continue
            print_report(read_report(made, asked))
            report = read_report(made)
            for suffix, text in ((".md", markdown(report)), (".html", as_html(report))):
                write_atomically(file.with_suffix(suffix), text.encode())
                written.append(file.with_suffix(suffix))
            written += draw_pictures(name, runs, file, None if source is None else made)
        return written


def estimated_seconds(run: GridRun, device: str) -> tuple[float, str]:
    """Seconds per update, evaluations included, and a word where they are not measured.

    Measured are those of runs of the same name on the same accelerator, whatever seed or length.
    """
    import torch

    cuda = device.startswith("cuda")
    accelerator = torch.cuda.get_device_name(device) if cuda else "none"
    found = []
    name = run.folder.name.partition(f"-{run.config.updates}-seed")[0]
    for file in run.folder.parent.glob(f"{name}-[0-9]*/result-*.json"):
        with suppress(*collect.DAMAGED):  # told when it is needed
            result = parse_json(file.read_text(encoding="utf-8"))
            if result["machine"].get("accelerator", "none") == accelerator:
                found.append(sum(result["seconds"].values()) / result["updates"])
    if found:
        return sum(found) / len(found), ""
    assumed = read_recipe("common")["assumed_seconds"]
    kind = "glyphs" if run.dataset == "glyphs" else "cuda" if cuda else "cpu"
    factor = assumed["strategy_factor"][run.setting.strategy]
    return assumed[kind][run.setting.backbone] * factor, " (assumed)"
