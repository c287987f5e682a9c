"""Training events as TensorBoard curves, for those who have it installed."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from derts.errors import DertsError
from derts.training.run_folder import Event


def tensorboard_listener(run: Path) -> Callable[[Event], None]:
    """A function that writes the numbers of a run's events into its folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise DertsError(
            "--tensorboard needs TensorBoard: pip install 'derts[tensorboard]', or leave it out"
        ) from None
    writer = cache(lambda: SummaryWriter(str(run / "tensorboard")))

    def listen(event: Event) -> None:
        for name, value in scalars(event).items():
            writer().add_scalar(f"{event['event']}/{name}", value, event["update"])
        writer().flush()

    return listen


def scalars(event: Event) -> dict[str, float]:
    """An event's numbers by name, those of inner tables as outer/inner.

    >>> scalars({"event": "round", "update": 3, "kept": 9, "noise": {"pool": 0.5, "kept": None}})
    {'kept': 9.0, 'noise/pool': 0.5}
    """
    found: dict[str, float] = {}
    for name, value in event.items():
        if isinstance(value, dict):
            found |= {f"{name}/{inner}": number for inner, number in scalars(value).items()}
        elif isinstance(value, int | float) and name not in ("update", "round"):
            found[name] = float(value)
    return found
