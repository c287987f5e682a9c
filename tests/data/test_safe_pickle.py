"""Pickles: every common form of arrays is read, and nothing in a pickle is ever run."""

from __future__ import annotations

import pickle
import pickletools
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from derts.data.safe_pickle import PickledArray, load_pickle
from derts.errors import DertsError

PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)


def write(folder: Path, content: bytes) -> Path:
    path = folder / "a.pkl"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.uint8).reshape(2, 3),
        np.arange(6000, dtype=np.uint8).reshape(-1, 1),
        np.asfortranarray(np.arange(600, dtype=np.float32).reshape(20, 30)),
        np.array([1, -2], dtype=">i4"),
        np.array(["a", "né"]),
        np.array([b"a", b"bc"]),
        np.array(True),
        np.zeros((0, 3)),
    ],
    ids=str,
)
def test_arrays_come_back(tmp_path: Path, array: np.ndarray[Any, Any], protocol: int) -> None:
    path = write(tmp_path, pickle.dumps([array], protocol=protocol))
    [loaded] = load_pickle(path)
    back = loaded.numpy(path)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_content_comes_back(tmp_path: Path, protocol: int) -> None:
    content = {
        "a": [1, 2.5, None, True],
        b"b": ("x", {"y"}),
        "o": OrderedDict(k=2**70),
        "é": b"\xff",
    }
    if protocol < 4:
        content[b"b"] = ("x",)
    if protocol < 2:
        content.pop("o")
        content["a"] = [1]
    path = write(tmp_path, pickle.dumps(content, protocol=protocol))
    assert load_pickle(path) == content


def test_scalars_and_object_arrays(tmp_path: Path) -> None:
    objects = np.empty(2, dtype=object)
    objects[0], objects[1] = np.zeros(400, np.uint8), np.ones(3, np.uint8)
    path = write(tmp_path, pickle.dumps({"n": np.int64(7), "o": objects}, protocol=2))
    loaded = load_pickle(path)
    assert loaded["n"] == 7
    held = loaded["o"].values
    assert [array.numpy(path).sum() for array in held] == [0, 3]


def python_2_array(content: bytes, code: bytes = b"u1") -> bytes:
    """An array as Python 2 wrote it: raw byte strings."""
    return (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85U\x01b"
        b"\x87Rq\x03(K\x01K"
        + bytes([len(content) % 256 or 0])
        + b"\x85cnumpy\ndtype\nq\x04U\x02"
        + code
        + b"K\x00K\x01\x87Rq\x05(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + b"U"
        + bytes([len(content)])
        + content
        + b"tb."
    )


def test_python_2_strings(tmp_path: Path) -> None:
    path = write(tmp_path, python_2_array(b"\xff\x00\x80"))
    np.testing.assert_array_equal(load_pickle(path).numpy(path), [255, 0, 128])


class Call:
    """Pickles as a call of any function."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced


def calls(marker: Path) -> dict[str, bytes]:
    import functools
    import importlib
    import operator
    import os
    import subprocess

    touch = f"touch {marker}"

    def stack_global(module: str, name: str, argument: bytes) -> bytes:
        text = b"".join(b"\x8c" + bytes([len(t)]) + t.encode() for t in (module, name))
        return b"\x80\x04" + text + b"\x93" + argument + b"\x85R."

    short = b"\x8c" + bytes([len(touch)]) + touch.encode()
    python = f"open({str(marker)!r}, 'w')"
    return {
        "os.system": pickle.dumps(Call(os.system, (touch,))),
        "os.system, protocol 0": f"cos\nsystem\n(S'{touch}'\ntR.".encode(),
        "inst": f"(S'{touch}'\nios\nsystem\n.".encode(),
        "obj": f"(cos\nsystem\nS'{touch}'\no.".encode(),
        "newobj": f"\x80\x02csubprocess\nPopen\nS'{touch}'\n\x85\x81.".encode("latin-1"),
        "eval": pickle.dumps(Call(eval, (python,))),
        "exec": pickle.dumps(Call(exec, (python,))),
        "Popen": pickle.dumps(Call(subprocess.Popen, (["touch", str(marker)],))),
        "partial": pickle.dumps(Call(functools.partial, (os.system, touch))),
        "attrgetter": pickle.dumps(operator.attrgetter("system")),
        "import_module": pickle.dumps(Call(importlib.import_module, ("antigravity",))),
        "getattr": b"cbuiltins\ngetattr\n(S'a'\nS'upper'\ntR.",
        "nested": pickle.dumps([np.zeros(3), {"a": Call(os.system, (touch,))}]),
        "numpy.load": stack_global("numpy", "load", short),
        "numpy.f2py": b"cnumpy.f2py.diagnose\nrun_command\n(S'id'\ntR.",
        "numpy testing": b"cnumpy.testing._private.utils\nrunstring\n(S'1'\n}tR.",
        "dotted": stack_global("numpy", "ndarray.tofile", short),
        "dotted codecs": stack_global("_codecs", "encode.__globals__", short),
        "calls ndarray": b"cnumpy\nndarray\n(I1000000000000\ntR.",
        "codec": b"c_codecs\nencode\n(S'a'\nS'zip'\ntR.",
        "persistent id": b"Pid\n.",
        "binary persistent id": b"\x80\x02K\x01Q.",
        "extension 1": b"\x80\x02\x82\x01.",
        "extension 2": b"\x80\x02\x83\x01\x00.",
        "extension 4": b"\x80\x02\x84\x01\x00\x00\x00.",
        "build on a list": b"]}S'append'\nI1\nsb.",
        "build on a class": b"ccollections\nOrderedDict\n}S'x'\nI1\nsb.",
        "structured dtype": pickle.dumps(np.zeros(2, dtype=[("a", "i4")])),
        "dtype by evaluation": b"cnumpy\ndtype\n(S'f4,(2,3)f8'\ntR.",
        "a path": pickle.dumps(Path("a")),
        "state by setstate": pickle.dumps(Call(Call, (), {"reduced": ()})),
    }


@pytest.mark.parametrize("trick", calls(Path("x")))
def test_tricks_are_refused(tmp_path: Path, trick: str) -> None:
    marker = tmp_path / "executed"
    path = write(tmp_path, calls(marker)[trick])
    with pytest.raises(DertsError) as caught:
        load_pickle(path)
    assert not marker.exists()
    assert "\n" not in str(caught.value)


def test_message_names_the_global(tmp_path: Path) -> None:
    path = write(tmp_path, b"cos\nsystem\n(S'id'\ntR.")
    with pytest.raises(DertsError, match=r"asks for os\.system"):
        load_pickle(path)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_truncated_everywhere(tmp_path: Path, protocol: int) -> None:
    whole = pickle.dumps({"data": np.zeros(5000, np.uint8), "labels": [1, 2]}, protocol=protocol)
    ends = {place or 0 for _, _, place in pickletools.genops(whole)} | {len(whole) // 2}
    for end in sorted(ends):
        with pytest.raises(DertsError, match="download it again"):
            load_pickle(write(tmp_path, whole[:end]))


def test_arrays_that_lie_about_their_length(tmp_path: Path) -> None:
    path = write(tmp_path, python_2_array(b"abc").replace(b"K\x03\x85", b"K\x09\x85"))
    loaded = load_pickle(path)
    assert isinstance(loaded, PickledArray)
    with pytest.raises(DertsError, match="does not fill its shape"):
        loaded.numpy(path)
    huge = b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"abc"
    with pytest.raises(DertsError, match="cut short"):
        load_pickle(write(tmp_path, huge))
