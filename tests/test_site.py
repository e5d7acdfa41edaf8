"""The site that `make site` builds: it has every page, and a page that breaks on it is named."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.build_site import ROOT, SETTINGS, Page, Stage, dead_links, faults_of, tracked


def pages_of(nav: Any) -> Iterator[str]:
    match nav:
        case str():
            yield nav
        case dict():
            yield from pages_of([*nav.values()])
        case _:
            for entry in nav:
                yield from pages_of(entry)


def test_the_navigation_has_every_page_of_docs_and_no_other() -> None:
    listed = [*pages_of(tomllib.loads(SETTINGS.read_text())["project"]["nav"])]
    pages = {
        name
        for name in tracked()
        if name.startswith("docs/") and name.endswith(".md") and "/decisions/" not in name
    }
    assert len(listed) == len({*listed})
    assert pages - {*listed} == set()
    assert [name for name in listed if not (ROOT / name).exists()] == ["docs/decisions/index.md"]


FILES = {
    "README.md": "[a](docs/a.md#part) [code](src/one.py) [all](src) `[no](link)` [b](https://b/c)",
    "docs/a.md": "# A\n\n## Part\n\n![it](it.png)\n\n```yaml job.yaml\na: 1\n```\n",
    "docs/it.png": "",
    "src/one.py": '"""The first one."""\n',
    "src/two.md": "# Two\n",
    ".github/form.md": "[gone](gone.md)",
}


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / "repository" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "repository" / name).write_text(text)
    Stage(tmp_path / "repository", tmp_path / "pages", [*FILES]).write()
    return tmp_path / "pages"


def test_a_page_brings_along_what_it_links_to(staged: Path) -> None:
    assert (staged / "README.md").read_text() == (
        "[a](docs/a.md#part) [code](src/one.py.txt) [all](src/index.md) `[no](link)` [b](https://b/c)"
    )
    assert (staged / "src/one.py.txt").read_text() == FILES["src/one.py"]
    assert (staged / "src/index.md").read_text() == (
        "# src\n\n- [one.py](one.py.txt): The first one\n- [Two](two.md)\n"
    )
    assert '```yaml title="job.yaml"' in (staged / "docs/a.md").read_text()
    assert (staged / "docs/it.png").exists()
    assert not (staged / ".github").exists()


def test_a_link_to_what_is_not_in_the_repository_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("[b](b.py)")
    with pytest.raises(SystemExit, match=r"error: a\.md links to b\.py"):
        Stage(tmp_path, tmp_path / "pages", ["a.md"]).write()


@pytest.mark.parametrize(
    ("link", "leads"),
    [("b.html", True), ("b.html#x", True), ("#y", True), ("c.html", False), ("b.html#y", False)],
)
def test_a_link_to_no_page_or_anchor_is_dead(tmp_path: Path, link: str, leads: bool) -> None:
    texts = {"a.html": f'<p id="y"><a href="{link}"></a></p>', "b.html": '<h2 id="x"></h2>'}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    pages = {tmp_path / name: Page(text) for name, text in texts.items()}
    dead = [] if leads else [f"a.html: the link to {link} leads nowhere"]
    assert [*dead_links(tmp_path, pages)] == dead


def test_a_list_that_the_site_takes_for_text_is_named(tmp_path: Path) -> None:
    for folder in ("pages", "site"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pages/a.md").write_text("text\n- one\n- two\n")
    (tmp_path / "site/a.html").write_text(
        "<nav><li>x</li></nav><article><p>text - one</p></article>"
    )
    assert faults_of(tmp_path) == ["a.md: {'li': 2} are missing, {} too many"]
