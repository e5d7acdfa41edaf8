"""Patterns of users take linear time, whatever they are, and those that cannot are refused."""

from __future__ import annotations

import time

import pytest

from everstep.core import patterns
from everstep.core.deciding.playbook import fulfils, log_rules
from everstep.core.spec import Match, Rule
from tests.support.builders import fact

# A matcher that goes back and tries again is not done with any of them today.
ENDLESS = ("(a+)+$", "(.*)*=", "(a|a)*b", ".*.*.*.*=")
BUSY_S = 20.0
"""Processor time: the others are done with it in a thousandth of that."""


@pytest.mark.parametrize("pattern", ENDLESS)
def test_a_rule_that_backtracks_for_ever_is_answered(pattern: str) -> None:
    log = "\n".join(["a" * 150 + "!"] * 200)
    exited = fact("process.exit", log=log)
    before = time.process_time()
    assert not fulfils(exited, Match(log=pattern))
    assert time.process_time() - before < BUSY_S


@pytest.mark.parametrize(
    ("pattern", "text", "is_found"),
    [
        ("vocab size", "ValueError: vocab size 7", True),
        (r"CUDA error \d+$", "CUDA error 700", True),
        ("(?i)out of memory", "Out Of Memory", True),
        (r"Verlust\s+wächst", "der Verlust wächst", True),
        ("loss", "half a \ud800 character before the loss", True),
        ("^only$", "not only", False),
    ],
)
def test_what_is_looked_for_is_found(pattern: str, text: str, is_found: bool) -> None:
    assert patterns.refused(pattern) is None
    assert patterns.is_found(pattern, text) == is_found


def test_what_the_agent_found_in_all_that_it_has_counts_as_printed() -> None:
    rules = [Rule(match=Match(log=text), action="fail") for text in ("one", "other", "one")]
    names = {
        pattern: name
        for name, pattern in log_rules([*rules, Rule(match=Match(), action="note")]).items()
    }
    exited = fact("process.exit", log="the end", log_rules=f"x,{names['one']}")
    assert [fulfils(exited, rule.match) for rule in rules] == [True, False, True]
    assert fulfils(exited, Match(log="the end")), "of a rule that the agent never heard of"


@pytest.mark.parametrize(
    "pattern", ["(?=a)", "(?<!a)b", r"(a)\1", "a++", "(a{999}){999}", "\ud800"]
)
def test_what_is_not_linear_is_refused_with_its_reason(pattern: str) -> None:
    assert patterns.refused(pattern)
