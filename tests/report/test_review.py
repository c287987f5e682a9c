"""review.html in a real browser: by keys, by mouse, remembered, saved, and with many suspects."""

import csv
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from derts.data import ImageTable
from derts.labels.cleaning import LabelChange, read_review
from derts.labels.judging import JudgedItems
from derts.labels.trust import Trust
from derts.report.review import review_page, suspects
from tests.report.browser import Browser, browser, missing

NAMES = ("cat", 'dog, "big"', "</script><b id='bad'>fox</b>", "=owl")
with_browser = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")


def judged(count: int, names: tuple[str, ...] = NAMES) -> JudgedItems:
    """Images that all look as the class after their own."""
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 16, 16, 3), dtype=torch.uint8, generator=random)
    given = torch.arange(count) % len(names)
    table = ImageTable(pixels, given, names)
    right, sure = torch.linspace(0.01, 0.49, count), torch.full((count,), 0.9)
    wrong = torch.eye(len(names))
    trust = Trust(right, given, (given + 1) % len(names), sure, torch.ones(count), wrong, names)
    paths = [f"{names[k]}/{n}, <i>.png" for n, k in enumerate(given.tolist())]
    features = torch.zeros(count, 2)
    return JudgedItems({"train": table}, paths, features, trust, torch.device("cpu"))


def test_suspects_are_those_more_likely_wrong_and_names_are_no_markup() -> None:
    images = judged(200)
    images.trust.probability[50:] = 0.9
    assert suspects(images, 1000) == list(range(50))
    assert suspects(images, 10) == list(range(10))
    images.trust.probability[:] = 0.9
    assert len(suspects(images, 1000)) == 20
    page = review_page(images, suspects(images, 1000))
    assert page.count("</script>") == 2  # the page's own
    assert "http" not in page.replace("http-equiv", "")


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("review")
    images = judged(12)
    (folder / "review.html").write_text(review_page(images, range(12)), encoding="utf-8")
    with browser() as opened:
        opened.download_to(folder)
        opened.open(folder / "review.html")
        opened.folder = folder  # type: ignore[attr-defined]
        yield opened


def reopen(window: Browser, page: Path, count: str) -> None:
    """Come back to a page that remembers: a busy browser may take a moment to have it on disk."""
    for _ in range(20):
        window.open(page)
        if text(window, "#count") == count:
            return
        time.sleep(0.2)
    raise AssertionError(f"the page came back with {text(window, '#count')}, not {count}")


def text(window: Browser, selector: str) -> str:
    return str(window.run(f"return document.querySelector({selector!r}).textContent"))


def saved(window: Browser) -> list[dict[str, str]]:
    """Click on Save and read what it wrote."""
    path: Path = window.folder / "review.csv"  # type: ignore[attr-defined]
    path.unlink(missing_ok=True)
    window.click("#save")
    for _ in range(100):
        if path.is_file():
            with path.open(newline="", encoding="utf-8") as file:
                return list(csv.DictReader(file))
        time.sleep(0.05)
    raise AssertionError("nothing was saved")


@with_browser
@pytest.mark.slow
def test_by_keys_and_by_mouse_and_remembered(window: Browser) -> None:
    page = window.folder / "review.html"  # type: ignore[attr-defined]
    assert text(window, "#count") == "0 of 12 decided"
    assert text(window, "#given") == "Given: cat"
    assert text(window, "#suggested") == 'Suggested: dog, "big"'
    assert window.run("return document.querySelectorAll('.typical img').length") == 6
    assert window.run("return document.getElementById('suspect').naturalWidth") == 16
    window.press("a", "k", "x")
    assert text(window, "#count") == "3 of 12 decided"
    assert text(window, "#path").startswith("4: =owl/3, <i>.png")
    window.press("r", *"FOX", "\ue007")  # the list, part of a name, Enter
    window.press("r", *"a", "\ue00c")  # Escape: nothing decided
    assert text(window, "#count") == "4 of 12 decided"
    window.press("b", "\ue012")  # back, left arrow
    assert text(window, "#path").startswith("3: ")
    assert text(window, "#decision") == "left out"
    window.press("k", "j", "\ue014")  # another decision, on, right arrow
    assert text(window, "#path").startswith("6: ")
    assert window.run("return document.getElementById('bad')") is None

    reopen(window, page, "4 of 12 decided")
    assert text(window, "#path").startswith("5: ")  # the first that is not decided
    for button in ("#accept", "#keep", "#drop", "#next", "#back", "#back"):
        window.click(button)
    assert text(window, "#path").startswith("7: ")
    assert text(window, "#decision") == "left out"
    window.click("#relabel")
    window.run("document.getElementById('classes').value = 3")
    window.click("#chosen")
    window.click("#relabel")
    window.click("#cancel")
    rows = saved(window)
    decided = [(row["decision"], row["new class"]) for row in rows]
    assert decided == [
        ("relabel", 'dog, "big"'), ("keep", ""), ("keep", ""), ("relabel", NAMES[2]),
        ("relabel", 'dog, "big"'), ("keep", ""), ("relabel", "'=owl"),
    ]  # fmt: skip
    assert rows[2]["path"] == f"{NAMES[2]}/2, <i>.png"
    found = read_review(window.folder / "review.csv", judged(12))  # type: ignore[attr-defined]
    assert {image for image, change in found.items() if change is None} == {1, 2, 5}
    assert found[6] == LabelChange(6, "=owl", "review")
    assert [one["message"] for one in window.console()] == []


@with_browser
@pytest.mark.slow
def test_ten_thousand_suspects_stay_responsive(tmp_path: Path) -> None:
    images = judged(10_000, tuple(f"class {number}" for number in range(300)))
    page = tmp_path / "review.html"
    page.write_text(review_page(images, suspects(images, 10_000)), encoding="utf-8")
    assert page.stat().st_size < 60e6
    with browser() as opened:
        opened.open(page)
        opened.run(
            "for (let n = 0; n < 5000; n++) document.dispatchEvent(new KeyboardEvent('keydown',"
            "{key: 'ArrowRight'}))"
        )
        opened.run("for (let n = 0; n < 5000; n++) decisions[n] = 'keep'; show()")
        began = time.monotonic()
        opened.press(*"aaaaaaaaaaaaaaaaaaaa")
        assert time.monotonic() - began < 2  # twenty decisions, on a busy machine
        assert text(opened, "#count") == "5,020 of 10,000 decided"
        reopen(opened, page, "5,020 of 10,000 decided")
        assert text(opened, "#path").startswith("5021: ")
