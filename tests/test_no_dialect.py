"""No word of a dialect stands where the rules are, nor where they are carried out."""

from __future__ import annotations

import re
from pathlib import Path

from everstep.dialects.mindcluster.policy import STRATEGY
from everstep.dialects.modelarts import shapes, view
from everstep.dialects.registry import DIALECTS
from everstep.dialects.variables import NAMES
from everstep.faults.severities import LEVELS

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("everstep/core", "everstep/steps", "everstep/chronicle", "workflows", "activities")

RESULTS = ("downgrade", "quotaExceeded")
WORDS = {
    *(word for dialect in DIALECTS for word in (dialect.name, dialect.title)),
    *(*NAMES, *shapes.VARIABLES, *shapes.ANNOTATIONS, *shapes.EVENTS),
    *view.RECOVER.values(),
    *filter(None, view.FAULT_SCENARIO.values()),
    *(word for word in STRATEGY if "-" in word),  # the others are plain words
    *LEVELS,
    *("npu_proc_restart", "job_reschedule_with_taint", "init_or_rescheduled", "related_task"),
    *("recover_before_downgrade", "fault_scenario", "running_records", *RESULTS),
    *("MA_", "VC_", "npu_", "hccl", "Volcano", "AscendJob", "csx"),
} - {"native"}

PINNED = {
    "everstep/chronicle/happenings.py": shapes.EVENTS,  # what webhooks are told, of ModelArts
    "everstep/chronicle/records.py": RESULTS,  # of `recover_result` in records, old ones too
    "everstep/core/deciding/end_causes.py": ("hccl",),  # as that library begins its errors
    "everstep/core/names.py": ("JobFailed", "downgrade"),  # a failed job's error; the same
    "workflows/attributes.py": ("downgrade",),  # `recover_result` as a search attribute has it
    "workflows/training_job.py": ("JobFailed",),  # the type of a failed job's error
}
"""Words that are a contract of ours as well, or of what ranks print, by the only files that may say them."""

ANY = "|".join(map(re.escape, sorted(WORDS, key=len, reverse=True)))
WORD = re.compile(rf"(?<![a-z])(?:{ANY})", re.IGNORECASE)


def test_no_word_of_a_dialect_stands_in_the_rules_or_where_they_are_carried_out() -> None:
    words_by_file = {
        str(path.relative_to(ROOT)): {*map(str.lower, WORD.findall(path.read_text()))}
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
    }
    pinned = {name: {*map(str.lower, words)} for name, words in PINNED.items()}
    assert len(words_by_file) > len(PINNED)
    hits = {name: words for name, words in words_by_file.items() if words}
    assert hits == pinned, "say it in everstep/dialects, or in plain words"
