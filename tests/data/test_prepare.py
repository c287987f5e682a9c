"""From class folders to a store: splits, broken images, interruption and resumption."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from derts.cli import run
from derts.data import decode, find_source, folders, open_store, prepare, verify_store
from derts.data.folders import split_by_class
from derts.errors import DertsError
from derts.progress import progress

MakeImages = Callable[..., Path]
PREPARE, DECODE = sys.modules["derts.data.prepare"], sys.modules["derts.data.decode"]


def contents(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(store.iterdir())}


def test_split_folders(class_folders: MakeImages, tmp_path: Path) -> None:
    class_folders("source/train", "abcd")
    class_folders("source/valid", "ef")
    class_folders("source/test", "gh", count=2)
    done = prepare(tmp_path / "source", tmp_path / "store", size=12)
    counts = {split: entry.count for split, entry in done.store.splits.items()}
    assert counts == {"train": 16, "val": 8, "test": 4}
    tables = open_store(tmp_path / "store")
    assert tables["val"].class_names == ("e", "f")
    first = Image.open(tmp_path / "source/train/a/0.png").crop((2, 0, 14, 12))
    np.testing.assert_array_equal(tables["train"].items[0].numpy(), np.asarray(first))
    assert not (tmp_path / "store.partial").exists()


def test_one_folder_of_classes_is_split_by_seed(class_folders: MakeImages, tmp_path: Path) -> None:
    source = class_folders("source", "abcdefghij", count=1)
    names: list[list[tuple[str, ...]]] = []
    for seed in (0, 0, 1):
        store = prepare(source, tmp_path / f"{len(names)}", size=8, seed=seed).store
        names.append([entry.classes for entry in store.splits.values()])
    assert names[0] == names[1] != names[2]
    assert sorted(name for split in names[0] for name in split) == list("abcdefghij")
    assert contents(tmp_path / "0") == contents(tmp_path / "1")


@pytest.mark.parametrize("count", [3, 4, 5, 7, 100])
def test_every_split_gets_a_class(count: int) -> None:
    chosen = split_by_class([str(number) for number in range(count)], (0.64, 0.16, 0.2), seed=0)
    sizes = [len(names) for names in chosen.values()]
    assert sum(sizes) == count
    assert min(sizes) >= 1
    if count == 100:
        assert sizes == [64, 16, 20]


def test_untidy_folders(class_folders: MakeImages, tmp_path: Path) -> None:
    source = class_folders("source", "abc", count=2)
    (source / "ß 日本").mkdir()
    Image.new("RGB", (9, 9)).save(source / "ß 日本" / "ñ.JPG", "JPEG")
    (source / "empty class").mkdir()
    (source / ".hidden").mkdir()
    for junk in (".DS_Store", "._0.png", "Thumbs.db", "readme.txt"):
        (source / "a" / junk).write_bytes(b"junk")
    (source / "a" / "deeper" / "still").mkdir(parents=True)
    Image.new("L", (9, 9)).save(source / "a" / "deeper" / "still" / "x.png")
    (source / "a" / "deeper" / "loop").symlink_to(source / "a")
    (source / "loop").symlink_to(source)
    done = prepare(source, tmp_path / "store", size=8)
    counts = {
        name: len(indices)
        for table in open_store(tmp_path / "store").values()
        for name, indices in zip(table.class_names, table.class_indices(), strict=True)
    }
    assert counts == {"a": 3, "b": 2, "c": 2, "ß 日本": 1}
    assert done.notes == ()


def test_broken_images_stop_or_are_left_out(class_folders: MakeImages, tmp_path: Path) -> None:
    source = class_folders("source", "abc")
    (source / "a" / "1.png").write_bytes(b"")
    whole = (source / "b" / "2.png").read_bytes()
    (source / "b" / "2.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DertsError, match=r"^2 of the images cannot be read, the first is .*png"):
        prepare(source, tmp_path / "store", size=8)
    assert not (tmp_path / "store").exists()
    done = prepare(source, tmp_path / "store", size=8, skip_broken=True)
    assert done.resumed_images == 12
    assert "left out 2 broken images" in done.notes[1]
    assert done.store.left_out == 2
    assert sum(entry.count for entry in done.store.splits.values()) == 10
    verify_store(tmp_path / "store")
    clean = class_folders("clean", "abc")
    for name in ("a/1.png", "b/2.png"):
        (clean / name).unlink()
    prepare(clean, tmp_path / "clean store", size=8)
    left, right = contents(tmp_path / "store"), contents(tmp_path / "clean store")
    assert [left[n] == right[n] for n in left] == [n != "store.json" for n in left]


def test_class_of_broken_images_only(class_folders: MakeImages, tmp_path: Path) -> None:
    class_folders("source/train", "abc", count=1)
    (tmp_path / "source/train/a/0.png").write_bytes(b"x")
    with pytest.raises(DertsError, match=r"class 'a' in train has no image left.*a/0\.png: not an"):
        prepare(tmp_path / "source", tmp_path / "store", size=8, skip_broken=True)
    assert not (tmp_path / "store").exists()


def test_photographs_that_are_not_read_are_counted(
    class_folders: MakeImages, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = class_folders("source", "abc")
    for name in ("a/1.heic", "a/2.HEIC", "b/1.cr2", "b/2.psd", "b/notes.txt", "b/.3.heic"):
        (source / name).write_bytes(b"x")
    (source / "c" / "renamed.jpg").write_bytes(HEIC)
    Image.new("RGB", (9, 9)).save(source / "loose.png")
    (source / "loose.dng").touch()
    words = ["data", "prepare", str(source), str(tmp_path / "store"), "--size", "8"]
    assert run(words) == 2
    assert "renamed.jpg in " in (said := capsys.readouterr().err)
    assert "it is HEIC, which is not read: convert it, or install pillow-heif" in said
    for _ in range(2):  # the second time it is prepared already
        assert run([*words, "--skip-broken"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1] == (
            "2 files are HEIC, which is not read: convert them, or install pillow-heif; "
            "1 file is PSD, which is not read: convert it to JPEG; "
            "2 files are RAW, which is not read: convert them to JPEG"
        )
        assert lines[-2] == "left out 1 images that lie in no class folder: loose.png"
    for file in (source / "a").glob("*.png"):
        file.unlink()
    assert run([*words, "--skip-broken", "--overwrite"]) == 2
    assert "class 'a' has no image that can be read: 2 files are HEIC" in capsys.readouterr().err


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"


@pytest.fixture
def pillow_heif(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A stand-in for that package: a PNG after the beginning of a HEIC file."""

    def register() -> None:
        def factory(file: Any, name: object) -> PngImageFile:
            return PngImageFile(io.BytesIO(file.read()[len(HEIC) :]))

        Image.register_open("HEIF", factory, lambda start: start[4:12] == b"ftypheic")
        Image.register_extension("HEIF", ".heic")

    stub = ModuleType("pillow_heif")
    stub.register_heif_opener = register  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pillow_heif", stub)
    monkeypatch.setattr(Image, "EXTENSION", dict(Image.registered_extensions()))
    monkeypatch.setattr(Image, "OPEN", dict(Image.OPEN))
    monkeypatch.setattr(Image, "ID", list(Image.ID))
    for known in (decode.formats, folders._kinds):
        known.cache_clear()
    yield
    for known in (decode.formats, folders._kinds):
        known.cache_clear()


def test_heic_is_read_where_pillow_heif_is_installed(
    pillow_heif: None, class_folders: MakeImages, tmp_path: Path
) -> None:
    source = class_folders("source", "abc")
    prepare(source, tmp_path / "plain", size=8)
    for number, file in enumerate(sorted((source / "a").iterdir())):  # some of them renamed
        file.with_suffix(".heic" if number % 2 else ".jpg").write_bytes(HEIC + file.read_bytes())
        file.unlink()
    assert prepare(source, tmp_path / "store", size=8).notes == ()
    left, right = contents(tmp_path / "plain"), contents(tmp_path / "store")
    assert all(left[name] == right[name] for name in left if name.endswith(".npy"))
    (source / "a" / "0.heic").write_bytes(HEIC + b"damaged")
    with pytest.raises(DertsError, match=r"a/0.heic in .*not an image of a known .*PPM, HEIF\)"):
        prepare(source, tmp_path / "other", size=8)


def test_categories_of_classes_are_not_merged(class_folders: MakeImages, tmp_path: Path) -> None:
    for category in ("animals", "things"):
        class_folders(f"source/{category}", "ab")
    with pytest.raises(
        DertsError, match=r"2 folders of images \(animals/a, anim.*--class-level 2 for 'animals/a'"
    ):
        prepare(tmp_path / "source", tmp_path / "store", size=8)
    class_folders("deep/animals/wild", "ab")
    with pytest.raises(
        DertsError, match=r"wild holds 2 folders.*--class-level 3 for 'animals/wild"
    ):
        prepare(tmp_path / "deep", tmp_path / "store", size=8)
    class_folders("with an image", "ab")
    class_folders("with an image/a", "cd")
    with pytest.raises(DertsError, match=r"with an image/a holds 2 folders"):
        prepare(tmp_path / "with an image", tmp_path / "store", size=8)

    def classes(level: int) -> set[str]:
        made = prepare(
            tmp_path / "source", tmp_path / "store", size=8, class_level=level, overwrite=True
        )
        return {name for entry in made.store.splits.values() for name in entry.classes}

    assert classes(2) == {"animals/a", "animals/b", "things/a", "things/b"}
    class_folders("source/more", "ab")
    assert classes(1) == {"animals", "things", "more"}
    Image.new("RGB", (9, 9)).save(tmp_path / "source" / "animals" / "x.png")
    made = prepare(tmp_path / "source", tmp_path / "other", size=8, class_level=2)
    assert made.notes == ("left out 1 images that lie in no class folder: x.png",)
    with pytest.raises(
        DertsError, match=r"no folder of images at level 3: .*animals/a.*level 1 or 2$"
    ):
        prepare(tmp_path / "source", tmp_path / "none", size=8, class_level=3)


def test_huge_images_and_postscript_count_as_broken(
    class_folders: MakeImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = class_folders("source", "abc", count=1)
    Image.new("RGB", (9, 9)).save(source / "b" / "0.png", "EPS")
    with pytest.raises(DertsError, match=r"b/0\.png in .*\(not an image of a known format: JPEG"):
        prepare(source, tmp_path / "store")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 150)
    with pytest.raises(DertsError, match="more pixels than are safe to unpack"):
        prepare(source, tmp_path / "other")


def test_several_threads_give_the_same_bytes(class_folders: MakeImages, tmp_path: Path) -> None:
    source = class_folders("source", "abcdef", count=60)
    prepare(source, tmp_path / "one", size=8, workers=1)
    prepare(source, tmp_path / "two", size=8, workers=3, progress=progress)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.fixture
def interrupted(
    class_folders: MakeImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """A source of 42 images whose preparation stopped by an error after some of them."""
    monkeypatch.setattr(DECODE, "_STEP", 4)

    def make(destination: str, error: BaseException) -> Path:
        source = class_folders(f"{destination} source", "abcdef", count=7)
        decode, calls = DECODE.decode, iter(range(100))

        def fail(*arguments: Any) -> Any:
            if next(calls) == 20:
                raise error
            return decode(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(DECODE, "decode", fail)
            with pytest.raises((type(error), DertsError), match=r"full|^$"):
                prepare(source, tmp_path / destination, size=8, workers=1)
        assert not (tmp_path / destination).exists()
        return source

    return make


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
@pytest.mark.parametrize("harm", ["none", "line cut short", "pixels without line", "pixels lost"])
def test_resumes_to_the_same_bytes(
    error: BaseException, harm: str, interrupted: Callable[..., Path], tmp_path: Path
) -> None:
    source = interrupted("store", error)
    if harm == "line cut short":
        with (tmp_path / "store.partial" / "journal").open("a") as journal:
            journal.write('["train", 99')
    elif harm != "none":
        with (tmp_path / "store.partial" / "train.npy").open("ab") as pixels:
            pixels.truncate(300) if harm == "pixels lost" else pixels.write(b"12345")
    done = prepare(source, tmp_path / "store", size=8)
    if harm == "pixels lost":
        assert done.resumed_images == 0
    else:
        assert 0 < done.resumed_images <= 20
        assert done.notes == (f"continued: {done.resumed_images} images were done before",)
    prepare(source, tmp_path / "whole", size=8)
    assert contents(tmp_path / "store") == contents(tmp_path / "whole")


@pytest.mark.parametrize("change", ["size", "image"])
def test_other_settings_or_images_start_over(
    change: str, interrupted: Callable[..., Path], tmp_path: Path
) -> None:
    source = interrupted("store", KeyboardInterrupt())
    if change == "image":
        (source / "a" / "0.png").unlink()
    (tmp_path / "store.partial" / "other.npy").write_bytes(b"of a split that is gone")
    size = 10 if change == "size" else 8
    assert prepare(source, tmp_path / "store", size=size).resumed_images == 0
    verify_store(tmp_path / "store")
    assert not (tmp_path / "store" / "other.npy").exists()


def test_destination_that_is_taken(class_folders: MakeImages, tmp_path: Path) -> None:
    source = class_folders("source", "abc")
    store = tmp_path / "store"
    store.mkdir()  # an empty folder is free
    prepare(source, store, size=8)
    assert prepare(source, store, size=8).notes == ("it is prepared already",)
    with pytest.raises(DertsError, match="--overwrite"):
        prepare(source, store, size=9)
    assert not (tmp_path / "store.partial").exists()
    prepare(source, store, size=9, overwrite=True, grayscale=True)
    assert open_store(store)["train"].item_shape == (9, 9, 1)
    with pytest.raises(DertsError, match="is no store"):
        prepare(source, class_folders("other"), overwrite=True)
    with pytest.raises(DertsError, match="inside the source"):
        prepare(source, source / "store")
    (tmp_path / "file").write_text("")
    with pytest.raises(DertsError, match=r"cannot write .*file"):
        prepare(source, tmp_path / "file" / "store")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size 0"),
        ({"workers": -1}, "workers -1"),
        ({"min_images": 0}, "min_images 0"),
        ({"split_fractions": (0.5, 0.1, 0.1)}, "their sum 1"),
        ({"split_fractions": (1.0, 0.0, 0.0)}, "above 0"),
        ({"class_level": -1}, "class_level -1"),
        ({"min_images": 3}, r"0 classes cannot be split .*, \d+ are left out: lower --min-images"),
    ],
)
def test_bad_arguments(
    arguments: dict[str, Any], message: str, class_folders: MakeImages, tmp_path: Path
) -> None:
    with pytest.raises(DertsError, match=message):
        prepare(class_folders("source", count=2), tmp_path / "store", **arguments)
    assert not (tmp_path / "store.partial").exists()


def test_nothing_that_fits(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, message in ((tmp_path, "expected one of: train/"), (tmp_path / "file", "is a file")):
        with pytest.raises(DertsError, match=message):
            find_source(path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write all")
def test_forbidden_destination(class_folders: MakeImages, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(DertsError, match="choose another destination"):
        prepare(class_folders("source"), closed / "store")


@pytest.mark.parametrize("splits", [False, True])
def test_small_classes_are_left_out(
    splits: bool, class_folders: MakeImages, tmp_path: Path
) -> None:
    folder = class_folders("source/train" if splits else "source", "abcdef", count=5)
    for name in ("1.png", "2.png"):
        (folder / "c" / name).unlink()
    done = prepare(tmp_path / "source", tmp_path / "store", size=8, min_images=5)
    names = {n for table in open_store(tmp_path / "store").values() for n in table.class_names}
    assert names == set("abdef")
    assert done.notes == ("left out 1 classes with fewer than 5 images: c",)
    with pytest.raises(DertsError, match=r"classes cannot be split|no class folder with 6 images"):
        prepare(tmp_path / "source", tmp_path / "other", min_images=6)
    assert not (tmp_path / "other.partial").exists()
