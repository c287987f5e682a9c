"""Pickles of arrays and plain containers, read without trust and without loading the arrays.

Some data sets are only to be had as pickles, and a pickle can name any function to call. Here
a name is looked up in a short list of our own stand-ins, never imported: each notes what it is
told, and does no more. Long strings are left where they are: an array becomes its place in the
file, so a pickle of 450,000 images takes the memory of 450,000 places.
"""

from __future__ import annotations

import math
import pickle
import re
import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from derts.data.packs import write_blocks
from derts.data.sources import FlatArray
from derts.errors import DertsError

_DTYPE = re.compile(r"[|<>=]?(?:[?bBhHiIlLqQefdSUO]|[biufSUO]\d+)")
_ORDER = re.compile(r"[|<>=]")
_LONG = 256  # bytes; shorter strings are worth having at once


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of the file."""

    offset: int
    length: int

    def read(self, path: Path) -> bytes:
        """The bytes, from the pickle at `path`."""
        with path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.length)


class PickledArray:
    """An array's description: its dtype, its shape and where its values are."""

    __slots__ = ("dtype", "is_fortran", "shape", "values")

    def __init__(self, state: Any = None) -> None:
        self.shape: tuple[int, ...] = ()
        self.dtype: np.dtype[Any] = np.dtype(np.uint8)
        self.is_fortran = False
        self.values: Stretch | bytes | list[Any] = b""
        if state is not None:
            self.set_state(state)

    def set_state(self, state: Any) -> None:
        """Take what the pickle says of the array: (version, shape, dtype, is_fortran, values)."""
        _, self.shape, dtype, self.is_fortran, values = state
        if type(self.shape) is not tuple or not all(
            type(side) is int and side >= 0 for side in self.shape
        ):
            raise pickle.UnpicklingError("an array's shape is no tuple of whole numbers")
        self.dtype = dtype.numpy()
        # Python 2 wrote bytes as strings.
        self.values = values.encode("latin-1") if isinstance(values, str) else values
        if (self.dtype.kind == "O") != isinstance(self.values, list):
            raise pickle.UnpicklingError("an array's values do not fit its dtype")

    def content(self, path: Path) -> bytes:
        """The bytes of the values, from the pickle at `path`; not for arrays of objects."""
        values = self.values
        if isinstance(values, list):
            raise DertsError(f"{path} has an array of objects where numbers belong: rebuild it")
        return values.read(path) if isinstance(values, Stretch) else values

    def numpy(self, path: Path) -> NDArray[Any]:
        """The array itself, read from the pickle at `path`."""
        content = self.content(path)
        self._check_length(path, len(content))
        flat: NDArray[Any] = np.frombuffer(content, self.dtype)
        return flat.reshape(self.shape, order="F" if self.is_fortran else "C")

    def flat(self, path: Path, scratch: Path) -> FlatArray:
        """The array where it lies, or, if it was not written as bytes, copied into `scratch`."""
        if self.is_fortran and len(self.shape) > 1:
            raise DertsError(f"{path} holds its images in Fortran order: rebuild it in C order")
        if isinstance(self.values, Stretch):
            self._check_length(path, self.values.length)
            return FlatArray(path, self.values.offset, self.shape, self.dtype)
        content = self.content(path)
        self._check_length(path, len(content))
        copy = scratch / f"{path.stem}.flat"
        write_blocks(copy, iter([content]))
        return FlatArray(copy, 0, self.shape, self.dtype)

    def _check_length(self, path: Path, length: int) -> None:
        if length != math.prod(self.shape) * self.dtype.itemsize:
            raise DertsError(f"{path} has an array that does not fill its shape: download it again")


class PickledDtype:
    """A dtype while its pickle is read: the code comes first, the byte order later."""

    def __init__(self, code: Any, *_: Any) -> None:
        text = code.decode("latin-1") if isinstance(code, bytes) else code
        if not isinstance(text, str) or not _DTYPE.fullmatch(text):
            raise pickle.UnpicklingError(f"the dtype {text!r:.40}")
        self.code, self.order = text, ""

    def set_state(self, state: Any) -> None:
        if state[2:5] != (None, None, None) or not _ORDER.fullmatch(str(state[1])):
            raise pickle.UnpicklingError("a structured dtype")
        self.order = state[1]
        if self.code in ("S", "U") and state[5] > 0:  # Python 2 gave the length apart
            self.code += str(state[5] // (4 if self.code == "U" else 1))

    def numpy(self) -> np.dtype[Any]:
        dtype = np.dtype(self.code)
        return dtype if self.order in ("", "|") else dtype.newbyteorder(self.order)  # type: ignore[arg-type]


def _make_array(*_: Any) -> PickledArray:
    return PickledArray()


def _array_from_buffer(values: Any, dtype: PickledDtype, shape: Any, order: str) -> PickledArray:
    return PickledArray((1, shape, dtype, order == "F", values))


def _make_scalar(dtype: PickledDtype, values: Any) -> Any:
    content = values.encode("latin-1") if isinstance(values, str) else values
    return np.frombuffer(content, dtype.numpy(), count=1)[0].item()


def _encode(text: Any, encoding: str = "latin1") -> bytes:
    """What Python 3 calls to write bytes at protocol 2."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"the encoding {encoding!r:.40}")
    return str.encode(text, "latin-1")


def _no_bytes() -> bytes:
    """What Python 3 calls to write empty bytes at protocol 2."""
    return b""


def _no_class(*_: Any) -> None:
    raise pickle.UnpicklingError("an array made by calling its class")


STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): PickledDtype,
    ("numpy", "ndarray"): _no_class,  # only ever an argument of _reconstruct
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "bytes"): _no_bytes,
    ("__builtin__", "bytes"): _no_bytes,
}
for _package in ("numpy.core", "numpy._core"):
    STAND_INS[f"{_package}.multiarray", "_reconstruct"] = _make_array
    STAND_INS[f"{_package}.multiarray", "scalar"] = _make_scalar
    STAND_INS[f"{_package}.numeric", "_frombuffer"] = _array_from_buffer


class _ForbiddenError(Exception):
    """A pickle that wants what plain data never needs."""


# The pure-Python unpickler: only there can single opcodes be replaced.
class _SafeUnpickler(pickle._Unpickler):
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]

    def __init__(self, file: BinaryIO, size: int) -> None:
        super().__init__(file, encoding="latin-1")
        self._source, self._size = file, size

    def find_class(self, module: str, name: str, /) -> Any:
        try:
            return STAND_INS[module, name]
        except KeyError:
            raise _ForbiddenError(_one_line(f"{module}.{name}")) from None

    def persistent_load(self, pid: Any) -> Any:
        raise _ForbiddenError("a persistent id")

    def _no_extension(self) -> None:
        raise _ForbiddenError("the extension registry")

    def _no_instance(self) -> None:
        raise _ForbiddenError("an instance of a class")

    def _skip_frame(self) -> None:
        # Frames only say how much to read ahead. Without them a position is one in the file.
        self._source.read(8)

    def _build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if not isinstance(target, (PickledArray, PickledDtype)):
            raise _ForbiddenError(f"a state for a {type(target).__name__}")
        target.set_state(state)

    def _bytes(self, size_format: str) -> None:
        (length,) = struct.unpack(size_format, self._source.read(struct.calcsize(size_format)))
        offset = self._source.tell()
        if not 0 <= length <= self._size - offset:
            raise EOFError
        if length < _LONG:
            self.stack.append(self._source.read(length))
        else:
            self.stack.append(Stretch(offset, length))
            self._source.seek(offset + length)

    dispatch[pickle.BINBYTES[0]] = partial(_bytes, size_format="<I")
    dispatch[pickle.BINBYTES8[0]] = partial(_bytes, size_format="<Q")
    dispatch[pickle.BYTEARRAY8[0]] = partial(_bytes, size_format="<Q")
    dispatch[pickle.BINSTRING[0]] = partial(_bytes, size_format="<i")
    dispatch[pickle.FRAME[0]] = _skip_frame
    dispatch[pickle.BUILD[0]] = _build
    for _opcode in (pickle.EXT1, pickle.EXT2, pickle.EXT4):
        dispatch[_opcode[0]] = _no_extension
    for _opcode in (pickle.INST, pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX):
        dispatch[_opcode[0]] = _no_instance


def load_pickle(path: Path) -> Any:
    """The pickle's containers and scalars, with a PickledArray for every array.

    >>> import pickle, tempfile
    >>> import numpy as np
    >>> path = Path(tempfile.mkdtemp()) / "a.pkl"
    >>> _ = path.write_bytes(pickle.dumps({"labels": np.arange(3, dtype=np.int32)}))
    >>> load_pickle(path)["labels"].numpy(path)
    array([0, 1, 2], dtype=int32)
    """
    try:
        with path.open("rb") as file:
            return _SafeUnpickler(file, path.stat().st_size).load()
    except _ForbiddenError as error:
        raise DertsError(
            f"{path} asks for {error}, which is no part of plain data, and nothing of it was run: "
            "get the file from a source you trust"
        ) from None
    except OSError as error:
        raise DertsError(f"cannot read {path} ({error.strerror}): check the file") from error
    except Exception as error:
        reason = _one_line(str(error)) or type(error).__name__
        raise DertsError(
            f"{path} is cut short or no pickle of arrays ({reason}): download it again"
        ) from error


def load_fields(path: Path) -> dict[str, Any]:
    """A pickled dictionary, its keys as text; empty where the pickle holds no dictionary."""
    content = load_pickle(path)
    return {as_text(k, path): v for k, v in content.items()} if isinstance(content, dict) else {}


def as_list(values: Any, path: Path) -> list[Any]:
    """A pickled list, or an array of the pickle at `path`, as a list."""
    if isinstance(values, PickledArray):
        if not isinstance(values.values, list):
            return list(values.numpy(path).reshape(-1).tolist())
        values = values.values
    if not isinstance(values, (list, tuple, range)):
        raise DertsError(f"{path} has a {type(values).__name__} for a list: download it again")
    return list(values)


def as_text(value: Any, path: Path) -> str:
    """A pickled name or number as text; Python 2 wrote names as bytes."""
    if isinstance(value, Stretch):
        value = value.read(path)
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _one_line(text: str) -> str:
    """Text from an untrusted file, fit to be shown."""
    return text[:100].encode("unicode_escape").decode("ascii")
