"""From class folders to a store: splits, broken images, interruption and resumption."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from derts.data import find_source, open_store, preparation, prepare, verify_store, worker
from derts.data.folders import split_by_class
from derts.data.worker import Done, Job
from derts.errors import DertsError
from derts.progress import progress

MakeImages = Callable[..., Path]


def contents(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(store.iterdir())}


def test_split_folders(class_folders: MakeImages, tmp_path: Path) -> None:
    class_folders("source/train", "abcd")
    class_folders("source/valid", "ef")
    class_folders("source/test", "gh", count=2)
    done = prepare(tmp_path / "source", tmp_path / "store", size=12, workers=1)
    assert {split: entry.count for split, entry in done.store.splits.items()} == {
        "train": 16,
        "val": 8,
        "test": 4,
    }
    tables = open_store(tmp_path / "store")
    assert tables["val"].class_names == ("e", "f")
    first = Image.open(tmp_path / "source/train/a/0.png").crop((2, 0, 14, 12))
    np.testing.assert_array_equal(tables["train"].images[0].numpy(), np.asarray(first))
    assert not (tmp_path / "store.partial").exists()


def test_one_folder_of_classes_is_split_by_seed(class_folders: MakeImages, tmp_path: Path) -> None:
    source = class_folders("source", "abcdefghij", count=1)
    names: list[list[tuple[str, ...]]] = []
    for seed in (0, 0, 1):
        store = prepare(source, tmp_path / f"{len(names)}", size=8, workers=1, seed=seed).store
        names.append([entry.class_names for entry in store.splits.values()])
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


def test_too_few_classes(class_folders: MakeImages, tmp_path: Path) -> None:
    with pytest.raises(DertsError, match="2 classes cannot be split"):
        prepare(class_folders("source", "ab"), tmp_path / "store")
    assert not (tmp_path / "store.partial").exists()


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
    done = prepare(source, tmp_path / "store", size=8, workers=1)
    tables = open_store(tmp_path / "store")
    counts = {
        name: len(indices)
        for table in tables.values()
        for name, indices in zip(table.class_names, table.class_indices(), strict=True)
    }
    assert counts == {"a": 3, "b": 2, "c": 2, "ß 日本": 1}
    assert done.notes == ()


def break_two(source: Path) -> None:
    (source / "a" / "1.png").write_bytes(b"")
    whole = (source / "b" / "2.png").read_bytes()
    (source / "b" / "2.png").write_bytes(whole[: len(whole) // 2])


def test_broken_images_stop_or_are_left_out(class_folders: MakeImages, tmp_path: Path) -> None:
    source = class_folders("source", "abc")
    break_two(source)
    with pytest.raises(DertsError, match=r"^2 of the images cannot be read, the first is .*png"):
        prepare(source, tmp_path / "store", size=8, workers=1)
    assert not (tmp_path / "store").exists()
    done = prepare(source, tmp_path / "store", size=8, workers=1, skip_broken=True)
    assert done.resumed_images == 12
    assert "left out 2 broken images" in done.notes[1]
    assert done.store.left_out == 2
    assert sum(entry.count for entry in done.store.splits.values()) == 10
    verify_store(tmp_path / "store")
    clean = class_folders("clean", "abc")
    for name in ("a/1.png", "b/2.png"):
        (clean / name).unlink()
    prepare(clean, tmp_path / "clean store", size=8, workers=1)
    left, right = contents(tmp_path / "store"), contents(tmp_path / "clean store")
    assert [left[n] == right[n] for n in left] == [n != "store.json" for n in left]


def test_class_of_broken_images_only(class_folders: MakeImages, tmp_path: Path) -> None:
    class_folders("source/train", "abc", count=1)
    (tmp_path / "source/train/a/0.png").write_bytes(b"x")
    store = prepare(tmp_path / "source", tmp_path / "store", size=8, skip_broken=True).store
    assert store.splits["train"].class_names == ("b", "c")
    for name in "bc":
        (tmp_path / f"source/train/{name}/0.png").write_bytes(b"x")
    with pytest.raises(DertsError, match="no image left"):
        prepare(tmp_path / "source", tmp_path / "other", size=8, skip_broken=True)


def test_huge_image_counts_as_broken(
    class_folders: MakeImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = class_folders("source", "abc", count=1)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 150)
    with pytest.raises(DertsError, match="more pixels than Pillow deems safe"):
        prepare(source, tmp_path / "store", workers=1)


def test_several_processes_give_the_same_bytes(class_folders: MakeImages, tmp_path: Path) -> None:
    source = class_folders("source", "abcdef", count=60)
    prepare(source, tmp_path / "one", size=8, workers=1)
    prepare(source, tmp_path / "two", size=8, workers=2, progress=progress)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def stop_after(count: int, error: BaseException) -> Callable[[Iterable[Job], int], Iterator[Done]]:
    def run(jobs: Iterable[Job], workers: int) -> Iterator[Done]:
        for number, job in enumerate(jobs):
            if number == count:
                raise error
            yield worker.run_job(job)

    return run


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "_CHUNK", 4)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(errno.ENOSPC, "No space left on device"), DertsError),
    ],
)
def test_resumes_to_the_same_bytes(
    class_folders: MakeImages,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    raised: type[BaseException],
) -> None:
    source = class_folders("source", "abcdef", count=7)
    prepare(source, tmp_path / "whole", size=8, workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "run_jobs", stop_after(5, error))
        with pytest.raises(raised, match="full" if raised is DertsError else None):
            prepare(source, tmp_path / "store", size=8, workers=1)
    assert not (tmp_path / "store").exists()
    with (tmp_path / "store.partial" / "journal").open("a") as journal:
        journal.write('["train", 99')  # as a crash in the middle of a line leaves it
    done = prepare(source, tmp_path / "store", size=8, workers=1)
    assert 0 < done.resumed_images < 42
    assert done.notes == (f"continued: {done.resumed_images} images were done before",)
    assert contents(tmp_path / "store") == contents(tmp_path / "whole")


@pytest.mark.usefixtures("small_chunks")
def test_other_settings_or_images_start_over(
    class_folders: MakeImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = class_folders("source", "abcdef", count=7)
    for change in ("size", "image"):
        with monkeypatch.context() as patch:
            patch.setattr(preparation, "run_jobs", stop_after(5, KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                prepare(source, tmp_path / change, size=8, workers=1)
        if change == "image":
            (source / "a" / "0.png").unlink()
        size = 10 if change == "size" else 8
        assert prepare(source, tmp_path / change, size=size, workers=1).resumed_images == 0
        verify_store(tmp_path / change)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send there")
def test_control_c_ends_workers_and_can_go_on(class_folders: MakeImages, tmp_path: Path) -> None:
    source = class_folders("source", "abc", count=250)
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, sys\nfrom derts.data import prepare\nif __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    prepare(sys.argv[1], sys.argv[2], size=400, workers=2)\n"
    )
    command = [sys.executable, str(script), str(source), str(tmp_path / "store")]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    journal = tmp_path / "store.partial" / "journal"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and child.poll() is None:
        if journal.exists() and journal.read_bytes().count(b"\n") > 2:
            break
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGINT)
    child.wait(timeout=10)
    assert not (tmp_path / "store").exists(), "it finished before it was interrupted"
    done = prepare(source, tmp_path / "store", size=400, workers=1)
    assert done.resumed_images > 0
    verify_store(tmp_path / "store")


def test_destination_that_is_taken(class_folders: MakeImages, tmp_path: Path) -> None:
    source = class_folders("source", "abc")
    store = tmp_path / "store"
    store.mkdir()  # an empty folder is free
    prepare(source, store, size=8, workers=1)
    assert prepare(source, store, size=8, workers=1).notes == ("it is prepared already",)
    with pytest.raises(DertsError, match="--overwrite"):
        prepare(source, store, size=9, workers=1)
    assert not (tmp_path / "store.partial").exists()
    prepare(source, store, size=9, workers=1, overwrite=True)
    assert open_store(store)["train"].image_shape == (9, 9, 3)
    with pytest.raises(DertsError, match="is no store"):
        prepare(source, class_folders("other"), overwrite=True)
    with pytest.raises(DertsError, match="inside the source"):
        prepare(source, source / "store")


def test_grayscale(class_folders: MakeImages, tmp_path: Path) -> None:
    prepare(class_folders("source"), tmp_path / "store", size=8, grayscale=True, workers=1)
    assert open_store(tmp_path / "store")["train"].image_shape == (8, 8, 1)


def test_bad_arguments(class_folders: MakeImages, tmp_path: Path) -> None:
    source = class_folders("source")
    with pytest.raises(DertsError, match="size 0"):
        prepare(source, tmp_path / "store", size=0)
    with pytest.raises(DertsError, match="workers -1"):
        prepare(source, tmp_path / "store", workers=-1)
    with pytest.raises(DertsError, match="sum to 1"):
        prepare(source, tmp_path / "store", split_fractions=(0.5, 0.1, 0.1))


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


def test_destination_below_a_file(class_folders: MakeImages, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DertsError, match=r"cannot write .*file"):
        prepare(class_folders("source"), tmp_path / "file" / "store")


def test_script_without_a_main_guard(class_folders: MakeImages, tmp_path: Path) -> None:
    source = class_folders("source", "abc", count=100)
    script = tmp_path / "script.py"
    script.write_text(
        "from derts.data import prepare\n"
        f"prepare({str(source)!r}, {str(tmp_path / 'x')!r}, workers=2)\n"
    )
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert "DertsError: a worker process ended unexpectedly: in a script, call" in ended.stderr


@pytest.mark.parametrize("splits", [False, True])
def test_small_classes_are_left_out(
    splits: bool, class_folders: MakeImages, tmp_path: Path
) -> None:
    source = class_folders("source", "abcdef", count=5)
    if splits:
        (tmp_path / "split").mkdir()
        source = source.rename(tmp_path / "split" / "train").parent
    inner = source / "train" if splits else source
    for name in ("1.png", "2.png"):
        (inner / "c" / name).unlink()
    done = prepare(source, tmp_path / "store", size=8, workers=1, min_images=5)
    names = {
        name for table in open_store(tmp_path / "store").values() for name in table.class_names
    }
    assert names == set("abdef")
    assert done.notes == ("left out 1 classes with fewer than 5 images: c",)
    with pytest.raises(DertsError, match="min_images 0"):
        prepare(source, tmp_path / "other", min_images=0)
    with pytest.raises(DertsError, match=r"classes cannot be split|no class folder with 6 images"):
        prepare(source, tmp_path / "other", min_images=6)
    assert not (tmp_path / "other.partial").exists()
