"""What result files hold of runs whose folders are gone, such as those of a lent machine."""

from __future__ import annotations

from pathlib import Path

from derts.config_file import with_values
from derts.errors import DertsError
from derts.paper.job import Job, identity, point
from derts.paper.outcomes import Outcome, load_outcomes
from derts.paper.recipe import Cell
from derts.training.run_folder import AS_IT_WAS


class Known:
    """Outcomes by what their numbers depend on, so that only those of today's recipes count."""

    def __init__(self, results: Path | None = None) -> None:
        self.outcomes: dict[tuple[str, int], Outcome] = {}
        self.seeds: set[int] = set()
        if results is None:
            return
        files = [
            file
            for file in sorted(results.glob("reproduce-*.json"))
            if not file.stem.endswith("-curves")
        ]
        if not files:
            raise DertsError(
                f"no results at {results}: --known takes a folder of reproduce-*.json files, such "
                "as OUT/report of an earlier derts reproduce"
            )
        for file in files:
            for by_seed in load_outcomes(file)[1].values():
                for outcome in by_seed.values():
                    self._keep(outcome)

    def _keep(self, outcome: Outcome) -> None:
        dataset = str(outcome.config.get("data"))
        try:
            config = with_values(AS_IT_WAS, outcome.config, "a result file")
            key = identity(config, dataset)
        except DertsError:
            return  # of a version whose settings are no longer known
        self.seeds.add(outcome.seed)
        self.outcomes[key, outcome.updates] = outcome

    def of(self, cell: Cell, job: Job) -> Outcome | None:
        """What is known of a run for a cell; no times, which are those of another machine."""
        if cell.metric != "accuracy":
            return None
        return self._at(job, point(job.config, cell.fraction))

    def any_of(self, job: Job) -> bool:
        """Whether anything is known of a run."""
        return any(self._at(job, update) is not None for update in (*job.points, job.until))

    def _at(self, job: Job, update: int) -> Outcome | None:
        return self.outcomes.get((identity(job.config, job.folder.parent.name), update))
