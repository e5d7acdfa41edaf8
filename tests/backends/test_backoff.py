"""Delays before a stream to the API server is opened again."""

from __future__ import annotations

from everstep.backends.kubernetes.reflector import Backoff


def delays(backoff: Backoff, *, failures: int, chance: float) -> list[float]:
    delays = []
    for _ in range(failures):
        backoff = backoff.after(worked_s=0)
        delays.append(backoff.delay_s(chance=chance))
    return delays


def test_delays_double_up_to_the_longest() -> None:
    assert delays(Backoff(shortest_s=1, longest_s=5), failures=4, chance=1) == [1, 2, 4, 5]


def test_delays_are_spread_over_their_upper_half() -> None:
    assert delays(Backoff(shortest_s=1, longest_s=5), failures=4, chance=0) == [0.5, 1, 2, 2.5]


def test_a_thousand_failures_are_still_a_number() -> None:
    assert delays(Backoff(), failures=1000, chance=1)[-1] == 30


def test_what_worked_for_a_while_begins_with_the_shortest_delay() -> None:
    tired = Backoff(shortest_s=1, longest_s=5, healthy_s=60, failures=7)
    assert tired.after(worked_s=60).delay_s(chance=1) == 1
    assert tired.after(worked_s=59).delay_s(chance=1) == 5


def test_what_brought_something_begins_with_the_shortest_delay_however_short_it_worked() -> None:
    tired = Backoff(shortest_s=1, longest_s=5, failures=7)
    assert tired.after(worked_s=0, had_events=True).delay_s(chance=1) == 1


def test_a_server_that_names_a_time_is_given_it() -> None:
    first = Backoff(shortest_s=1).after(worked_s=0)
    assert first.delay_s(chance=1, wanted_s=17) == 17
    assert first.delay_s(chance=1, wanted_s=0.1) == 1


def test_while_no_server_answers_the_delay_stays_short_and_later_failures_count_from_there() -> (
    None
):
    """After a long outage it is what a copy lacks that decides how soon the end of a pod is seen."""
    backoff, unreachable = Backoff(), []
    for _ in range(50):
        backoff = backoff.after(worked_s=0, is_unreachable=True)
        unreachable.append(backoff.delay_s(chance=1))
    assert max(unreachable) == 1.6
    assert delays(backoff, failures=3, chance=1) == [3.2, 6.4, 12.8]
