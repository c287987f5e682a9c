"""Arrays inside .npz archives and pickles as places in a plain file, without loading them."""

from __future__ import annotations

import codecs
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from derts.data.pickled_array import PickledArray, Stretch
from derts.data.source import PackedImages
from derts.errors import DertsError

_BLOCK = 1 << 22


@dataclass(frozen=True)
class FlatArray:
    """An array in C order that starts at an offset of a file."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def images(self, *, reverse_channels: bool = False) -> PackedImages:
        """The array, which must be uint8 [n, height, width, channels], as images."""
        if self.dtype != np.uint8 or len(self.shape) != 4 or self.shape[3] not in (1, 3):
            raise DertsError(
                f"{self.path.name} holds images as {self.dtype} {list(self.shape)}, not uint8 "
                "[n, height, width, 1 or 3]: rebuild it or use another distribution"
            )
        count, height, width, channels = self.shape
        length = height * width * channels
        return PackedImages(
            (self.path,),
            np.zeros(count, dtype=np.int64),
            self.offset + length * np.arange(count, dtype=np.int64),
            np.full(count, length, dtype=np.int64),
            (height, width, channels),
            reverse_channels=reverse_channels,
        )


def npz_member(path: Path, name: str, scratch: Path) -> FlatArray:
    """One array of an .npz where it lies, or, if it is compressed, unpacked into `scratch`."""
    with _archive(path) as archive:
        info = _info(archive, path, name)
        with _open(archive, info, path) as member:
            shape, dtype = _header(member, path, name)
            if info.compress_type != zipfile.ZIP_STORED:
                flat = scratch / f"{path.stem}-{name}.flat"
                _copy(iter(lambda: member.read(_BLOCK), b""), flat)
                return FlatArray(flat, 0, shape, dtype)
            header_length = member.tell()
    return FlatArray(path, _data_start(path, info) + header_length, shape, dtype)


def read_npz(path: Path, *names: str) -> list[NDArray[Any]]:
    """Small arrays of an .npz, which is not trusted: no pickled objects."""
    arrays = []
    with _archive(path) as archive:
        for name in names:
            try:
                with archive.open(_info(archive, path, name)) as member:
                    arrays.append(np.lib.format.read_array(member, allow_pickle=False))
            except DertsError:
                raise
            except Exception as error:  # what a damaged header or stream raises can be anything
                raise DertsError(
                    f"{name!r} in {path} cannot be read ({error}): download it again"
                ) from error
    return arrays


def pickled_array(path: Path, array: PickledArray, scratch: Path) -> FlatArray:
    """A pickled array where it lies, or, if it was written as text, decoded into `scratch`."""
    values = array.values
    if array.is_fortran and len(array.shape) > 1:
        raise DertsError(f"{path} holds its images in Fortran order: rebuild it in C order")
    if isinstance(values, Stretch) and not values.is_text:
        if values.length != math.prod(array.shape) * array.dtype.itemsize:
            raise DertsError(f"{path} has an array that does not fill its shape: download it again")
        return FlatArray(path, values.offset, array.shape, array.dtype)
    flat = scratch / f"{path.stem}-{getattr(values, 'offset', 0)}.flat"
    blocks = _decoded(path, values) if isinstance(values, Stretch) else iter([bytes(values)])
    length = _copy(blocks, flat)
    if length != math.prod(array.shape) * array.dtype.itemsize:
        raise DertsError(f"{path} has an array that does not fill its shape: download it again")
    return FlatArray(flat, 0, array.shape, array.dtype)


def _decoded(path: Path, stretch: Stretch) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    left = stretch.length
    with path.open("rb") as file:
        file.seek(stretch.offset)
        while left:
            block = file.read(min(left, _BLOCK))
            left -= len(block)
            yield decoder.decode(block).encode("latin-1")


def _copy(blocks: Iterator[bytes], target: Path) -> int:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        return sum(file.write(block) for block in blocks)


def _archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise DertsError(f"{path} is no readable .npz ({error}): download it again") from error


def _info(archive: zipfile.ZipFile, path: Path, name: str) -> zipfile.ZipInfo:
    try:
        return archive.getinfo(f"{name}.npy")
    except KeyError:
        held = ", ".join(Path(member).stem for member in archive.namelist()[:6])
        raise DertsError(
            f"{path} has no array {name!r}, only {held or 'nothing'}: download it again, or use "
            "another distribution of the data set"
        ) from None


@contextmanager
def _open(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> Iterator[IO[bytes]]:
    try:
        with archive.open(info) as member:
            yield member
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise DertsError(f"{path} is damaged ({error}): download it again") from error


def _header(member: IO[bytes], path: Path, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(member)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, is_fortran, dtype = read(member)
    except Exception as error:  # as above
        raise DertsError(f"{name!r} in {path} is no array ({error}): download it again") from error
    if dtype.hasobject or (is_fortran and len(shape) > 1):
        raise DertsError(
            f"{name!r} in {path} is an array of objects or in Fortran order: rebuild it"
        )
    return shape, dtype


def _data_start(path: Path, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin; the local header may differ from the central one."""
    with path.open("rb") as file:
        file.seek(info.header_offset + 26)
        lengths = np.frombuffer(file.read(4), dtype="<u2")
    return info.header_offset + 30 + int(lengths.sum(dtype=np.int64))
