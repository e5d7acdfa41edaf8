"""How many steps each rank made of late, by which stragglers are found."""

from __future__ import annotations

from everstep.agent.observing.steps import Steps
from tests.agent.pod import Pod

OVER_S = 300.0


def test_steps_are_counted_over_the_time_and_unknown_before() -> None:
    steps = Steps(OVER_S)
    counts = []
    for second in range(1_000):
        steps.saw(0, second * 2, now=0.0, ticks=float(second))
        counts.append(steps.recent(0, float(second)))
    assert counts[:300] == [None] * 300
    assert {*counts[310:]} == {600}
    assert steps.recent(1, 999.0) is None, "it shows none"
    # Without new ones the time goes on.
    assert steps.recent(0, 999.0 + OVER_S) == 0


def test_those_that_show_few_of_their_steps_are_compared_by_the_time_between_them() -> None:
    steps = Steps(OVER_S)
    for second in range(0, 4_000, 200):  # one rank just after the other
        steps.saw(0, second, now=0.0, ticks=float(second))
        steps.saw(1, second, now=0.0, ticks=float(second + 190))
        if second > 600:
            recent = {steps.recent(rank, second + 195.0) for rank in (0, 1)}
            assert recent == {300}


def test_few_marks_are_kept_of_many_steps() -> None:
    steps = Steps(OVER_S)
    for number in range(100_000):
        steps.saw(0, number, now=0.0, ticks=number / 100)
    assert len(steps._paces[0]._marks) < 40


def test_a_count_that_begins_again_makes_it_unknown() -> None:
    steps = Steps(OVER_S)
    for second in range(400):
        steps.saw(0, second, now=0.0, ticks=float(second))
    assert steps.recent(0, 399.0) is not None
    steps.saw(0, 1, now=0.0, ticks=400.0)
    assert steps.recent(0, 400.0) is None


def test_an_agent_reports_the_steps_of_each_rank(pod: Pod) -> None:
    script = (
        "import itertools, os, time\n"
        "for n in itertools.count():\n"
        "    print('step', n, flush=True)\n"
        "    time.sleep(0.05 if os.environ['RANK'] == '0' else 0.2)\n"
    )
    pod.runs(script, ranks=2, pace_s=2.0)

    def are_compared(state: object) -> bool:
        run = pod.state()["run"]
        recent = [rank["recent_steps"] for rank in run["ranks"]] if run is not None else []
        return None not in recent and len(recent) == 2 and 0 < recent[1] * 2 <= recent[0]

    pod.until(are_compared)
