"""What a job's containers run, as one command for all of its nodes.

Containers of different replicas may run different commands: then a shell chooses by `NODE_RANK`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everstep.dialects.mindcluster.shapes import Container, PodTemplate

MAIN = "ascend"
"""The name of the container that trains, where a pod has several."""

_REFERENCE = re.compile(r"\$\$|\$\(([^()]*)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCommand:
    """The command and the variables of all pods of one template."""

    command: tuple[str, ...]
    env: Mapping[str, str]


def main_container(template: PodTemplate) -> tuple[int, Container]:
    """The container that trains, and its index: by its name, else by its devices, else the first."""
    containers = list(enumerate(template.spec.containers))
    mains = (one for one in containers if one[1].name == MAIN)
    with_devices = (one for one in containers if one[1].resources.devices)
    return next(mains, next(with_devices, containers[0]))


def start_of(container: Container) -> StartCommand:
    """The command of a container. References to its variables are resolved as the kubelet does."""
    env: dict[str, str] = {}
    for variable in container.env:
        if not variable.has_source:
            env[variable.name] = _resolved(variable.value or "", env)
    words = (*container.command, *container.args) if container.command else ()
    return StartCommand(command=tuple(_resolved(word, env) for word in words), env=env)


def _resolved(text: str, env: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return env.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def one_start(starts: Sequence[tuple[int, StartCommand]]) -> StartCommand:
    """Merge the commands of all templates to one. `starts`: number of nodes and command, in rank order.

    No command if one of them has none: what its image starts is unknown.
    """
    first = starts[0][1]
    if all(start == first for _, start in starts):
        return first
    common = dict(set.intersection(*({*start.env.items()} for _, start in starts)))
    if not all(start.command for _, start in starts):
        return StartCommand(command=(), env=common)
    lines, ranks = [], 0
    for nodes, start in starts:
        ranks += nodes
        variables = [f"{k}={v}" for k, v in sorted(start.env.items()) if k not in common]
        words = shlex.join(("env", *variables, *start.command) if variables else start.command)
        lines.append(f'if [ "$NODE_RANK" -lt {ranks} ]; then exec {words}; fi')
    return StartCommand(command=("/bin/sh", "-c", "\n".join(lines)), env=common)
