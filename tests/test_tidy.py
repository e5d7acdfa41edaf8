"""Our habits, where a test can hold them. Each message says what to do about it."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path

import grimp
import pytest

from docs import write_document, write_faults, write_playbook
from everstep.dialects.native import shapes
from tests.support.sources import parsed

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("everstep", "workflows", "activities")

LINES_PER_FUNCTION = 60

# Names that tie a file to one machine or one way of fetching packages. Written in two parts, so
# that this file does not hold them.
FORBIDDEN = (
    ("a package index", r"py" r"pi\.org|python" r"hosted\.org|proxy\.gol" r"ang\.org"),
    ("a package index", r"registry\.np" r"mjs\.org|static\.crat" r"es\.io|repo1?\.mav" r"en\."),
    ("a path of one machine", r"(?<![\w./}-])/(?:ho" r"me|ro" r"ot|wo" r"rk|Us" r"ers)/\w"),
)
# ModelArts gives its containers this home; documents of theirs may say so.
ALLOWED = re.compile(r"/ho" r"me/ma-user\b")

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
PIN = re.compile(r"^[a-z0-9][\w.-]*==[\w.]+", re.MULTILINE)
ELSEWHERE = re.compile(r"[a-z]+:")  # https:, mailto:


@cache
def files() -> tuple[Path, ...]:
    """Every file that is, or would be, committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return tuple(sorted(path for path in paths if path.is_file()))


def relative_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def modules(*, product: bool = False) -> Iterator[Path]:
    """Python files outside the tests; `product`: only what the wheel's packages hold."""
    for path in files():
        top = path.relative_to(ROOT).parts[0]
        if path.suffix == ".py" and (top in PRODUCT if product else top != "tests"):
            yield path


@cache
def text_of(path: Path) -> str:
    """The file as text, nothing for a binary one."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


@cache
def tree_of(path: Path) -> ast.Module:
    return parsed(text_of(path))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_every_module_says_what_belongs_in_it() -> None:
    silent = [
        relative_name(path)
        for path in modules()
        if text_of(path).strip() and not ast.get_docstring(tree_of(path))
    ]
    assert not silent, "add a docstring: what belongs here and what does not"


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{relative_name(path)}:{node.lineno} {node.name}: {length(node)} lines"
        for path in modules(product=True)
        for node in functions(path)
        if length(node) > LINES_PER_FUNCTION
    ]
    assert not long, f"split where a good name appears; the limit is {LINES_PER_FUNCTION} lines"


@pytest.mark.parametrize(("what", "pattern"), FORBIDDEN, ids=["python", "others", "paths"])
def test_no_file_knows_one_machine_or_index(what: str, pattern: str) -> None:
    hits = [
        f"{relative_name(path)}:{number}"
        for path in files()
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if re.search(pattern, ALLOWED.sub("", line))
    ]
    assert not hits, f"take out {what}"


SIGNALS = re.compile(r"\b(os\.(kill|killpg)|signal\.pidfd_send_signal)\b")
SENDER = "everstep/agent/processes/proc.py"


def test_signals_are_sent_in_one_place() -> None:
    """Only that module can check whether the number is still the process that was meant."""
    handlers = {
        relative_name(path): SIGNALS.findall(text_of(path)) for path in modules(product=True)
    }
    # What forks for the agent has nothing of ours; 0 is its own process group.
    assert handlers.pop("everstep/agent/prewarming/fork_server.py") == [("os.killpg", "killpg")]
    assert handlers.pop(SENDER)
    wrong = [name for name, hits in handlers.items() if hits]
    assert not wrong, f"{wrong}: use `send`, `kill` or `end_child` of {SENDER}"


LOADS = re.compile(r"\bimport_module\b|\b__import__\b")
CHOOSING = {
    "everstep/backends/__init__.py",  # a backend, by its name
    "everstep/agent/prewarming/fork_server.py",  # what a job wants imported ahead
    "everstep/train/saving.py",  # the function that a script named
    "everstep/__init__.py",  # a public name, when it is first used
    "everstep/cli/main.py",  # the command that was typed: importing all of them takes most of a second
}


def test_what_is_imported_is_named_by_an_import() -> None:
    """So that the contracts of `pyproject.toml` see it, and mypy what it is."""
    hits = {relative_name(path) for path in modules(product=True) if LOADS.search(text_of(path))}
    assert hits == CHOOSING, (
        "write an import; backends and their tools are chosen in the registry, commands in their table"
    )


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Also not for their types alone: give a function what it needs, not who calls it."""
    graph = grimp.build_graph(*PRODUCT)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    TopologicalSorter(imports).prepare()  # raises a CycleError that names them


def test_links_between_pages_lead_somewhere() -> None:
    dead = [
        f"{relative_name(page)}: {target}"
        for page in files()
        if page.suffix == ".md"
        for target in LINK.findall(CODE.sub("", text_of(page)))
        if not ELSEWHERE.match(target) and not leads_somewhere(page, target)
    ]
    assert not dead, "a link to a file or a heading that is not there"


def leads_somewhere(page: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    there = page.parent / name if name else page
    return there.exists() and (not anchor or anchor in anchors(there))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, made the way the usual viewers make them."""
    headings = re.findall(r"^#+ +(.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def test_import_rules_and_wheel_know_every_package() -> None:
    settings = tomllib.loads(text_of(ROOT / "pyproject.toml"))["tool"]
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    wheel = set(settings["hatch"]["build"]["targets"]["wheel"]["only-include"])
    assert set(settings["importlinter"]["root_packages"]) == packages
    assert wheel >= packages | {"worker.py"}


def test_every_part_of_everstep_has_its_place_in_the_import_rules() -> None:
    contracts = tomllib.loads(text_of(ROOT / "pyproject.toml"))["tool"]["importlinter"]["contracts"]
    ruled = set(re.findall(r"everstep\.(\w+)", str(contracts)))
    parts = {path.parent.name for path in (ROOT / "everstep").glob("*/__init__.py")}
    parts |= {path.stem for path in (ROOT / "everstep").glob("*.py")} - {"__init__"}
    assert parts <= ruled, "name it in a contract of pyproject.toml"


def test_the_playbook_page_is_what_the_tables_say() -> None:
    page = ROOT / "docs" / "playbook.md"
    assert text_of(page) == write_playbook.page(), "write it anew: make docs"


def test_the_limits_of_the_playbook_are_those_that_a_document_may_set() -> None:
    _, _, section = text_of(ROOT / "docs" / "playbook.md").partition(
        "Limits of a document, in seconds"
    )
    table, _, _ = section.partition("Rules and patience")
    table_names = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert set(table_names) == set(shapes.Limits.model_fields)


def test_the_page_of_fault_codes_is_what_the_catalogue_says() -> None:
    page = ROOT / "docs" / "faults.md"
    assert text_of(page) == write_faults.page(), "write it anew: make docs"


def test_the_page_of_the_document_is_what_its_schema_says() -> None:
    page = ROOT / "docs" / "document.md"
    assert text_of(page) == write_document.page(), "write it anew: make docs"


def test_no_version_of_a_dependency_is_allowed_before_it_exists() -> None:
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    requirements = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    endless = [one for one in requirements if not re.search(r",<\d+(\.\d+)?$", one)]
    assert not endless, "end it before the next major version: name>=1.2,<2"


PINS = {
    "constraints.txt": "Makefile",
    "constraints-torch.txt": "Makefile",
    "deploy/requirements.txt": "deploy/Dockerfile",
    "deploy/requirements-build.txt": "deploy/Dockerfile",
}
"""Each list of pins, and what installs it."""


@pytest.mark.parametrize("name", PINS)
def test_every_pin_has_hashes(name: str) -> None:
    text = text_of(ROOT / name)
    bare = [
        one
        for one in PIN.findall(text)
        if not re.search(rf"^{one}.*\\\n +--hash=sha256:", text, re.MULTILINE)
    ]
    assert PIN.findall(text)
    assert not bare, "make constraints"
    assert "://" not in text, "a pin names no index"
    installing = text_of(ROOT / PINS[name])
    assert re.search(rf"--require-hashes -r \S*{Path(name).name}", installing)


@pytest.mark.parametrize("name", [name for name in PINS if name != "constraints.txt"])
def test_lists_of_pins_agree(name: str) -> None:
    usual, other = (
        dict(one.split("==") for one in PIN.findall(text_of(ROOT / file)))
        for file in ("constraints.txt", name)
    )
    both = usual.keys() & other.keys()
    assert len(both) > min(10, len(other) / 2)
    assert {pin: usual[pin] for pin in both} == {pin: other[pin] for pin in both}


def test_the_notice_names_each_table_that_was_compiled_from_elsewhere() -> None:
    notice = (ROOT / "NOTICE").read_text()
    tables = {path.name for path in (ROOT / "everstep" / "faults").glob("*.csv")}
    assert {name for name in tables if name not in notice} == set()
