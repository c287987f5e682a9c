"""Arrays as a pickle describes them: stand-ins that know where the values are.

Each stand-in takes the place of the numpy function that a pickle names, and does no more than
note what it is told. Worker processes may import this: no torch.
"""

from __future__ import annotations

import math
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from derts.errors import DertsError

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


class PickledDtype:
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


def _make_dtype(code: Any, *_: Any) -> PickledDtype:
    text = code.decode("latin-1") if isinstance(code, bytes) else code
    if not isinstance(text, str) or not _DTYPE.fullmatch(text):
        raise pickle.UnpicklingError(f"the dtype {text!r:.40}")
    return PickledDtype(text)


def _make_array(*_: Any) -> PickledArray:
    return PickledArray()


def _array_from_buffer(values: Any, dtype: PickledDtype, shape: Any, order: str) -> PickledArray:
    array = PickledArray()
    array.set_state((1, shape, dtype, order == "F", values))
    return array


def _make_scalar(dtype: PickledDtype, values: Any) -> Any:
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


STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _make_dtype,
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


def read_stretch(path: Path, stretch: Stretch) -> bytes:
    """The bytes of one stretch of the pickle at `path`."""
    with path.open("rb") as file:
        file.seek(stretch.offset)
        content = file.read(stretch.length)
    return content.decode("utf-8").encode("latin-1") if stretch.is_text else content
