"""Streamed images: the same numbers as images in memory, fetched ahead."""

import pytest
import torch

from derts.config_file import with_values
from derts.data import ImageTable
from derts.data.streaming import AHEAD, StreamedTable
from derts.training import Trainer
from tests.tiny import tiny

Tables = dict[str, ImageTable]

SMALL = tiny(updates=9, meta_batch=4)
LIMIT = "derts.data.streaming.image_memory"


def test_any_indices_come_out_right_expected_or_not(letters: Tables) -> None:
    table = letters["train"]
    streamed = StreamedTable.of(table, torch.device("cpu"))
    random = torch.Generator().manual_seed(0)
    asked = [torch.randint(len(table), (3, 5), generator=random) for _ in range(6)]
    for number, indices in enumerate(asked):
        if number % 2:
            streamed.prefetch(asked[(number + 1) % len(asked)])
        assert torch.equal(streamed.gather(indices), table.gather(indices))
    assert len(streamed._expected) <= AHEAD


@pytest.mark.parametrize("strategy", ["random", "us", "derts"])
def test_training_from_streamed_images_gives_the_same_weights_and_is_prefetched(
    strategy: str, letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = {"warmup": 2, "pool": 20, "ratio": 0.6, "select": "greedy", "drop": "none"}
    config = with_values(SMALL, {"strategy": {"name": strategy, **rounds}}, "test")
    plain = Trainer(config, letters)
    plain.train()
    late = 0
    fetch = StreamedTable.gather

    def gather(self: StreamedTable, indices: torch.Tensor) -> torch.Tensor:
        nonlocal late
        known = [expected for expected, _ in self._expected if expected.shape == indices.shape]
        late += not any(torch.equal(expected, indices) for expected in known)
        return fetch(self, indices)

    monkeypatch.setattr(StreamedTable, "gather", gather)
    monkeypatch.setattr(LIMIT, lambda device: 100_000)  # the glyphs take three times as much
    streamed = Trainer(config, letters)
    assert isinstance(streamed.images, StreamedTable)
    streamed.train()
    for key, value in plain.learner.state_dict().items():
        assert torch.equal(value, streamed.learner.state_dict()[key])
    # the first batch; in rounds also the pool's images and the first batch of each of 3 rounds
    assert late <= (1 if strategy != "derts" else 1 + 2 * 3)
    assert streamed.evaluate("test") == plain.evaluate("test")


def test_images_below_the_limit_stay_where_they_are(
    letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMIT, lambda device: 2**30)
    assert not isinstance(Trainer(SMALL, letters).images, StreamedTable)
