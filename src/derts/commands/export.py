"""derts export"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from derts.commands.parse import parse, print_rows
from derts.errors import DertsError

DESCRIPTION = """Write a run's model as one file, with a card of its config, data and results.

The safetensors file holds weights and card and runs no code when it is loaded; the card lies
beside it as JSON. derts predict and derts.load_model take the file as they take a run folder.

Examples:
  derts export runs/first model.safetensors
"""


@dataclass(frozen=True)
class ExportOptions:
    """Options of `derts export`."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A folder that derts train wrote."""
    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """The file to write, ending in .safetensors."""


def export(arguments: Sequence[str]) -> None:
    """Parse, load, write."""
    options = parse(ExportOptions, arguments, "export", DESCRIPTION)

    from derts.predict import load_model

    if options.file.suffix != ".safetensors":
        raise DertsError(f"{options.file} does not end in .safetensors: name it so")
    weights, card = load_model(options.run).save(options.file)
    print_rows([("model", str(weights)), ("card", str(card))])
