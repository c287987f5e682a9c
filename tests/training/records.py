"""What two runs must have in common, whatever happened on the way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from derts.training import Trainer
from derts.training.run_folder import Run

TIMED = ("seconds", "images_per_second")


def timeless(run: Path) -> list[dict[str, Any]]:
    """All events but starts of the program, without what depends on the clock."""
    return [
        {key: value for key, value in event.items() if key not in TIMED}
        for event in Run.open(run).events()
        if event["event"] != "start"
    ]


def assert_same(first: object, second: object) -> None:
    """Equal to the bit: tensors, numbers, and dictionaries and lists of them."""
    if isinstance(first, torch.Tensor):
        assert isinstance(second, torch.Tensor)
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert isinstance(second, dict)
        assert first.keys() == second.keys()
        for key, value in first.items():
            assert_same(value, second[key])
    elif isinstance(first, list):
        assert isinstance(second, list)
        for one, other in zip(first, second, strict=True):
            assert_same(one, other)
    else:
        assert first == second


def before_update(
    update: int, action: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let something happen just before an update begins."""
    step = Trainer.step

    def patched(self: Trainer) -> torch.Tensor:
        if self.update == update:
            action()
        return step(self)

    monkeypatch.setattr(Trainer, "step", patched)
