"""For soak_fuzz.py: values of the wrong kind, and a changer per format: bytes in, others out."""

from __future__ import annotations

import contextlib
import copy
import csv
import hashlib
import io
import json
import math
import pickle
import struct
import tomllib
from typing import Any

import numpy as np
import torch

from derts.training.checkpoint import MAGIC

Random = np.random.Generator


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
