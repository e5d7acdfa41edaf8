"""Builds the pages of this repository as a site with one search: `make site`.

The pages stay as they are read where the repository is browsed. They are copied with what they link to: a
file that is no page becomes text, a folder a page that lists it. The build fails on a warning of the
generator, on a link or an anchor of a finished page that leads nowhere, and on a page that shows another
number of lists, tables or blocks than it does in the repository. Why this generator:
docs/decisions/0066-a-site-by-zensical.md.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = Path(__file__).with_name("site.toml")
NO_PAGES = re.compile(r"\.github/|everstep/report/templates/")
"""Forms for issues, and texts with holes."""
PICTURES = (".png", ".svg", ".gif")

LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
FILE_IN_FENCE = re.compile(r"\A```(\w+) (\S+)$", re.MULTILINE)
SHAPES = ("li", "table", "tr", "pre", "blockquote", "img", "h2", "h3")
ELSEWHERE = re.compile(r"[a-z]+:")


def tracked(root: Path = ROOT) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=root, check=True, capture_output=True, text=True
    )
    return listed.stdout.splitlines()


class Stage:
    """The folder that the generator reads: every page, and what pages link to."""

    def __init__(self, root: Path, folder: Path, names: list[str]) -> None:
        self._root, self._folder = root, folder
        self._names = set(names)
        self._pages = {n for n in names if n.endswith(".md") and not NO_PAGES.match(n)}

    def write(self) -> None:
        for name in sorted(self._pages):
            self._write(name, self._page(name))

    def _page(self, name: str) -> str:
        """The page with links to what the site has; code stays as it is."""
        text, parts, end = (self._root / name).read_text(encoding="utf-8"), [], 0
        for code in CODE.finditer(text):
            block = FILE_IN_FENCE.sub(r'```\1 title="\2"', code[0])
            parts += [self._linked(name, text[end : code.start()]), block]
            end = code.end()
        return "".join([*parts, self._linked(name, text[end:])])

    def _linked(self, name: str, text: str) -> str:
        return LINK.sub(lambda link: f"{link[1]}{self._target(name, link[2])}{link[3]}", text)

    def _target(self, name: str, target: str) -> str:
        """Where the link of this page leads on the site; what it leads to is put there."""
        if ELSEWHERE.match(target):
            return target
        there = (self._root / name).parent.joinpath(target).resolve()
        linked = there.relative_to(self._root).as_posix()
        if linked in self._pages:
            return target
        if there.is_dir():
            return self._folder_page(linked, target.rstrip("/"))
        if linked not in self._names:
            raise SystemExit(f"error: {name} links to {target}, which is not in the repository")
        if there.suffix in PICTURES:
            self._copy(there, linked)
            return target
        self._copy(there, f"{linked}.txt")
        return f"{target}.txt"

    def _folder_page(self, linked: str, target: str) -> str:
        if f"{linked}/README.md" in self._pages:
            return f"{target}/README.md"
        if not (self._folder / linked / "index.md").exists():
            self._write(
                f"{linked}/index.md", f"# {linked}\n"
            )  # it may be listed by a page of its own
            self._write(
                f"{linked}/index.md", self._linked(f"{linked}/index.md", self._list(linked))
            )
        return f"{target}/index.md"

    def _list(self, linked: str) -> str:
        """What is in a folder: pages by their title, other files with their first line."""
        files = sorted(name for name in self._names if name.rpartition("/")[0] == linked)
        return "\n".join([f"# {linked}", "", *map(self._entry, files), ""])

    def _entry(self, name: str) -> str:
        first, file = self._first_line(name), Path(name).name
        return f"- [{first}]({file})" if name in self._pages else f"- [{file}]({file}): {first}"

    def _first_line(self, name: str) -> str:
        lines = (self._root / name).read_text(encoding="utf-8").splitlines()
        return lines[0].strip('#" ').rstrip(".") if lines else "empty"

    def _write(self, name: str, text: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _copy(self, file: Path, name: str) -> None:
        (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, self._folder / name)


class Page(HTMLParser):
    """The links of a page, the anchors that others may lead to, and how many elements its text has."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.shapes: Counter[str] = Counter()
        self._is_text = "<article" not in html
        self.feed(html)

    def handle_endtag(self, tag: str) -> None:
        self._is_text &= tag != "article"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._is_text |= tag == "article"
        if self._is_text and tag in SHAPES:
            self.shapes[tag] += 1
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.targets.append(value)


def dead_links(site: Path, pages: Mapping[Path, Page]) -> Iterator[str]:
    """Each link of a page to a file or an anchor that the site does not have."""
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = pages[there].anchors if there in pages else set()
            if not there.is_file() or (parts.fragment and unquote(parts.fragment) not in anchors):
                yield f"{path.relative_to(site)}: the link to {target} leads nowhere"


def changed_shapes(folder: Path, pages: Mapping[Path, Page]) -> Iterator[str]:
    """Each page that the site shows otherwise than a viewer of CommonMark."""
    viewer = MarkdownIt("commonmark").enable("table")
    for source in sorted((folder / "pages").rglob("*.md")):
        name = source.relative_to(folder / "pages")
        html = (
            name.with_name("index.html") if name.name == "README.md" else name.with_suffix(".html")
        )
        expected = Page(viewer.render(source.read_text(encoding="utf-8"))).shapes
        if (shown := pages[folder / "site" / html].shapes) != expected:
            yield f"{name}: {dict(expected - shown)} are missing, {dict(shown - expected)} too many"


def faults_of(folder: Path) -> list[str]:
    """What is wrong with the finished site, a line each."""
    site = folder / "site"
    found = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    # The links of that page begin at the address that was asked for.
    pages = {path: page for path, page in found.items() if path.name != "404.html"}
    return [*dead_links(site, pages), *changed_shapes(folder, pages)]


def build(folder: Path, root: Path = ROOT) -> Path:
    """The site, in a new folder; SystemExit says what is wrong with a page."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    Stage(root, folder / "pages", tracked(root)).write()
    settings = shutil.copyfile(SETTINGS, folder / "zensical.toml")
    command = [
        sys.executable,
        "-m",
        "zensical",
        "build",
        "--strict",
        "--config-file",
        str(settings),
    ]
    built = subprocess.run(command, check=False, capture_output=True, text=True)
    if built.returncode:
        raise SystemExit(f"error: a page cannot be built\n{built.stdout}{built.stderr}")
    if faults := faults_of(folder):
        raise SystemExit("\n".join(["error: pages that are not as in the repository", *faults]))
    return folder / "site"


if __name__ == "__main__":
    sys.stdout.write(f"{build(Path(sys.argv[1]).resolve())}\n")
