"""Configs as nested dictionaries and TOML files, with presets by name."""

import difflib
import json
import re
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from derts.config import TrainConfig
from derts.errors import DertsError

Values = Mapping[str, Any]
annotations_of = cache(get_type_hints)  # a millisecond each time
Config = TypeVar("Config")

LONGEST = 500_000  # characters of a config file: it may name thousands of classes
DEEP = re.compile(r"""(\.\s*([\w-]+|"[^"\n]*"|'[^'\n]*')\s*){30}""")  # a key of so many parts

PAPER = {
    "name": "derts", "pool_images": 0, "votes": False, "judge": "none", "drop": "none",
    "balance": False, "select": "stochastic", "estimate": "logit-theta", "weights": "counts",
}  # fmt: skip
"""The paper's rule to the letter, but for the drop of its noisy setting."""
WHOLE_PAPER = {**PAPER, "warmup": -1, "pool": 3200, "ratio": 0.3}
"""And its sizes: whatever was set under `strategy` before, this is the paper's."""
PAPER_LEARNER = {"smoothing": 0.0, "head": "random"}

PRESETS: dict[str, Values] = {
    "gpu": {"hardware": {"precision": "bfloat16"}},
    "laptop": {
        "tasks": {"query": 5},
        "model": {"width": 32},
        "strategy": {"warmup": 50, "pool": 400, "pool_images": 2400},
        "evaluation": {"tasks": 200, "query": 10},
        "updates": 300,
        "meta_batch": 8,
    },
    "augment": {"augment": {"horizontal_flip": True, "translation": 8}},
    "rotated": {"tasks": {"rotated": True}},
    "derts": {"strategy": {"name": "derts"}},
    "paper": {"strategy": WHOLE_PAPER, "learner": PAPER_LEARNER},
    "paper-noisy": {"strategy": {**WHOLE_PAPER, "drop": "paper"}, "learner": PAPER_LEARNER},
    "demo": {
        "data": "glyphs",
        "tasks": {"query": 5, "noise": "tasks:0.6"},
        "model": {"width": 32},
        "learner": {"name": "protonet", "distance_divisor": 4.0},
        "strategy": {"warmup": 40, "pool": 400, "judge": "none"},
        "updates": 115,
        "meta_batch": 8,
    },
}
"""Named sets of values, applied in the order given; explicit flags win over them."""


def with_values(config: Config, values: Values, where: str, path: str = "") -> Config:
    """A copy of a config dataclass with some values replaced, each checked by name and type.

    >>> with_values(TrainConfig(), {"tasks": {"way": 3}}, where="example").tasks.way
    3
    """
    hints = annotations_of(type(config))  # type: ignore[arg-type]
    known = [item.name for item in fields(config)]  # type: ignore[arg-type]
    changes: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {path}{near[0]}?" if near else f"known: {', '.join(known)}"
            raise DertsError(f"{where}: unknown setting {path}{key}; {hint}")
        current = getattr(config, name)
        if is_dataclass(current):
            if not isinstance(value, Mapping):
                raise DertsError(f"{where}: {path}{key} must be a table of settings, not {value!r}")
            changes[name] = with_values(current, value, where, f"{path}{key}.")
        else:
            changes[name] = _checked(value, hints[name], f"{where}: {path}{key}")
    return replace(config, **changes)  # type: ignore[type-var]


def _checked(value: Any, hint: Any, what: str) -> Any:
    """The value as the annotation wants it, or a DertsError."""
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value in choices and not isinstance(value, bool):
            return value
        raise DertsError(f"{what} is {value!r}: choose one of {', '.join(map(str, choices))}")
    if origin is types.UnionType:  # all are of the form `kind | None`
        return None if value is None else _checked(value, choices[0], what)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_checked(item, choices[0], what) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    expected = getattr(hint, "__name__", "list")
    raise DertsError(f"{what} is {value!r}: it must be of type {expected}")


def apply_presets(names: Sequence[str], config: TrainConfig | None = None) -> TrainConfig:
    """Presets applied in order.

    >>> apply_presets(["gpu"]).hardware.precision
    'bfloat16'
    """
    config = config or TrainConfig()
    for name in names:
        if name not in PRESETS:
            raise DertsError(f"no preset {name!r}: choose from {', '.join(PRESETS)}")
        config = with_values(config, PRESETS[name], f"preset {name}")
    return config


def read_config(path: Path | str, config: TrainConfig | None = None) -> TrainConfig:
    """A TOML file's values on top of a config (default: the built-in defaults)."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        if len(text) > LONGEST or DEEP.search(text):  # the parser would take minutes
            raise DertsError(f"{path} is too long or nested too deeply: it is no config of a run")
        values = tomllib.loads(text)
        return with_values(config or TrainConfig(), values, str(path))
    except FileNotFoundError:
        raise DertsError(f"no config file at {path}: check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise DertsError(f"{path} is not a TOML file ({error}): correct it") from None
    except RecursionError:
        raise DertsError(f"{path} is nested too deeply: correct it") from None


def as_values(config: Any) -> dict[str, Any]:
    """A config dataclass as a nested dictionary; settings that are None are left out.

    >>> as_values(TrainConfig())["tasks"]["shot"]
    5
    """

    def known(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        plain = ((name, list(x) if isinstance(x, tuple) else x) for name, x in pairs)
        return {name: value for name, value in plain if value is not None}

    return asdict(config, dict_factory=known)


def to_toml(config: TrainConfig) -> str:
    """The config as TOML that `read_config` reads back to the same config."""
    plain, tables = [], []
    for key, value in as_values(config).items():
        if isinstance(value, dict):
            rows = [f"{name} = {_toml(item)}" for name, item in value.items()]
            tables.append("\n".join((f"[{key}]", *rows)))
        else:
            plain.append(f"{key} = {_toml(value)}")
    return "\n\n".join(("\n".join(plain), *tables)) + "\n"


def _toml(value: Any) -> str:
    # what JSON writes of finite numbers, text and lists is TOML as well, but for one letter
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
