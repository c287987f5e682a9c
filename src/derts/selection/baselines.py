"""What other strategies are compared with: random tasks, and those of largest or least loss."""

from derts.labels.votes import majority_vote
from derts.selection.rounds import Choice, DrawnPool, PoolStrategy, Seed
from derts.selection.strategy import Context, MetaBatch, Strategy
from derts.tasks.pool import TaskPool


class RandomTasks(Strategy):
    """Each update trains on fresh, uniformly drawn tasks."""

    def next_batch(self, context: Context) -> MetaBatch:
        return context.random_batch(context.update)

    def ahead(self, context: Context) -> TaskPool:
        return context.random_batch(context.update + 1).pool


class RandomVotes(PoolStrategy):
    """As many random tasks of a pool as `derts` would select, with voted labels: no estimate."""

    def check(self, context: Context) -> None:
        super().check(context)
        majority_vote(context.draw(1, "check", 0))  # refuses tasks that do not say their classes

    def draw_pool(self, context: Context, number: int) -> DrawnPool:
        drawn = super().draw_pool(context, number)
        return drawn.relabelled_by(majority_vote(drawn.given))

    def choose(self, context: Context, drawn: DrawnPool, seed: Seed) -> Choice:
        return self.any_tasks(context, drawn, seed)


class ByLoss(PoolStrategy):
    """Hardest and easiest: the tasks that the model gets most wrong after adaptation, or least.

    Hard tasks may be informative or mislabelled: nothing is dropped, so that this can be seen.
    """

    def choose(self, context: Context, drawn: DrawnPool, seed: Seed) -> Choice:
        estimate, name = self.estimate(context, drawn), self.config.name
        losses = estimate.losses.cpu()
        usable = losses.isfinite().nonzero().squeeze(1)
        order = losses[usable].argsort(descending=name == "hardest", stable=True)
        chosen = usable[order[: self.wanted(len(usable), len(losses))]]
        return self.into_batches(context, drawn, seed, chosen, select=name, estimate=estimate)
