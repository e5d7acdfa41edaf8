"""The cluster of this machine: its backend, and the tools for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from everstep import backends
from everstep.backends import open_tools
from everstep.backends.tools import Tools
from everstep.client.exit_codes import Exit, Failed
from everstep.client.home import home
from everstep.core.errors import BackendUnavailable
from everstep.dialects.dialect import has_pods_by_name

USUAL = "local"
"""The backend and the cluster, if the worker's settings do not say otherwise."""


def is_here(cluster: str) -> bool:
    """Whether a worker that is started here would serve this cluster."""
    return cluster == os.environ.get("EVERSTEP_CLUSTER", USUAL)


def has_pods(cluster: str) -> bool:
    """Whether this cluster makes pods, by the backend that is configured here, else by its name."""
    if is_here(cluster):
        return backends.has_pods(os.environ.get("EVERSTEP_BACKEND", USUAL))
    return has_pods_by_name(cluster)


def tools(cluster: str | None = None) -> Tools:
    """The tools of the cluster that a worker would serve here, or of one that makes pods elsewhere."""
    if cluster is not None and not is_here(cluster):
        return open_tools("kubernetes") if has_pods_by_name(cluster) else Tools()
    return open_tools(
        os.environ.get("EVERSTEP_BACKEND", USUAL),
        home=home(),
        address=os.environ.get("EVERSTEP_FAKE_ADDRESS"),
    )


def own_tools() -> Tools:
    """The tools of this machine, which `run` and `dev` serve whatever backend is configured."""
    return open_tools(USUAL, home=home())


@contextmanager
def database_can_be_read(then: str = "") -> Iterator[None]:
    """Inside, a database that cannot be read becomes a sentence; `then` is what comes of it."""
    try:
        yield
    except BackendUnavailable as error:
        problem = f"the database in {home()} cannot be read{then}: {error}"
        raise Failed(Exit.UNREACHABLE, f"{problem}; `everstep doctor` looks at it") from None
