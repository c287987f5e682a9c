"""Pickles of arrays and plain containers, read without trust and without loading the arrays.

Some data sets are only to be had as pickles, and a pickle can name any function to call. Here
a name is looked up in a short list of our own stand-ins, never imported. The long payloads are
left where they are: an array becomes its place in the file, so a pickle of 450,000 images
takes the memory of 450,000 places. Worker processes may import this: no torch.
"""

from __future__ import annotations

import math
import pickle
import re
import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from derts.errors import DertsError

# Shorter texts (labels, class names) and byte strings are worth having at once.
_LONG_TEXT, _LONG_BYTES = 1024, 256
_DTYPE = re.compile(r"[|<>=]?(?:[?bBhHiIlLqQefdSUO]|[biufSUO]\d+)")
_ORDER = re.compile(r"[|<>=]")


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of the file: raw bytes, or latin-1 text in UTF-8 where is_text."""

    offset: int
    length: int
    is_text: bool = False


class PickledArray:
    """An array's description: its dtype, its shape and where its values are."""

    __slots__ = ("dtype", "is_fortran", "shape", "values")

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()
        self.dtype: np.dtype[Any] = np.dtype(np.uint8)
        self.is_fortran = False
        self.values: Stretch | bytes | list[Any] = b""

    def set_state(self, state: Any) -> None:
        _, self.shape, dtype, self.is_fortran, values = state
        if type(self.shape) is not tuple or not all(type(side) is int for side in self.shape):
            raise pickle.UnpicklingError("an array's shape is no tuple of whole numbers")
        self.dtype = dtype.numpy()
        # Python 2 wrote bytes as strings.
        self.values = values.encode("latin-1") if isinstance(values, str) else values
        if (self.dtype.kind == "O") != isinstance(self.values, list):
            raise pickle.UnpicklingError("an array's values do not fit its dtype")

    def numpy(self, path: Path) -> NDArray[Any]:
        """The array itself, read from the pickle at `path`; not for arrays of objects."""
        values = self.values
        if isinstance(values, list):
            raise DertsError(f"{path} has an array of objects where numbers belong: rebuild it")
        content = read_stretch(path, values) if isinstance(values, Stretch) else values
        if len(content) != math.prod(self.shape) * self.dtype.itemsize:
            raise DertsError(f"{path} has an array that does not fill its shape: download it again")
        flat: NDArray[Any] = np.frombuffer(content, self.dtype)
        return flat.reshape(self.shape, order="F" if self.is_fortran else "C")


class _Dtype:
    """A dtype while its pickle is read: the code comes first, the byte order later."""

    def __init__(self, code: str) -> None:
        self.code, self.order = code, ""

    def set_state(self, state: Any) -> None:
        if state[2:5] != (None, None, None) or not _ORDER.fullmatch(str(state[1])):
            raise pickle.UnpicklingError("a structured dtype")
        self.order = state[1]
        if self.code in ("S", "U") and state[5] > 0:  # Python 2 gave the length apart
            self.code += str(state[5] // (4 if self.code == "U" else 1))

    def numpy(self) -> np.dtype[Any]:
        dtype = np.dtype(self.code)
        return dtype if self.order in ("", "|") else dtype.newbyteorder(self.order)  # type: ignore[arg-type]


def _make_dtype(code: Any, *_: Any) -> _Dtype:
    text = code.decode("latin-1") if isinstance(code, bytes) else code
    if not isinstance(text, str) or not _DTYPE.fullmatch(text):
        raise pickle.UnpicklingError(f"the dtype {text!r:.40}")
    return _Dtype(text)


def _make_array(*_: Any) -> PickledArray:
    return PickledArray()


def _array_from_buffer(values: Any, dtype: _Dtype, shape: Any, order: str) -> PickledArray:
    array = PickledArray()
    array.set_state((1, shape, dtype, order == "F", values))
    return array


def _make_scalar(dtype: _Dtype, values: Any) -> Any:
    content = values.encode("latin-1") if isinstance(values, str) else values
    return np.frombuffer(content, dtype.numpy(), count=1)[0].item()


def _encode(text: Any, encoding: str = "latin1") -> bytes | Stretch:
    """What Python 3 calls to write bytes at protocol 2."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"the encoding {encoding!r:.40}")
    if isinstance(text, Stretch):
        return text
    encoded: bytes = str.encode(text, "latin-1")
    return encoded


def _no_bytes() -> bytes:
    """What Python 3 calls to write empty bytes at protocol 2."""
    return b""


def _no_class(*_: Any) -> None:
    raise pickle.UnpicklingError("an array made by calling its class")


_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _make_dtype,
    ("numpy", "ndarray"): _no_class,  # only ever an argument of _reconstruct
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "bytes"): _no_bytes,
    ("__builtin__", "bytes"): _no_bytes,
}
for _package in ("numpy.core", "numpy._core"):
    _STAND_INS[f"{_package}.multiarray", "_reconstruct"] = _make_array
    _STAND_INS[f"{_package}.multiarray", "scalar"] = _make_scalar
    _STAND_INS[f"{_package}.numeric", "_frombuffer"] = _array_from_buffer


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
            return _STAND_INS[module, name]
        except KeyError:
            raise _ForbiddenError(f"{module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        raise _ForbiddenError("a persistent id")

    def _no_extension(self) -> None:
        raise _ForbiddenError("the extension registry")

    def _no_instance(self) -> None:
        raise _ForbiddenError("an instance of a class")

    def _skip_frame(self) -> None:
        # Frames only say how much to read ahead. Without them a position is one in the file.
        self._exactly(8)

    def _exactly(self, length: int) -> bytes:
        if length > self._size - self._source.tell():
            raise EOFError
        return self._source.read(length)

    def _build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if not isinstance(target, (PickledArray, _Dtype)):
            raise _ForbiddenError(f"a state for a {type(target).__name__}")
        target.set_state(state)

    def _payload(self, size_format: str, is_text: bool) -> None:
        (length,) = struct.unpack(size_format, self._exactly(struct.calcsize(size_format)))
        offset = self._source.tell()
        if not 0 <= length <= self._size - offset:
            raise EOFError
        if length < (_LONG_TEXT if is_text else _LONG_BYTES):
            content = self._source.read(length)
            self.stack.append(content.decode("utf-8", "surrogatepass") if is_text else content)
        else:
            self.stack.append(Stretch(offset, length, is_text))
            self._source.seek(offset + length)


def _payload_loader(size_format: str, is_text: bool) -> Callable[[Any], None]:
    return lambda unpickler: unpickler._payload(size_format, is_text)


for _opcode, _format, _is_text in (
    (pickle.BINBYTES, "<I", False),
    (pickle.BINBYTES8, "<Q", False),
    (pickle.BYTEARRAY8, "<Q", False),
    (pickle.BINSTRING, "<i", False),
    (pickle.BINUNICODE, "<I", True),
    (pickle.BINUNICODE8, "<Q", True),
):
    _SafeUnpickler.dispatch[_opcode[0]] = _payload_loader(_format, _is_text)
_SafeUnpickler.dispatch[pickle.FRAME[0]] = _SafeUnpickler._skip_frame
_SafeUnpickler.dispatch[pickle.BUILD[0]] = _SafeUnpickler._build
for _opcode in (pickle.EXT1, pickle.EXT2, pickle.EXT4):
    _SafeUnpickler.dispatch[_opcode[0]] = _SafeUnpickler._no_extension
for _opcode in (pickle.INST, pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX):
    _SafeUnpickler.dispatch[_opcode[0]] = _SafeUnpickler._no_instance


def load_pickle(path: Path) -> Any:
    """The pickle's containers and scalars, with a PickledArray for every array.

    >>> import pickle, tempfile
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
        raise DertsError(
            f"{path} is cut short or no pickle of arrays ({error or type(error).__name__}): "
            "download it again"
        ) from error


def read_stretch(path: Path, stretch: Stretch) -> bytes:
    """The bytes of one stretch of the pickle at `path`."""
    with path.open("rb") as file:
        file.seek(stretch.offset)
        content = file.read(stretch.length)
    return content.decode("utf-8").encode("latin-1") if stretch.is_text else content
