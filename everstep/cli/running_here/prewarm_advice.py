"""What `run` suggests once a restart took long from the start of its processes to their first step.

Where the script imports a large framework most of that time is imports, which `prewarm` does ahead.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everstep.cli.authoring.documents import JobDocument
from everstep.cli.jobs.watching import Glance, JobScreen
from everstep.core.spec import PhaseSpec
from everstep.dialects import registry

LEAST_S = 3.0
"""From the start of the processes to their first step: less is not worth a suggestion."""
SLOW_IMPORTS = frozenset(
    {
        *("torch", "torch_npu", "torchvision", "tensorflow", "keras", "jax", "flax", "mindspore"),
        *("transformers", "datasets", "accelerate", "deepspeed", "megatron", "peft", "trl"),
        *("lightning", "pytorch_lightning", "sklearn", "scipy", "pandas"),
    }
)
"""Packages whose import takes a second or more."""
SCRIPTS_MOST = 50

ADVICE = (
    "restart {n} took {took_s:.1f} s from the start of its processes to their first step, and {script} "
    "imports {modules}: {how} has later restarts begin with that imported"
)


def advice(job: JobDocument, record: Mapping[str, Any]) -> str | None:
    """The suggestion after this restart; None where `prewarm` is there already, or would not help."""
    took_s = record["stages_s"].get("first_step")
    if record["recover_result"] != "success" or took_s is None or took_s < LEAST_S:
        return None
    phase = next((one for one in job.spec.phases if one.name == record["phase"]), None)
    script = None if phase is None or phase.prewarm else script_of(phase)
    modules = [] if script is None else sorted(slow_imports(script))
    if script is None or not modules:
        return None
    key = f"`prewarm: [{', '.join(modules)}]` in `{registry.overlay_of(job.document)}`"
    options = " ".join(f"--prewarm {module}" for module in modules)
    how = f"`{options}` (in a document {key})" if job.is_from_command else key
    names = ", ".join(modules)
    return ADVICE.format(n=record["n"], took_s=took_s, script=script.name, modules=names, how=how)


def script_of(phase: PhaseSpec) -> Path | None:
    """The script of `python script.py` or `python -m module`; None of anything else."""
    program, *words = phase.command
    if not words or not re.fullmatch(r"python[0-9.]*", Path(program).name):
        return None
    folder = Path(phase.workdir)
    if words[0] == "-m":
        path = folder.joinpath(*words[1].split(".")) if words[1:] else None
        places = () if path is None else (path.with_suffix(".py"), path / "__main__.py")
        return next((place for place in places if place.is_file()), None)
    return None if words[0].startswith("-") else folder / words[0]


def slow_imports(script: Path) -> set[str]:
    """The packages of `SLOW_IMPORTS` that the script imports, or a module beside it that it imports."""
    modules: set[str] = set()
    scripts = [script]
    read_scripts: set[Path] = set()
    while scripts and len(read_scripts) < SCRIPTS_MOST:
        path = scripts.pop()
        if path in read_scripts:
            continue
        read_scripts.add(path)
        for name in _imports(path):
            package = name.partition(".")[0]
            if package in SLOW_IMPORTS:
                modules.add(package)
            else:
                local = script.parent.joinpath(*name.split("."))
                scripts += [local.with_suffix(".py"), local / "__init__.py"]
    return modules


def _imports(path: Path) -> Iterator[str]:
    """The modules that the file imports; none of one that cannot be read."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


class ScreenWithPrewarmAdvice(JobScreen):
    """A screen that prints the suggestion once, below the restart that it is about."""

    def __init__(self, screen: JobScreen, job: JobDocument) -> None:
        self._screen = screen
        self._job = job
        self._has_advised = False
        self._judged: set[tuple[str, int]] = set()

    async def update(self, glance: Glance) -> None:
        await self._screen.update(glance)
        if not self._has_advised and (line := self._advice_of(glance)):
            self._has_advised = True
            self._screen.print(f"note   {line}\n")

    def _advice_of(self, glance: Glance) -> str | None:
        for record in glance.restarts:
            key = (record["phase"], record["n"])
            if key in self._judged or record["stages_s"].get("first_step") is None:
                continue
            self._judged.add(key)
            if line := advice(self._job, record):
                return line
        return None

    def print(self, text: str) -> None:
        self._screen.print(text)

    def close(self) -> None:
        self._screen.close()

    def abandon(self) -> None:
        self._screen.abandon()
