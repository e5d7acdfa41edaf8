"""What is written beside a model, in the words of the system that the job's document was made for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from everstep.chronicle.chronicle import Entry
from everstep.core.spec import JobSpec, PhaseSpec
from everstep.dialects.cerebras import journal as cerebras

Words = Callable[[PhaseSpec, Entry], Entry]

WORDS: Mapping[str, Words] = {cerebras.NAME: cerebras.worded}
"""By dialect; jobs of the others have the records that all jobs have."""


def worded(spec: JobSpec, entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries as the dialect of their job wants them."""
    words, phases = WORDS.get(spec.dialect), {phase.name: phase for phase in spec.phases}
    if words is None:
        return tuple(entries)
    return tuple(words(phases[e.phase], e) if e.phase in phases else e for e in entries)
