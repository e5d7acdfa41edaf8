"""The moving picture of README: drawn from what a run of the demo printed, and whole by itself."""

from __future__ import annotations

import re
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

from docs.record_demo import COLUMNS, PICTURE, Line, recorded, shown, svg
from examples.demo import TROUBLES

TEXT, GROUP = "{http://www.w3.org/2000/svg}text", "{http://www.w3.org/2000/svg}g"


def texts(picture: str) -> list[str]:
    return [one.text or "" for one in ET.fromstring(picture).iter(TEXT)]


def test_the_committed_picture_is_of_a_demo_that_kept_its_promise() -> None:
    lines = "\n".join(texts(PICTURE.read_text(encoding="utf-8")))
    assert [one for one in TROUBLES if f"fault     {one.meaning}" not in lines] == []
    assert len(re.findall(r"^\d  main .* started ", lines, re.MULTILINE)) == len(TROUBLES)
    first, second = re.findall(r"^  ([0-9a-f]{64})$", lines, re.MULTILINE)
    assert first == second
    assert "They are equal, to the last bit." in lines


def test_the_picture_needs_nothing_of_another_host() -> None:
    text = PICTURE.read_text(encoding="utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert re.findall(r"href|src=|url\(|@import|<script", text) == []


def test_each_line_appears_when_it_was_printed() -> None:
    picture = svg(shown([(0.0, "one"), (2.5, "a < b & c")]))
    groups = list(ET.fromstring(picture).iter(GROUP))
    delays = [re.findall(r"[\d.]+", group.attrib["style"])[0] for group in groups]
    assert texts(picture) == ["$ make demo", "one", "a < b & c"]
    assert delays == ["0.0", "0.0", "2.5"]


def test_a_line_is_plain_fits_and_is_no_second_empty_one() -> None:
    lines: list[Line] = [(0.0, "\x1b[1mN  PHASE\x1b[0m"), (1.0, ""), (1.0, ""), (2.0, "x" * 200)]
    assert [text for _, text in shown(lines)][1:] == ["N  PHASE", "", "x" * (COLUMNS - 1) + "…"]


def test_a_demo_that_failed_is_not_drawn() -> None:
    failing = [sys.executable, "-c", "print('a line'); raise SystemExit(1)"]
    with pytest.raises(subprocess.CalledProcessError):
        svg(shown(recorded(failing)))
