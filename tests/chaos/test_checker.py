"""The checker finds each violation in evidence that has it, and none in that of a job that went well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.chaos import checker
from tests.chaos.evidence import Evidence, Injection, Line, Recovery, lines_of

EXPECTED = [f"w{step}" for step in range(1, 7)]
FINAL = {"step": 6, "weights_sha256": "f"}
KILL = Injection(action="kill a rank", at=4.5, may_cost={"crash": 1}, must_restart=True)
CRASH = Recovery(
    id="demo/main/recovery-1-in_place-crash", at=5.0, level="in_place", cls="crash", billed=1
)


def life(generation: int, first: int, last: int, *, saves: Sequence[int] = ()) -> list[Line]:
    """What two ranks of a generation write from one step to another, a line a second."""
    lines: list[Line] = []

    def write(rank: int, what: str, step: int, weights: str = "") -> None:
        at = float(100 * (generation - 1) + len(lines))
        process = f"g{generation}r{rank}"
        lines.append(
            Line(
                what=what,
                at=at,
                step=step,
                generation=generation,
                rank=rank,
                process=process,
                weights=weights,
            )
        )

    for rank in (0, 1):
        write(rank, "start", first)
    for step in range(first + 1, last + 1):
        for rank in (0, 1):
            write(rank, "step", step, f"w{step}")
        if step in saves:
            write(0, "save", step)
            write(0, "saved", step)
    return lines


def good(**changes: object) -> Evidence:
    """A job that was restarted once, for a killed rank, and went on from its checkpoint."""
    evidence = Evidence(
        job="demo",
        ranks=2,
        lines=[*life(1, 0, 3, saves=[2]), *life(2, 2, 6, saves=[4, 6])],
        injections=[KILL],
        recoveries=[CRASH],
        expected=EXPECTED,
        final=FINAL,
        expected_final=FINAL,
        spent=1,
    )
    return replace(evidence, **changes)  # type: ignore[arg-type]  # each test changes fields of its own


def test_a_job_that_went_well_has_no_violation() -> None:
    assert checker.violations(good()) == []


# -- The journal ------------------------------------------------------------------------------------

Change = Callable[[list[Line]], list[Line]]


def without(what: str, step: int, generation: int) -> Change:
    return lambda lines: [
        line
        for line in lines
        if (line.what, line.step, line.generation) != (what, step, generation)
    ]


def late_write(lines: list[Line]) -> list[Line]:
    """A line of generation 1 comes when generation 2 has begun: the order in the file counts."""
    return [*lines[:12], lines[3], *lines[12:]]


def second_process(lines: list[Line]) -> list[Line]:
    return [*lines, replace(lines[-1], process="another")]


def second_start(lines: list[Line]) -> list[Line]:
    return [*lines[:1], *lines]


def other_weights(lines: list[Line]) -> list[Line]:
    return [*lines[:2], replace(lines[2], weights="x"), *lines[3:]]


def two_starting_points(lines: list[Line]) -> list[Line]:
    return [
        replace(line, step=0)
        if (line.what, line.generation, line.rank) == ("start", 2, 1)
        else line
        for line in lines
    ]


JOURNALS: dict[str, tuple[Change, str]] = {
    "two generations": (late_write, "generation 1 wrote"),
    "two processes of a rank": (second_process, "in 2 processes"),
    "a rank that starts twice": (second_start, "started 2 times"),
    "a step left out": (without("step", 4, 2), "went from step 3 to 5"),
    "a step that was never made": (without("step", 6, 2), "steps [6] were not made"),
    "other weights": (other_weights, "has other weights"),
    "a checkpoint that was not saved": (
        lambda lines: without("saved", 2, 1)(without("save", 2, 1)(lines)),
        "resumed from step 2, though 0 was",
    ),
    "two points to go on from": (two_starting_points, "resumed from two steps"),
}


@pytest.mark.parametrize("name", JOURNALS)
def test_the_checker_finds_in_a_journal(name: str) -> None:
    change, sentence = JOURNALS[name]
    assert sentence in " | ".join(checker.violations(good(lines=change(list(good().lines)))))


def test_a_checkpoint_is_lost_if_the_newest_one_is_not_resumed_from() -> None:
    lines = [*life(1, 0, 3, saves=[1, 2]), *life(2, 1, 6)]
    assert "though 2 was the newest whole" in checker.violations(good(lines=lines))[0]


def test_each_rollback_leaves_one_whole_checkpoint_behind() -> None:
    lines = [*life(1, 0, 3, saves=[1, 2, 3]), *life(2, 1, 6)]
    back = replace(CRASH, id="back", level="rollback")
    kills = [KILL, replace(KILL, at=4.6)]
    for times in (1, 2):
        went_back = [replace(back, id=f"back {n}") for n in range(times)]
        evidence = good(lines=lines, recoveries=went_back, injections=kills, spent=times)
        assert bool(checker.violations(evidence)) is (times == 1)


def test_a_writer_that_died_before_its_note_may_have_saved() -> None:
    lines = without("saved", 2, 1)(list(good().lines))
    assert checker.violations(good(lines=lines)) == []


def test_a_rank_that_died_before_its_note_may_have_made_the_step_that_was_saved() -> None:
    def lines(rank: int) -> list[Line]:
        first = life(1, 0, 2, saves=[2])
        return [
            *[line for line in first if (line.what, line.step, line.rank) != ("step", 2, rank)],
            *life(2, 2, 6),
        ]

    assert checker.violations(good(lines=lines(1))) == []
    assert checker.violations(good(lines=lines(0))) != []


def test_a_checkpoint_that_is_saved_again_is_whole_again() -> None:
    again = replace(life(1, 0, 3, saves=[2])[-1], what="saved", step=2)
    lines = [
        *life(1, 0, 3, saves=[2]),
        Line(what="spoiled", at=90.0, step=2),
        again,
        *life(2, 2, 6),
    ]
    assert checker.violations(good(lines=lines)) == []


def test_a_journal_with_half_a_line_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Unterminated"):
        lines_of('{"what": "step", "at": 1.0, "step": 1}\n{"what": "st')


# -- The histories ----------------------------------------------------------------------------------

OTHER = replace(CRASH, id="demo/main/recovery-2-pod-node", at=6.0, level="pod", cls="node")

STORIES: dict[str, tuple[dict[str, object], str]] = {
    "a restart without a fault": ({"injections": []}, "explained by no fault"),
    "a restart of another class": ({"recoveries": [CRASH, OTHER], "spent": 2}, "node is explained"),
    "two restarts for one fault": (
        {"recoveries": [CRASH, replace(CRASH, id="again", at=7.0)], "spent": 2},
        "again is explained by no fault",
    ),
    "a restart before its fault": (
        {"recoveries": [replace(CRASH, at=1.0)]},
        "explained by no fault",
    ),
    "a fault without a restart": (
        {"injections": [KILL, replace(KILL, at=1_000.0)]},
        "was followed by no start",
    ),
    "a start without a Recovery": ({"recoveries": [], "spent": 0}, "started 2 times, for 1"),
    "a budget spent twice": ({"spent": 2}, "spent 2, for 1"),
    "a restart billed twice": ({"recoveries": [replace(CRASH, billed=2)]}, "is billed 2"),
    "a repetition of what went well": (
        {"recoveries": [CRASH, replace(CRASH, id="again", at=7.0, is_repeat=True, billed=0)]},
        "again repeats what was not cut short",
    ),
    "a planned restart that is billed": (
        {
            "injections": [KILL, Injection(action="pause", at=5.5, may_cost={"planned": 1})],
            "recoveries": [CRASH, replace(OTHER, cls="planned")],
            "spent": 2,
        },
        "recovery-2-pod-node is billed 1",
    ),
    "another end": ({"final": {**FINAL, "weights_sha256": "x"}}, "instead of"),
    "no end": ({"final": None}, "instead of"),
    "a job that fails": ({"status": "Failed"}, "it ended as Failed"),
    "a workflow that is stuck": ({"stuck": ["a Recovery outlives its job"]}, "outlives its job"),
    "a process that is left": ({"left": ["process 7"]}, "left behind: process 7"),
}


@pytest.mark.parametrize("name", STORIES)
def test_the_checker_finds_in_a_story(name: str) -> None:
    changes, sentence = STORIES[name]
    assert sentence in " | ".join(checker.violations(good(**changes)))


def test_each_rule_is_shown_to_fail() -> None:
    """A rule that is added needs evidence that breaks it."""
    broken = [good(lines=change(list(good().lines))) for change, _ in JOURNALS.values()]
    broken += [good(**changes) for changes, _ in STORIES.values()]
    silent = [rule.__name__ for rule in checker.RULES if not any(rule(one) for one in broken)]
    assert silent == []


def test_faults_are_given_to_restarts_so_that_as_many_as_possible_are_explained() -> None:
    """The one that explains anything is left for the restart that nothing else explains."""
    anything = Injection(action="reset", at=1.0, may_cost={"*": 1})
    assert (
        checker.violations(good(injections=[anything, KILL], recoveries=[OTHER, CRASH], spent=2))
        == []
    )


def test_what_a_replaced_run_has_started_is_billed_to_no_budget() -> None:
    replaced = replace(OTHER, is_in_last_run=False)
    reset = Injection(action="reset", at=1.0, may_cost={"node": 1})
    assert checker.violations(good(injections=[KILL, reset], recoveries=[CRASH, replaced])) == []


def test_a_restart_that_only_tries_again_is_free_and_needs_no_cause() -> None:
    cut_short = replace(CRASH, is_cut_short=True)
    again = replace(
        CRASH, id="demo/main/recovery-2-in_place-crash", at=6.0, is_repeat=True, billed=0
    )
    assert checker.violations(good(recoveries=[cut_short, again])) == []


def test_within_an_incident_another_fault_may_be_the_cause() -> None:
    lost = Injection(action="node down", at=5.5, may_cost={"node": 1})
    later = replace(CRASH, id="demo/main/recovery-2-pod-crash", at=6.0, opens_incident=False)
    assert (
        checker.violations(good(injections=[KILL, lost], recoveries=[CRASH, later], spent=2)) == []
    )
    assert checker.violations(good(recoveries=[CRASH, later], spent=2)) != []


def test_a_server_that_forgot_may_lack_recoveries() -> None:
    forgot = Injection(action="restore the server", at=5.0, forgets=True)
    assert checker.violations(good(injections=[KILL, forgot], recoveries=[], spent=0)) == []
