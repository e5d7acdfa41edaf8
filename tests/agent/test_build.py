"""The agent as one file: the same each time, for old interpreters, without anything of ours beside it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType

import pytest

import everstep.agent.build
from everstep.agent.build import build, ensure, sources
from tests.agent.pod import PYTHON, Pod, until
from tests.support.sources import parsed

SOURCES = sources()
PACKAGED = ("everstep.agent", "everstep.free_memory", "everstep.protocol")
"""Modules of Everstep that the archive has."""


def test_same_sources_make_the_same_bytes(tmp_path: Path) -> None:
    assert build(tmp_path / "a.pyz").read_bytes() == build(tmp_path / "b.pyz").read_bytes()


def test_a_small_one_leaves_a_third_of_a_config_map_free(tmp_path: Path) -> None:
    pyz = build(tmp_path / "a.pyz", is_small=True)
    assert pyz.stat().st_size < 1024 * 1024 * 2 / 3
    assert pyz.read_bytes() == build(tmp_path / "b.pyz", is_small=True).read_bytes()
    assert "--credentials" in usage_of(pyz)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_compiled_code_has_the_lines_of_its_source_without_columns(source: Path) -> None:
    def check(before: CodeType, after: CodeType) -> None:
        assert lines(after) == lines(before)
        pairs = zip(before.co_consts, after.co_consts, strict=True)
        for one, other in pairs:
            if isinstance(one, CodeType):
                check(one, other)
        assert len(after.co_linetable) <= len(before.co_linetable)

    def lines(code: CodeType) -> list[int | None]:
        """The line of each unit of the code."""
        return [line for begin, end, line in code.co_lines() for _ in range(begin, end, 2)]

    code = compile(source.read_text(), str(source), "exec")
    check(code, everstep.agent.build._renamed(code, source.name))


def test_it_is_built_by_its_module_too(tmp_path: Path) -> None:
    path = tmp_path / "dist" / "agent.pyz"
    subprocess.run([sys.executable, "-m", "everstep.agent.build", str(path)], check=True)
    assert path.read_bytes() == build(tmp_path / "b.pyz").read_bytes()


def test_file_is_made_once(tmp_path: Path) -> None:
    path = ensure(tmp_path / "deep" / "a.pyz")
    made = path.stat().st_ino
    assert ensure(path).stat().st_ino == made


def rebuilt(pyz: Path, path: Path, change: Callable[[str, bytes], bytes]) -> Path:
    """The same archive, each of its files changed."""
    with zipfile.ZipFile(pyz) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return path


def usage_of(pyz: Path) -> str:
    command = [sys.executable, "-I", str(pyz), "--help"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_pod_of_this_python_compiles_nothing(pyz: Path, tmp_path: Path) -> None:
    def without_sources(name: str, content: bytes) -> bytes:
        is_source = name.endswith(".py") and name != "__main__.py"
        return b"raise AssertionError('compiled again')" if is_source else content

    assert "--home" in usage_of(rebuilt(pyz, tmp_path / "a.pyz", without_sources))


def test_another_python_takes_the_sources(pyz: Path, tmp_path: Path) -> None:
    def of_another(name: str, content: bytes) -> bytes:
        return b"else" + content[4:] if name.endswith(".pyc") else content

    assert "--home" in usage_of(rebuilt(pyz, tmp_path / "a.pyz", of_another))


RARELY_NEEDED = {
    *("argparse", "bz2", "concurrent.futures", "ctypes", "dataclasses", "datetime", "hashlib"),
    *("hmac", "http.server", "inspect", "logging", "lzma", "random", "shutil", "ssl"),
    *("subprocess", "tokenize", "traceback", "zipfile"),
}
"""Modules whose import takes a good part of the processor time of a start, and which no start needs."""
LOADED = re.compile(r"^import time:[ 0-9|]+ (\S+)$", re.MULTILINE)
"""A line that `-X importtime` prints."""


def test_the_start_of_an_agent_loads_no_module_that_is_rarely_needed(idle: Pod) -> None:
    idle.launch(flags=("-X", "importtime"))
    until(idle.answers, what="an answer")
    loaded = {*LOADED.findall(idle.log_text())}
    assert "everstep.agent.server" in loaded
    assert loaded & RARELY_NEEDED == set()


def test_its_warden_loads_neither_these_nor_a_server(pyz: Path, tmp_path: Path) -> None:
    """There is one beside each agent, and both start at once. It ends when nothing holds its input open."""
    arguments = [str(os.getpid()), "1", "a-pod", str(tmp_path)]
    words = [PYTHON, "-I", "-S", "-X", "importtime", str(pyz), "warden", *arguments]
    run = subprocess.run(
        words, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    loaded = {*LOADED.findall(run.stderr)}
    assert "everstep.agent.processes.warden" in loaded
    assert loaded & {*RARELY_NEEDED, "socketserver", "everstep.agent.server"} == set()


NEWER = {
    "contextlib": {"aclosing", "chdir"},
    "datetime": {"UTC"},
    "enum": {"StrEnum"},
    "itertools": {"batched", "pairwise"},
    "typing": {"Concatenate", "Never", "NotRequired", "Required", "Self", "TypeAlias", "TypeGuard"}
    | {"assert_never", "assert_type", "override", "reveal_type"},
    "zip": {"strict"},
    "dataclass": {"kw_only", "slots"},
}
"""What came after Python 3.9 and might be missed: names of a module, and arguments."""


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_source_uses_nothing_newer_than_python_3_9(source: Path) -> None:
    used = set()
    for node in ast.walk(parsed(source.read_text())):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                used |= {(module, alias.name) for alias in names}
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                used.add((owner, name))
            case ast.Call(func=ast.Name(id=owner), keywords=keywords):
                used |= {(owner, str(keyword.arg)) for keyword in keywords}
            case _:
                pass
    assert [(owner, name) for owner, name in used if name in NEWER.get(owner, ())] == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_source_is_of_python_3_9_and_of_the_standard_library(source: Path) -> None:
    tree = parsed(source.read_text(), feature_version=(3, 9))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            is_shipped = name.startswith(PACKAGED)
            assert is_shipped or name.partition(".")[0] in sys.stdlib_module_names
