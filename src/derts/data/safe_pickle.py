"""Pickles of arrays and plain containers, read without trust.

Some data sets are only to be had as pickles, and a pickle can name any function to call. Here
a name is looked up in a short list of our own stand-ins, never imported, and only an array or
a dtype may be given a state, which is checked first.
"""

import math
import mmap
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from derts.errors import DertsError


class PickledDtype:
    """A dtype while its pickle is read: the code comes first, the byte order later."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code, self.order = as_text(code), ""
        if not re.fullmatch(r"[|<>=]?(?:[?bBhHiIlLqQefdSUO]|[biufSUO]\d+)", self.code):
            raise pickle.UnpicklingError(f"the dtype {self.code!r:.40}")

    def set_state(self, state: Any) -> None:
        order = as_text(state[1])
        if state[2:5] != (None, None, None) or order not in tuple("|<>="):
            raise pickle.UnpicklingError("a structured dtype")
        self.order = order
        if self.code in ("S", "U") and state[5] > 0:  # Python 2 gave the length apart
            self.code += str(state[5] // (4 if self.code == "U" else 1))

    def numpy(self) -> np.dtype[Any]:
        dtype = np.dtype(self.code)
        return dtype if self.order in ("", "|") else dtype.newbyteorder(self.order)  # type: ignore[arg-type]


STAND_INS: dict[tuple[str, str], Callable[..., Any] | None] = {
    ("numpy", "dtype"): PickledDtype,
    ("numpy", "ndarray"): None,  # only ever an argument of _reconstruct
    # What Python 3 writes for bytes at protocol 2, and for empty ones.
    ("_codecs", "encode"): lambda text, *_: str.encode(text, "latin-1"),
    ("builtins", "bytes"): lambda: b"",
    ("__builtin__", "bytes"): lambda: b"",
    ("collections", "OrderedDict"): OrderedDict,
}
for _package in ("numpy.core", "numpy._core"):
    STAND_INS[f"{_package}.multiarray", "_reconstruct"] = lambda *_: np.empty(0, np.uint8)
    STAND_INS[f"{_package}.multiarray", "scalar"] = lambda dtype, values: np.frombuffer(
        values, dtype.numpy(), count=1
    )[0].item()
    STAND_INS[f"{_package}.numeric", "_frombuffer"] = lambda values, dtype, shape, order: (
        np.frombuffer(values, dtype.numpy()).reshape(shape, order=order)
    )


class _ForbiddenError(Exception):
    """A pickle that wants what plain data never needs."""


# The pure-Python unpickler: only there can an opcode be replaced.
class _SafeUnpickler(pickle._Unpickler):
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]

    def find_class(self, module: str, name: str, /) -> Any:
        try:
            return STAND_INS[module, name]
        except KeyError:
            raise _ForbiddenError(f"{module}.{name}"[:100]) from None

    def _build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, PickledDtype):
            target.set_state(state)
            return
        if not isinstance(target, np.ndarray):
            raise _ForbiddenError(f"a state for a {type(target).__name__}")
        _, shape, pickled_dtype, is_fortran, values = state
        dtype = pickled_dtype.numpy()
        if type(shape) is not tuple or not all(type(side) is int and side >= 0 for side in shape):
            raise pickle.UnpicklingError("an array's shape is no tuple of whole numbers")
        kind, each = (list, 1) if dtype.kind == "O" else (bytes, dtype.itemsize)
        if type(values) is not kind or len(values) != math.prod(shape) * each:
            raise pickle.UnpicklingError("an array does not fill its shape")
        target.__setstate__((1, shape, dtype, bool(is_fortran), values))  # type: ignore[arg-type]

    dispatch[pickle.BUILD[0]] = _build


def load_pickle(path: Path) -> Any:
    """The pickle's containers, scalars and numpy arrays."""
    try:
        # A map, because its read() never makes room for more than the file has.
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return _SafeUnpickler(content, encoding="bytes").load()
    except _ForbiddenError as error:
        wrong = f"{path} asks for {error}, which is no part of plain data, and was not run"
        raise DertsError(f"{wrong}: get the file from a source you trust") from None
    except Exception as error:  # what a damaged pickle raises can be anything
        wrong = f"is cut short or no pickle of arrays ({str(error)[:100] or type(error).__name__})"
        raise DertsError(f"{path} {wrong}: download it again") from error


def load_fields(path: Path) -> dict[str, Any]:
    """A pickled dictionary, its keys as text; empty where the pickle holds no dictionary."""
    content = load_pickle(path)
    return {as_text(k): v for k, v in content.items()} if isinstance(content, dict) else {}


def as_list(values: Any, path: Path) -> list[Any]:
    """A list or an array of the pickle at `path`, as a list."""
    if isinstance(values, np.ndarray):
        return list(values.reshape(-1).tolist())
    if not isinstance(values, (list, tuple, range)):
        raise DertsError(f"{path} has a {type(values).__name__} for a list: download it again")
    return list(values)


def as_text(value: Any) -> str:
    """A pickled name or number as text; Python 2 wrote names as bytes."""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
