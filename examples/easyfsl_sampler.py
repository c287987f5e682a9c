"""Episodes for code that was written for easyfsl: a batch sampler over your own Dataset.

    python examples/easyfsl_sampler.py

easyfsl's TaskSampler yields, per episode, the indices of n_way × (n_shot + n_query) images, class
by class. This one yields the same for the tasks that derts selected, so it takes TaskSampler's
place in DataLoader(dataset, batch_sampler=…, collate_fn=…); the weights come along in order.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

import derts

WAY, SHOT, QUERY = 5, 1, 5
Episode = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class SelectedTaskSampler(Sampler[list[int]]):
    """One list of image indices per selected task, as easyfsl's TaskSampler gives them."""

    def __init__(self, pool: derts.TaskPool, selection: derts.Selection) -> None:
        self.pool = pool[selection.indices]
        self.weights = selection.weights / selection.weights.mean()

    def __len__(self) -> int:
        return len(self.pool)

    def __iter__(self) -> Iterator[list[int]]:
        shape = (len(self.pool), self.pool.way, -1)
        both = (self.pool.support.view(shape), self.pool.query.view(shape))
        yield from torch.cat(both, 2).flatten(1).tolist()


def collate(items: list[tuple[torch.Tensor, torch.Tensor]]) -> Episode:
    """As easyfsl's episodic_collate_fn: support images and labels, query images and labels."""
    images = torch.stack([image for image, _ in items]).view(WAY, SHOT + QUERY, *items[0][0].shape)
    labels = torch.arange(WAY)[:, None].expand(WAY, SHOT + QUERY)
    parts = []
    for which in (slice(0, SHOT), slice(SHOT, None)):
        parts += [images[:, which].flatten(0, 1), labels[:, which].flatten()]
    return parts[0], parts[1], parts[2], parts[3]


def prototypes(model: nn.Module, episode: Episode) -> torch.Tensor:
    """Logits [query, way] of a prototypical network, as easyfsl users write it."""
    support, support_labels, query, _ = episode
    features = model(torch.cat((support, query)))
    known, asked = features.split((len(support), len(query)))
    centres = torch.stack([known[support_labels == label].mean(0) for label in range(WAY)])
    return -torch.cdist(asked, centres).square() / 4


def main() -> None:
    torch.manual_seed(0)
    glyphs = derts.glyphs(characters=100, images_per_character=20)["train"]
    images = glyphs.images.permute(0, 3, 1, 2).float() / 255
    dataset = TensorDataset(images, glyphs.labels)  # your own Dataset of (image, label)

    table = derts.from_dataset(dataset)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2), nn.Flatten(),
    )  # fmt: skip
    optimiser = torch.optim.Adam(model.parameters(), lr=0.003)
    learner = derts.OwnLearner(model, table.item_shape, way=WAY, preprocess=preprocess)
    right: list[float] = []
    for number in range(3):
        pool = derts.TaskPool.sample(
            table, tasks=200, way=WAY, shot=SHOT, query=QUERY, seed=(1, number)
        )
        selection = derts.select(derts.estimate_gradients(learner, table, pool), k=80)
        sampler = SelectedTaskSampler(pool, selection)
        loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)
        model.train()
        for episode, weight in zip(loader, sampler.weights, strict=True):
            logits = prototypes(model, episode)
            loss = weight * nn.functional.cross_entropy(logits, episode[3])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            right.append(float((logits.argmax(1) == episode[3]).float().mean()))
    print(f"before: {100 * sum(right[:20]) / 20:.1f}% right in the first 20 episodes")
    print(f"after: {100 * sum(right[-20:]) / 20:.1f}% right in the last 20")


def preprocess(images: torch.Tensor) -> torch.Tensor:
    """uint8 [n, 28, 28, 1] -> what the model takes, as in the Dataset."""
    return images.permute(0, 3, 1, 2).float() / 255


if __name__ == "__main__":
    main()
