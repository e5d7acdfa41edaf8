"""The backends by name, imported only when chosen.

Each is a package with `settings_class()` and `open_tools(**settings)`. What all of them promise is in
`base.py`, `settings.py` and `tools.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from everstep.backends.tools import Tools
from everstep.core.errors import InvalidSpec

if TYPE_CHECKING:
    from everstep.backends.settings import BackendSettings  # pydantic, which commands do without

BACKENDS: Mapping[str, str] = {
    "fake": "everstep.backends.fake",
    "kubernetes": "everstep.backends.kubernetes",
    "local": "everstep.backends.local",
}


WITH_PODS = frozenset({"kubernetes"})
"""The backends that make pods; the others start processes where their worker is."""


def has_pods(name: str) -> bool:
    """Whether the backend of this name makes pods."""
    return name in WITH_PODS


def settings_class(name: str) -> type[BackendSettings]:
    """The settings class of this backend. A worker reads the settings and opens the backend with them."""
    settings: type[BackendSettings] = _chosen(name).settings_class()
    return settings


def open_tools(name: str, **settings: Any) -> Tools:
    """The command line's tools for the cluster of this backend; `settings` are those of the tools."""
    tools: Tools = _chosen(name).open_tools(**settings)
    return tools


def _chosen(name: str) -> Any:
    if name not in BACKENDS:
        names = ", ".join(sorted(BACKENDS))
        raise InvalidSpec([("backend", f"there is no {name!r}; try one of {names}")])
    return import_module(BACKENDS[name])
