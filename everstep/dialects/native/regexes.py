"""Checks of the regular expressions in a document. Each returns the pattern, or raises a problem."""

from __future__ import annotations

import re
import warnings

from everstep.agent.observing import step_patterns
from everstep.core import patterns
from everstep.documents.problems import problem

GROUPS_MOST = 50
REPEATS_MOST = 3

# These two match parts of a pattern.
_ESCAPE_OR_CLASS = re.compile(r"\\.|\[\^?\]?[^]]*\]")
_REPEAT = re.compile(r"(.?)[*+{]")
"""A repeat; the group is the character before it."""
_HOW_LINEAR = (
    r"leave out lookaround, backreferences, possessive quantifiers, \Z and repeats above 1000"
)


def check_regex(pattern: str) -> str:
    """Check that Python has the regular expression, and that it can be matched in linear time."""
    if pattern.count("(") > GROUPS_MOST:  # its parser recurses: how deep it gets must not be chance
        raise problem(f"has more than {GROUPS_MOST} groups: make it simpler")
    with warnings.catch_warnings(action="ignore"):  # doubtful, but Python knows what it means
        try:
            re.compile(pattern)
        except (re.error, OverflowError) as error:
            raise problem(f"is not a regular expression: {error}") from None
    if why := patterns.refused(pattern):
        raise problem(f"cannot be matched in linear time ({why}): {_HOW_LINEAR}")
    return pattern


def check_step_group(pattern: str) -> str:
    """Check that a match says which step it is."""
    if "step" not in re.compile(pattern).groupindex:
        raise problem(r"must have a group named step, for example 'step (?P<step>\d+)'")
    return pattern


def check_log_pattern(pattern: str) -> str:
    """Check that the pattern finds steps in what ranks print: the name of one, or a regular expression."""
    if step_patterns.expanded(pattern) is not None:
        return pattern
    if "step" not in re.compile(check_regex(pattern)).groupindex:
        raise problem(
            rf"must have a group named step, for example 'step (?P<step>\d+)', or be {step_patterns.NAMES}"
        )
    return pattern


NO_PATTERN = "none"


def check_loss_pattern(pattern: str) -> str:
    """Check that a match names the loss, or that no losses are to be read."""
    if pattern != NO_PATTERN and "loss" not in re.compile(check_regex(pattern)).groupindex:
        raise problem(
            rf"must have a group named loss, for example 'loss (?P<loss>\S+)', or be {NO_PATTERN}"
        )
    return pattern


def check_repeats(pattern: str) -> str:
    """Check that the pattern has few repeats: agents search file names with Python's own matcher.

    A repeat of a group, as in `(a+)+`, may take it for ever. Escaped characters and classes are replaced
    before the count: `[*+]` repeats nothing.
    """
    before_repeats = _REPEAT.findall(_ESCAPE_OR_CLASS.sub("c", pattern))
    if len(before_repeats) > REPEATS_MOST or ")" in before_repeats:
        raise problem(f"may have {REPEATS_MOST} of * + {{}} at most, and none behind a group")
    return pattern
