"""derts inspect"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from derts.commands.parse import FeatureOptions, print_rows, unset
from derts.errors import DertsError, printable
from derts.report.tables import table_text

if TYPE_CHECKING:
    from derts.labels.judged import JudgedItems

FIRST = 100  # images that are drawn
OVERFIT = 0.002  # share of wrong labels below which the model has probably overfitted


@dataclass(frozen=True)
class InspectOptions(FeatureOptions):
    """Which labels look wrong? For somebody who cleans a data set.

    Embeds every image once with the run's model and estimates how far each label can be trusted,
    over all classes of all splits. Writes into RUN/inspect, the least trusted first: images.csv,
    images.png (the first hundred), classes.csv, and review.html, a page on which you decide image
    by image, with one key each. derts clean takes what it saves.

    --features takes a matrix of features with labels, or a store of features, and needs no run. It
    writes rows.csv instead of images, into inspect.

    Examples:
      derts inspect runs/first
      derts inspect runs/first --split val --out suspects
      derts inspect runs/first --score
      derts inspect --features features.npz
    """

    run: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """A folder that derts train wrote."""
    split: Annotated[str | None, unset("SPLIT")] = None
    """Look at this split alone (default: all of them)."""
    most: int = 1000
    """How many images review.html shows at most."""
    score: bool = False
    """Compare with the true labels of a store that derts data corrupt wrote."""
    out: Annotated[Path | None, unset("FOLDER")] = None
    """Folder to write (default: RUN/inspect, or RUN/inspect-SPLIT)."""


def inspect(options: InspectOptions) -> None:
    """Embed, judge, write."""
    from derts.files import csv_bytes, write_atomically
    from derts.labels.known_errors import score_judged
    from derts.report.review import review_page, suspects

    judged, data = judge_data(options, options.run, options.split)
    trust, noun = judged.trust, judged.noun
    out = options.out or (options.run or Path()) / (
        "inspect" if options.split is None else f"inspect-{options.split}"
    )
    out.mkdir(parents=True, exist_ok=True)
    rows = [("class", "confused with", f"{noun}s", "look wrong")]
    rows += [
        (name, other, str(count), f"{100 * share:.1f}%")
        for name, other, count, share in judged.class_rows()
    ]
    listed, sheet = out / f"{noun}s.csv", out / "images.png"
    write_atomically(listed, csv_bytes(_image_rows(judged)))
    write_atomically(out / "classes.csv", csv_bytes(rows))
    if noun == "image":
        _draw_suspects(judged, sheet)
    reviewed = suspects(judged, options.most)
    write_atomically(out / "review.html", review_page(judged, reviewed).encode())
    print(table_text(rows[:11]))
    print(f"\n{100 * trust.share_wrong:.1f}% of {len(judged):,} labels look wrong")
    if options.score:
        print(score_judged(judged, data).line)
    if trust.note:
        print(printable(trust.note))
    if trust.share_wrong < OVERFIT:
        print(
            "hardly a label looks wrong: they are right, or the model has overfitted them; look at "
            "another split (--split val), or train for fewer updates"
        )
    print_rows(
        (f"{noun}s", f"{listed}, {sheet}" if noun == "image" else listed),
        ("classes", out / "classes.csv"),
        ("review", f"{out / 'review.html'} ({len(reviewed):,} {noun}s)"),
    )


def judge_data(
    options: FeatureOptions, run: Path | None, split: str | None
) -> "tuple[JudgedItems, str]":
    """A run's data judged by its model, or features as they are; and where the data is."""
    from derts.data import open_data
    from derts.labels.judged import chosen_splits, judge_items
    from derts.progress import progress
    from derts.training.run import open_trainer
    from derts.training.run_folder import Run

    if (run is None) == (options.features is None):
        raise DertsError("give either a run or --features FILE: one of them says what to look at")
    if options.features is not None:
        return _judge_features(options.features, options, split)
    assert run is not None
    data = Run.open(run).data(options.data, options.data_changed)
    tables = open_data(data)
    chosen = chosen_splits(tables, split)
    trainer = open_trainer(run, tables)
    count = sum(len(table) for table in chosen.values())
    with progress("inspecting", count, "images", quiet=options.quiet) as advance:
        return judge_items(trainer.learner, chosen, data, advance), data


def _judge_features(
    source: Path, options: FeatureOptions, split: str | None
) -> "tuple[JudgedItems, str]":
    from derts.data import describe_store, open_store, read_matrix
    from derts.labels.judged import chosen_splits, judge_items
    from derts.progress import progress, silent

    if source.is_dir():
        if describe_store(source).kind != "features":
            fix = "train a model and give its run, or embed the store with derts data embed"
            raise DertsError(f"{source} is a store of images: {fix}")
        tables = chosen_splits(open_store(source), split)
        return judge_items(None, tables, str(source)), str(source)
    matrix = read_matrix(source, options.labels)
    for note in matrix.check(silent if options.quiet else progress):
        print(printable(note))
    names = [matrix.name(row) for row in range(len(matrix))]
    if len(set(matrix.labels or ())) < 2:
        raise DertsError(f"{source} has one class: give rows of two classes or more")
    tables = chosen_splits({"train": matrix.table()}, split)
    return judge_items(None, tables, paths=names), str(source)


def _image_rows(judged: "JudgedItems") -> Sequence[Sequence[str]]:
    trust, places = judged.trust, judged.places
    rows = [("path", "split", "class", "suggestion", "label is right", "suggestion is right")]
    given, suggested = trust.given.tolist(), trust.suggestion.tolist()
    right, sure = trust.probability.tolist(), trust.sure.tolist()
    for image in trust.order.tolist():
        names = trust.classes[given[image]], trust.classes[suggested[image]]
        chances = f"{right[image]:.4f}", f"{sure[image]:.4f}"
        rows.append((judged.paths[image], places[image][0], *names, *chances))
    return rows


def _draw_suspects(judged: "JudgedItems", path: Path) -> None:
    from derts.report.pictures import draw_sheet, to_picture

    trust = judged.trust
    shown = trust.order[:FIRST].tolist()
    captions = [
        f"{Path(judged.paths[image]).name}\n{trust.classes[int(trust.given[image])]}\n"
        f"→ {trust.classes[int(trust.suggestion[image])]}"
        for image in shown
    ]
    pictures = [to_picture(pixels) for pixels in judged.items(shown)]
    draw_sheet(pictures, captions, path, "Least trusted first: image, its class, the suggestion")
