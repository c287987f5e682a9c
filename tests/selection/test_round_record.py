"""Rounds are kept task by task, and drawn in two dimensions."""

from pathlib import Path

import torch

from derts.config import TrainConfig
from derts.selection.round_record import RoundRecord, two_dimensions
from derts.tasks import generator
from derts.training.run_folder import KEEP_ROUNDS, Run


def test_few_rounds_are_kept_and_read_back(tmp_path: Path) -> None:
    kept = Run(tmp_path / "run", TrainConfig())
    kept.clear()
    for number in range(KEEP_ROUNDS + 2):
        record = RoundRecord(
            place=torch.full((4, 2), float(number)),
            loss=torch.rand(4, generator=generator(number)),
            weight=torch.tensor([0.0, 2.0, 0.0, 1.0]),
            selected=torch.tensor([False, True, False, True]),
            dropped=torch.tensor([True, False, False, False]),
            mislabelled=torch.zeros(4),
            number=number,
            update=10 * number,
            digest="d",
        )
        kept.keep_round(record)
    numbers = [RoundRecord.load(path).number for path in kept.round_files()]
    assert numbers == [2, 3, 4]
    again = RoundRecord.load(kept.round_files()[-1])
    assert torch.equal(again.loss, record.loss)
    assert torch.equal(again.dropped, record.dropped)
    assert (again.update, again.digest) == (40, "d")


def test_the_projection_is_that_of_principal_components() -> None:
    rows = torch.randn(300, 7, generator=generator(1)) * torch.tensor([9.0, 5, 1, 1, 1, 1, 1]) + 3
    before = torch.get_rng_state()
    found = two_dimensions(rows)
    assert torch.equal(torch.get_rng_state(), before)
    _, lengths, _ = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)
    assert torch.allclose(found.norm(dim=0), lengths[:2], rtol=1e-3)
    assert two_dimensions(torch.zeros(3, 1)).shape == (3, 2)
    assert bool(two_dimensions(torch.full((3, 4), float("nan"))).isfinite().all())
