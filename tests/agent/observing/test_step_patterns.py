"""Steps are found in what usual scripts print: by a pattern's name, and without any pattern."""

from __future__ import annotations

import time

import pytest

from everstep.agent.observing import step_patterns, steps
from tests.agent.pod import Pod

BUSY_S = 20.0
"""Seconds of processor time: much more than required, much less than a slow pattern takes."""


def bar(number: int, end: int, before: str = "", behind: str = "") -> bytes:
    """A bar as tqdm draws it: the line end comes first."""
    drawn = "█" * (number * 10 // end)
    times = f"[00:01<00:10,  8.34it/s{behind}]"
    return f"\r{before}{100 * number // end:3d}%|{drawn:10}| {number}/{end} {times}".encode()


def read(name: str | None, *pieces: bytes) -> tuple[list[int | None], str]:
    """The step after each piece of output, and from what it was taken."""
    pattern = None if name is None else step_patterns.expanded(name)
    assert (pattern is None) == (name is None)
    search = steps.Search(steps.pattern(pattern))
    reader = steps.StepReader(search)
    return [reader.newest(piece) for piece in pieces], search.taken_from


TRAINER = b"\n{'loss': 0.69, 'grad_norm': 1.2, 'learning_rate': 2e-05, 'epoch': 0.02}\n"
AUTOMATIC = [
    ((b"step=120 loss 1\n", b"step=121 loss 1\n"), [120, 121], "step=120"),
    ((b'{"step": 12, "loss": 1}\n', b"{'global_step': 14}\n"), [12, 14], 'step": 12'),
    ((b" iteration      100/    1000 | lm loss: 1.0E+01 |\n",), [100], "iteration 100"),
    ((b"iter 100: loss 3.2, time 12ms\n",), [100], "iter 100"),
    (
        (b"Epoch [1/5], Step [100/600], Loss: 2\n", b"Epoch [2/5], Step [100/600], Loss: 2\n"),
        [100, 700],
        "Epoch [1/5], Step [100/600]",
    ),
    (
        (bar(2, 9, "Epoch 0: "), bar(9, 9, "Epoch 0: ") + b"\n", bar(1, 9, "Epoch 1: ")),
        [2, 9, 10],
        "Epoch 0: 22% 2/9",
    ),
    ((bar(3, 9, "Epoch 2/3: "),), [12], "Epoch 2/3: 33% 3/9"),
    ((bar(3, 9, "Training: "),), [3], "Training: 33% 3/9"),
    ((bar(3, 9, behind=", loss=0.5"),), [3], "33% 3/9"),
    ((bar(3, 400), TRAINER, bar(4, 400)), [None, 3, 4], "0% 3/400"),
    # A word that names a step counts more than a bar, also one that is drawn behind it.
    (
        (bar(1, 9, "Training: "), b"\nstep 70 loss 1\n" + bar(2, 9, "Training: ")),
        [1, 70],
        "step 70",
    ),
]


@pytest.mark.parametrize(("pieces", "expected", "taken_from"), AUTOMATIC)
def test_without_a_pattern_what_usual_scripts_print_is_read(
    pieces: tuple[bytes, ...], expected: list[int | None], taken_from: str
) -> None:
    assert read(None, *pieces) == (expected, taken_from)


@pytest.mark.parametrize(
    "output",
    [
        bar(5, 10, "Map: ") + bar(10, 10, "Map: ") + b"\n",
        bar(1, 4, "Loading checkpoint shards: ") + bar(4, 4, "Loading checkpoint shards: ") + b"\n",
        bar(70, 100) + b"\n",
        b"iteration 3 of k-means\n",
        b"Epoch 3 begins\n",
    ],
)
def test_bars_and_counts_of_something_else_are_no_steps(output: bytes) -> None:
    """A training that is silent behind them would be taken for hung."""
    assert read(None, output) == ([None], "")


BY_NAME = [
    ("hf", (bar(3, 400), bar(1, 8), bar(8, 8), b"\n" + bar(4, 400)), [3, 3, None, 4]),
    ("hf", (b"\n\x1b[A" + bar(7, 8),), [7]),
    ("hf", (bar(8, 8), bar(0, 400), bar(1, 400)), [8, 0, 1]),
    ("hf", (bar(3, 10, "Map: "), b"\n"), [None, None]),
    ("lightning", (bar(2, 9, "Epoch 3: "), bar(1, 5, "Validation DataLoader 0: ")), [29, 29]),
    (
        "tqdm",
        (bar(4, 4, "Loading: "), b"\n", bar(50, 90), bar(90, 90), b"\n", bar(3, 90)),
        [4, 4, 50, 90, 90, 93],
    ),
    ("tqdm", (b"\r12it [00:01, 8.3it/s]", b"\r13it [00:02, 8.3it/s]"), [12, 13]),
    ("json:train.step", (b'{"train.step": 12}\n{"train_step": 99}\n',), [12]),
]


@pytest.mark.parametrize(("name", "pieces", "expected"), BY_NAME)
def test_a_named_pattern_follows_the_bar_of_the_training(
    name: str, pieces: tuple[bytes, ...], expected: list[int | None]
) -> None:
    assert read(name, *pieces)[0] == expected


def test_a_bar_is_read_when_it_is_drawn_and_half_of_one_is_not() -> None:
    whole = bar(120, 400)
    assert read("tqdm", whole[:-9], whole[-9:]) == ([None, 120], "")


@pytest.mark.parametrize("word", ["", "HF", "json:", "json:a b", 'json:"', "tqdm2"])
def test_other_words_are_no_names(word: str) -> None:
    assert step_patterns.expanded(word) is None


@pytest.mark.parametrize("name", [None, *step_patterns.BY_NAME, "json:step"])
@pytest.mark.parametrize(
    "line",
    [
        *(b"epoch 1/2 ", b"epoch", b"1%|", b"1%|| 1/1 [00:00 loss", b"iter 1 loss "),
        *(b"9", b"1/1 [00:00 ", b"\x1b[1m", b'"step" ', b"{'loss': 'epoch': ", b" "),
    ],
)
def test_no_line_takes_long(name: str | None, line: bytes) -> None:
    before = time.thread_time()
    for _ in range(20):
        read(name, (line * 4096)[:4096] + b"%| loss epoch step iter\n")
    assert time.thread_time() - before < BUSY_S


def test_an_agent_reports_from_what_it_takes_steps(pod: Pod) -> None:
    script = (
        "import sys, time\n"
        "for n in range(1, 4):\n"
        "    sys.stdout.write('\\rEpoch 0: %3d%%|##   | %d/9 [00:01<00:10,  8.34it/s]' % (n * 11, n))\n"
        "    sys.stdout.flush()\n    time.sleep(0.05)\n"
        "time.sleep(600)"
    )
    pod.runs(script)
    state = pod.until(lambda s: s["run"] and s["run"]["step"] == 3)
    assert state["run"] is not None
    assert state["run"]["steps_from"] == "Epoch 0: 11% 1/9"
