"""Files that are whole or not there: atomic writes, and a lock on a folder."""

import csv
import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from derts.errors import DertsError

LOCK = ".lock"
"""The file that a process which writes to a folder holds."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, never sees half of it."""
    if path.exists() and not path.is_file():  # a pipe or a device, such as /dev/stdout
        path.write_bytes(content)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        if os.name == "posix":  # others open no folders; the new name shall outlast a power cut
            handle = os.open(path.parent, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)
    finally:
        temporary.unlink(missing_ok=True)


def regular(path: Path) -> Path:
    """The path of a file, or of nothing; an OSError where opening it may wait, as for a pipe."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; a ValueError where it has none that can be used."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_json(path: Path, value: object) -> Path:
    """Write a value as JSON, whole or not at all."""
    write_atomically(path, (json.dumps(value, indent=1) + "\n").encode())
    return path


def sample_digest(path: Path) -> str:
    """A digest of a file's length and of 256 blocks spread over it: quick at any size."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for position in sorted({size * step // 256 for step in range(256)}):
            file.seek(position)
            digest.update(file.read(4096))
    return digest.hexdigest()


FORMULA = re.compile(r"'*[=+\-@\t\r]")
"""How a cell begins that a spreadsheet would take for a formula, quoted or not."""


def csv_bytes(rows: Sequence[Sequence[str]]) -> bytes:
    """A heading and rows as the content of a CSV file, in which no spreadsheet sees a formula.

    >>> csv_bytes([("class", "images"), ("=1+1", "20")])
    b"class,images\\n'=1+1,20\\n"
    """
    lines: list[str] = []
    quoted = ([f"'{cell}" if FORMULA.match(cell) else cell for cell in row] for row in rows)
    # of both letters, so that cells with either are put into quotes
    csv.writer(SimpleNamespace(write=lines.append), lineterminator="\r\n").writerows(quoted)
    return "".join(f"{line[:-2]}\n" for line in lines).encode()


def read_csv(path: Path, *columns: str) -> list[dict[str, str]]:
    """The rows of a CSV file that has these columns, as before `csv_bytes` quoted any cell."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [
                {
                    name: cell[1:] if cell[:1] == "'" and FORMULA.match(cell) else cell
                    for name, cell in row.items()
                    if name is not None  # cells beyond the heading
                }
                for row in csv.DictReader(file, restval="")
            ]
    except FileNotFoundError:
        raise DertsError(f"no file at {path}: check the path") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DertsError(f"{path} is no CSV in UTF-8 ({error}): save it as such") from None
    if rows and not {*columns} <= rows[0].keys():
        raise DertsError(f"{path} must have a header {','.join(columns)}: add it")
    return rows


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder, made if it is not there, against every other process.

    The system drops the lock when its owner ends, killed or not; the file itself stays.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, locked(Path(folder)), locked(Path(folder)):
    ...     pass
    Traceback (most recent call last):
    derts.errors.DertsError: ... is in use by process ...: wait for it, or choose another folder
    """
    try:
        import fcntl
    except ImportError:  # a system without flock
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(regular(folder / LOCK), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(handle, 32).decode("ascii", "replace").strip() or "another"
            fix = "wait for it, or choose another folder"
            raise DertsError(f"{folder} is in use by process {owner}: {fix}") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise  # these: a file system without locks
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(handle)


def is_locked(folder: Path) -> bool:
    """Whether a process holds a run folder; never where the system has no locks."""
    try:
        import fcntl

        with regular(folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        pass
    return False
