"""Everstep: a training job that takes its next step whatever breaks.

    import everstep

    result = everstep.run("train.py", processes=4, checkpoints="out")
    everstep.job("train").restarts()

`everstep.aio` has the same for code with an event loop. Names are loaded when they are first used: the agent
and the train library are in this package too, and run where nothing else of it can be imported.
"""

from __future__ import annotations

TYPE_CHECKING = False  # that of `typing`, which takes longer to import than all the rest here
if TYPE_CHECKING:
    from typing import Any

    from everstep.client.blocking import Job, job, run, submit
    from everstep.client.exit_codes import Exit, Failed
    from everstep.client.job import AsyncJob, Result
    from everstep.client.jobs.glances import Glance
    from everstep.version import __version__

_PLACES = {
    "AsyncJob": "everstep.client.job",
    "Exit": "everstep.client.exit_codes",
    "Failed": "everstep.client.exit_codes",
    "Glance": "everstep.client.jobs.glances",
    "Job": "everstep.client.blocking",
    "Result": "everstep.client.job",
    "__version__": "everstep.version",
    "job": "everstep.client.blocking",
    "run": "everstep.client.blocking",
    "submit": "everstep.client.blocking",
}
"""The module of each public name."""
_MODULES = frozenset({"aio", "plugin"})
"""Public modules, loaded like names."""

__all__ = [
    "AsyncJob",
    "Exit",
    "Failed",
    "Glance",
    "Job",
    "Result",
    "__version__",
    "job",
    "run",
    "submit",
]


if not TYPE_CHECKING:  # else a wrong name would be of any type

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name in _PLACES:
            value = getattr(import_module(_PLACES[name]), name)
            globals()[name] = value
            return value
        if name in _MODULES:
            return import_module(f"everstep.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
