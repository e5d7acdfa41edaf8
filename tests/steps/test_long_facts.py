"""A fact is short, whatever its source: a record repeats its words, an answer holds them."""

from __future__ import annotations

from dataclasses import replace

from pydantic import TypeAdapter

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.core.facts import LOG_MOST, MESSAGE_MOST, Detail, Fact, bounded
from everstep.core.loop.next_actions import Action, Decide
from everstep.core.state import JobState
from everstep.dialects import responses
from everstep.simulation import Simulation
from tests.support.builders import job_spec

MEGABYTE = 1_000_000
LONG_TEXT = "X" * MEGABYTE
ANSWER_MOST = 2_000_000
"""Bytes that the server takes as one answer."""


def crash(slot: int, log: str = "") -> Fact:
    details: dict[str, Detail] = {"exception": LONG_TEXT, "exit_code": 1, "log": log}
    return Fact(
        id=f"crash/{slot}",
        kind="process.exit",
        at=1.0,
        slot=slot,
        message=LONG_TEXT,
        details=details,
    )


def test_what_a_fact_says_is_cut_and_of_a_log_the_end_is_kept() -> None:
    (fact,) = bounded([crash(0, log="x" * MEGABYTE + "the end")])
    assert len(fact.message) == MESSAGE_MOST
    assert fact.message.endswith("X…")
    assert len(str(fact.details["exception"])) == MESSAGE_MOST
    assert fact.details["exit_code"] == 1
    assert str(fact.details["log"]).endswith("xthe end")
    assert len(str(fact.details["log"])) == LOG_MOST


def test_a_thousand_crashes_at_once_fit_into_one_answer() -> None:
    facts = bounded([crash(slot, log="x" * 32_768) for slot in range(1_000)])
    assert len(TypeAdapter(tuple[Fact, ...]).dump_json(facts)) < ANSWER_MOST


def test_a_fact_of_a_few_words_is_left_as_it_is() -> None:
    fact = Fact(id="a", kind="device.fault", at=1.0, code="79", message="b", details={"log": "c"})
    assert bounded([fact]) == (fact,)
    assert bounded([]) == ()


async def test_a_script_with_long_last_words_is_restarted_like_any_other() -> None:
    backend = FakeBackend()
    backend.build(FakeSettings(nodes=6, devices=8))
    text = "X" * 20_000  # the line that asks for the fault is read slowly
    for at, kind in ((10, "process.exit"), (12, "storage.unwritable")):
        await backend.admin.fault(
            f"at {at}s fact job {kind} slot=2 message={text} exception={text}"
        )
    facts: list[Fact] = []

    def look(_state: JobState, action: Action) -> None:
        if isinstance(action, Decide):
            facts.extend(action.inputs.facts)

    spec = job_spec()
    phases = tuple(replace(p, env={"STEPS": "30"}, model_dir="out") for p in spec.phases)
    job = Simulation(backend=backend, spec=replace(spec, phases=phases), on_action=look)
    await job.run()
    assert job.state.ending == "Completed"
    assert facts
    assert max(len(fact.message) for fact in facts) == MESSAGE_MOST
    assert len(str(responses.closing_memo(job.state, job.chronicle))) < 100_000
