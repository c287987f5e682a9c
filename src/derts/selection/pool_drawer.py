"""A round's pool: drawn while the last round trains, with labels mended by votes."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch

from derts.config import StrategyConfig
from derts.gradients import with_random_labels
from derts.labels.votes import relabel_by_votes
from derts.selection.choice import Choice, needs_reference
from derts.selection.strategy import Context
from derts.tasks.pool import TaskPool

VOTING = ("votes", "query-votes")


class Drawn(NamedTuple):
    """A round's tasks.

    given      as they were drawn
    pool       as they are scored and trained on: with mended labels where votes are asked for
    mended     whether any label was
    given_wrong, wrong  float [N]: shares of wrong labels in each task of both, for the log alone
    reference  the pool labelled at random, where the drop rule asks for it
    """

    given: TaskPool
    pool: TaskPool
    mended: bool
    given_wrong: torch.Tensor
    wrong: torch.Tensor
    reference: TaskPool | None

    def noise(self, choice: Choice) -> dict[str, float | None]:
        """Share of wrong labels in the pool, in what was selected, looks noisy, is trained on.

        For the log alone: no strategy decides by the true labels.
        """
        everything = torch.arange(len(self.wrong))
        kept = everything if choice.random else choice.kept  # random ones are alike
        parts = {"selected": choice.selected, "dropped": choice.drop, "kept": kept}
        found = {name: _mean_share(self.wrong[which]) for name, which in parts.items()}
        return {"pool": _mean_share(self.given_wrong), **found}


class PoolDrawer:
    """Draws the pools of a strategy, each the same for the same number."""

    def __init__(self, config: StrategyConfig) -> None:
        self.config = config
        self._ahead: Future[Drawn] | None = None
        self._thread = ThreadPoolExecutor(1, "derts-draw")

    def next(self, context: Context, number: int) -> Drawn:
        """Pool `number`, perhaps drawn already; then start on the next one."""
        ahead, self._ahead = self._ahead, None
        drawn = self.draw(context, number) if ahead is None else ahead.result()
        self._ahead = self._thread.submit(self.draw, context, number + 1)
        return drawn

    def forget(self) -> None:
        """What was drawn ahead is of another run."""
        self._ahead = None

    def draw(self, context: Context, number: int) -> Drawn:
        """Pool `number`."""
        images = self.config.images_of(len(context.images))
        given = context.draw(self.config.pool, "pool", number, *([images] if images else []))
        pool = given
        if self.config.doubt in VOTING:
            pool = relabel_by_votes(given, support=self.config.doubt == "votes")
        mended = pool is not given and pool != given
        reference = None
        if needs_reference(self.config):
            reference = with_random_labels(pool, (context.seed, "reference", number))
        given_wrong = given.mislabelled()
        wrong = given_wrong if pool is given else pool.mislabelled()
        if context.learner.device.type == "cuda":
            pool, reference = pool.pinned(), reference and reference.pinned()
        return Drawn(given, pool, mended, given_wrong, wrong, reference)


def _mean_share(wrong: torch.Tensor) -> float | None:
    return round(float(wrong.mean()), 6) if len(wrong) else None
