"""What facts quote of a rank's output: little of it, and the exception that ended the process."""

from __future__ import annotations

import pytest

from everstep.agent.observing.logs import RECENT_BYTES
from everstep.agent.observing.quotes import (
    ALL_QUOTES_MOST,
    QUOTED_BYTES,
    bound_quotes,
    last_exception,
    last_output,
)
from everstep.protocol import wire


def test_what_is_told_of_many_ends_is_bounded_and_the_newest_keeps_its_log() -> None:
    facts = [ended(number) for number in range(100)]
    bounded_facts = bound_quotes(facts)
    assert [fact["n"] for fact in bounded_facts] == [*range(100)]
    assert sum(len(fact["details"]["log"]) for fact in bounded_facts) <= ALL_QUOTES_MOST
    assert bounded_facts[-1] == facts[-1]
    assert len(facts[0]["details"]["log"]) == RECENT_BYTES, "who reads the old list reads it on"


def ended(number: int) -> wire.FactSeen:
    return {
        "n": number,
        "id": f"b/{number}",
        "kind": "process.exit",
        "at": 0.0,
        "generation": 1,
        "rank": 0,
        "message": "exit code 1",
        "details": {"log": "\ufffd" * RECENT_BYTES},
    }


def test_the_last_words_are_few_and_end_with_the_last() -> None:
    assert last_output([f"line {n}" for n in range(50)]).splitlines()[::19] == [
        "line 30",
        "line 49",
    ]
    output = last_output(["\ufffd" * 4_000, "the end"])
    assert output.endswith("\ufffd\nthe end")
    assert len(output.encode()) <= QUOTED_BYTES
    assert not last_output([])


BEGIN, TOP = "Traceback (most recent call last):", '  File "train.py", line 3, in <module>'
INNER = '  File "train.py", line 9, in save'
COMPILE = [BEGIN, TOP, "    compiles()", INNER, "CompileError: no"]
LOGGED = ["ERROR:root:could not save", BEGIN, INNER, "AssertionError: no room"]
THREAD = ["Exception in thread Thread-1 (watch):", BEGIN, INNER, "RuntimeError: late"]
RUNPY = '  File "<frozen runpy>", line 198, in _run_module_as_main'
ANOTHER = "During handling of the above exception, another exception occurred:"
IGNORED = ["Exception ignored in: <function Pool.__del__ at 0x7f>", BEGIN, INNER, "KeyError: 'x'"]

LAST: tuple[tuple[str, list[str], int | None, str | None], ...] = (
    ("nothing", [], 1, None),
    ("no traceback", ["Error: no traceback"], 1, None),
    ("one", [*COMPILE, "bye"], 1, "CompileError: no"),
    ("with a prefix", [f"[rank0]: {line}" for line in COMPILE], 1, "CompileError: no"),
    ("cut off", [BEGIN, TOP], 1, None),
    (
        "of a module",
        [BEGIN, '  File "<frozen runpy>", line 1, in _run_module_as_main', "E: x"],
        1,
        "E: x",
    ),
    (
        "one while another was handled",
        [
            *LOGGED,
            "",
            "During handling of the above exception, another exception occurred:",
            "",
            *COMPILE,
        ],
        1,
        "CompileError: no",
    ),
    ("logged and survived", [*LOGGED, "goes on"], 1, None),
    ("logged before another", [*LOGGED, *COMPILE], 1, "CompileError: no"),
    ("a thread ended after it", [*COMPILE, *THREAD], 1, "CompileError: no"),
    ("only a thread ended", THREAD, 1, None),
    ("some ignored after it", [*COMPILE, *IGNORED, *IGNORED], 1, "CompileError: no"),
    (
        "one ignored at the top",
        [*COMPILE, IGNORED[0], BEGIN, TOP, "KeyError: 'x'"],
        1,
        "CompileError: no",
    ),
    ("killed after one", COMPILE, None, None),
    ("killed below a shell", COMPILE, 137, None),
    ("another code", COMPILE, 3, None),
)


@pytest.mark.parametrize(
    ("lines", "code", "exception"), [row[1:] for row in LAST], ids=[row[0] for row in LAST]
)
def test_the_last_exception_is_what_ended_the_process(
    lines: list[str], code: int | None, exception: str | None
) -> None:
    assert last_exception(lines, code) == exception
