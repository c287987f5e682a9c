"""The one exception for input that cannot work: what is wrong, and how to fix it."""

import errno
import sys

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""How the system says that a file cannot grow: no space, no quota, a limit."""


def printable(text: object) -> str:
    """Text from data as one line in which a terminal finds nothing to obey.

    >>> printable("cat\\x1b[2J\\nderts: well\\u202e")
    'cat\\\\x1b[2J\\\\nderts: well\\\\u202e'
    """
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in str(text)
    )


class DertsError(Exception):
    """Bad input or a state that cannot go on.

    The message is one line that names the cause and the fix. The command line prints it
    without a traceback and exits with code 2; in Python it is an ordinary exception. Names from
    files may hold anything: what a terminal would obey rather than show is escaped.

    >>> str(DertsError("no class 'cat\\x1b[2J'"))
    "no class 'cat\\\\x1b[2J'"
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(" ".join(message.split("\n"))))


class InterruptedRunError(DertsError):
    """Ctrl-C or SIGTERM ended what was going on; the command line exits with code 130."""


def say(line: str) -> None:
    """Tell on standard error of something that does not stop us."""
    print(f"derts: {DertsError(line)}", file=sys.stderr)
