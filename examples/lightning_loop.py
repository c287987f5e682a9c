"""Lightning's loop, DERTS's tasks: pip install lightning, then

    python examples/lightning_loop.py

The strategy of examples/data_loader.py is a DataLoader, which is all that Lightning asks for.
"""

from __future__ import annotations

from typing import Any

import lightning
import torch
from data_loader import META_BATCH, SHOT, WAY, make_loader

import derts
from derts.selection import MetaBatch


class FewShotModule(lightning.LightningModule):  # type: ignore[misc, unused-ignore]
    """A learner of ours (or an OwnLearner around yours) as a LightningModule."""

    def __init__(self, learner: Any, table: derts.ImageTable) -> None:
        super().__init__()
        self.learner, self.table = learner, table

    def training_step(self, batch: MetaBatch, _: int) -> torch.Tensor:
        """The weighted outer loss of one meta-batch."""
        outcome = self.learner.outer_loss(self.table, batch.pool, batch.weights)
        self.log("accuracy", outcome.accuracies.mean(), batch_size=META_BATCH)
        loss: torch.Tensor = outcome.loss
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Any optimiser."""
        return torch.optim.Adam(self.learner.parameters(), lr=0.004)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, _: int) -> Any:
        """A batch is indices: the learner moves what it needs."""
        return batch


def main() -> None:
    tables = derts.glyphs(characters=100, images_per_character=20)
    test = derts.TaskPool.sample(tables["test"], tasks=100, way=WAY, shot=SHOT, query=10, seed=1)
    config = derts.LearnerConfig(distance_divisor=4.0)
    shape = tables["train"].item_shape
    learner = derts.build_learner(config, derts.ModelConfig(width=16), way=WAY, item_shape=shape)
    print(f"before: {derts.evaluate(learner, tables['test'], test)}")
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(FewShotModule(learner, tables["train"]), make_loader(learner, tables["train"]))
    print(f"after: {derts.evaluate(learner, tables['test'], test)}")


if __name__ == "__main__":
    main()
