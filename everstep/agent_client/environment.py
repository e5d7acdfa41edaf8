"""The environment of what a worker starts: of a rank, and of an agent. Pure: whose it is, is an argument.

Variables of the worker are handed on by name. What belongs to the worker alone, its settings, its way to the
server and its tokens, is handed on to nobody, whatever a setting or a document says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

OURS_ALONE = ("TEMPORAL_", "EVERSTEP_")

EVERYTHING = ("*",)
ALL = "all"
"""How a setting says that."""

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
"""What an agent and its warden find: they ask the makers' tools and start ranks that are told their own."""

NAME = re.compile(r"\*|[A-Za-z_][A-Za-z0-9_]*\*?")


def names(text: str) -> tuple[str, ...]:
    """A setting as names; `*` at the end of one stands for any rest. Raises ValueError."""
    found = tuple(filter(None, (name.strip() for name in text.split(","))))
    for name in found:
        if NAME.fullmatch(name) is None:
            raise ValueError(f"{name} is no variable's name; write PATH,NCCL_* or {ALL}")
    return EVERYTHING if found == (ALL,) else found


def passed(environ: Mapping[str, str], wanted: Iterable[str]) -> dict[str, str]:
    """What of this environment is handed on."""
    exact = {name for name in wanted if not name.endswith("*")}
    begun = tuple(name[:-1] for name in wanted if name.endswith("*"))
    return {
        name: value
        for name, value in environ.items()
        if not is_ours_alone(name) and (name in exact or name.startswith(begun))
    }


def taken(environ: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """What a document asks for by name: its name for it, and the value."""
    return {
        name: environ[theirs]
        for name, theirs in wanted.items()
        if theirs in environ and not is_ours_alone(theirs)
    }


def lacking(environ: Mapping[str, str], wanted: Mapping[str, str]) -> str | None:
    """Why not everything that a document asks for can be had, if so."""
    there = taken(environ, wanted)
    missing = sorted({theirs for name, theirs in wanted.items() if name not in there})
    if not missing:
        return None
    return f"the worker has no variable {', '.join(missing)}, which `env` of the job takes from it"


def is_ours_alone(name: str) -> bool:
    return name.startswith(OURS_ALONE)
