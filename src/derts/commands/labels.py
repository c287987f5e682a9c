"""derts inspect, derts clean"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from derts.commands.parse import DataOptions, QuietOptions, print_rows, unset
from derts.config import ModelConfig, within
from derts.errors import DertsError, printable
from derts.report.tables import table_text

if TYPE_CHECKING:
    from derts.labels.judging import JudgedItems

FIRST = 100  # images that are drawn
OVERFIT = 0.002  # share of wrong labels below which the model has probably overfitted


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(DataOptions, QuietOptions):
    """Options of commands that take a pretrained backbone or features in place of a run."""

    weights: Annotated[str, tyro.conf.arg(name="model.weights", metavar="FILE")] = ""
    """timm:NAME: a safetensors file or state dict, or download: timm's own."""
    features: Annotated[Path | None, unset("FILE")] = None
    """No run: a .npz, .npy or .parquet file of features, or a store of features."""
    labels: Annotated[Path | None, unset("FILE")] = None
    """A CSV with the labels of an .npy (default: labels.csv beside it)."""


@dataclass(frozen=True)
class InspectOptions(JudgeOptions):
    """Which labels look wrong? For somebody who cleans a data set.

    Embeds every image once with the run's model and estimates how far each label can be trusted,
    over all classes of all splits. Writes into RUN/inspect, the least trusted first: images.csv,
    images.png (the first hundred), classes.csv, and review.html, a page on which you decide image
    by image, with one key each. derts clean takes what it saves.

    For photos give a pretrained backbone in place of RUN (efficientnet-lite0 or timm:NAME,
    derts[pretrained]) and the store as --data: it needs no training, and finds far more than a
    network that was trained on a few thousand photos. It writes into inspect.

    --features takes a matrix of features with labels, or a store of features, and needs no run. It
    writes rows.csv instead of images, into inspect.

    Examples:
      derts inspect efficientnet-lite0 --data my-store
      derts inspect runs/first
      derts inspect runs/first --split val --out suspects
      derts inspect runs/first --score
      derts inspect --features features.npz
    """

    run: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """A folder that derts train wrote, or a pretrained backbone."""
    split: Annotated[str | None, unset("SPLIT")] = None
    """Look at this split alone (default: all of them)."""
    most: int = within(1000, 1)
    """How many images review.html shows at most."""
    score: bool = False
    """Compare with the true labels of a store that derts data corrupt wrote."""
    out: Annotated[Path | None, unset("FOLDER")] = None
    """Folder to write (default: RUN/inspect, or RUN/inspect-SPLIT; without a run: inspect)."""


@dataclass(frozen=True)
class CleanOptions(JudgeOptions):
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

    With a pretrained backbone as RUN it needs --data, as derts inspect does; with --features it
    needs no run: derts clean --features FILE DEST.

    Examples:
      derts clean efficientnet-lite0 my-store-clean --data my-store
      derts clean runs/first my-store-clean
      derts clean runs/first my-store-clean --apply review.csv
      derts clean runs/first my-store-clean --apply review.csv --mix
      derts clean --features my-features my-features-clean
    """

    run: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """A folder that derts train wrote, or a pretrained backbone."""
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


def inspect(options: InspectOptions) -> None:
    from derts.files import csv_bytes, write_atomically
    from derts.labels.known_errors import score_judged
    from derts.report.pictures import draw_sheet, to_picture
    from derts.report.review import review_page, suspects

    judged, data = _judge(options, options.run, options.split)
    trust, noun = judged.trust, judged.noun
    name = "inspect" if options.split is None else f"inspect-{options.split}"
    folder = None if _is_backbone(options.run) else options.run
    out = options.out or (folder or Path()) / name
    out.mkdir(parents=True, exist_ok=True)
    classes = [("class", "confused with", f"{noun}s", "look wrong")]
    classes += [
        (name, other, str(n), f"{100 * share:.1f}%")
        for name, other, n, share in judged.class_rows()
    ]
    given, suggested = ([trust.classes[k] for k in of] for of in (trust.given, trust.suggestion))
    right, sure = (
        [f"{share:.4f}" for share in of.tolist()] for of in (trust.probability, trust.sure)
    )
    splits, order = [split for split, _ in judged.places], trust.order.tolist()
    columns = judged.paths, splits, given, suggested, right, sure
    rows = [("path", "split", "class", "suggestion", "label is right", "suggestion is right")]
    rows += [tuple(column[k] for column in columns) for k in order]
    listed, sheet = out / f"{noun}s.csv", out / "images.png"
    write_atomically(listed, csv_bytes(rows))
    write_atomically(out / "classes.csv", csv_bytes(classes))
    if noun == "image":
        shown = order[:FIRST]
        names = [f"{Path(judged.paths[k]).name}\n{given[k]}\n→ {suggested[k]}" for k in shown]
        pictures = [to_picture(pixels) for pixels in judged.items(shown)]
        draw_sheet(pictures, names, sheet, "Least trusted first: image, its class, the suggestion")
    reviewed = suspects(judged, options.most)
    write_atomically(out / "review.html", review_page(judged, reviewed).encode())
    print(table_text(classes[:11]))
    print(f"\n{100 * trust.share_wrong:.1f}% of {len(judged):,} labels look wrong")
    if options.score:
        print(score_judged(judged, data).line)
    _print_note(judged, options.run)
    if trust.share_wrong < OVERFIT and not trust.weak and options.run is not None:
        print(
            "hardly a label looks wrong: they are right, or the model has overfitted them; look at "
            "another split (--split val), or train for fewer updates"
        )
    print_rows(
        (f"{noun}s", f"{listed}, {sheet}" if noun == "image" else listed),
        ("classes", out / "classes.csv"),
        ("review", f"{out / 'review.html'} ({len(reviewed):,} {noun}s)"),
    )


def clean(options: CleanOptions) -> None:
    run, destination = options.run, options.destination
    if options.features is not None and destination is None:
        run, destination = None, run
    elif run is None:
        raise DertsError("Missing: RUN (derts clean --help)")
    if destination is None:
        raise DertsError("give DEST, the folder to write")
    rules = [name for name in ("mix", "drop", "relabel") if getattr(options, name)]
    if len(rules) > 1:
        raise DertsError(f"--{rules[0]} and --{rules[1]} exclude each other: choose one")

    from derts.data.matrices import is_matrix
    from derts.data.store_writing import check_destination
    from derts.files import csv_bytes
    from derts.labels import cleaning
    from derts.labels.judging import chosen_splits

    check_destination(destination, overwrite=options.overwrite)
    judged, data = _judge(options, run, None)
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
    _print_note(judged, run)
    one_split = "all in one split: to train, derts data prepare the file and clean that store"
    print("\n".join(made.lines()))
    reached = splits if options.apply is None else judged.tables
    images = sum(len(judged.tables[split]) for split in reached)
    print_rows(
        ("relabelled", f"{relabelled:,} of {images:,} {judged.noun}s"),
        ("dropped", f"{len(changes) - relabelled:,}"),
        ("changes", destination / "changes.csv"),
        ("note", one_split if is_matrix(data) else None),
    )


def _print_note(judged: "JudgedItems", run: Path | None) -> None:
    """What the judge cannot judge, and that another one sees more in photos."""
    from derts.models.pretrained import may_be_photos

    shape = next(iter(judged.tables.values())).item_shape
    texts = [printable(judged.trust.note)] if judged.trust.note else []
    if run is not None and may_be_photos(shape) and not _is_backbone(run):
        better = "derts inspect efficientnet-lite0 --data STORE"
        texts.append(
            f"a network trained on few photos misses many wrong labels; for photos: {better}"
        )
    if texts:
        print(f"note: {'; '.join(texts)}")


def _is_backbone(run: Path | None) -> bool:
    """Whether a pretrained backbone is named in place of a run."""
    return run is not None and not run.exists() and ModelConfig(str(run)).pretrained


def _judge(options: JudgeOptions, run: Path | None, split: str | None) -> "tuple[JudgedItems, str]":
    """Data judged by a run's model or a pretrained backbone, or features as they are; its place."""
    from derts.data import open_data
    from derts.hardware import choose_device
    from derts.labels.judging import chosen_splits, judge_items
    from derts.models.pretrained import load_pretrained
    from derts.training.run import open_trainer
    from derts.training.run_folder import Run

    features, data = options.features, options.data
    if (run is None) == (features is None):
        fix = "efficientnet-lite0 in place of a run judges photos without training"
        raise DertsError(f"give either a run or --features FILE: {fix}")
    if features is not None:
        if data is not None:
            raise DertsError("--features is the data itself: leave out --data")
        return _judge_features(options, features, split), str(features)
    assert run is not None
    by_backbone = _is_backbone(run)
    if not by_backbone:
        data = Run.open(run).data(data, options.data_changed)
    elif data is None:
        raise DertsError(f"{run} was not trained on your images: name their store with --data")
    tables = open_data(data)
    chosen = chosen_splits(tables, split)
    shown = options.progress("inspecting", sum(map(len, chosen.values())), "images")
    if not by_backbone:
        learner = open_trainer(run, tables).learner
        with shown as advance:
            return judge_items(learner, chosen, data, advance), data
    shape = next(iter(chosen.values())).item_shape
    if len(shape) == 1:
        raise DertsError(f"{data} holds features: give it as --features, without {run}")
    network, device = load_pretrained(str(run), options.weights), choose_device()
    network.check_images(shape)
    with shown as advance:
        embedded = {part: network.embed_table(chosen[part], device, advance) for part in chosen}
    return replace(judge_items(None, embedded, data), tables=chosen), data


def _judge_features(options: JudgeOptions, source: Path, split: str | None) -> "JudgedItems":
    """The features of a store or a file, judged as they are."""
    from derts.data import describe_store, open_store, read_matrix
    from derts.labels.judging import chosen_splits, judge_items

    if source.is_dir():
        if describe_store(source).kind != "features":
            fix = f"give a run, or a pretrained backbone: efficientnet-lite0 --data {source}"
            raise DertsError(f"{source} is a store of images: {fix}")
        return judge_items(None, chosen_splits(open_store(source), split), str(source))
    matrix = read_matrix(source, options.labels)
    for note in matrix.check(options.progress):
        print(printable(note))
    if len(set(matrix.labels or ())) < 2:
        raise DertsError(f"{source} has one class: give rows of two classes or more")
    names = [matrix.name(row) for row in range(len(matrix))]
    return judge_items(None, chosen_splits({"train": matrix.table()}, split), paths=names)
