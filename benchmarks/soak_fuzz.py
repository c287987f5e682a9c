"""Every file that derts reads, changed in its own structure, 10,000 times.

    python benchmarks/soak_fuzz.py results/soak-fuzz-cpu.json

A case changes one file: a value of its JSON, TOML, CSV, array header, tensors or pickle becomes
nested, huge, not finite, of another type or of another length, or its bytes are damaged. A command
that reads it must then succeed or say one printable line with exit code 2, within SECONDS and
MEMORY. Case n is the same every time: `--first n --cases 1` runs it again.
"""

from __future__ import annotations

import contextlib
import copy
import csv
import hashlib
import io
import json
import math
import os
import pickle
import resource
import shutil
import signal
import struct
import sys
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import torch
import tyro
from PIL import Image
from safetensors.torch import save_file

from derts.cli import run
from derts.commands import inspect as inspecting
from derts.comparison import Comparison
from derts.config_file import read_config
from derts.data import describe_store, item_names, open_data, open_store, prepare, read_matrix
from derts.errors import DertsError
from derts.facility_location import Selection, select
from derts.files import write_json
from derts.labels import relabel_by_votes
from derts.labels.cleaning import read_review
from derts.labels.judged import JudgedItems, judge_items
from derts.labels.known_errors import true_labels
from derts.model_files import load_model
from derts.models.pretrained import _fill
from derts.paper.collect import load_results
from derts.provenance import code_version, machine
from derts.report.figures import FigureSheet
from derts.report.read import RunStory, comparison_of, group_runs, settings_table
from derts.selection.round_record import RoundRecord
from derts.tasks import TaskPool
from derts.training.checkpoint import MAGIC, load_checkpoint
from derts.training.run import open_trainer
from derts.training.run_folder import Run

SECONDS, MEMORY = 120, 8 * 2**30
COMMAND_SHARE = 0.05  # of the cases in which a whole command runs, where a function does
Random = np.random.Generator
SMALL = partial(torch.nn.Sequential, torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
TRAIN = [
    "--tasks.way", "2", "--tasks.shot", "1", "--tasks.query", "1", "--model.width", "4",
    "--strategy.name", "derts", "--strategy.warmup", "1", "--strategy.pool", "6",
    "--strategy.ratio", "0.5",
    "--evaluation.tasks", "4", "--evaluation.query", "1", "--meta-batch", "2", "--updates",
    "3", "--checkpoint-every", "2", "--validate-every", "2", "--log-every", "1", "--quiet",
]  # fmt: skip
SHORT = "--updates 3 --meta-batch 2 --evaluation.tasks 4 --quiet"  # also with an empty config


@dataclass(frozen=True)
class Options:
    """Options of this measurement."""

    out: Annotated[Path, tyro.conf.Positional]
    """The JSON file to write."""
    cases: int = 10_000
    """How many files are changed."""
    first: int = 0
    """The number of the first case."""


# --- values of the wrong kind ---------------------------------------------------------------------


def nested(depth: int, key: bool) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = {"a": value} if key else [value]
    return value


def other_value(random: Random, value: Any) -> Any:
    """Something that does not belong where `value` is."""
    longer = value * 3 if isinstance(value, list | str) else [value] * 5
    choices: list[Any] = [
        None, True, 0, -1, 1, 2**31, 2**63, -(2**63), 10**40, 1e308, -1e308, 1e154, math.nan,
        math.inf, -math.inf, 1e-320, 0.5, "", "nan", "x" * 100_000, "\x1b[2J\n\u202e", "../..",
        "/etc/passwd", "\0", [], {}, [[]], [0] * 10_000, longer, {"a": value},
        nested(200, key=False), nested(200, key=True), str(value), [value],
    ]  # fmt: skip
    return choices[random.integers(len(choices))]


def changed(random: Random, tree: Any) -> Any:
    """A copy of nested lists and tables with one place of it changed."""
    tree = copy.deepcopy(tree)
    place: Any = tree
    parent: Any = None
    key: Any = None
    while isinstance(place, dict | list) and place and random.random() < 0.85:
        keys: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
        parent, key = place, keys[random.integers(len(keys))]
        place = parent[key]
    if parent is None:
        return other_value(random, tree)
    if random.random() < 0.15:
        del parent[key]
    elif isinstance(parent, dict) and random.random() < 0.1:
        parent[str(other_value(random, key))[:50]] = parent.pop(key)
    else:
        parent[key] = other_value(random, place)
    return tree


def damaged(random: Random, content: bytes) -> bytes:
    """Bytes flipped, cut off, put in, taken out or repeated."""
    found = bytearray(content)
    for _ in range(random.integers(1, 4)):
        at, length = int(random.integers(len(found) + 1)), int(random.integers(1, 40))
        kind = random.integers(5)
        if kind == 0 and at < len(found):
            found[at] ^= int(random.integers(1, 256))
        elif kind == 1:
            del found[at:]
        elif kind == 2:
            found[at:at] = random.bytes(length)
        elif kind == 3:
            del found[at : at + length]
        else:
            found[at:at] = found[at : at + length] * 3
    return bytes(found)


# --- one changer per format: bytes in, other bytes out --------------------------------------------


def change_json(random: Random, content: bytes) -> bytes:
    if random.random() < 0.03:
        return b"[" * 200_000 if random.random() < 0.5 else b'{"a":' * 200_000
    return json.dumps(changed(random, json.loads(content))).encode()


def change_lines(random: Random, content: bytes) -> bytes:
    lines = content.splitlines()
    at = random.integers(len(lines))
    lines[at] = change_json(random, lines[at])
    return b"\n".join(lines) + b"\n"


def change_journal(random: Random, content: bytes) -> bytes:
    """Its first line says whose it is: another one is begun anew."""
    head, _, rest = content.partition(b"\n")
    return head + b"\n" + change_lines(random, rest)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(k)} = {toml(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    return '"none"' if value is None else json.dumps(value)


def change_toml(random: Random, content: bytes) -> bytes:
    tree = changed(random, tomllib.loads(content.decode()))
    rows = tree.items() if isinstance(tree, dict) else [("data", tree)]
    return "\n".join(f"{json.dumps(key)} = {toml(value)}" for key, value in rows).encode()


def change_csv(random: Random, content: bytes) -> bytes:
    rows = list(csv.reader(io.StringIO(content.decode())))
    rows = changed(random, rows)
    text = io.StringIO()
    table = rows if isinstance(rows, list) else [[rows]]
    with contextlib.suppress(csv.Error):
        csv.writer(text).writerows(row if isinstance(row, list) else [row] for row in table)
    return text.getvalue().encode("utf-8", "surrogatepass")


def other_array(random: Random, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    kinds = [
        "float64",
        "float16",
        "complex64",
        "int8",
        "uint64",
        "bool",
        "U3",
        "S2",
        ">i8",
        "M8[s]",
    ]
    kind = random.integers(6)
    with np.errstate(all="ignore"):
        if kind == 0:
            return array.astype(array.dtype if array.dtype.kind in "OUS" else random.choice(kinds))
        if kind == 1:
            return array[: random.integers(len(array) + 1)] if array.ndim else array.reshape(1)
        if kind == 2:
            return np.concatenate([array, array]) if array.ndim else array.reshape(1, 1)
        if kind == 3:
            return array.reshape(*random.permutation([*array.shape, 1]))
        if kind == 4 and array.dtype.kind in "fiu" and array.size:
            flat = array.copy().reshape(-1)
            value = random.choice([np.nan, np.inf, -np.inf, 1e38, -1.0, 2.0**62])
            flat[random.integers(flat.size)] = value if array.dtype.kind == "f" else 2**62 - 1
            return flat.reshape(array.shape)
        return np.asfortranarray(array)


def npy(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def change_npy(random: Random, content: bytes) -> bytes:
    if random.random() < 0.5:
        return npy(other_array(random, np.load(io.BytesIO(content), allow_pickle=False)))
    length = struct.unpack("<H", content[8:10])[0]
    header = content[10 : 10 + length].decode().strip()
    shape = random.choice(["(1,)", "()", "(10**12, 9)", "(-1,)", "(2**62, 4)", "9" * 30, "((1,),)"])
    swaps = [
        ("'shape': (", f"'shape': {shape} or ("), ("False", "True"), ("'<", "'>"),
        ("'descr'", "'x'"),
        ("'descr': '", "'descr': 'O', 'y': '"), ("{", "[" * 5000), ("(", "(1, "),
        ("{", "{**__import__('os'), "),
        ("(", "(99999999999999, "), ("|u1", "|O"), ("<i8", "<U999999999"),
    ]  # fmt: skip
    old, new = swaps[random.integers(len(swaps))]
    text = header.replace(old, new, 1).encode() + b"\n"
    size = struct.pack("<H", min(len(text), 65_535))
    return content[:8] + size + text + content[10 + length :]


def change_npz(random: Random, content: bytes) -> bytes:
    with np.load(io.BytesIO(content), allow_pickle=False) as held:
        arrays = {name: held[name] for name in held.files}
    name = random.choice(list(arrays))
    if random.random() < 0.2:
        del arrays[name]
    else:
        arrays[name] = other_array(random, arrays[name])
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def change_safetensors(random: Random, content: bytes) -> bytes:
    length = struct.unpack("<Q", content[:8])[0]
    header = changed(random, json.loads(content[8 : 8 + length]))
    if isinstance(header, dict) and isinstance(about := header.get("__metadata__"), dict):
        for key in [key for key in ("card", "recipe") if isinstance(about.get(key), str)]:
            with contextlib.suppress(ValueError):
                about[key] = change_json(random, about[key].encode()).decode()
    tail = content[8 + length :]
    if random.random() < 0.3:  # numbers that are not finite
        values = np.frombuffer(tail[: len(tail) // 4 * 4], np.float32).copy()
        if values.size:
            values[random.integers(values.size)] = random.choice([np.nan, np.inf, 1e38])
        header, tail = json.loads(content[8 : 8 + length]), values.tobytes() + tail[values.nbytes :]
    text = json.dumps(header).encode()
    size = len(text) if random.random() < 0.9 else int(random.choice([0, 2**40, 2**63 - 1, 7]))
    return struct.pack("<Q", size) + text + tail


def other_tensor(random: Random, value: torch.Tensor) -> Any:
    if value.is_floating_point() and random.random() < 0.4:
        return torch.full_like(value, float(random.choice([np.nan, np.inf, 1e38, 0.0, -1.0])))
    return [
        value.double(), value.to(torch.int8), value.flatten()[:1], value[None],
        value.reshape(-1)[:0],
        value.to(torch.complex64), value.flatten().to_sparse(), value.bool(), value.tolist(), None,
    ][random.integers(10)]  # fmt: skip


def change_checkpoint(random: Random, content: bytes) -> bytes:
    """With a right checksum, as somebody who means harm would do it."""
    found = change_state(random, content.partition(b"\n")[2])
    return MAGIC + hashlib.sha256(found).hexdigest().encode() + b"\n" + found


def change_state(random: Random, content: bytes) -> bytes:
    state = torch.load(io.BytesIO(content), weights_only=True)
    tensors: list[tuple[Any, Any]] = []

    def find(tree: Any) -> None:
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            if isinstance(value, torch.Tensor):
                tensors.append((tree, key))
            elif isinstance(value, dict | list):
                find(value)

    find(state)
    if random.random() < 0.5:
        tree, key = tensors[random.integers(len(tensors))]
        tree[key] = other_tensor(random, tree[key])
    else:
        state = changed(random, state)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def change_pickle(random: Random, content: bytes) -> bytes:
    tree = pickle.loads(content)
    if random.random() < 0.4:
        keys = list(tree) if isinstance(tree, dict) else range(len(tree))
        key = random.choice([key for key in keys if isinstance(tree[key], np.ndarray)])
        tree[key] = other_array(random, tree[key])
    else:
        tree = changed(random, tree)
    with contextlib.suppress(RecursionError):
        return pickle.dumps(tree, protocol=int(random.integers(5)))
    return b"(" * 100_000


# --- what is changed, and who reads it ------------------------------------------------------------

RUN_COMMANDS = (
    "runs .", "runs .", "compare run", "export run model.safetensors", "evaluate run",
    "train --resume run --quiet", "inspect run --quiet --most 3", "report run -o page.html",
    "predict run --support support --query query --out p.csv",
    "diagnose run --pool 4 --draws 2 --quiet",
)  # fmt: skip
STORE_COMMANDS = (
    "data info store", "data verify store", "evaluate run", "inspect run --quiet --most 3",
    "data corrupt store wrong --rate 0.3", f"train --data store --out new {' '.join(TRAIN)}",
)  # fmt: skip
PREPARE = ("data prepare {} made --size 8 --workers 1",
           "data prepare {} made --size 8 --workers 1 --skip-broken")  # fmt: skip
FEATURES = ("data prepare {} made", "inspect --features {} --out seen --quiet --most 3")
PREDICT = ("predict model.safetensors --support support --query query --out p.csv",)
NEEDED = ("run", "store", "support", "query")
Changer = Callable[[Random, bytes], bytes]
KINDS: dict[str, tuple[str, Changer, tuple[str, ...]]] = {
    "config": ("run/config.toml", change_toml, RUN_COMMANDS),
    "given config": ("given.toml", change_toml, (f"train --config given.toml --out new {SHORT}",)),
    "events": ("run/events.jsonl", change_lines, RUN_COMMANDS),
    "result": ("run/result.json", change_json, RUN_COMMANDS),
    "run's data": ("run/data.json", change_json, RUN_COMMANDS),
    "checkpoint": ("run/checkpoints/*.ckpt", change_checkpoint, RUN_COMMANDS),
    "round": ("run/rounds/*.safetensors", change_safetensors, RUN_COMMANDS[-3:-2]),
    "store": ("store/store.json", change_json, STORE_COMMANDS),
    "store's images": ("store/train.npy", change_npy, STORE_COMMANDS),
    "store's labels": ("store/train_labels.npy", change_npy, STORE_COMMANDS),
    "store's names": ("store/train_names.json", change_json, STORE_COMMANDS[3:4]),
    "true labels": ("store/true_labels.npy", change_npy, ("inspect run --quiet --score --most 3",)),
    "model": ("model.safetensors", change_safetensors, PREDICT),
    "selection": ("selection.json", change_json, ("selection",)),
    "pool": ("pool.safetensors", change_safetensors, ("pool",)),
    "matrix": ("g.npy", change_npy, ("select g.npy --k 3 --out s.json",
                                     "select g.npy --k 3 --out s.json --engine stochastic")),
    "review": ("review.csv", change_csv, ("clean run cleaned --quiet --apply review.csv",)),
    "confusions": ("c.csv", change_csv, ("data corrupt store wrong --noise confusion:c.csv",)),
    "results": ("known/reproduce-table1.json", change_json,
                ("reproduce table1 --report --from known --out grid --seeds 1",
                 "reproduce table1 --dry-run --known known --out grid --seeds 1 --dataset glyphs")),
    "comparison": ("found.json", change_json, ("comparison",)),
    "features": ("rows.npz", change_npz, tuple(one.format("rows.npz") for one in FEATURES)),
    "features' array": ("rows/x.npy", change_npy,
                        tuple(one.format("rows/x.npy") for one in FEATURES)),
    "features' labels": ("rows/labels.csv", change_csv,
                         tuple(one.format("rows/x.npy") for one in FEATURES)),
    "weights": ("w.safetensors", change_safetensors, ("weights",)),
    "state dict": ("w.pth", change_state, ("state dict",)),
    "journal": ("half/made.partial/journal", change_journal,
                ("data prepare half/photos half/made --size 8 --workers 1",)),
    "tiered images": ("tiered/train_images_png.pkl", change_pickle,
                      tuple(one.format("tiered") for one in PREPARE)),
    "tiered labels": ("tiered/train_labels.pkl", change_pickle,
                      tuple(one.format("tiered") for one in PREPARE)),
    "csv source": ("mini/train.csv", change_csv, tuple(one.format("mini") for one in PREPARE)),
    "pickle": ("cache/mini-imagenet-cache-train.pkl", change_pickle,
               tuple(one.format("cache") for one in PREPARE)),
    "pack": ("pack/train_0.npz", change_npz, tuple(one.format("pack") for one in PREPARE)),
    "images": ("photos/*/*.png", damaged, tuple(one.format("photos") for one in PREPARE)),
    "query images": (
        "query/*.png",
        damaged,
        (RUN_COMMANDS[-2], f"{RUN_COMMANDS[-2]} --skip-broken"),
    ),
}  # fmt: skip


def make_world(folder: Path) -> None:
    """One of every file that derts reads, each as it should be."""
    random = np.random.default_rng(0)
    for number in range(14):
        for image in range(4):
            place = folder / "photos" / f"class-{number}" / f"{image}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 255, (12, 12, 3), np.uint8)).save(place)
    for number in (0, 1):
        shutil.copytree(folder / "photos" / f"class-{number}", folder / "support" / f"c{number}")
    shutil.copytree(folder / "photos" / "class-2", folder / "query")
    shutil.copytree(folder / "photos" / "class-3", folder / "mini" / "images")
    for split in ("train", "val", "test"):
        rows = "filename,label\n0.png,a\n1.png,a\n2.png,b\n3.png,b\n"
        (folder / "mini" / f"{split}.csv").write_text(rows)
    (folder / "cache").mkdir()
    pixels = random.integers(0, 255, (4, 8, 8, 3)).astype(np.uint8)
    fields = {"image_data": pixels, "class_dict": {"cat": [0, 1], "dog": [2, 3]}}
    (folder / "cache" / "mini-imagenet-cache-train.pkl").write_bytes(pickle.dumps(fields, 4))
    (folder / "pack").mkdir()
    png = (folder / "query" / "0.png").read_bytes()
    np.savez(
        folder / "pack" / "train_0.npz",
        data=np.frombuffer(png * 4, np.uint8), offsets=np.arange(5) * len(png),
        labels=np.array([0, 0, 1, 1]), class_names=["cat", "dog"], categories=["pet", "pet"],
    )  # fmt: skip
    (folder / "tiered").mkdir()
    pngs = [np.frombuffer(png, np.uint8)] * 4
    labels = {
        "label_specific": np.array([0, 0, 1, 1]), "label_general": np.zeros(4, np.int64),
        "label_specific_str": ["cat", "dog"], "label_general_str": ["pet"],
    }  # fmt: skip
    for name, held in (("images_png", pngs), ("labels", labels)):
        (folder / "tiered" / f"train_{name}.pkl").write_bytes(pickle.dumps(held, 4))
    (folder / "rows").mkdir()
    matrix = random.normal(size=(24, 4)).astype(np.float32)
    classes = [f"c{row % 6}" for row in range(24)]
    np.savez(folder / "rows.npz", features=matrix, labels=classes)
    np.save(folder / "rows" / "x.npy", matrix)
    (folder / "rows" / "labels.csv").write_text("\n".join(classes) + "\n")
    small = SMALL()
    save_file(small.state_dict(), folder / "w.safetensors")
    torch.save(small.state_dict(), folder / "w.pth")
    found = {"variant": "derts", "accuracy": 50.0, "ms_per_update": 1.0, "selection_share": 0.1}
    runs = [{**found, "seed": seed, "noise": {"kept": 0.5}} for seed in (0, 1)]
    Comparison([*runs, {**runs[0], "variant": "random"}]).save(folder / "found.json")
    shutil.copytree(folder / "photos", folder / "half" / "photos")
    with (
        patch("derts.data.prepare._Preparation.finish", side_effect=DertsError("stopped")),
        contextlib.suppress(DertsError),
    ):
        prepare(folder / "half" / "photos", folder / "half" / "made", size=8, workers=1)
    assert (folder / "half" / "made.partial" / "journal").is_file()
    quiet = io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(quiet),
        contextlib.redirect_stderr(quiet),
    ):
        for words in (
            "data prepare photos plain --size 16 --workers 1",
            "data corrupt plain store --rate 0.3",
            f"train --data store --out run {' '.join(TRAIN)}",
            "export run model.safetensors",
        ):
            assert run(words.split()) == 0, quiet.getvalue()
        shutil.copy("run/config.toml", "given.toml")
        np.save("g.npy", np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32))
        select(np.load("g.npy"), 4).save("selection.json")
        table = open_data("store")["train"]
        TaskPool.sample(table, tasks=3, way=2, shot=1, query=1, seed=0).save("pool.safetensors")
        names = (
            json.loads(Path("store/train_names.json").read_text())
            if Path("store/train_names.json").exists()
            else None
        )
        path = names[0] if names else f"train/{table.class_names[int(table.labels[0])]}/0"
        Path("review.csv").write_text(
            f"path,split,class,decision,new class\n{path},train,x,drop,\n"
        )
        Path("c.csv").write_text(
            f"class,given,share\n{table.class_names[0]},{table.class_names[1]},0.5\n"
        )
        known = Path(__file__).parents[1] / "results" / "reproduce-table1.json"
        Path("known").mkdir()
        shutil.copy(known, "known")


# --- one case ------------------------------------------------------------------------------------


class TooSlowError(BaseException):
    """A case took longer than SECONDS; nothing may catch it."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlowError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def newest(pattern: str) -> Path:
    return sorted(Path().glob(pattern))[-1]


def read_run() -> None:
    story = RunStory(Run.open("run"))
    groups = group_runs([story])
    comparison_of(groups).table()
    settings_table(groups)
    assert story.status


def read_store() -> None:
    describe_store("store").lines()
    open_store("store")


@cache
def judged(world: Path) -> JudgedItems:
    """The world's images, judged once: reading a review needs to know them."""
    tables = open_data(str(world / "store"))
    return judge_items(open_trainer(world / "run", tables).learner, tables, str(world / "store"))


WORLD: list[Path] = []
CALLS: dict[str, Callable[[], object]] = {
    "config": lambda: read_config("run/config.toml").resolved(),
    "given config": lambda: read_config("given.toml").resolved(),
    "events": read_run,
    "result": read_run,
    "run's data": lambda: Run.open("run").data(),
    "checkpoint": lambda: load_checkpoint(newest("run/checkpoints/*.ckpt")),
    "round": lambda: RoundRecord.load(newest("run/rounds/*.safetensors")),
    "store": read_store,
    "store's images": read_store,
    "store's labels": read_store,
    "store's names": lambda: item_names("store", "train"),
    "true labels": lambda: true_labels("store", judged(WORLD[0]).tables["train"]),
    "model": lambda: load_model("model.safetensors"),
    "selection": lambda: list(Selection.load("selection.json").batches(torch.arange(12), 2)),
    "pool": lambda: relabel_by_votes(TaskPool.load("pool.safetensors")),
    "comparison": lambda: Comparison.load("found.json"),
    "features": lambda: read_matrix("rows.npz").check(),
    "features' array": lambda: read_matrix("rows/x.npy").check(),
    "features' labels": lambda: read_matrix("rows/x.npy").check(),
    "weights": lambda: _fill(SMALL(), "small", "w.safetensors", "head"),
    "state dict": lambda: _fill(SMALL(), "small", "w.pth", "head"),
    "review": lambda: read_review(Path("review.csv"), judged(WORLD[0])),
    "results": lambda: load_results(Path("known/reproduce-table1.json")),
}
"""The function that reads a file; commands take longer."""


def answer(words: str) -> tuple[int, str, str]:
    """A command's exit code, output and errors; of a library call, as the command line would."""
    from derts import cli

    said, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told), limited():
        if words in CALLS:
            with contextlib.ExitStack() as stack:
                stack.callback(setattr, cli, "dispatch", cli.dispatch)
                cli.dispatch = lambda _: (CALLS[words](), 0)[1]  # type: ignore[assignment]
                code = run([])
        else:
            code = run(words.split())
    return code, said.getvalue(), told.getvalue()


def wrong(code: int, said: str, told: str) -> str:
    """What a command's answer lacks; nothing where it is as promised."""
    lines = [line for line in told.splitlines() if ": going on from the one before" not in line]
    titles = ("preparing: ", "training: ", "verifying: ", "inspecting: ", "checking: ")
    lines = [line for line in lines if not line.startswith(titles)]
    bad = [line for line in (*said.split("\n"), *told.split("\n")) if not line.isprintable()]
    if bad:
        return f"not printable: {bad[0]!r}"
    if code == 2 and (len(lines) != 1 or not lines[0].startswith("derts: ")):
        return f"not one line: {lines}"
    return "" if code in (0, 2) else f"exit code {code}"


def try_case(number: int, world: Path) -> tuple[str, str, str]:
    """The kind of a case, how it ended, and the failure where it is one."""
    random = np.random.default_rng([number, 20])
    kind = list(KINDS)[number % len(KINDS)]
    pattern, change, commands = KINDS[kind]
    words = commands[random.integers(len(commands))]
    if kind in CALLS and random.random() > COMMAND_SHARE:
        words = kind
    with TemporaryDirectory() as folder:
        place = Path(folder) / "case"
        place.mkdir()
        needed = {pattern.split("/")[0], *(("store",) if words in CALLS else NEEDED)}
        for name in needed:
            one = world / name
            (shutil.copytree if one.is_dir() else shutil.copy)(one, place / name)
        files = sorted(place.glob(pattern))
        if not files:
            return kind, "no such file", ""
        file = files[random.integers(len(files))]
        whole = file.read_bytes()
        content = damaged(random, whole)
        if random.random() < 0.8:
            with contextlib.suppress(Exception):  # a value that the format cannot hold
                content = change(random, whole)
        file.write_bytes(content)
        before = os.getcwd()
        os.chdir(place)
        try:
            with contextlib.nullcontext() if random.random() < 0.1 else no_drawing():
                code, said, told = answer(words)
            cause = wrong(code, said, told)
        except SystemExit as stop:
            code, cause = 0, f"SystemExit {stop.code}" if stop.code else ""
        except TooSlowError:
            code, cause = 1, f"longer than {SECONDS} s"
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            where = traceback.extract_tb(error.__traceback__)[-1]
            trace = "".join(traceback.format_exception(error)[-6:]).strip()[-1500:]
            code, cause = 1, f"{type(error).__name__}: {error} at {where.name}\n{trace}"
        finally:
            os.chdir(before)
    failure = f"case {number} ({kind}: {words}): {cause}" if cause else ""
    return kind, "failed" if cause else "refused" if code == 2 else "taken", failure


@contextlib.contextmanager
def no_drawing() -> Iterator[None]:
    """Without matplotlib, which takes longer than all else of a command."""
    with (
        patch("derts.report.page.draw_figures", lambda groups: FigureSheet()),
        patch("derts.report.pictures.draw_sheet", lambda *_: None),
        patch("derts.diagnosis.draw_diagnosis", lambda *_: None),
    ):
        yield


def check_commands(world: Path) -> None:
    """Every command must do its work on files that are as they should be."""
    for words in dict.fromkeys(words for *_, commands in KINDS.values() for words in commands):
        with (
            TemporaryDirectory() as folder,
            contextlib.chdir(shutil.copytree(world, Path(folder, "c"))),
        ):
            if words.startswith("train --resume"):
                Path("run/result.json").unlink()
            started = time.monotonic()
            code, _, told = answer(words)
            print(f"{time.monotonic() - started:.2f} s  {words[:70]}", file=sys.stderr)
            assert code == 0, (words, told)


def main(options: Options) -> None:
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    failures: list[str] = []
    started = time.monotonic()
    inspecting.FIRST = 2
    with TemporaryDirectory() as folder:
        world = Path(folder) / "world"
        world.mkdir()
        make_world(world)
        check_commands(world)
        WORLD.append(world)
        judged(world)
        for number in range(options.first, options.first + options.cases):
            try:
                kind, ending, failure = try_case(number, world)
            except KeyboardInterrupt:
                break  # what was tried so far is written
            counts[kind][ending] += 1
            if failure:
                failures.append(failure[:600])
                print(failure, file=sys.stderr, flush=True)
            if number % 500 == 499:
                told = f"{number + 1} cases, {len(failures)} failures"
                print(f"{told}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    write_json(
        options.out,
        {
            "cases": sum(found.total() for found in counts.values()),
            "first": options.first,
            "kinds": {kind: dict(found) for kind, found in counts.items()},
            "failures": failures,
            "seconds": round(time.monotonic() - started),
            "code": code_version(),
            "machine": machine(),
        },
    )
    assert not failures, f"{len(failures)} cases failed"


if __name__ == "__main__":
    main(tyro.cli(Options))
