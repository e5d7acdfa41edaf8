"""No value that a rank, an operator, a document or a backend brings keeps a workflow from going on."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.exceptions import ApplicationError

from everstep.backends.agents.client import agent_views
from everstep.chronicle import fleet_totals, views
from everstep.chronicle.chronicle import JobTotals
from everstep.converter import DATA_CONVERTER, Unreadable
from everstep.core.bounds import NUMBER_MOST, TEXT_MOST
from everstep.core.deciding.decision import RollbackCount, RunEnd, StepResult
from everstep.core.errors import CommandRejected
from everstep.core.facts import Fact, bounded
from everstep.core.levels import FaultClass
from everstep.core.loop import commands
from everstep.core.loop.next_actions import RunPlan
from everstep.core.recovering import quarantine, recovery
from everstep.core.recovering.isolations import ENTRIES_MOST
from everstep.core.seeing.watch_report import WatchReport
from everstep.core.state import JobState, with_ledger
from everstep.core.world import Checkpoint
from everstep.dialects import responses
from tests.support.builders import ScriptedJob, running, sighting
from workflows import attributes
from workflows.node_quarantine import Opening
from workflows.opening import Carried

PAYLOADS = DATA_CONVERTER.payload_converter
HALF = "\ud800"
PARTS = (HALF, "\udcff", "\0", "\x1b[31m", "\r", "\n", "NaN", "Infinity", ".", "a", "字" * 300)
TEXTS = st.lists(st.sampled_from(PARTS), max_size=4).map("".join)
NUMBERS = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, 1e300])
WHOLE = st.integers() | st.sampled_from([10**26, -(10**26), 2**63, 10**400])
ATTRIBUTE_BYTES = 2_048


def written(value: Any) -> bytes:
    """As it is sent; strict readers can read it."""
    (payload,) = PAYLOADS.to_payloads([value])
    json.loads(payload.data.decode(), parse_constant=pytest.fail)
    return payload.data


def sent(value: Any) -> Any:
    """As it arrives."""
    payload = Payload(metadata={"encoding": b"json/plain"}, data=written(value))
    return PAYLOADS.from_payloads([payload], [type(value)])[0]


def goes_on(job: ScriptedJob) -> None:
    """All that its workflow hands to Temporal in a turn can be handed over."""
    state = sent(Carried(document=None, state=job.state, chronicle=job.chronicle))
    assert state.state["job"] if isinstance(state.state, dict) else state.state.job
    views.page(job.state, job.chronicle).encode()
    for value in attributes.of_job(job.state, job.chronicle).values():
        if isinstance(value, int):
            assert abs(value) < 2**63
        else:
            assert len(json.dumps(value, ensure_ascii=False).encode()) <= ATTRIBUTE_BYTES
    written(responses.closing_memo(job.state, job.chronicle))
    written(responses.status(job.state, job.chronicle, "demo", None))
    if isinstance(job.action, RunPlan):
        sent(job.action.plan)
        job.action.plan.title.encode()
        sent(recovery.next_step(recovery.begin(job.action.plan)))


# -- What is sent ---------------------------------------------------------------------------------


WORDS = frozenset({"end", "news", "accelerator", "accelerators_per_node", "when"})
"""Fields whose texts are words of ours."""


def spoiled(value: Any) -> Iterator[Any]:
    """The value with one text or number in it at a time that JSON cannot carry."""
    if type(value) is str:
        yield value + HALF
    elif isinstance(value, float):
        yield from (math.nan, math.inf, -math.inf)
    elif isinstance(value, dict):
        yield {key + HALF if type(key) is str else key: one for key, one in value.items()}
    for key, part, rebuilt in parts(value):
        if key not in WORDS:
            yield from (rebuilt(other) for other in spoiled(part))


def parts(value: Any) -> Iterator[tuple[Any, Any, Callable[[Any], Any]]]:
    """Its parts by name, key or place, each with what makes the whole again with another part."""
    if is_dataclass(value) and not isinstance(value, type):
        for name in (field.name for field in fields(value)):
            yield name, getattr(value, name), partial(_with_field, value, name)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield key, one, partial(_with_key, value, key)
    elif isinstance(value, tuple):
        for at, one in enumerate(value):
            yield at, one, partial(_with_place, value, at)


def _with_field(value: Any, name: str, part: Any) -> Any:
    return replace(value, **{name: part})


def _with_key(value: dict[Any, Any], key: Any, part: Any) -> Any:
    return {**value, key: part}


def _with_place(value: tuple[Any, ...], at: int, part: Any) -> Any:
    changed = (*value[:at], part, *value[at + 1 :])
    return type(value)(*changed) if hasattr(value, "_fields") else changed


def values() -> dict[str, Any]:
    """Of each kind that goes between workflows and activities one, full of everything."""
    job = running(nodes=2)
    sent_report = WatchReport(
        news="facts", now=1.0, cursor="2", checkpoint=Checkpoint(step=3, path="a")
    )
    facts = (sighting(FaultClass.CRASH), sighting(FaultClass.DEVICE))
    job.see(*facts, checkpoint=Checkpoint(step=3, path="a", at=2.0))
    order = recovery.next_step(recovery.begin(job.plan))
    result = StepResult(
        now=1.0, cursor="1", generation=2, active=(0, 1), end="failed", cause=facts[0], notes=("a",)
    )
    report = replace(sent_report, facts=facts, running_since=1.0, alive_until=2.0, step=3)
    return {
        "a fact": facts[1],
        "a report": report,
        "a decision": job.decisions[-1],
        "a plan": job.plan,
        "an order": order,
        "a result": result,
    }


VALUES = values()


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_what_cannot_be_sent_is_replaced_where_it_stands(value: Any) -> None:
    assert sent(value) == value
    changes = list(spoiled(value))
    assert changes
    for changed in changes:
        arrived = sent(changed)
        assert written(arrived) == written(changed)
        assert type(arrived) is type(value)


def test_parts_that_a_newer_version_adds_to_a_tuple_are_left_out() -> None:
    job = running(nodes=2)
    end, count = RunEnd("before a step", None, "exit code 1"), RollbackCount(times=2)
    job.state = with_ledger(job.state, last_end=end, rollbacks=count)
    raw = json.loads(written(job.state))
    for tuple_ in (raw["ledger"]["last_end"], raw["ledger"]["rollbacks"]):
        tuple_.append({"new": True})
    newer = Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(raw).encode())
    assert PAYLOADS.from_payloads([newer], [JobState]) == [job.state]


@pytest.mark.parametrize("text", [b'{"reason": ', b"[" * 10_000, b"\xff", b""])
def test_what_cannot_be_read_never_raises_where_no_type_is_asked_for(text: bytes) -> None:
    payload = Payload(metadata={"encoding": b"json/plain"}, data=text)
    (value,) = PAYLOADS.from_payloads([payload], [Any])
    assert isinstance(value, Unreadable)


def test_a_tuple_of_another_form_is_refused() -> None:
    raw = json.loads(written(running(nodes=2).state))
    raw["ledger"]["last_end"] = ["before a step", "no step", "exit code 1", 1, "new"]
    payload = Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(raw).encode())
    with pytest.raises(ValueError, match="step"):
        PAYLOADS.from_payloads([payload], [JobState])


PLAIN = st.recursive(
    TEXTS | NUMBERS | st.integers() | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN)
@example({"loss": math.nan, HALF: [math.inf, -math.inf]})
def test_every_plain_value_can_be_sent_and_read(value: Any) -> None:
    written([value])


@pytest.mark.parametrize(
    "value", ["loss is NaN", {"Infinity": ["NaN"]}, "字\n\0", [1.5, 2**63, None]]
)
def test_what_can_be_sent_is_left_alone(value: Any) -> None:
    assert json.loads(written(value)) == value


@given(TEXTS)
@example(HALF)
def test_a_failure_in_any_words_can_be_sent(words: str) -> None:
    failure, error = Failure(), ApplicationError(words, {"why": words}, type="InvalidSpec")
    DATA_CONVERTER.failure_converter.to_failure(error, PAYLOADS, failure)
    assert failure.application_failure_info.type == "InvalidSpec"
    assert Failure.FromString(failure.SerializeToString()).message == failure.message


# -- What comes in --------------------------------------------------------------------------------

KINDS = ("process.exit", "device.fault", "node.down", "network.link", "hang.steps", "storage.full")
FACTS = st.builds(
    Fact,
    id=TEXTS,
    kind=st.sampled_from(KINDS) | TEXTS,
    at=NUMBERS,
    node=st.sampled_from(["n0", "n1"]) | TEXTS | st.none(),
    slot=st.integers(0, 1) | st.none(),
    rank=WHOLE | st.none(),
    device=WHOLE | st.none(),
    code=TEXTS | st.none(),
    message=TEXTS,
    details=st.dictionaries(
        st.sampled_from(["exception", "log", "at_step", "exit_code", "severity", "measured"])
        | TEXTS,
        TEXTS | NUMBERS | WHOLE | st.none() | st.booleans(),
        max_size=4,
    ),
)


@given(st.lists(FACTS, min_size=1, max_size=3), WHOLE | st.none())
@example([Fact(id="a", kind="node.down", at=math.nan, node=HALF, code="\0", message=HALF)], None)
@example([Fact(id="a", kind="process.exit", at=1.0, details={"at_step": 10**400})], 10**26)
def test_whatever_is_seen_of_a_job_it_goes_on(facts: list[Fact], step: int | None) -> None:
    job = running(nodes=2)
    job.report("facts", facts=bounded(facts), step=step)
    goes_on(job)
    if isinstance(job.action, RunPlan):
        job.succeeds()
        goes_on(job)


@given(WHOLE)
@example(10**26)
def test_a_step_that_no_training_counts_to_is_none(step: int) -> None:
    assert agent_views.step(step) == (step if 0 <= step <= NUMBER_MOST else None)


ARGUMENTS = st.dictionaries(
    st.sampled_from(
        ["kind", "node", "device", "code", "at", "message", "reason", "grace_s", "id", "level"]
    ),
    st.sampled_from(["node.down", "device.fault", "job", "n1"]) | TEXTS | NUMBERS | WHOLE,
    max_size=5,
)


@given(st.sampled_from(["pause", "stop", "restart", "report_fault", "set_budget"]), ARGUMENTS)
@example("report_fault", {"kind": "device.fault", "node": "n\0", "code": HALF})
@example("report_fault", {"kind": "node.down", "at": math.nan})
@example("stop", {"reason": f"a{HALF}\0"})
@example("report_fault", {"kind": "a.b", "node": "字" * 253, "code": "字" * 253, "message": "\x1b"})
def test_whatever_an_operator_says_is_refused_or_carried_out(
    name: str, arguments: dict[str, Any]
) -> None:
    job = running(nodes=2)
    try:
        job.command(name, **arguments)
    except CommandRejected as error:
        refused = str(error)
    else:
        refused = ""
        job.interrupted()
    assert refused.isprintable()
    goes_on(job)


@pytest.mark.parametrize("key", ["node", "code", "id"])
@pytest.mark.parametrize("text", ["n\0", "a\nb", "\x1b[31m", f"n{HALF}"])
def test_a_name_holds_no_control_character(key: str, text: str) -> None:
    with pytest.raises(CommandRejected, match=key):
        commands.parse_arguments("report_fault", {"kind": "node.down", key: text})


def test_a_job_that_has_a_step_beyond_every_bound_goes_on() -> None:
    """One that an earlier version of ours took up."""
    job = running(nodes=2)
    job.state = replace(job.state, step=10**26)
    goes_on(job)


REQUESTS = st.dictionaries(
    st.sampled_from(
        [
            "node",
            "reason",
            "by",
            "until",
            "at",
            "faults",
            "now",
            "cluster_size",
            "window_s",
            "proven",
        ]
    ),
    st.sampled_from(["n1", "operator", [{}], False]) | TEXTS | NUMBERS | WHOLE | st.none(),
    max_size=5,
)


@given(REQUESTS)
@example({"node": "n\0", "reason": "字" * 3_000, "until": math.nan})
@example({"node": "n1", "reason": "a", "cluster_size": 10**400})
@example({"node": "n1", "proven": False, "cluster_size": 10**400})
@example({"now": 10**400})
@example({"now": math.inf})
def test_whatever_the_quarantine_is_told_is_refused_or_kept(request: dict[str, Any]) -> None:
    book = quarantine.Quarantine(cluster="local")
    with contextlib.suppress(CommandRejected):
        quarantine.checked_request(request, now=1.0)
        book, answer = quarantine.isolate(book, quarantine.request_from(request, now=1.0))
        sent(answer)
    with contextlib.suppress(CommandRejected):
        quarantine.check_now(request)
        book, _ = quarantine.release(book, quarantine.node_from(request))
        quarantine.expired_nodes(book, quarantine.now_from(request))
    with contextlib.suppress(CommandRejected):
        book, device_answer = quarantine.take_report(
            book, quarantine.device_report_from(request, now=1.0)
        )
        sent(device_answer)
    assert sent(sent(book)) == sent(book)


PAYLOAD_MOST = 2 * 1024**2
"""Bytes of a payload that a Temporal server takes."""
LONGEST = ("\N{GRINNING FACE}", '"', "\x01")
"""Characters that JSON writes in four, two and six bytes."""


def filled(character: str) -> quarantine.Quarantine:
    """A quarantine after more requests than it has room for, in texts as long as they may be."""
    book = quarantine.Quarantine(cluster="local")
    for number in itertools.count():
        request = {
            "node": f"n{number}." + "a" * 240,
            "reason": character * TEXT_MOST,
            "by": character * TEXT_MOST,
            "proven": number % 4 > 0,
            "cluster_size": 20,
        }
        checked = quarantine.checked_request(request, now=1.0)
        book, answer = quarantine.isolate(book, checked)
        if answer.verdict == "full":
            break
    for start in range(0, 1_200, 200):
        names = {"node": "n" * 253, "code": character * 253, "job": character * 253}
        faults = [
            {**names, "device": number, "at": number, "times": 2, "window_s": 86_400, **lasts}
            for number in range(start, start + 200)
            for lasts in ({}, {"longer_than_s": 9})
        ]
        for some in (faults[:200], faults[200:]):
            report = quarantine.device_report_from({"faults": some}, now=1.0)
            book, _ = quarantine.take_report(book, report)
    return book


@pytest.mark.parametrize("character", LONGEST, ids=ascii)
def test_a_quarantine_that_is_full_continues_as_a_new_run(character: str) -> None:
    book = filled(character)
    assert len(book.nodes) == ENTRIES_MOST
    assert len(book.faults) > 50
    assert len(book.spans) > 50
    opening = Opening(cluster="local", quarantine=book, unsettled=tuple(book.nodes))
    assert len(written(opening)) < PAYLOAD_MOST


def test_a_full_quarantine_says_so_and_takes_nodes_again_once_some_are_released() -> None:
    book = filled("a")
    request = quarantine.checked_request({"node": "one-more"}, now=1.0)
    with pytest.raises(CommandRejected, match="everstep release NODE"):
        quarantine.check_room(book, request)
    assert quarantine.isolate(book, request)[1].verdict == "full"
    assert (
        quarantine.isolate(book, replace(request, node="n0." + "a" * 240))[1].verdict == "isolated"
    )
    for node in list(book.nodes)[:10]:
        book, _ = quarantine.release(book, node)
    book, answer = quarantine.isolate(book, request)
    assert answer.verdict == "isolated"
    assert answer.note.startswith("1241 nodes and devices are isolated, of at most 1250")


@pytest.mark.parametrize("character", LONGEST, ids=ascii)
def test_the_totals_of_a_fleet_continue_as_a_new_run_whatever_is_sent(character: str) -> None:
    fleet = fleet_totals.FleetTotals()
    for number in range(1_500):
        long = f"{number}" + character * 1_000
        totals = JobTotals(
            restarts={f"{long}/{long}": 1},
            stages={long: {number: (1, 0.5)}},
            time_s={long: math.inf},
            budgets={long: 10**300},
            ended="" if number % 2 else long,
        )
        report = fleet_totals.JobReport(key=long, at=float(number), totals=totals)
        fleet = fleet_totals.with_report(fleet, report)
    assert len(fleet.jobs) > 10
    assert len(written(fleet)) < PAYLOAD_MOST
    total = fleet_totals.FleetSum(totals=fleet_totals.summed(fleet), ends=fleet_totals.ends(fleet))
    assert len(written(total)) < PAYLOAD_MOST
