"""derts clean, derts data corrupt"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from derts.commands.parse import DataOptions, parse, print_rows, unset
from derts.errors import DertsError


@dataclass(frozen=True)
class CleanOptions(DataOptions):
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
    features: Annotated[Path | None, unset("FILE")] = None
    """No run: a .npz, .npy or .parquet file of features, or a store of features."""
    labels: Annotated[Path | None, unset("FILE")] = None
    """A CSV with the labels of an .npy (default: labels.csv beside it)."""
    mix: bool = False
    """Relabel what is sure, drop the rest that looks wrong (the default without --apply)."""
    drop: bool = False
    """Drop all that looks wrong."""
    relabel: bool = False
    """Relabel what is sure, keep the rest."""
    precision: float = 0.95
    """How probable a suggested class must be for relabelling."""
    apply: Annotated[Path | None, unset("FILE")] = None
    """A review.csv that a person saved from review.html."""
    split: str = "train"
    """Clean this split by trust (all: every one); --apply reaches all of them."""
    overwrite: bool = False
    """Replace a store that is already there."""
    quiet: bool = False
    """No progress, just the result."""


@dataclass(frozen=True)
class CorruptOptions:
    """Write a store with known wrong labels in its training split, to try what finds them.

    symmetric: any other class. pair: the next class. confusion:FILE: a CSV with columns class,
    given and share (of the class's images). The true labels lie in DEST/true_labels.npy, which only
    scoring reads (derts inspect RUN --score).

    Examples:
      derts data corrupt my-store wrong-store --noise symmetric --rate 0.2
      derts data corrupt glyphs wrong-glyphs --noise pair --rate 0.4 --seed 1
    """

    store: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STORE")]
    """A folder that derts data prepare wrote, or glyphs."""
    destination: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DEST")]
    """Folder to write."""
    noise: Annotated[str, tyro.conf.arg(metavar="KIND")] = "symmetric"
    """symmetric, pair or confusion:FILE."""
    rate: Annotated[float | None, unset("SHARE")] = None
    """Share of the labels that are wrong (confusion: as in FILE if left out)."""
    seed: int = 0
    """Decides which labels are wrong."""


def clean(arguments: Sequence[str]) -> None:
    """Parse, judge, decide, write."""
    options = parse(CleanOptions, arguments, "clean")
    run: Path | None = options.run
    destination = options.destination
    if options.features is not None and destination is None:
        run, destination = None, options.run
    if destination is None:
        raise DertsError("give DEST, the folder to write, behind RUN")
    rules = [name for name in ("mix", "drop", "relabel") if getattr(options, name)]
    if len(rules) > 1:
        raise DertsError(f"--{rules[0]} and --{rules[1]} exclude each other: choose one")
    if not 0 < options.precision <= 1:
        raise DertsError(f"precision is {options.precision}: give a probability, such as 0.95")

    from derts.commands.inspect import judge_data
    from derts.data.store_writing import check_destination
    from derts.files import csv_bytes
    from derts.labels.cleaning import (
        CleaningRule,
        after_review,
        change_rows,
        changes_by_trust,
        read_review,
        write_cleaned,
    )
    from derts.labels.judged import chosen_splits

    check_destination(destination, overwrite=options.overwrite)
    judged, data = judge_data(options, run, None)
    if destination.resolve() == Path(data).resolve():
        raise DertsError(f"{destination} is the source itself: choose another destination")
    splits = judged.tables
    if options.split != "all":
        splits = chosen_splits(splits, options.split)
    rule: CleaningRule = "drop" if options.drop else "relabel" if options.relabel else "mix"
    if options.apply is None:
        changes = changes_by_trust(judged, rule, options.precision, splits)
    else:
        decided = read_review(options.apply, judged)
        changes = [change for change in decided.values() if change is not None]
        if rules:
            changes += after_review(judged, decided, rule, options.precision, splits)
    listed = csv_bytes(change_rows(judged, changes))
    made = write_cleaned(
        judged,
        changes,
        destination,
        data,
        overwrite=options.overwrite,
        beside={"changes.csv": listed},
    )
    relabelled = sum(change.new_class is not None for change in changes)
    print("\n".join(made.lines()))
    print_rows(
        [
            ("relabelled", f"{relabelled:,} of {len(judged):,} {judged.noun}s"),
            ("dropped", f"{len(changes) - relabelled:,}"),
            ("changes", str(destination / "changes.csv")),
        ]
    )


def corrupt(arguments: Sequence[str]) -> None:
    """Parse, draw wrong labels, write."""
    options = parse(CorruptOptions, arguments, "data corrupt")

    from derts.data import open_data
    from derts.labels.judged import chosen_splits
    from derts.labels.known_errors import confusion_matrix, corrupt_labels, corrupt_store

    tables = open_data(options.store)
    images = chosen_splits(tables, "train")["train"]
    confusion = confusion_matrix(options.noise, options.rate, images.class_names)
    given = corrupt_labels(images.labels, confusion, options.seed)
    made = corrupt_store(tables, options.store, options.destination, given)
    wrong = int((given != images.labels).sum())
    print("\n".join(made.lines()))
    print(f"wrong labels: {wrong:,} of {len(images):,} training {images.noun}s")
