"""Pickles of arrays and plain containers, read without trust and without loading the arrays.

Some data sets are only to be had as pickles, and a pickle can name any function to call. Here
a name is looked up in a short list of our own stand-ins, never imported. The long payloads are
left where they are: an array becomes its place in the file, so a pickle of 450,000 images
takes the memory of 450,000 places. Worker processes may import this: no torch.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from derts.data.pickled_array import STAND_INS, PickledArray, PickledDtype, Stretch
from derts.errors import DertsError

# Shorter texts (labels, class names) and byte strings are worth having at once.
_LONG_TEXT, _LONG_BYTES = 1024, 256


class _ForbiddenError(Exception):
    """A pickle that wants what plain data never needs."""


# The pure-Python unpickler: only there can single opcodes be replaced.
class _SafeUnpickler(pickle._Unpickler):
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]

    def __init__(self, file: BinaryIO, size: int) -> None:
        super().__init__(file, encoding="latin-1")
        self._source, self._size = file, size
        self._kept: list[Any] = []

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
        self._exactly(8)

    def _keep(self) -> None:
        """Note the top of the stack under the next number, for a later reference to it."""
        self._kept.append(self._referable())

    def _keep_as(self, size_format: str) -> None:
        (number,) = struct.unpack(size_format, self._exactly(struct.calcsize(size_format)))
        # Python 2 counts from one; a pickle that leaves larger gaps was not made by pickling.
        if number > len(self._kept) + 1:
            raise pickle.UnpicklingError("a gap in its references")
        self._kept += [None] * (number + 1 - len(self._kept))
        self._kept[number] = self._referable()

    def _referable(self) -> Any:
        # An array's raw bytes and state are written once each and never referred to again: to
        # keep them for every one of 450,000 images would take half a gigabyte.
        top = self.stack[-1]
        if type(top) is Stretch or (type(top) is tuple and Stretch in map(type, top)):
            return None
        return top

    def _fetch(self, size_format: str) -> None:
        (number,) = struct.unpack(size_format, self._exactly(struct.calcsize(size_format)))
        kept = self._kept[number]
        if kept is None:
            raise pickle.UnpicklingError("a reference to nothing")
        self.stack.append(kept)

    def _exactly(self, length: int) -> bytes:
        if length > self._size - self._source.tell():
            raise EOFError
        return self._source.read(length)

    def _build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if not isinstance(target, (PickledArray, PickledDtype)):
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


def _with_size(load: Callable[[Any, str], None], size_format: str) -> Callable[[Any], None]:
    return lambda unpickler: load(unpickler, size_format)


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
for _opcode, _load, _format in (
    (pickle.BINPUT, _SafeUnpickler._keep_as, "<B"),
    (pickle.LONG_BINPUT, _SafeUnpickler._keep_as, "<I"),
    (pickle.BINGET, _SafeUnpickler._fetch, "<B"),
    (pickle.LONG_BINGET, _SafeUnpickler._fetch, "<I"),
):
    _SafeUnpickler.dispatch[_opcode[0]] = _with_size(_load, _format)
_SafeUnpickler.dispatch[pickle.MEMOIZE[0]] = _SafeUnpickler._keep
_SafeUnpickler.dispatch[pickle.FRAME[0]] = _SafeUnpickler._skip_frame
_SafeUnpickler.dispatch[pickle.BUILD[0]] = _SafeUnpickler._build
for _opcode in (pickle.EXT1, pickle.EXT2, pickle.EXT4):
    _SafeUnpickler.dispatch[_opcode[0]] = _SafeUnpickler._no_extension
for _opcode in (pickle.INST, pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX):
    _SafeUnpickler.dispatch[_opcode[0]] = _SafeUnpickler._no_instance


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


def _one_line(text: str) -> str:
    """Text from an untrusted file, fit to be shown."""
    return text[:100].encode("unicode_escape").decode("ascii")
