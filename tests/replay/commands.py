"""Which commands workflow code can give, in the order of the source: what a replay depends on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.sources import parsed

WORKFLOWS = Path(__file__).parents[2] / "workflows"
COMMANDS = frozenset(
    {
        "continue_as_new",
        "deprecate_patch",
        "execute_activity",
        "execute_child_workflow",
        "execute_local_activity",
        "patched",
        "sleep",
        "start_activity",
        "start_child_workflow",
        "upsert_memo",
        "upsert_search_attributes",
    }
)
"""Of `temporalio.workflow`. A `wait_condition` is one where it has a time-out."""


def fingerprint() -> str:
    """A line for each command: where it is given, and what."""
    lines = [line for path in sorted(WORKFLOWS.glob("*.py")) for line in _of(path)]
    return "".join(f"{line}\n" for line in lines)


def _of(path: Path) -> Iterator[str]:
    for function in ast.walk(parsed(path.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and _is_command(call):
                    yield f"{path.stem}.{function.name}: {_told(call)}"


def _is_command(call: ast.Call) -> bool:
    name = ast.unparse(call.func).removeprefix("workflow.")
    has_timer = any(keyword.arg == "timeout" for keyword in call.keywords)
    return name in COMMANDS or (name == "wait_condition" and has_timer)


def _told(call: ast.Call) -> str:
    what = ast.unparse(call.args[0]) if call.args else ""
    return f"{ast.unparse(call.func).removeprefix('workflow.')}({what})"
