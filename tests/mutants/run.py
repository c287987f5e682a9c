"""Plants small faults one by one and asks whether the tests see them: make mutants.

    python tests/mutants/run.py results/mutants.json          # all; minutes
    python tests/mutants/run.py /tmp/out.json --only votes    # those with this word in `about`

Each fault of faults.toml is planted in a temporary copy of the tree, where only its own tests run.
The old text must be in its file exactly once, or the list is stale.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).with_name("faults.toml")
COPIED = ("src", "tests", "pyproject.toml", "conftest.py")
MOST_UNSEEN = 3
SECONDS = 120  # for the tests of one fault; longer than that, and nobody knows
Fault = dict[str, Any]


def read_faults(path: Path = FAULTS) -> list[Fault]:
    """The list, in its order."""
    found: list[Fault] = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return found


def staleness(fault: Fault, root: Path = ROOT) -> str:
    """Why a fault can no longer be planted; empty where it can."""
    file = root / "src" / "derts" / fault["file"]
    count = file.read_text(encoding="utf-8").count(fault["old"]) if file.is_file() else 0
    missing = [name for name in fault["tests"] if not (root / name.partition("::")[0]).is_file()]
    if count != 1:
        return f"{fault['file']} has {count} times what {fault['about']!r} replaces"
    return f"{missing[0]} is gone" if missing else ""


def run_tests(tree: Path, tests: list[str]) -> tuple[int, str]:
    """pytest's exit code and last words; in a fork, which has torch already."""
    said = tree / "said.txt"
    child = os.fork()
    if child == 0:
        with said.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(tree)
        os.setpgid(0, 0)
        sys.path[:0] = [str(tree / "src"), str(tree)]
        os.environ["PYTHONPATH"] = f"{tree / 'src'}:{tree}"
        code = 99
        try:  # whatever happens, the fork must not go on as if it were us
            import pytest

            options = ["-x", "-q", "-p", "no:cacheprovider", "--doctest-modules"]
            code = int(pytest.main([*options, *tests]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    limit, status = time.monotonic() + SECONDS * max(1, len(tests) // 3), None
    while status is None and time.monotonic() < limit:
        done, code = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if done else None
        time.sleep(0.05)
    if status is None:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return 0, f"longer than {SECONDS} s"
    lines = said.read_text(errors="replace").strip().splitlines()
    told = [line for line in lines if line.startswith(("FAILED", "ERROR", "E  "))] or lines[-1:]
    return status, (told or [""])[0][:200]


def planted(tree: Path, fault: Fault) -> tuple[bool, str]:
    """Whether the fault's tests see it, and what they say."""
    file = tree / "src" / "derts" / fault["file"]
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole.replace(fault["old"], fault["new"]), encoding="utf-8")
    try:
        code, said = run_tests(tree, fault["tests"])
    finally:
        file.write_text(whole, encoding="utf-8")
    return code == 1, said if code in (0, 1) else f"exit code {code}: {said}"


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("out", type=Path)
    words.add_argument("--only", default="")
    words.add_argument("--first", type=int, default=0, help="leave out so many of the list")
    words.add_argument("--unchecked", action="store_true", help="do not run the tests as they are")
    options = words.parse_args()
    faults = [one for one in read_faults()[options.first :] if options.only in one["about"]]
    stale = [cause for fault in faults if (cause := staleness(fault))]
    if stale:
        sys.exit("\n".join(["the list is stale:", *stale]))
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    sys.dont_write_bytecode = True
    for name in ("matplotlib.figure", "torch", "PIL.Image"):
        importlib.import_module(name)  # once, for all forks; derts itself is each fork's own
    started, rows = time.monotonic(), []
    with TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in COPIED:
            place = ROOT / name
            copy = shutil.copytree if place.is_dir() else shutil.copy
            copy(place, tree / name)
        if not options.unchecked:
            code, said = run_tests(tree, sorted({name for one in faults for name in one["tests"]}))
            if code:
                sys.exit(f"the tests fail before anything is planted: {said}")
        for fault in faults:
            begun = time.monotonic()
            seen, said = planted(tree, fault)
            rows.append({"about": fault["about"], "file": fault["file"], "seen": seen})
            mark = "seen  " if seen else "UNSEEN"
            print(
                f"{mark} {time.monotonic() - begun:5.1f} s  {fault['about']}  [{said}]", flush=True
            )
    unseen = [row["about"] for row in rows if not row["seen"]]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    content = {
        "faults": len(rows),
        "seen": len(rows) - len(unseen),
        "unseen": unseen,
        "seconds": round(time.monotonic() - started),
        "commit": head.stdout.strip(),
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{content['seen']} of {len(rows)} faults are seen")
    if len(unseen) > MOST_UNSEEN:
        sys.exit(1)


if __name__ == "__main__":
    main()
