"""The backends by name, imported only when chosen.

Each is a module or package with `open_backend(**settings)` and `open_tools(**settings)`; `base.py` and
`tools.py` say what all of them promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from everstep.backends.base import Backend
from everstep.backends.tools import Tools
from everstep.core.errors import InvalidSpec

BACKENDS: Mapping[str, str] = {
    "fake": "everstep.backends.fake",
    "local": "everstep.backends.local",
}


async def open_backend(name: str, **settings: Any) -> Backend:
    """The backend of this name; what it needs to know (address, state directory) are its settings."""
    backend: Backend = await _chosen(name).open_backend(**settings)
    return backend


def open_tools(name: str, **settings: Any) -> Tools:
    """What may be asked of its machine; of the settings it takes those that it needs."""
    tools: Tools = _chosen(name).open_tools(**settings)
    return tools


def _chosen(name: str) -> Any:
    if name not in BACKENDS:
        known = ", ".join(sorted(BACKENDS))
        raise InvalidSpec([("backend", f"there is no {name!r}; try one of {known}")])
    return import_module(BACKENDS[name])
