"""The journal of a phase in the format of the system that the job's document was written for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from everstep.chronicle.chronicle import Entry
from everstep.core.spec import JobSpec, PhaseSpec
from everstep.dialects.cerebras import journal as cerebras

Words = Callable[[PhaseSpec, Entry], Entry]

WORDS: Mapping[str, Words] = {cerebras.NAME: cerebras.worded}
"""By dialect; jobs of other dialects have the common records."""


def worded(spec: JobSpec, entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries in the format of the job's dialect."""
    words, phases = WORDS.get(spec.dialect), {phase.name: phase for phase in spec.phases}
    if words is None:
        return tuple(entries)
    return tuple(words(phases[e.phase], e) if e.phase in phases else e for e in entries)
