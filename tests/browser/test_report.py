"""The report in a real browser: on a phone, in a dark room, in print and read aloud. Needs a Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.report import render
from everstep.report.fleet_report import FleetSource, fleet_report
from everstep.report.job_report import job_report
from tests.browser.chromium import Browser, Scheme, browsing
from tests.report.job import CREATED
from tests.report.test_pages import crashed, large

PHONE, DESK = 390, 1_100

LONG_WORD = "a-node-with-a-name-of-many-words.rack-17.row-4.hall-2.example"


def fleet() -> str:
    jobs = [crashed(node=LONG_WORD), crashed()]
    fleet = FleetSource(jobs=jobs, since=CREATED - 86_400.0, now=CREATED + 100.0, gaps=[])
    return render.fleet_html(fleet_report(fleet))


PAGES = {
    "job": lambda: render.html(job_report(crashed(node=LONG_WORD, reason=f"lost {LONG_WORD}"))),
    "large": lambda: render.html(job_report(large())),
    "fleet": fleet,
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    pages = {}
    for name, page in PAGES.items():
        pages[name] = folder / f"{name}.html"
        pages[name].write_text(page())
    return pages


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_the_window(
    name: str, width: int, browser: Browser, files: dict[str, Path]
) -> None:
    """Tables and drawings scroll by themselves."""
    browser.open(files[name], width=width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


LETTERS = """
[...document.querySelectorAll("th, td")].filter(cell => {
  const style = getComputedStyle(cell), range = document.createRange();
  range.selectNodeContents(cell);
  const lines = new Set([...range.getClientRects()].map(box => Math.round(box.top))).size;
  const word = Math.max(...cell.textContent.trim().split(/\\s+/).map(word => word.length), 1);
  return lines > cell.textContent.trim().split(/[\\s-]+/).length + 1 && word > 1;
}).map(cell => cell.textContent.trim())
"""


@pytest.mark.parametrize("name", ["job", "fleet"])
def test_no_cell_breaks_its_words_into_letters(
    name: str, browser: Browser, files: dict[str, Path]
) -> None:
    browser.open(files[name], width=PHONE)
    assert browser.evaluate(LETTERS) == []


BROKEN_TIMES = """
[...document.querySelectorAll("td")].filter(cell => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  const lines = new Set([...range.getClientRects()].map(box => Math.round(box.top))).size;
  return /^[0-9]{4}-[0-9]{2}-[0-9]{2} /.test(cell.textContent) && lines > 1;
}).map(cell => cell.textContent)
"""


def test_no_time_breaks_on_a_phone(browser: Browser, files: dict[str, Path]) -> None:
    browser.open(files["job"], width=PHONE)
    assert browser.evaluate(BROKEN_TIMES) == []


SHEET = 718
"""Pixels between the margins of a sheet (A4, as a browser prints it)."""
CUT_OFF = """
[...document.querySelectorAll(".scroll")].filter(part => part.scrollWidth > part.clientWidth)
  .map(part => part.getAttribute("aria-label"))
"""


@pytest.mark.parametrize("name", PAGES)
def test_in_print_nothing_is_cut_off(name: str, browser: Browser, files: dict[str, Path]) -> None:
    browser.open(files[name], width=SHEET, media="print")
    assert browser.evaluate(CUT_OFF) == []


NARROW = 500


@pytest.mark.parametrize("name", PAGES)
def test_in_a_narrow_window_nothing_is_cut_off(
    name: str, browser: Browser, files: dict[str, Path]
) -> None:
    """As beside an editor, or in a chat: who does not think of scrolling sees all of it."""
    browser.open(files[name], width=NARROW)
    assert browser.evaluate(CUT_OFF) == []


LEFT_OF_DRAWING = """
[...document.querySelectorAll("svg text.end")].filter(text =>
  text.getBoundingClientRect().left < text.ownerSVGElement.getBoundingClientRect().left
).map(text => text.textContent)
"""


@pytest.mark.parametrize("width", [PHONE, NARROW, DESK])
def test_the_label_of_each_row_is_whole(
    width: int, browser: Browser, files: dict[str, Path]
) -> None:
    browser.open(files["job"], width=width)
    assert browser.evaluate(LEFT_OF_DRAWING) == []


LEGEND = """
(() => {
  const colour = element => getComputedStyle(element).backgroundColor;
  const dots = [...document.querySelectorAll("p .dot")].map(colour);
  const bars = [...document.querySelectorAll("svg rect")].map(bar => getComputedStyle(bar).fill);
  return bars.filter(fill => !dots.includes(fill)).length;
})()
"""


@pytest.mark.parametrize("name", ["job", "large"])
def test_each_colour_of_the_timeline_is_in_its_legend(
    name: str, browser: Browser, files: dict[str, Path]
) -> None:
    browser.open(files[name], width=DESK)
    assert browser.evaluate(LEGEND) == 0


CONTRASTS = """
(() => {
  const channels = text => text.match(/[0-9.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
  const ground = element => {
    for (; element; element = element.parentElement) {
      const [r, g, b, a = 1] = channels(getComputedStyle(element).backgroundColor);
      if (a > 0) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const found = {};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || element.closest("title, desc")) continue;
    const style = getComputedStyle(element);
    const ink = channels(element.closest("svg") ? style.fill : style.color);
    const [high, low] = [light(ink), light(ground(element))].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) found[element.tagName + " " + element.className] = ratio;
  }
  return found;
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["job", "fleet"])
def test_every_text_stands_out_from_its_ground(
    name: str, scheme: Scheme, browser: Browser, files: dict[str, Path]
) -> None:
    """The contrast is 4.5 to 1 at least, as WCAG 2 wants it (AA)."""
    browser.open(files[name], width=PHONE, scheme=scheme)
    assert browser.evaluate(CONTRASTS) == {}


def test_a_dark_room_gets_a_dark_page(browser: Browser, files: dict[str, Path]) -> None:
    ground = "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)"
    browser.open(files["job"], width=PHONE, scheme="dark")
    assert max(browser.evaluate(ground)) < 64
    browser.open(files["job"], width=PHONE, scheme="light")
    assert min(browser.evaluate(ground)) > 192


FOLDED = """
[...document.querySelectorAll("details:not([open]) pre")]
  .filter(story => !story.checkVisibility({contentVisibilityAuto: true, opacityProperty: true})).length
"""


def test_in_print_nothing_stays_folded_and_it_is_black_on_white(
    browser: Browser, files: dict[str, Path]
) -> None:
    browser.open(files["large"], width=DESK)
    assert browser.evaluate(FOLDED) == 500
    browser.open(files["large"], width=DESK, media="print", scheme="dark")
    assert browser.evaluate(FOLDED) == 0
    colours: list[int] = browser.evaluate(
        "getComputedStyle(document.body).color.match(/[0-9]+/g).map(Number)"
    )
    assert max(colours) < 64
    browser.open(files["job"], width=DESK)
    assert browser.printed().startswith(b"%PDF-")


def test_who_has_it_read_aloud_is_told_all_of_it(browser: Browser, files: dict[str, Path]) -> None:
    browser.open(files["job"], width=PHONE)
    parts = browser.read_aloud()
    names_by_role: dict[str, list[str]] = {}
    for role, name in parts:
        names_by_role.setdefault(role, []).append(name)
    assert names_by_role["heading"][:3] == [
        "demo completed",
        "Where the time went",
        "Down time by stage",
    ]
    assert all(names_by_role["image"])
    assert len(names_by_role["image"]) == 3
    assert len(names_by_role["region"]) == len(names_by_role["table"]) + 2
    assert all(names_by_role["region"])
    assert "cause" in names_by_role["columnheader"]
    assert [name for name in names_by_role["DisclosureTriangle"] if "crash on" in name]
    everything = " ".join(name for _, name in parts)
    assert "It was restarted 1 time (1 × crash)" in everything


def test_nothing_is_fetched_and_nothing_runs(browser: Browser, files: dict[str, Path]) -> None:
    browser.open(files["job"], width=DESK)
    requests: Any = browser.evaluate("performance.getEntriesByType('resource').length")
    assert requests == 0
    assert browser.evaluate("document.scripts.length") == 0
