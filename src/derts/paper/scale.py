"""How the runs asked for differ from the recipes: other data, fewer updates, presets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from derts.errors import DertsError
from derts.paper.recipe import SHORT_NAMES, read_recipe


@dataclass(frozen=True)
class Scale:
    """How the runs asked for differ from the recipes.

    data     store by data set name; every data set is "glyphs" where glyphs stand in for all
    updates  multiplies updates, warm-up and evaluation points
    presets  presets of `derts train` on top of the recipes
    """

    data: Mapping[str, str]
    updates: float = 1.0
    presets: tuple[str, ...] = ()

    @property
    def glyphs(self) -> bool:
        return "glyphs" in self.data.values()

    @property
    def suffix(self) -> str:
        """Tells result files of different scales apart."""
        scale = "" if self.updates == 1 else f"-x{self.updates:g}"
        presets = "".join(f"-{name}" for name in self.presets if name != "gpu")
        return f"{'-glyphs' if self.glyphs else ''}{scale}{presets}"

    def notes(self) -> list[str]:
        """What a reader must know, in sentences."""
        found = []
        if self.glyphs:
            changed = json.dumps(read_recipe("common")["glyphs"]).replace('"', "")
            found.append(
                "Run on the built-in glyphs instead of ImageNet, and smaller "
                f"({changed[1:-1]}; a budget of classes is the first so many characters): "
                "this shows that everything runs, not who is right."
            )
        if self.updates != 1:
            found.append(
                f"Updates, warm-up and evaluation points are {self.updates:g} times the paper's."
            )
        if self.presets:
            found.append(f"Presets on top of the recipe: {', '.join(self.presets)}.")
        return found


def parse_datasets(words: Sequence[str]) -> dict[str, str]:
    """`mini=PATH`, `tiered=PATH` or `glyphs` as stores by data set name.

    >>> parse_datasets(["mini=stores/mini"])
    {'mini-imagenet': 'stores/mini'}
    """
    found: dict[str, str] = {}
    if "glyphs" in words and len(words) > 1:
        raise DertsError("--dataset glyphs stands in for all data sets: give no other beside it")
    for word in words:
        name, _, path = word.partition("=")
        name = SHORT_NAMES.get(name, name)
        if word == "glyphs":
            found |= dict.fromkeys(SHORT_NAMES.values(), "glyphs")
        elif name in SHORT_NAMES.values() and path not in ("", "glyphs"):
            found[name] = path
        else:
            raise DertsError(
                f"--dataset {word!r} is not understood: write mini=PATH, tiered=PATH or glyphs"
            )
    return found
