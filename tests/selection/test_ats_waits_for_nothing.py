"""ATS queues work on a GPU and reads nothing back: whole updates, with ATS's code as it is there.

Without a GPU the same operations run on the CPU, and whichever would wait for a GPU is caught.
"""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from derts.config import (
    HardwareConfig,
    LearnerConfig,
)
from derts.data import ImageTable
from derts.selection.ats import AdaptiveScheduler
from derts.training import Trainer
from derts.training.bad_numbers import GuardedStep
from derts.training.step import AdamW
from tests.tiny import tiny

pytestmark = pytest.mark.slow

Tables = dict[str, ImageTable]

SMALL = tiny(
    tasks={"way": 3, "shot": 2, "query": 3, "noise": "tasks:0.5"},
    model={"width": 16},
    learner={"name": "anil"},
    hardware={"device": "cpu"},
    strategy={"name": "ats"},
    meta_batch=3,
)
READING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2")


class Readings(TorchDispatchMode):
    """The operations of this thread that would wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        name = operation.overloadpacket.__name__
        masks = name in ("index", "index_put", "index_put_") and any(
            key is not None and key.dtype in (torch.bool, torch.uint8) for key in arguments[1]
        )
        if name in READING or masks:
            self.found.append(name)
        return operation(*arguments, **(options or {}))


@contextmanager
def readings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the block reads back in this thread; tasks for later are drawn in another one."""
    here = threading.current_thread()
    with monkeypatch.context() as patch, Readings() as seen:

        def watch(name: str) -> None:
            whole = getattr(torch.Tensor, name)

            def recorded(tensor: torch.Tensor) -> Any:
                if threading.current_thread() is here:
                    seen.found.append(name)
                return whole(tensor)

            patch.setattr(torch.Tensor, name, recorded)

        for name in ("cpu", "numpy", "tolist"):  # no operations on the CPU
            watch(name)
        yield seen.found


def one_hot(labels: torch.Tensor, classes: int) -> torch.Tensor:
    """As on a GPU, where torch's does not check its argument."""
    return (labels[..., None] == torch.arange(classes)).long()


@pytest.mark.parametrize("name", ["anil", "maml"])
def test_an_update_reads_nothing_back(
    name: str, letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(replace(SMALL, learner=LearnerConfig(name)), letters)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.nn.functional, "one_hot", one_hot)
    masked = AdamW(trainer.learner.parameters(), lr=0.005, fused=True)
    trainer.updater.optimiser = masked  # what a GPU uses
    trainer.updater.guard = GuardedStep(trainer.learner, masked)
    trainer.train(4)
    with readings(monkeypatch) as found:
        trainer.step()
        trainer.step()
    assert found == []
    with readings(monkeypatch) as found:
        trainer.state_dict()
    assert found, "the net has no holes"


def test_the_state_has_the_form_it_always_had(letters: Tables) -> None:
    trainer = Trainer(SMALL, letters)
    strategy = trainer.strategy
    assert isinstance(strategy, AdaptiveScheduler)
    trainer.train(2)
    assert strategy.state_dict()["ats_baseline"] is None
    trainer.train(4)
    state = strategy.state_dict()
    assert type(state["ats_baseline"]) is float
    strategy.load_state_dict(state)
    assert strategy.state_dict()["ats_baseline"] == state["ats_baseline"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_is_waited_for_by_nobody(letters: Tables) -> None:
    config = replace(SMALL, hardware=HardwareConfig(device="cuda", precision="bfloat16"))
    trainer = Trainer(config, letters)
    trainer.train(6)
    with warnings.catch_warnings(action="ignore"):  # that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            trainer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    remembered = [tasks.support for tasks, _ in trainer.window._batches[-3:]]
    assert not torch.equal(remembered[0], remembered[1])
    resumed = Trainer(config, letters)
    resumed.load_state_dict(trainer.state_dict())
    resumed.train()
    assert resumed.update == 12
