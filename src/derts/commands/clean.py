"""derts clean"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from derts.commands.parse import FeatureOptions, print_rows, unset
from derts.config import within
from derts.errors import DertsError


@dataclass(frozen=True)
class CleanOptions(FeatureOptions):
    """Write a cleaned store from the data that a run was trained on; the source stays as it is.

    By default (--mix) a training image is relabelled where its suggested class is sure enough
    (--precision), and else dropped where its label is more likely wrong than right. --relabel and
    --drop do one of them. A class keeps twenty images, or all where it has fewer. An image that
    looks like a class of another split is not moved there but dropped. DEST/changes.csv lists every
    change. Validation and test are left as they are: dropping what a model finds hard would flatter
    it.

    --apply takes what you decided on the page of derts inspect, and nothing else. With --mix,
    --drop or --relabel beside it the other images are cleaned, too, by trust computed anew from
    your decisions.

    With --features it needs no run: derts clean --features FILE DEST.

    Examples:
      derts clean runs/first my-store-clean
      derts clean runs/first my-store-clean --apply review.csv
      derts clean runs/first my-store-clean --apply review.csv --mix
      derts clean --features my-features my-features-clean
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A folder that derts train wrote."""
    destination: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="DEST")] = None
    """Folder to write."""
    mix: bool = False
    """Relabel what is sure, drop the rest that looks wrong (the default without --apply)."""
    drop: bool = False
    """Drop all that looks wrong."""
    relabel: bool = False
    """Relabel what is sure, keep the rest."""
    precision: float = within(0.95, 1e-6, 1)
    """How probable a suggested class must be for relabelling."""
    apply: Annotated[Path | None, unset("FILE")] = None
    """A review.csv that a person saved from review.html."""
    split: str = "train"
    """Clean this split by trust (all: every one); --apply reaches all of them."""
    overwrite: bool = False
    """Replace a store that is already there."""


def clean(options: CleanOptions) -> None:
    """Judge, decide, write."""
    run: Path | None = options.run
    destination = options.destination
    if options.features is not None and destination is None:
        run, destination = None, options.run
    if destination is None:
        raise DertsError("give DEST, the folder to write, behind RUN")
    rules = [name for name in ("mix", "drop", "relabel") if getattr(options, name)]
    if len(rules) > 1:
        raise DertsError(f"--{rules[0]} and --{rules[1]} exclude each other: choose one")

    from derts.commands.inspect import judge_data
    from derts.data.matrices import is_matrix
    from derts.data.store_writing import check_destination
    from derts.files import csv_bytes
    from derts.labels import cleaning
    from derts.labels.judged import chosen_splits

    check_destination(destination, overwrite=options.overwrite)
    judged, data = judge_data(options, run, None)
    if destination.resolve() == Path(data).resolve():
        raise DertsError(f"{destination} is the source itself: choose another destination")
    splits = chosen_splits(judged.tables, None if options.split == "all" else options.split)
    rule: cleaning.CleaningRule = (
        "drop" if options.drop else "relabel" if options.relabel else "mix"
    )
    if options.apply is None:
        changes = cleaning.changes_by_trust(judged, rule, options.precision, splits)
    else:
        decided = cleaning.read_review(options.apply, judged)
        changes = [change for change in decided.values() if change is not None]
        if rules:
            changes += cleaning.after_review(judged, decided, rule, options.precision, splits)
    listed = {"changes.csv": csv_bytes(cleaning.change_rows(judged, changes))}
    made = cleaning.write_cleaned(
        judged, changes, destination, data, overwrite=options.overwrite, beside=listed
    )
    relabelled = sum(change.new_class is not None for change in changes)
    one_split = "all in one split: to train, derts data prepare the file and clean that store"
    print("\n".join(made.lines()))
    print_rows(
        ("relabelled", f"{relabelled:,} of {len(judged):,} {judged.noun}s"),
        ("dropped", f"{len(changes) - relabelled:,}"),
        ("changes", destination / "changes.csv"),
        *([("note", one_split)] if is_matrix(data) else []),
    )
