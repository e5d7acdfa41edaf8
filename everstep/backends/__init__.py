"""The backends by name, imported only when chosen.

Each is a module or package with `open_backend(**settings)`; `base.py` says what all of them promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from everstep.backends.base import Backend
from everstep.core.errors import InvalidSpec

BACKENDS: Mapping[str, str] = {
    "fake": "everstep.backends.fake",
    "local": "everstep.backends.local",
}


async def open_backend(name: str, **settings: Any) -> Backend:
    """The backend of this name; what it needs to know (address, state directory) are its settings."""
    if name not in BACKENDS:
        known = ", ".join(sorted(BACKENDS))
        raise InvalidSpec([("backend", f"there is no {name!r}; try one of {known}")])
    backend: Backend = await import_module(BACKENDS[name]).open_backend(**settings)
    return backend
