"""What the classes that tasks are made of say about a pool. Labels and images are not looked at."""

from __future__ import annotations

import torch
from torch import Tensor

BY_CHANCE = 4.0  # times the spread that even draws have: even ones do not come to that
UNEVEN = 0.25  # squared, how much frequencies vary beside their mean: by half of it
EXPLAINED = 0.5  # of the variance between tasks


def classes_are_uneven(classes: Tensor) -> bool:
    """Whether some classes are in many more tasks of `classes` [N, way] than others.

    More than chance has it, and by enough to matter: classes drawn evenly are in N · way / C tasks
    each, give or take.

    >>> even = torch.stack([torch.randperm(20)[:5] for _ in range(400)])
    >>> few = torch.stack([torch.randperm(6)[:5] for _ in range(400)])
    >>> classes_are_uneven(even), classes_are_uneven(few)
    (False, False)
    >>> classes_are_uneven(torch.cat((few, even[:40])))
    True
    """
    counts = classes.unique(return_counts=True)[1].double()
    mean, share = float(counts.mean()), classes.shape[1] / len(counts)
    by_chance = mean * (1 - share)
    spread = float((counts - mean).square().mean())
    return spread > BY_CHANCE * by_chance and spread - by_chance > UNEVEN * mean**2


def balanced_size(classes: Tensor) -> int:
    """How many tasks have each class as often as the median class is in `classes` [N, way].

    >>> balanced_size(torch.tensor([[0, 1]] * 8 + [[2, 3], [4, 5]]))
    3
    """
    counts = classes.unique(return_counts=True)[1]
    return int(counts.median()) * len(counts) // classes.shape[1]


def balance_classes(classes: Tensor, count: int, random: torch.Generator) -> Tensor:
    """`count` of the tasks with `classes` [N, way], so that each class is in about as many.

    One after the other, always a task whose classes are in the fewest so far; int64 [count].

    >>> few, all_of_them = torch.tensor([[0, 1]] * 9), torch.tensor([[2, 3], [4, 5], [0, 2]])
    >>> random = torch.Generator().manual_seed(0)
    >>> balance_classes(torch.cat((few, all_of_them)), 3, random).sort().values[1:]
    tensor([ 9, 10])
    """
    occurring, ranks = classes.unique(return_inverse=True)
    order = torch.randperm(len(classes), generator=random)
    ranks = ranks[order]
    has = torch.zeros(len(occurring), len(classes)).scatter_(0, ranks.T, 1.0)
    used = torch.zeros(len(classes))  # how often the classes of each task are, together
    chosen = []
    for _ in range(count):
        place = int(used.argmin())
        used += has[ranks[place]].sum(0)
        used[place] = torch.inf
        chosen.append(place)
    return order[torch.tensor(chosen, dtype=torch.long)]


def classes_explain(which: Tensor, classes: Tensor) -> bool:
    """Whether tasks are among `which` (bool [N]) because of their classes [N, way].

    Labels go wrong whatever the classes; what is hard for its classes is not noise. Asked is how
    much of the variance a linear model of classes explains, beyond what as many numbers of chance
    would. With too few tasks for that: no.

    >>> classes = torch.stack([torch.randperm(20)[:5] for _ in range(400)])
    >>> hard, unlucky = (classes == 3).any(1), torch.rand(400) < 0.3
    >>> classes_explain(hard, classes), classes_explain(unlucky, classes)
    (True, False)
    """
    occurring, ranks = classes.unique(return_inverse=True)
    tasks, count = len(classes), len(occurring)
    freedom = tasks - count - 1
    share = which.double().mean()
    total = float(share * (1 - share)) * tasks
    if freedom < count or not total:
        return False
    has = torch.zeros(tasks, count, dtype=torch.double).scatter_(1, ranks, 1.0)
    has -= has.mean(0)
    centred = which.double() - share
    # a task has `way` classes, whichever they are, so one column follows from the others
    gram = has.T @ has + 1e-6 * tasks * torch.eye(count, dtype=torch.double)
    left = centred - has @ torch.linalg.solve(gram, has.T @ centred)
    return 1 - float(left.square().sum()) / total * (tasks - 1) / freedom > EXPLAINED
