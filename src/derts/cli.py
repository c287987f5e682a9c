"""The command line: parse, call, print. Bad input is one line and exit code 2."""

import codecs
import difflib
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

from derts import __version__
from derts.errors import DISK_FULL, DertsError, InterruptedRunError, say
from derts.hardware import keep_freed_memory, wait_without_spinning

COMMANDS = {  # by name, the last word its function: where it is, and what it does
    "demo": ("demo", "random against derts on built-in, mislabelled tasks"),
    "data prepare": ("data", "decode a data set once into a store"),
    "data embed": ("data", "features of a store by a pretrained backbone"),
    "data info": ("data", "show what a store holds"),
    "data verify": ("data", "check a store against its checksums"),
    "data corrupt": ("data", "a store with known wrong labels"),
    "train": ("train", "train a few-shot learner and evaluate it"),
    "report": ("runs", "one page about runs, for a browser"),
    "predict": ("predict", "label images by a few examples per class"),
    "export": ("predict", "write a run's model as one file with a card"),
    "inspect": ("labels", "which labels look wrong, and a page to review"),
    "clean": ("labels", "write a store without the labels that look wrong"),
    "runs": ("runs", "list run folders with status and result"),
    "compare": ("runs", "runs side by side, paired over seeds"),
    "diagnose": ("selection", "how well estimates stand for a pool"),
    "select": ("selection", "select rows of any matrix, no tasks needed"),
    "reproduce": ("reproduce", "the paper's tables, ours beside theirs"),
    "evaluate": ("runs", "evaluate a trained run again"),
    "completion": ("completion", "what your shell needs to complete"),
}

OVERVIEW = """derts {version}: choose the tasks that are worth training on

Commands (each has --help):
{rows}

Start with:
  derts train --preset demo                     a few-shot learner on built-in glyphs
  derts data prepare my-photos my-store         your own images, a folder per class
  derts train --data my-store --preset laptop --out runs/first   train on them
  derts report runs/first                       what it reached and chose, as a page"""


INTERRUPTED = 130  # as shells count: 128 and the number of the signal
PLAIN = {"─": "-", "│": "|", "–": "-", "−": "-", "×": "x", "±": "+-", "→": "->", "…": "..."}
"""What stands for our letters where the output cannot show them."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 success, 2 bad input, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    keep_freed_memory()
    wait_without_spinning()
    codecs.register_error("derts", _other_letters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="derts")
    # a shell that starts us in the background lets us inherit «ignored»
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run(given))


def run(given: list[str]) -> int:
    """Run one command; the exit code."""
    try:
        return dispatch(given)
    except DertsError as error:
        return _fail(str(error), INTERRUPTED if isinstance(error, InterruptedRunError) else 2)
    except KeyboardInterrupt:
        return _fail("interrupted before it was done: run the command again", INTERRUPTED)
    except RecursionError:
        return _fail("a file of this command is nested too deeply: it is none that derts wrote")
    except (MemoryError, RuntimeError) as error:
        # what torch raises where it finds no memory is named differently on every device
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else "all of it is used"
        return _fail(f"not enough memory ({reason}): make what you asked for smaller")
    except BrokenPipeError:
        # whoever read our output has gone; let the interpreter's own flush not complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except OSError as error:
        if error.errno in DISK_FULL:
            return _fail(f"the disk is full ({error.filename or 'while writing'}): free some space")
        if error.filename is None:
            raise
        return _fail(f"{error.strerror or error}: {error.filename}; check the path and its rights")


def dispatch(given: list[str]) -> int:
    """Run one command and let its errors through."""
    if not given or given[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if given[0] in ("-V", "--version"):
        print(f"derts {__version__}")
        return 0
    for words in (2, 1):
        name = " ".join(given[:words])
        if name in COMMANDS:
            from derts.commands.parse import parse

            command, options = command_of(name)
            command(parse(options, given[words:], name))
            return 0
    group = [name for name in COMMANDS if name.startswith(f"{given[0]} ")]
    if group and given[1:2] in ([], ["-h"], ["--help"]):
        print(overview(group))
        return 0
    if group:
        raise DertsError(f"no command {' '.join(given[:2])!r}: choose from {', '.join(group)}")
    near = difflib.get_close_matches(given[0], {name.split()[0] for name in COMMANDS}, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "derts --help lists them"
    raise DertsError(f"no command {given[0]!r}: {hint}")


def command_of(name: str) -> tuple[Callable[[Any], None], type[Any]]:
    """The function behind a command's name, and the dataclass of options that it takes."""
    module = importlib.import_module(f"derts.commands.{COMMANDS[name][0]}")
    command = getattr(module, name.split()[-1])
    return command, get_type_hints(command)["options"]


def overview(names: Sequence[str] | None = None) -> str:
    """What `derts --help` prints."""
    rows = "\n".join(f"  derts {name:<14} {COMMANDS[name][1]}" for name in names or COMMANDS)
    return f"Commands:\n{rows}" if names else OVERVIEW.format(version=__version__, rows=rows)


def _fail(message: str, code: int = 2) -> int:
    say(message)
    return code


def _other_letters(error: UnicodeError) -> tuple[str, int]:
    """How a stream writes what its encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    part = error.object[error.start : error.end]
    plain = (PLAIN.get(letter) or f"\\u{ord(letter):04x}" for letter in part)
    return "".join(plain), error.end
