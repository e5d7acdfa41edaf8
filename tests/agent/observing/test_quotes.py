"""What facts quote of a rank's output: little of it, and the exception that ended the process."""

from __future__ import annotations

import pytest

from everstep.agent.observing.logs import RECENT_BYTES
from everstep.agent.observing.quotes import (
    ALL_QUOTES_MOST,
    QUOTED_BYTES,
    bound_quotes,
    last_exception,
    last_line,
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


PROGRESS_BARS = (
    " 23%|██▎       | 23/100 [00:05<00:17,  4.50it/s]",
    "  0%|          | 0/375 [00:00<?, ?it/s]",
    "Map:  40%|####      | 400/1000 [00:01<00:01, 381.21 examples/s]",
    "120it [00:30,  4.00it/s]",
    "{'loss': 2.1}  5%|5         | 5/100 [1:00:03<19:01:00, 720.00s/it]",
    "Epoch 0: ━━━━━━━━━╺━━━━━━━━━━ 45/100 0:00:10 • 0:00:12 4.38it/s v_num: 3.000",
    "45/100 [=========>....................] - ETA: 12s - loss: 0.4",
    "Training: 12 steps/s",
)
NO_PROGRESS_BARS = (
    "ValueError: no such thing",
    "RuntimeError: CUDA error: out of memory [12:3]",
    "python3: can't open file '/a/b.py': [Errno 2] No such file or directory",
    "train.py: error: unrecognized arguments: --lr=[0.1, 0.2]",
    "expected 50% of | but got 3/4",
    "torch.cuda.OutOfMemoryError: 23.65 GiB total; 10% free",
    "step 12/100 loss 0.3",
)


@pytest.mark.parametrize("line", PROGRESS_BARS)
def test_a_progress_bar_is_no_last_word(line: str) -> None:
    assert last_line(["Traceback of a kind", line, ""]) == "Traceback of a kind"
    assert last_line([line]) is None


@pytest.mark.parametrize("line", NO_PROGRESS_BARS)
def test_what_looks_a_little_like_a_progress_bar_is_quoted(line: str) -> None:
    assert last_line([PROGRESS_BARS[0], line]) == line


def test_of_a_bar_that_was_redrawn_the_newest_is_quoted() -> None:
    """Each time it is drawn is a line of the log: twenty of them would hide what was printed before."""
    drawn = [f" {n}%|x   | {n}/100 [00:05<00:17,  4.50it/s]" for n in range(100)]
    lines = ["Loading", *drawn, "Saved", *drawn]
    assert last_output(lines).splitlines() == ["Loading", drawn[-1], "Saved", drawn[-1]]
