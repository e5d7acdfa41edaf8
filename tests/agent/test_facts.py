"""A fact is repeated until its receipt is confirmed, by this agent or by the next one."""

from __future__ import annotations

import random
import signal

from everstep.agent import facts
from everstep.agent.facts import Facts
from everstep.protocol import wire
from tests.agent.pod import Pod, exits, signal_to, until


def with_facts(count: int, boot: str = "b") -> Facts:
    buffer = Facts(boot)
    for number in range(count):
        buffer.add(
            kind="process.exit", at=1.0, generation=1, rank=number, message="", details={"log": "x"}
        )
    return buffer


def numbers(buffer: Facts) -> list[int]:
    return [fact["n"] for fact in buffer.open]


def test_what_is_written_down_is_let_go_and_nothing_else() -> None:
    buffer = with_facts(4)
    assert buffer.drop_stored("b", 2)
    assert numbers(buffer) == [3, 4]
    assert buffer.count == 4


def test_the_same_said_again_or_late_lets_nothing_go() -> None:
    buffer = with_facts(4)
    assert buffer.drop_stored("b", 3)
    assert not buffer.drop_stored("b", 3)
    assert not buffer.drop_stored("b", 1)
    assert numbers(buffer) == [4]


def test_what_was_said_of_another_boot_or_of_more_than_there_was_says_nothing() -> None:
    buffer = with_facts(2)
    assert not buffer.drop_stored("a", 2)
    assert not buffer.drop_stored("b", 3)
    assert numbers(buffer) == [1, 2]


def test_whatever_is_lost_repeated_or_late_each_fact_is_told_until_it_is_written() -> None:
    chance = random.Random(7)
    for _ in range(200):
        buffer, books, sent = Facts("b"), set[str](), [0]
        for _ in range(30):
            match chance.randrange(4):
                case 0:
                    buffer.add(kind="k", at=0.0, generation=1, rank=0, message="", details={})
                case 1:  # somebody reads and writes down; what it says may never arrive
                    books |= {fact["id"] for fact in buffer.open}
                    sent.append(buffer.count)
                case _:  # any of what was ever said arrives
                    buffer.drop_stored("b", chance.choice(sent))
        unconfirmed = {fact["id"] for fact in buffer.open}
        assert books | unconfirmed == {f"b/{n + 1}" for n in range(buffer.count)}


def test_who_takes_over_counts_anew_and_keeps_the_identities() -> None:
    first = with_facts(3, "a")
    first.drop_stored("a", 1)
    second = Facts("b")
    second.take_over(first.open)
    second.add(kind="k", at=1.0, generation=1, rank=0, message="", details={})
    assert [(fact["n"], fact["id"]) for fact in second.open] == [(1, "a/2"), (2, "a/3"), (3, "b/3")]
    assert not second.drop_stored("a", 3)


def test_where_nobody_asks_the_newest_are_kept() -> None:
    buffer = with_facts(facts.FACTS_MOST + 5)
    assert numbers(buffer) == [*range(6, facts.FACTS_MOST + 6)]


# -- A whole agent --------------------------------------------------------------------------------


def written(pod: Pod, boot: str, after: int) -> wire.AgentState:
    """Confirm these facts; return those that are left."""
    pod.ask("GET", f"{wire.STATE}?since=-1&wait_s=0&boot={boot}&after={after}")
    return pod.state()


def test_an_end_is_told_to_everybody_until_it_is_written_down(pod: Pod) -> None:
    pod.run("raise SystemExit(3)")
    state = pod.until(exits)
    assert exits(pod.state()) == exits(state)
    assert exits(written(pod, "another", 1)) == exits(state)
    until(lambda: not exits(written(pod, state["boot"], 1)), what="it to be let go")
    after = pod.state()
    assert after["facts_seen"] == 1
    assert after["version"] == state["version"], "that is no news"


def test_an_end_that_nobody_wrote_down_is_told_by_the_next_agent_as_the_same(pod: Pod) -> None:
    pod.run("raise SystemExit(3)")
    before = exits(pod.until(exits))
    signal_to(pod.agent.pid, signal.SIGKILL)
    pod.agent.wait()
    pod.start()
    assert exits(pod.until(exits)) == before
