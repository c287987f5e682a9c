"""The small network by which ATS scores tasks, and how it samples by the scores."""

from __future__ import annotations

import torch
from torch import nn

from derts.selection.ats.signals import TaskSignals
from derts.tasks.randomness import generator

STEPS_OF_PROGRESS = 100


class Scheduler(nn.Module):
    """Scores candidate tasks from their signals and the training's progress."""

    def __init__(self) -> None:
        super().__init__()
        self.progress = nn.Embedding(STEPS_OF_PROGRESS, 5)
        self.readers = nn.ModuleList(
            nn.LSTM(1, 10, bidirectional=True, batch_first=True) for _ in range(3)
        )
        self.context = nn.Sequential(nn.Linear(65, 20), nn.Tanh(), nn.Linear(20, 10))
        self.score = nn.Sequential(nn.Linear(75, 20), nn.Tanh(), nn.Linear(20, 1))

    @classmethod
    def from_seed(cls, seed: int) -> Scheduler:
        """A fresh one whose weights depend on the seed alone."""
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would seed all GPUs as well
            torch.default_generator.manual_seed(generator((seed, "scheduler")).initial_seed())
            return cls()

    def forward(self, signals: TaskSignals, step: torch.Tensor) -> torch.Tensor:
        """Signals of T tasks, step int64 [1] of the training's progress -> scores [T]."""
        sequences = (signals.losses[:, None], signals.cosines, signals.norms)
        read = [
            reader(sequence[..., None])[1][0].transpose(0, 1).flatten(1)  # both directions' ends
            for reader, sequence in zip(self.readers, sequences, strict=True)
        ]
        now = self.progress.weight.index_select(0, step).expand(len(signals.losses), -1)
        features = torch.cat((*read, now), 1)  # [T, 65]
        context = self.context(features).mean(0).expand(len(features), -1)
        scores: torch.Tensor = self.score(torch.cat((features, context), 1))
        return scores.squeeze(1)


def gumbel(rows: int, count: int, random: torch.Generator) -> torch.Tensor:
    """[rows, count] random numbers: scores with one row added are largest by softmax's chances."""
    uniform = [torch.rand(count, generator=random).clamp_(min=1e-20) for _ in range(rows)]
    return -(-torch.stack(uniform).log()).log()


def sample_in_order(
    scores: torch.Tensor, count: int, noise: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` positions drawn one after the other without replacement, by softmax of scores [T].

    Returns positions [count] and the log-probability of drawing them in that order. `noise` [T] is
    a row of `gumbel`.
    """
    order = (scores.detach() + noise).topk(count).indices
    turn = torch.arange(count, device=scores.device)
    taken = torch.zeros(count, len(scores), dtype=torch.bool, device=scores.device)
    taken[:, order] = turn[:, None] > turn
    remaining = scores.expand(count, -1).masked_fill(taken, -torch.inf).logsumexp(1)
    return order, (scores[order] - remaining).sum()
