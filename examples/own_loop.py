"""Your own model, your own optimiser, your own loop: derts only says which tasks to train on.

    python examples/own_loop.py

Trains a small network on glyphs, a built-in data set, in a few seconds on a CPU.
"""

from __future__ import annotations

import torch
from torch import nn

import derts


class MyModel(nn.Module):
    """Any module of yours that turns images into features [n, d]."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels_in, channels_out in ((1, 16), (16, 32), (32, 32)):
            layers += [nn.Conv2d(channels_in, channels_out, 3, padding=1)]
            layers += [nn.BatchNorm2d(channels_out), nn.ReLU(), nn.MaxPool2d(2)]
        self.layers = nn.Sequential(*layers, nn.Flatten())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 1, 28, 28] -> [n, 288]."""
        features: torch.Tensor = self.layers(x)
        return features


def my_preprocessing(images: torch.Tensor) -> torch.Tensor:
    """uint8 [n, 28, 28, 1] -> float [n, 1, 28, 28]."""
    return images.permute(0, 3, 1, 2).float() / 255


def main() -> None:
    torch.manual_seed(0)
    tables = derts.glyphs(characters=100, images_per_character=20)
    train = tables["train"]
    test = derts.TaskPool.sample(tables["test"], tasks=100, way=5, shot=1, query=10, seed=1)

    model = MyModel()
    learner = derts.OwnLearner(model, train.item_shape, way=5, preprocess=my_preprocessing)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.003)
    print(f"before: {derts.evaluate(learner, tables['test'], test)}")

    for number in range(3):
        pool = derts.TaskPool.sample(train, tasks=200, way=5, shot=1, query=10, seed=(2, number))
        selection = derts.select(derts.estimate_gradients(learner, train, pool), k=60)
        for batch, weights in selection.batches(pool, 6, seed=number):
            outcome = learner.outer_loss(train, batch, weights)
            optimiser.zero_grad()
            outcome.loss.backward()
            optimiser.step()
        print(f"round {number + 1}: mean loss of the last batch {outcome.losses.mean():.3f}")

    print(f"after: {derts.evaluate(learner, tables['test'], test)}")


if __name__ == "__main__":
    main()
