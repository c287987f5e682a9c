"""Hardest and easiest: the tasks of a pool with the largest or smallest query loss.

Hard tasks may be informative or mislabelled: nothing is dropped here, so that this can be seen.
"""

from __future__ import annotations

import torch

from derts.config import StrategyConfig
from derts.selection.choice import Choice, DrawnPool, Seed, shuffled_batches
from derts.selection.rounds import PoolStrategy
from derts.selection.strategy import Context


class ByLoss(PoolStrategy):
    """Train on the tasks that the model gets most wrong after adaptation, or least."""

    def __init__(self, config: StrategyConfig) -> None:
        super().__init__(config)
        self.hardest = config.name == "hardest"

    def choose(self, context: Context, drawn: DrawnPool, seed: Seed) -> Choice:
        estimate = self.estimate(context, drawn)
        losses = estimate.losses.cpu()
        usable = losses.isfinite().nonzero().squeeze(1)
        count = max(1, min(len(usable), round(self.config.ratio * len(losses))))
        order = losses[usable].argsort(descending=self.hardest, stable=True)[:count]
        chosen = usable[order]
        weights = torch.zeros(len(losses)).index_fill_(0, chosen, 1.0)
        batches = shuffled_batches(chosen, context.meta_batch, seed)
        gradients = estimate.gradients[self.config.estimate]
        return Choice(batches, weights, chosen, self.config.name, estimate, gradients)
