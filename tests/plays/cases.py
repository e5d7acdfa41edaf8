"""What the cases show that are played on real processes, on this machine and in pods.

Each cluster has to show every deed, each level of each kind of document for each class of fault, the worker
killed in each level, and every part of what a script or a reader sees. The rest of what a document's rules
answer (budgets, series, its switches) is shown on either of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.cases.case import FATAL, Case, Deed, Row
from tests.cases.counting import SECOND_LOOKS
from tests.cases.manifests import TO_BE_LEFT, UNWELL
from tests.cases.on_processes import has_several_restarts
from tests.cases.table import CASES
from tests.plays.coverage import Coverage
from tests.plays.scenarios import Cluster
from tests.support import seconds

Part = tuple[Case, bool]
"""A case, and whether the worker is killed in the middle of it."""

OF_PODS = ("exit ", "end", "save ", "saved ", "log ", "node-down ", "add-node ", "kill ")
"""Deeds that a rank, a node or a user can do in any cluster."""
OF_MINDCLUSTER = {50, 51, 52, 53, 54, 55}
"""Numbers of its cases that are played in pods, undisturbed only."""
LASTING = (FATAL, TO_BE_LEFT, UNWELL)
"""Codes of devices that do not heal by themselves."""
SCALES = (1.0, SECOND_LOOKS)  # only looks are more seldom without the second one

EXPECTED = (
    *("counts", "pods", "slots", "micro_batches", "used", "resumed", "logged", "unlogged"),
    *("attempts", "checks", "stale", "saved", "isolated", "events", "silent", "place_s"),
)
"""Fields of a case that say what a script or a reader sees."""
SWITCHES = ("annotations", "variables", "overlay")
"""Fields of a case whose keys are settings of its document."""


def parts_here() -> Iterator[Part]:
    """Each case on this machine, with the worker killed, and without where there is one restart at most."""
    for case in CASES:
        if case.is_real:
            yield from ((case, kills) for kills in _kills(case, several=(True,)))


def parts_in_pods() -> Iterator[Part]:
    """The cases that pods can play; the kill is left out where it would fall into a later restart."""
    for case in filter(is_of_pods, CASES):
        kills = (False,) if case.labels is not None else _kills(case, several=(False,))
        yield from ((case, is_killed) for is_killed in kills)


def _kills(case: Case, *, several: tuple[bool, ...]) -> tuple[bool, ...]:
    return several if has_several_restarts(case) else (False, True)


def is_of_pods(case: Case) -> bool:
    return (
        case.is_real
        and (case.labels is None or case.number in OF_MINDCLUSTER)
        and not case.before
        and case.time_scale in SCALES
        and all(needs_no_plugin(deed) or is_of_a_plugin(case, deed) for deed in case.deeds)
    )


def needs_no_plugin(deed: Deed) -> bool:
    return deed.what.startswith(OF_PODS)


def is_of_a_plugin(case: Case, deed: Deed) -> bool:
    """Whether a device plugin can report it: only those documents want devices."""
    return (
        case.labels is not None and deed.what.startswith("device ") and deed.what.endswith(LASTING)
    )


def of_cluster(case: Case, kills: bool) -> Iterator[str]:
    """Deeds, levels by class of fault, the level that the kill falls into, and what is looked at."""
    dialect = dialect_of(case)
    for deed in case.deeds:
        yield f"deed: {_name(deed)}"
        yield from () if kills else (f"deed: {_name(deed)}, undisturbed",)
    yield from (f"before: {fault.split()[0]}" for fault in case.before)
    yield from (f"{dialect}: {row.recover} for {fault}" for row, fault in _records(case))
    yield from (f"{dialect}: {name} as expected" for name in EXPECTED if getattr(case, name))
    yield f"{dialect}: ends as {case.ends}"
    if kills:
        yield f"{dialect}: killed in {case.rows[-1].recover if case.rows else 'no restart'}"


def of_loop(case: Case) -> Iterator[str]:
    """Records in full, and the switches of the document."""
    dialect = dialect_of(case)
    for row, fault in _records(case):
        isolated = "isolated" if row.isolated else "not isolated"
        yield f"{dialect}: {row.recover} for {fault}: {row.result}, {isolated}, {row.before}"
    yield from (f"label: {name}={value}" for name, value in (case.labels or {}).items())
    for field in SWITCHES:
        yield from (f"{field}: {name}" for name in getattr(case, field))


def dialect_of(case: Case) -> str:
    if case.labels is not None:
        return "mindcluster"
    return "cerebras" if case.trainer is not None else "modelarts"


def _records(case: Case) -> Iterator[tuple[Row, str]]:
    """Each record with the class of its fault, as far as the case names one."""
    for number, row in enumerate(case.rows):
        yield row, case.kinds[number] if number < len(case.kinds) else str(row.scenario)


def _name(deed: Deed) -> str:
    """The word for it, and what sets it apart from others of that name."""
    word, *rest = deed.what.partition(";")[0].split()
    flags = [part for part in rest if part.islower() and "heal" in part]
    return " ".join([word, *flags])


def play_of(part: Part, cluster: Cluster) -> str:
    return f"{name_of(part)} ({cluster})"


def name_of(part: Part) -> str:
    case, kills = part
    return f"{case.id}-{'worker-killed' if kills else 'undisturbed'}"


PARTS: dict[Cluster, tuple[Part, ...]] = {
    "machine": tuple(parts_here()),
    "pods": tuple(parts_in_pods()),
}
TESTS: dict[Cluster, str] = {
    "machine": "tests/cases/test_cases_on_this_machine.py::test_case_with_real_processes",
    "pods": "tests/kubernetes/test_cases.py::test_case_in_pods",
}
QUICK = ("13-new-pods-count-anew", "21-one-pod-moves", "41-one-system-of-four-is-lost")
"""Played in pods undisturbed by `make test-kubernetes` too."""


def _cost(part: Part, cluster: Cluster) -> float:
    """About what playing it costs: what was measured, and its deeds and workers, twice in pods."""
    measured_s = MEASURED_S.get(f"{TESTS[cluster]}[{name_of(part)}]", 0.0)
    return measured_s + 5.0 * (len(part[0].deeds) + part[1]) * (2 if cluster == "pods" else 1)


MEASURED_S = seconds.read()
COVERAGE = Coverage(
    title="cases",
    shows={
        play_of(part, cluster): frozenset(
            [f"{cluster}: {text}" for text in of_cluster(*part)] + [*of_loop(part[0])]
        )
        for cluster, parts in PARTS.items()
        for part in parts
    },
    costs={
        play_of(part, cluster): _cost(part, cluster)
        for cluster, parts in PARTS.items()
        for part in parts
    },
    always=frozenset(
        play_of(part, "pods") for part in PARTS["pods"] if part[0].id in QUICK and not part[1]
    ),
)
