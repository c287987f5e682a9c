"""A meta-batch in pieces: the same update, in less memory, by a plan that a run tells."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from derts.config_file import with_values
from derts.data import ImageTable
from derts.errors import DertsError
from derts.training import Trainer, train
from derts.training.memory import GIB, most_pieces, needed_memory
from tests.tiny import tiny

Tables = dict[str, ImageTable]
SHAPE = (28, 28, 1)


@pytest.mark.parametrize(
    ("learner", "strategy", "backbone"),
    [
        ("protonet", "random", "cnn4"),
        ("anil", "random", "resnet12"),
        ("maml", "random", "cnn4"),
        ("maml", "us", "cnn4"),
    ],
)
@pytest.mark.parametrize("pieces", [2, 3])
def test_an_update_in_pieces_is_the_update(
    learner: str, strategy: str, backbone: str, pieces: int, letters: Tables
) -> None:
    config = tiny(
        learner={"name": learner}, strategy={"name": strategy, "warmup": 0}, meta_batch=5,
        model={"backbone": backbone}, updates=2, hardware={"device": "cpu"},
    )  # fmt: skip
    states = []
    for count in (1, pieces):
        trainer = Trainer(config, letters, pieces=count)
        trainer.learner.double()
        values = [trainer.step() for _ in range(config.updates)]
        gradients = {f"{name} gradient": x.grad for name, x in trainer.learner.named_parameters()}
        states.append({**gradients, "values": torch.stack(values), **trainer.learner.state_dict()})
    whole, cut = states
    assert whole.keys() == cut.keys()
    for name, value in whole.items():
        torch.testing.assert_close(cut[name], value, rtol=1e-7, atol=1e-9, msg=name)


def test_a_run_is_cut_by_itself_and_says_so(letters: Tables) -> None:
    config = tiny(meta_batch=100, model={"width": 32}, updates=1, hardware={"device": "cpu"})
    most = most_pieces(config)
    for pieces in (2, most):
        limit = 1.0001 * needed_memory(config, SHAPE, "cpu", pieces)
        changed = with_values(config, {"hardware": {"memory_gib": limit / GIB}}, "test")
        result = train(changed, tables=letters, quiet=True)
        assert f"computed in {pieces} pieces of at most " in result["notes"][0]
    assert result["peak_gib"] > 0.05
    too_small = with_values(config, {"hardware": {"memory_gib": 0.9 * limit / GIB}}, "test")
    with pytest.raises(DertsError, match=r"cut into \d+ pieces, and .* are allowed: try "):
        train(too_small, tables=letters, quiet=True)


PROGRAM = """
import json, sys, torch
from derts.config_file import apply_presets, with_values
from derts.data import ImageTable
from derts.hardware import keep_freed_memory
from derts.training import train
keep_freed_memory()
config = with_values(apply_presets(["laptop"]), json.loads(sys.argv[1]), "test")
images = torch.randint(0, 256, (200, 84, 84, 3), dtype=torch.uint8)
table = ImageTable(images, torch.arange(200) // 20, tuple("abcdefghij"))
result = train(config, tables={"train": table, "test": table}, quiet=True)
print(json.dumps([result["peak_gib"], result["notes"]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is counted in other units")
def test_a_limit_is_kept() -> None:
    values: dict[str, Any] = {"meta_batch": 8, "updates": 2, "evaluation": {"tasks": 2}}
    peaks = []
    for limit in (100.0, 1.5):
        given = json.dumps({**values, "hardware": {"device": "cpu", "memory_gib": limit}})
        said = subprocess.run(
            [sys.executable, "-c", PROGRAM, given], capture_output=True, check=True, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        peak, notes = json.loads(said.stdout)
        peaks.append(peak)
        assert peak < limit
        assert bool(notes) == (limit < 2)
    assert peaks[1] < 0.6 * peaks[0]
