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

from derts.data.safe_pickle import load_pickle
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
    [back] = load_pickle(path)
    assert back.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
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
    assert [array.sum() for array in loaded["o"]] == [0, 3]


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


def test_one_array_in_two_places(tmp_path: Path) -> None:
    array = np.arange(2000)
    first, second = load_pickle(write(tmp_path, pickle.dumps([array, array], protocol=4)))
    assert first is second
    np.testing.assert_array_equal(first, array)


def test_python_2_strings(tmp_path: Path) -> None:
    path = write(tmp_path, python_2_array(b"\xff\x00\x80"))
    np.testing.assert_array_equal(load_pickle(path), [255, 0, 128])


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
    with pytest.raises(DertsError, match="does not fill its shape"):
        load_pickle(path)
    huge = b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"abc"
    with pytest.raises(DertsError, match="cut short"):
        load_pickle(write(tmp_path, huge))
