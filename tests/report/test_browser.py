"""The page in a real browser: nothing on the console, tables sort, hovering shows a task."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from derts.data import ImageTable, open_data
from derts.report.page import make_report
from derts.training.run_folder import Run
from tests.report.browser import Browser, browser, missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here"),
]


@pytest.fixture(scope="module")
def window(demo_folder: Path) -> Iterator[Browser]:
    with browser() as opened:
        opened.open(demo_folder / "report.html")
        yield opened


def column(window: Browser, number: int) -> list[str]:
    script = f"return [...document.querySelectorAll('table')[1].tBodies[0].rows]\
        .map(row => row.cells[{number}].textContent)"
    found: list[str] = window.run(script)
    return found


def test_tables_sort_by_value(window: Browser) -> None:
    window.run("document.querySelectorAll('table')[1].id = 'every'")
    window.click("#every th:last-child button")
    values = [float(text.split()[0]) for text in column(window, 5)]
    assert values == sorted(values, reverse=True)
    window.click("#every th:last-child button")
    values = [float(text.split()[0]) for text in column(window, 5)]
    assert values == sorted(values)
    window.click("#every th:first-child button")
    names = column(window, 0)
    assert names == sorted(names, reverse=True)


def test_hovering_shows_the_images_of_a_task(window: Browser) -> None:
    assert window.run("return document.getElementById('tip').hidden")
    window.hover(".map circle:last-of-type")  # drawn last, so nothing covers it
    assert not window.run("return document.getElementById('tip').hidden")
    text = window.run("return document.getElementById('tip').textContent")
    assert text.startswith("task ")
    assert "wrong labels" in text
    pictures = window.run("return document.querySelectorAll('#tip .picture').length")
    assert 5 <= pictures <= 10
    drawn = window.run(
        "return getComputedStyle(document.querySelector('#tip .picture')).backgroundImage"
    )
    assert drawn.startswith('url("data:image/jpeg')
    box = window.run(
        "const b = document.getElementById('tip').getBoundingClientRect();\
        return [b.left, b.top, innerWidth - b.right, innerHeight - b.bottom]"
    )
    assert min(box) >= 0
    window.run("document.body.click()")
    assert window.run("return document.getElementById('tip').hidden")


def test_it_fits_a_phone(window: Browser) -> None:
    window.resize(390, 844)
    width = window.run("return document.documentElement.scrollWidth")
    window.resize(1200, 900)
    assert width <= 390


def test_the_console_is_silent(window: Browser) -> None:
    assert window.console() == []


def test_dark_ink_is_light(demo_folder: Path) -> None:
    with browser(dark=True) as opened:
        opened.open(demo_folder / "report.html")
        assert opened.run("return matchMedia('(prefers-color-scheme: dark)').matches")
        ink, paper = opened.run(
            "return [getComputedStyle(document.querySelector('figure svg text')).fill,"
            "getComputedStyle(document.body).backgroundColor]"
        )
        assert brightness(ink) > 150 > 60 > brightness(paper)


def brightness(color: str) -> float:
    """Mean of rgb(r, g, b).

    >>> brightness("rgb(1, 2, 3)")
    2.0
    """
    return sum(map(float, color[4:-1].split(","))) / 3


TRAPS = (
    "<img src=x onerror='window.hit = 1'>",
    "</script><script>window.hit = 1</script>",
    '" onmouseover="window.hit = 1" x="',
    "<svg/onload=window.hit=1>",
    "&lt;b&gt;\x1b[31m\x07\u202e",
)


def test_markup_in_class_names_stays_text(
    demo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Class names that would run a script, end an element or an attribute, or turn text around."""
    run = demo_folder / "derts-seed0"
    data = Run.open(run).config.data
    table = open_data(data)["train"]
    assert isinstance(table, ImageTable)
    names = tuple(f"{TRAPS[n % len(TRAPS)]}{n}" for n in range(len(table.class_names)))
    trapped = replace(table, class_names=names)
    monkeypatch.setattr("derts.report.pool_map.open_data", lambda name: {"train": trapped})
    page = make_report([run]).save(tmp_path / "page.html")
    with browser() as opened:
        opened.open(page)
        before = opened.run("return document.querySelectorAll('script, img, [onmouseover]').length")
        assert before == 1  # our script
        opened.hover(".map circle:last-of-type")
        assert not opened.run("return document.getElementById('tip').hidden")
        assert opened.run("return window.hit === undefined")
        titles = "return [...document.querySelectorAll('.picture[title]')].map(p => p.title)"
        shown = set(opened.run(titles))
        assert shown <= set(names)
        assert all(any(name.startswith(trap) for name in shown) for trap in TRAPS)
        assert opened.run("return document.querySelectorAll('script, img').length") == 1
        assert opened.console() == []
