"""What of a chronicle is still to be written and told, and how far that came."""

from __future__ import annotations

from dataclasses import replace

from everstep.chronicle import happenings, journal
from everstep.chronicle.chronicle import Chronicle
from everstep.core.loop.moves import Action, Clear, Event, Keep, PlanEnded, RunPlan, Watched
from everstep.core.state import JobState
from everstep.core.world import Journal


def unpublished(known: Chronicle, state: JobState) -> Journal:
    """All that is still to be written, and to be told."""
    return replace(untold(known, state), entries=known.entries)


def untold(known: Chronicle, state: JobState) -> Journal:
    """What is still to be told."""
    return Journal(
        job=state.job.id,
        run=known.first_run,
        topic=state.spec.topic,
        notices=happenings.untold(known, state.spec.events),
    )


def carried_by(action: Action, known: Chronicle, state: JobState) -> Action:
    """The action, with what is to be written and told beside it."""
    match action:
        case RunPlan(plan=plan):
            return RunPlan(plan=replace(plan, journal=untold(known, state)))
        case Keep(order=order):
            return Keep(order=replace(order, journal=unpublished(known, state)))
        case Clear():
            return replace(action, journal=unpublished(known, state))
        case _:
            return action


def published(known: Chronicle, event: Event) -> Chronicle:
    """The chronicle once it is told how far those came who wrote and told beside their work."""
    match event:
        case Watched(report=report):
            return happenings.told(journal.written(known, report.journaled), report.told)
        case PlanEnded(outcome=outcome) if outcome is not None:
            return happenings.told(known, outcome.told)
        case _:
            return known
