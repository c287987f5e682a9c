"""Write the tables of README.md and docs/*.md, and figures, from results/*.json.

    python benchmarks/tables.py            write
    python benchmarks/tables.py --check    exit 1 if a page is not what would be written

A table stands between `<!-- NAME: written by benchmarks/tables.py -->` and `<!-- end of NAME -->`.
No number there is typed by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

import accuracy_tables as accuracy
import paper_tables as paper
import speed_tables as speed
import strategy_tables as strategies
from result_files import RESULTS

from derts.paper.figures import draw_curves, load_curves
from derts.report.tables import markdown_table

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"
BLOCK = re.compile(
    r"(<!-- ([\w-]+): written by benchmarks/tables.py -->\n).*?(<!-- end of \2 -->)", re.S
)
BLOCKS: dict[str, Callable[[], str]] = {
    "results": accuracy.readme,
    "noisy": accuracy.noisy,
    "wrong-labels": lambda: accuracy.noisy("misplaced"),
    "parts": accuracy.parts,
    "clean": accuracy.clean,
    "few-classes": accuracy.few_classes,
    "augmentation": accuracy.augmentation,
    "beside-the-paper": paper.beside_the_paper,
    "coverage": paper.coverage,
    "times": lambda: markdown_table(speed.times_rows()),
    "learners": strategies.learners,
    "estimates": strategies.estimates,
    "noise-scores": strategies.noise_scores,
    "measured": strategies.strategies,
    "redundant": strategies.redundant,
    "redundant-photos": strategies.redundant_photos,
    "heads": strategies.heads,
    "aims": lambda: markdown_table(speed.target_rows()),
    "start": lambda: markdown_table(speed.start_rows()),
    "updates": lambda: markdown_table(speed.update_rows()),
    "breakdown": lambda: markdown_table(speed.breakdown_rows()),
    "accuracy": lambda: markdown_table(speed.fused_rows()),
    "overhead": lambda: markdown_table(speed.overhead_rows()),
    "growth": lambda: markdown_table(speed.growth_rows()),
    "pieces": lambda: markdown_table(speed.pieces_rows()),
    "cpu-updates": lambda: markdown_table(speed.cpu_update_rows()),
    "kernels": lambda: markdown_table(speed.kernel_rows()),
}


def renewed(text: str) -> str:
    """A page with its tables written anew."""

    def block(found: re.Match[str]) -> str:
        begin, name, end = found.groups()
        if name not in BLOCKS:
            raise SystemExit(f"no table is called {name!r}: choose from {', '.join(BLOCKS)}")
        return f"{begin}{BLOCKS[name]()}\n{end}"

    return BLOCK.sub(block, text)


def main() -> None:
    """Write the pages and figures, or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale, placed = [], set()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        before = path.read_text(encoding="utf-8")
        placed |= {found[2] for found in BLOCK.finditer(before)}
        after = renewed(before)
        stale += [path.name] if before != after else []
        if not check:
            path.write_text(after, encoding="utf-8")
    if nowhere := BLOCKS.keys() - placed:
        sys.exit(f"no page has a place for {', '.join(sorted(nowhere))}")
    if check:
        sys.exit(f"not what results/ say: {', '.join(stale)}" if stale else 0)
    speed.draw_growth(FIGURES / "growth.png")
    for file in RESULTS.glob("reproduce-*-curves.json"):
        draw_curves(load_curves(file), FIGURES / file.name.replace("-curves.json", ".png"))


if __name__ == "__main__":
    main()
