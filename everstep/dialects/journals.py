"""The journal of a phase in the format of the system that the job's document was written for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from everstep.chronicle.chronicle import Entry
from everstep.core.spec import JobSpec, PhaseSpec
from everstep.dialects.cerebras import journal as cerebras

Format = Callable[[PhaseSpec, Entry], Entry]

FORMATS: Mapping[str, Format] = {cerebras.NAME: cerebras.formatted}
"""Formats of dialects; jobs of other dialects have the common records."""


def formatted(spec: JobSpec, entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries in the format of the job's dialect."""
    format_entry, phases = FORMATS.get(spec.dialect), {phase.name: phase for phase in spec.phases}
    if format_entry is None:
        return tuple(entries)
    return tuple(format_entry(phases[e.phase], e) if e.phase in phases else e for e in entries)
