"""Which occurrence of a listed fault is reported, and when it is over: for workers with lists of any age."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from everstep.backends.kubernetes import listed_faults
from everstep.backends.kubernetes.listed_faults import EndsOfFaults, FaultList
from everstep.core.facts import LIST_VERSION, Fact, ObserverReport

CODE = "80E01801"
LISTED = Fact(id="device-info/n1/Ascend910-3/80E01801/0", kind="device.fault", at=5.0, node="n1")


@dataclass
class Record:
    """What any worker stores of a job."""

    facts: list[Fact] = field(default_factory=list)
    ends: EndsOfFaults = field(default_factory=dict)

    def look(self, version: int, *faults: Fact) -> None:
        """A worker whose list has this version brings the record up to date."""
        report = ObserverReport(faults, lists_all_of="n1")
        listed = listed_faults.with_version(report, version).facts
        lists = {"n1": FaultList(version, frozenset(fact.id for fact in faults))}
        occurrences = list(listed_faults.occurrences(listed, self.ends))
        for end in list(listed_faults.ended(self.facts, lists, self.ends, now=100.0)):
            self.ends = listed_faults.with_end(self.ends, end)
            self.facts += [end.fact] if end.fact is not None else []
        ids = {fact.id for fact in self.facts}
        self.facts += [fact for fact in occurrences if fact.id not in ids]

    @property
    def ids(self) -> Sequence[str]:
        return [fact.id.removeprefix(LISTED.id) for fact in self.facts]


FAULT = Fact(
    id=LISTED.id,
    kind="device.fault",
    at=5.0,
    node="n1",
    device=3,
    code=CODE,
    details={"lasts": True},
)


def test_each_occurrence_and_each_end_has_an_identity_of_its_own() -> None:
    record = Record()
    for version in (10, 30, 50):
        for _twice in range(2):
            record.look(version, FAULT)
        for _twice in range(2):
            record.look(version + 10)
    assert record.ids == ["", "/over", "#1", "#1/over", "#2", "#2/over"]
    assert [(fact.kind, fact.code, fact.at) for fact in record.facts[:2]] == [
        ("device.fault", CODE, 5.0),
        ("device.healed", CODE, 100.0),
    ]
    assert record.facts[2].at == 100.0, "its observer's clock is behind"


def test_a_worker_with_an_older_list_ends_nothing_and_begins_nothing() -> None:
    record = Record()
    record.look(10, FAULT)
    record.look(9)
    assert record.ids == [""]
    record.look(20)
    record.look(10, FAULT)
    record.look(19, FAULT)
    assert record.ids == ["", "/over"]
    record.look(30, FAULT)
    record.look(20)
    record.look(25)
    assert record.ids == ["", "/over", "#1"]


def test_of_a_fault_without_a_code_only_the_next_occurrence_is_reported() -> None:
    """A healed device without a code would be one that shows none of its codes."""
    record = Record()
    record.look(10, LISTED)
    record.look(20)
    record.look(30, LISTED)
    assert record.ids == ["", "#1"]


def test_what_no_list_has_reported_does_not_end() -> None:
    record = Record(facts=[FAULT])
    record.look(20)
    assert record.facts == [FAULT]
    unlisted = ObserverReport((FAULT,))
    assert listed_faults.with_version(unlisted, 5).facts == (FAULT,)
    listed = listed_faults.with_version(unlisted._replace(lists_all_of="n1"), 5).facts
    assert [fact.details[LIST_VERSION] for fact in listed] == [5]
    assert list(listed_faults.ended(listed, {}, {}, now=9.0)) == []


def test_ends_are_bounded_and_noted_once() -> None:
    ends: EndsOfFaults = {}
    for number in range(listed_faults.ENDS_KEPT + 5):
        end = listed_faults.Ended(str(number), listed_faults.FaultEnds(1, number, 0.0), None)
        ends = listed_faults.with_end(listed_faults.with_end(ends, end), end)
    assert len(ends) == listed_faults.ENDS_KEPT
    assert "4" not in ends
    assert "5" in ends
