"""The lists of MindCluster as it publishes them, beside what the catalogue makes of them.

`mindcluster_codes.csv` and `mindcluster_rules.csv` were written from its configuration files. Nothing else
reads them.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path

from everstep.core.spec import DurationRule, JobDurationRule
from everstep.faults.catalogue import look_up
from everstep.faults.rules import (
    FrequencyRule,
    duration_rules,
    frequency_rules,
    job_duration_rules,
    relation_rules,
)

HERE = Path(__file__).parent
LEVELS = {
    "NotHandle": "NotHandleFault",
    "SubHealth": "SubHealthFault",
    "Separate": "SeparateFault",
}
"""What some lists call otherwise."""
GRAVEST_FIRST = (
    *("SeparateNPU", "PreSeparateNPU", "RestartNPU", "FreeRestartNPU"),
    *("RestartBusiness", "RestartRequest", "SubHealthFault", "NotHandleFault"),
)
CODES = 863


def rows(name: str) -> list[dict[str, str]]:
    text = (HERE / f"mindcluster_{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def rules(kind: str) -> list[dict[str, str]]:
    return [row for row in rows("rules") if row["rule"] == kind]


def test_every_code_of_the_lists_has_the_level_that_they_give_it() -> None:
    listed: dict[str, list[str]] = defaultdict(list)
    for row in rows("codes"):
        listed[row["code"]].append(LEVELS.get(row["level"], row["level"]))
    assert sum(map(len, listed.values())) == CODES
    level_of = {code: min(levels, key=_gravity) for code, levels in listed.items()}
    assert {code: look_up(code).level for code in level_of} == level_of


def _gravity(level: str) -> int:
    return -1 if level == "SeparateFault" else GRAVEST_FIRST.index(level)


def test_every_frequency_rule_is_counted_as_it_is_published() -> None:
    published = {}
    for row in rules("frequency"):
        times, window_s = re.fullmatch(r"(\d+) in (\d+) s", row["when"]).groups()  # type: ignore[union-attr]  # else it fails, as it should
        release = re.fullmatch(r"release after (\d+) s|", row["note"])
        assert (row["then"], release is not None) == ("ManuallySeparateNPU", True), row
        published[row["code"]] = FrequencyRule(
            code=row["code"],
            times=int(times),
            window_s=float(window_s),
            release_s=float(release[1]) if release is not None and release[1] else None,
        )
    assert frequency_rules() == published
    assert len(published) == 43


def test_the_duration_rule_is_as_it_is_published() -> None:
    (row,) = rules("duration")
    longer_s = re.fullmatch(r"longer than (\d+) s", row["when"])
    sound_s = re.fullmatch(r"over when gone for (\d+) s", row["note"])
    assert longer_s is not None
    assert sound_s is not None
    expected = DurationRule(row["code"], float(longer_s[1]), float(sound_s[1]), row["then"])
    assert duration_rules() == (expected,)


def test_a_switch_that_is_down_for_the_job_duration_is_sub_healthy_and_a_chip_is_ignored() -> None:
    """The published row names what is at fault."""
    expected = tuple(
        JobDurationRule(row["code"], float(row["when"].split()[2]), "SubHealthFault")
        for row in rules("job duration")
        if row["then"] == "faultSwitch"
    )
    assert job_duration_rules() == expected


def test_the_relation_rules_have_the_window_of_the_job_duration_of_their_cause() -> None:
    window_s = {}
    for row in rules("job duration"):
        seconds = re.fullmatch(r"present for (\d+) s", row["when"])
        assert seconds is not None
        window_s[row["code"]] = float(seconds[1])
    causes = {
        (row["code"], row["when"].removeprefix("with ")): row["then"] for row in rules("relation")
    }
    assert {(rule.trigger, rule.cause): rule.window_s for rule in relation_rules()} == {
        pair: window_s[pair[1]] for pair in causes
    }
    assert {(rule.trigger, rule.cause): rule.cls for rule in relation_rules()} == {
        pair: {"SubHealth": "subhealth", "Separate": "device_fatal"}[then]
        for pair, then in causes.items()
    }
