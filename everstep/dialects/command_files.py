"""Files that a command reads, made anew for each start: its dialect knows what a restart changes in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from everstep.core.world import StartOrder
from everstep.dialects.cerebras import params as cerebras
from everstep.documents.text import written

Content = Mapping[str, Any]

CHANGES: Mapping[str, Callable[[Content, StartOrder], Content]] = {
    cerebras.PARAMS: cerebras.started
}
"""By the name of the file; what is in others stays as it was written."""


def command_files(order: StartOrder) -> dict[str, str]:
    """Their texts by their names; in the command `{params}` stands for the path of `params.yaml`."""
    return {
        name: written(CHANGES[name](content, order) if name in CHANGES else content)
        for name, content in order.files.items()
        if any(f"{{{PurePath(name).stem}}}" in word for word in order.command)
    }
