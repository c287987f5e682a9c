"""What a round decided: a line for the log, and task by task to draw it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from derts.data.table import Table
from derts.errors import DertsError
from derts.files import regular
from derts.tasks import TaskPool, generator

if TYPE_CHECKING:
    from derts.selection.rounds import Choice, DrawnPool

MOST_TASKS = 20_000  # a pool is in random order: its beginning is a fair sample
FORMAT = "round-record-1"
TENSORS = "place", "loss", "weight", "selected", "dropped", "mislabelled"


@dataclass(frozen=True, eq=False)
class RoundRecord:
    """One round of a strategy that works in rounds; N tasks, the first of a larger pool."""

    place: Tensor  # float32 [N, 2]: the estimated gradients' first two principal components
    loss: Tensor  # float32 [N]: query loss after adaptation
    weight: Tensor  # float32 [N]: γ, mean 1 over the tasks trained on, else 0
    selected: Tensor  # bool [N]: chosen, before a drop after selecting
    dropped: Tensor  # bool [N]: looks noisy
    mislabelled: Tensor  # float32 [N]: share of wrong labels, for the reader alone
    number: int
    update: int
    digest: str  # of its images
    random: bool = False  # whether it trained on random tasks, none of these preferred
    labels: Tensor | None = None  # int64 [items] that tasks were drawn by, −1: left out, if others

    @staticmethod
    def of(
        drawn: DrawnPool, choice: Choice, images: Table | None, number: int, update: int
    ) -> RoundRecord:
        """The record of a round that looked at its pool; `images` as `pool_digest` takes them."""
        assert choice.estimate is not None
        (gradients,) = choice.estimate.gradients.values()
        part, nothing = slice(MOST_TASKS), torch.zeros(len(drawn.pool), dtype=torch.bool)
        return RoundRecord(
            place=two_dimensions(gradients[part]).cpu(),
            loss=choice.estimate.losses[part].float().cpu(),
            weight=choice.weights[part].float().cpu(),
            selected=nothing.index_fill(0, choice.selected, True)[part],
            dropped=(nothing if choice.drop is None else choice.drop)[part].cpu(),
            mislabelled=drawn.pool.mislabelled()[part].float().cpu(),
            number=number,
            update=update,
            digest=pool_digest(drawn.given, images),
            random=choice.at_random,
        )

    def fits(self, images: Table) -> bool:
        """Whether its labels can be of these items."""
        if self.labels is None:
            return True
        labels, classes = self.labels, len(images.class_names)
        sound = labels.dtype == torch.int64 and labels.shape == (len(images),)
        return sound and bool(((labels >= -1) & (labels < classes)).all())

    def to_bytes(self) -> bytes:
        """A safetensors file."""
        about = {"derts": FORMAT, "number": str(self.number), "update": str(self.update)}
        about |= {"random": "yes"} if self.random else {}
        tensors = {name: getattr(self, name).contiguous() for name in TENSORS}
        tensors |= {} if self.labels is None else {"labels": self.labels}
        return save(tensors, {**about, "digest": self.digest})

    @staticmethod
    def load(path: Path | str) -> RoundRecord:
        """Read what `to_bytes` gave."""
        try:
            with safe_open(str(regular(Path(path))), framework="pt") as file:
                about = file.metadata() or {}
                if about.get("derts") != FORMAT:
                    raise ValueError("it is no record of a round")
                tensors = {name: file.get_tensor(name) for name in TENSORS}
                labels = file.get_tensor("labels") if "labels" in file.keys() else None  # noqa: SIM118
            if len({len(value) for value in tensors.values()}) > 1:
                raise ValueError("its parts differ in length")
            return RoundRecord(
                **tensors, number=int(about["number"]), update=int(about["update"]),
                digest=about["digest"], random="random" in about, labels=labels,
            )  # fmt: skip
        except FileNotFoundError:
            raise DertsError(f"no record of a round at {path}: check the path") from None
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            raise DertsError(f"{path} is damaged ({error}): remove it and go on") from None


def two_dimensions(rows: Tensor) -> Tensor:
    """[N, d] -> float32 [N, 2]: the first two principal components, rows that overflow at 0.

    Subspace iteration from a start of its own, so that no global random state moves.

    >>> rows = torch.tensor([[0.0, 0.0, 1.0], [4.0, 0.0, 1.0], [8.0, 0.0, 1.0]])
    >>> two_dimensions(rows)[:, 0].abs().tolist()
    [4.0, 0.0, 4.0]
    """
    finite = rows.detach().float().cpu().nan_to_num(0.0, 0.0, 0.0)
    centred = finite - finite.mean(0)
    width = min(2, centred.shape[1])
    basis = torch.randn(centred.shape[1], width, generator=generator((0, "projection")))
    for _ in range(24):
        basis = torch.linalg.qr(centred.T @ (centred @ basis) + 1e-12 * basis).Q
    places = centred @ basis
    return places if width == 2 else torch.cat((places, torch.zeros_like(places)), 1)


def pool_digest(pool: TaskPool, images: Table | None) -> str:
    """Tells whether a pool drawn again is made of the same images: its indices, and some pixels.

    None: a frozen backbone embedded the images, so that the pixels are not at hand.
    """
    digest = hashlib.sha256(pool.support.cpu().numpy().tobytes())
    if images is not None:
        digest.update(images.gather(pool.support[:4]).cpu().numpy().tobytes())
    return digest.hexdigest()


def round_event(drawn: DrawnPool, choice: Choice) -> dict[str, Any]:
    """For the log: what was decided, which parts of the method acted, and the shares of wrong
    labels. No strategy decides by the true labels.
    """
    weights, drop, wrong = choice.weights[choice.kept], choice.drop, drawn.pool.mislabelled()
    noise = {
        "pool": drawn.given.mislabelled(),
        "selected": wrong[choice.selected],
        "dropped": wrong[:0] if drop is None else wrong[drop],
        "kept": wrong if choice.at_random else wrong[choice.kept],  # random ones are alike
    }
    votes = drawn.relabelled
    return {
        "pool": len(choice.weights),
        "selected": len(choice.selected),
        "kept": len(choice.kept),
        "looks_noisy": 0 if drop is None else int(drop.sum()),
        "not_finite": choice.not_finite,
        "threshold": choice.threshold,
        "objective": choice.objective,
        "largest_weight": round(float(weights.max()), 4),
        "effective_tasks": round(float(weights.sum().square() / weights.square().sum()), 2),
        **({} if choice.evenness is None else {"evenness": choice.evenness}),
        "parts": {
            "votes": None if votes is None else {"relabelled": round(votes, 6)},
            "drop": None if drop is None else {"dropped": round(float(drop.float().mean()), 6)},
            "balance": choice.select == "balanced",
            "select": choice.select,
        },
        "noise": {
            kind: round(float(shares.mean()), 6) if len(shares) else None
            for kind, shares in noise.items()
        },
    }
