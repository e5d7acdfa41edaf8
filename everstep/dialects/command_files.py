"""Files that a command reads, written before each start with what a restart changes in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from everstep.core.world import StartOrder
from everstep.dialects.cerebras import params as cerebras
from everstep.documents.text import to_yaml

Content = Mapping[str, Any]

CHANGES: Mapping[str, Callable[[Content, StartOrder], Content]] = {
    cerebras.PARAMS: cerebras.started
}
"""Files that are changed, by their names; others are not."""


def command_files(order: StartOrder) -> dict[str, str]:
    """The texts by file name; in the command `{params}` is the path of `params.yaml`."""
    return {
        name: to_yaml(CHANGES[name](content, order) if name in CHANGES else content)
        for name, content in order.files.items()
        if any(f"{{{PurePath(name).stem}}}" in word for word in order.run.command)
    }
