"""The environment of what a worker starts: of a rank, and of an agent. Pure: the worker's is an argument.

Variables of the worker are passed on by name. What belongs to the worker alone (its settings, its way to the
server, its tokens) is never passed on, whatever a setting or a document has.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

ENGINE_VARIABLES = ("TEMPORAL_", "EVERSTEP_")

EVERYTHING = ("*",)
ALL = "all"
"""A setting's word for that."""

FOR_RANKS = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR"),
    *("LD_LIBRARY_PATH", "PYTHON*", "VIRTUAL_ENV", "CONDA_*"),
    *("CUDA_*", "NVIDIA_*", "NCCL_*", "GLOO_*", "UCX_*", "ASCEND_*", "HCCL_*"),
    *("TORCH_*", "PYTORCH_*", "TORCHINDUCTOR_*", "TRITON_*"),
    *("OMP_*", "KMP_*", "MKL_*", "OPENBLAS_*"),
)
"""What a rank finds of a worker that is a service: where things are and how they are tuned, no secrets."""

FOR_AGENTS = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH"),
    *("CUDA_*", "NVIDIA_*", "ASCEND_*"),
)
"""What an agent and its warden find: they call the makers' tools; ranks get variables of their own."""

NAME = re.compile(r"\*|[A-Za-z_][A-Za-z0-9_]*\*?")


def names(text: str) -> tuple[str, ...]:
    """A setting as names; `*` at the end of one stands for any rest. Raises ValueError."""
    parts = tuple(filter(None, (name.strip() for name in text.split(","))))
    for name in parts:
        if NAME.fullmatch(name) is None:
            raise ValueError(f"{name} is no variable's name; write PATH,NCCL_* or {ALL}")
    return EVERYTHING if parts == (ALL,) else parts


def passed(environ: Mapping[str, str], patterns: Collection[str]) -> dict[str, str]:
    """The part of this environment that is passed on."""
    exact = {name for name in patterns if not name.endswith("*")}
    prefixes = tuple(name[:-1] for name in patterns if name.endswith("*"))
    return {
        name: value
        for name, value in environ.items()
        if not is_engine_variable(name) and (name in exact or name.startswith(prefixes))
    }


def requested(environ: Mapping[str, str], wishes: Mapping[str, str]) -> dict[str, str]:
    """The variables that a document takes from the worker: the document's name for each, and its value."""
    return {
        name: environ[source]
        for name, source in wishes.items()
        if source in environ and not is_engine_variable(source)
    }


def lacking(environ: Mapping[str, str], wishes: Mapping[str, str]) -> str | None:
    """Why not all that a document takes from the worker is there, if so."""
    there = requested(environ, wishes)
    missing = sorted({source for name, source in wishes.items() if name not in there})
    if not missing:
        return None
    return f"the worker has no variable {', '.join(missing)}, which `env` of the job takes from it"


def is_engine_variable(name: str) -> bool:
    return name.startswith(ENGINE_VARIABLES)
