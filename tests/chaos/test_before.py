"""Which commit is the version before, in clones that have it and in others; what it reads of what we send."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import payload_schemas
from tests.chaos.before import HISTORIES, PROGRAM, Clone, NoneBefore

NAMES = {
    f"GIT_{role}_{what}": "a@b.example"
    for role in ("AUTHOR", "COMMITTER")
    for what in ("NAME", "EMAIL")
}


def git(root: Path, *words: str) -> str:
    env = {**os.environ, **NAMES}
    run = subprocess.run(["git", *words], cwd=root, env=env, check=True, capture_output=True)
    return run.stdout.decode().strip()


def commit(root: Path, file: str, text: str) -> str:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "--quiet", "-m", file)
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    root = tmp_path / "clone"
    root.mkdir()
    git(root, "init", "--quiet")
    commit(root, f"{HISTORIES}/a.json", "1")
    return Clone(root=root)


def test_before_a_release_it_is_the_commit_that_recorded_the_histories_last(clone: Clone) -> None:
    recorded = commit(clone.root, f"{HISTORIES}/a.json", "2")
    commit(clone.root, "worker.py", "")
    assert clone.version_before() == recorded


def test_after_a_release_it_is_the_newest_one(clone: Clone) -> None:
    git(clone.root, "tag", "v0.1.0")
    commit(clone.root, f"{HISTORIES}/a.json", "2")
    assert clone.version_before() == "v0.1.0"
    git(clone.root, "tag", "v0.2.0")  # which is the version of today
    assert clone.version_before() == "v0.1.0"


def test_a_commit_that_changes_the_loop_has_none_before(clone: Clone) -> None:
    with pytest.raises(NoneBefore, match="the loop itself has changed"):
        clone.version_before()


def test_a_shallow_clone_has_none_before(clone: Clone, tmp_path: Path) -> None:
    """All files seem to come from the first commit that it has."""
    for text in "ab":
        commit(clone.root, "worker.py", text)
    for depth in "12":
        shallow = tmp_path / depth
        git(tmp_path, "clone", "--quiet", f"--depth={depth}", clone.root.as_uri(), str(shallow))
        with pytest.raises(NoneBefore, match="is shallow"):
            Clone(root=shallow).version_before()


def test_files_without_a_repository_have_none_before(tmp_path: Path) -> None:
    with pytest.raises(NoneBefore, match="no clone"):
        Clone(root=tmp_path).version_before()


def test_what_is_extracted_is_what_a_process_there_imports(clone: Clone, tmp_path: Path) -> None:
    """The package of this project is installed in the environment; the older files come first."""
    older = [commit(clone.root, f"{name}/__init__.py", "") for name in PROGRAM[:3]]
    older.append(commit(clone.root, "worker.py", "import everstep; print(everstep.__file__)"))
    commit(clone.root, "worker.py", "raise SystemExit(1)")
    folder = clone.extract(older[-1], tmp_path / "before")
    run = subprocess.run(
        [sys.executable, "-m", "worker"], cwd=folder, check=True, capture_output=True
    )
    assert Path(run.stdout.decode().strip()) == folder / "everstep" / "__init__.py"


def schemas(folder: Path) -> dict[str, dict[str, Any]]:
    script = Path(payload_schemas.__file__)
    env = {**os.environ, "PYTHONPATH": str(folder)}
    run = subprocess.run(
        [sys.executable, script], cwd=folder, env=env, check=True, capture_output=True
    )
    loaded: dict[str, dict[str, Any]] = json.loads(run.stdout)
    return loaded


def unreadable(today: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """What of a type of today a worker of the version before refuses: it fails its task again and again."""
    problems = []
    if today.get("maxItems", 0) > before.get("maxItems", 0):
        problems.append("a tuple has more parts")
    if new := [each for each in today.get("enum", ()) if each not in before.get("enum", ())]:
        problems.append(f"{new} are new")
    needed = set(before.get("required", ())) - set(today.get("properties", ()))
    if needed:
        problems.append(f"{sorted(needed)} are gone")
    return problems


def test_a_worker_of_the_version_before_reads_what_one_of_today_sends(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    clone = Clone(root=root)
    try:
        before = schemas(clone.extract(clone.version_before(), tmp_path / "before"))
    except NoneBefore as none:
        pytest.skip(str(none))
    today = schemas(root)
    shared = today.keys() & before.keys()
    assert len(shared) > 50
    problems = {name: unreadable(today[name], before[name]) for name in sorted(shared)}
    assert not {name: each for name, each in problems.items() if each}


@pytest.mark.parametrize(
    ("today", "problem"),
    [
        ({"maxItems": 3}, ["a tuple has more parts"]),
        ({"enum": ["a", "b"]}, ["['b'] are new"]),
        ({"properties": {"b": {}}}, ["['a'] are gone"]),
        ({"maxItems": 2, "enum": ["a"], "properties": {"a": {}, "b": {}}}, []),
    ],
)
def test_what_a_version_before_cannot_read(today: dict[str, Any], problem: list[str]) -> None:
    before = {"maxItems": 2, "enum": ["a"], "required": ["a"], "properties": {"a": {}}}
    assert unreadable({"properties": {"a": {}}, **today}, before) == problem
