"""Trust: how far can each label be relied on? One object for training, inspecting and cleaning."""

from dataclasses import dataclass

import torch
from torch import Tensor

FEW_SEEN = 0.5  # of labels wrong by chance: features that would show fewer are too weak


@dataclass(frozen=True, eq=False)
class Trust:
    """Of n labels among C classes; tensors are on the CPU.

    probability  float32 [n]   that the given label is right
    given        int64 [n]     the given class
    suggestion   int64 [n]     the class that it looks like most, the given one included
    sure         float32 [n]   probability of the suggestion
    rests_on     float32 [n]   trusted images of the given class that the judgement rests on
    wrong        float32 [C, C]  estimated share of images given as class k (column) that are truly
                               of class c (row); columns sum to 1
    classes      names of the classes
    note         what cannot be judged; empty where all can
    confused     how many pairs of classes labels confuse; 0 where wrong labels are alike everywhere
    sees         share that these features would show of labels wrong by chance, were a tenth so; 1
                 where labels confuse pairs
    """

    probability: Tensor
    given: Tensor
    suggestion: Tensor
    sure: Tensor
    rests_on: Tensor
    wrong: Tensor
    classes: tuple[str, ...]
    note: str = ""
    confused: int = 0
    sees: float = 1.0

    def __len__(self) -> int:
        return len(self.probability)

    @property
    def share_wrong(self) -> float:
        """Estimated share of labels that are wrong."""
        return float(1 - self.probability.double().mean()) if len(self) else 0.0

    @property
    def weak(self) -> bool:
        """Whether the features would show less than half of the labels wrong by chance."""
        return self.sees < FEW_SEEN

    def kept(self, fewest: int, sure: float = 0.8, least: float = 0.5) -> Tensor:
        """int64 [n]: the class that each image is to be trained as, −1: left out.

        Its own where that is right with a probability of `least`, else the suggestion where that is
        sure enough.
        """
        moved = (self.suggestion != self.given) & (self.sure >= sure)
        found = torch.where(self.probability >= least, self.given, -1)
        return self.with_enough(torch.where(moved, self.suggestion, found), fewest)

    def with_enough(self, classes: Tensor, fewest: int) -> Tensor:
        """Classes [n], −1: left out, of which each of the given labels has `fewest` images, if it
        had them: those that lack some take their most trusted ones back.
        """
        found, refilled = classes.clone(), set[int]()
        while True:  # what a class takes back may leave another one with too few
            counts = torch.bincount(found[found >= 0], minlength=len(self.classes))
            few = set((counts < fewest).nonzero().squeeze(1).tolist()) - refilled
            if not few:
                break
            for number in few:
                members = (self.given == number).nonzero().squeeze(1)
                trusted = self.probability[members].argsort(descending=True, stable=True)
                found[members[trusted[:fewest]]] = number
            refilled |= few
        return found

    @property
    def order(self) -> Tensor:
        """int64 [n]: the labels from the least to the most trustworthy."""
        return self.probability.argsort(stable=True)

    def __repr__(self) -> str:
        return (
            f"Trust({len(self)} labels of {len(self.classes)} classes, "
            f"{100 * self.share_wrong:.1f}% look wrong)"
        )
