"""A loss that is no number three times in a row is a fault; what is no loss of the training is none."""

from __future__ import annotations

import time

import pytest

from everstep.agent.observing import losses, matching, steps
from tests.agent.observing.test_step_patterns import BUSY_S, bar
from tests.agent.pod import Pod, until


def wrong(pattern: str | None, *pieces: bytes) -> list[str | None]:
    """After each piece of output: the loss that is a fault by then."""
    rank_losses = losses.Losses(losses.LossSearch(pattern))
    reader = steps.StepReader(steps.Search(steps.pattern(None)), rank_losses)
    reports: list[str | None] = []
    for piece in pieces:
        reader.newest(piece)
        reports.append(rank_losses.wrong)
    return reports


LINE = b"step 1 loss nan\n"
ROWS = [
    ("three in a row", None, (LINE, LINE, LINE), [None, None, "nan"]),
    ("in one piece of output", None, (LINE * 3,), ["nan"]),
    ("one that is fine begins anew", None, (LINE * 2, b"loss 0.5\n", LINE * 2), [None] * 3),
    ("in one piece too", None, (LINE * 3 + b"loss 0.5\n" + LINE,), [None]),
    ("other lines between", None, (LINE * 2, b"epoch 2\n" * 2_000, LINE), [None, None, "nan"]),
    ("infinite", None, (b"loss: -inf\n" * 3,), ["-inf"]),
    ("a dictionary", None, (b"{'loss': nan, 'epoch': 1.0}\n" * 3,), ["nan"]),
    ("JSON", None, (b'{"step": 3, "train_loss": NaN}\n' * 3,), ["NaN"]),
    ("a tensor", None, (b"loss tensor(nan, device='cuda:0')\n" * 3,), ["nan"]),
    ("of a language model", None, (b"| lm loss: NAN | loss scale: 1.0 |\n" * 3,), ["NAN"]),
    ("numbers", None, (b"loss 1e-5\nloss=3.\n'loss': '0.5'\n" * 3,), [None]),
    ("the scale of gradients", None, (b"loss scale: inf\nloss_scale inf\n" * 3,), [None]),
    ("the best one so far", None, (b"best loss: inf\nbest_loss=inf\n" * 3,), [None]),
    ("of a validation alone", None, (b"val_loss nan\n" * 3,), [None]),
    ("a word", None, (b"loss nanny\nloss infinite fun\n" * 3,), [None]),
    ("a bar drawn often", None, (bar(1, 9, behind=", loss=nan") * 5,), [None]),
    (
        "a bar at other steps",
        None,
        tuple(bar(n, 9, behind=", loss=nan") for n in (1, 2, 3)),
        [None, None, "nan"],
    ),
    ("a pattern", r"L=(?P<loss>\S+)", (b"L=nan loss 1\n" * 3,), ["nan"]),
    ("a pattern and another line", r"L=(?P<loss>\S+)", (LINE * 3,), [None]),
    ("none is to be read", "", (LINE * 3,), [None]),
]


@pytest.mark.parametrize(
    ("pattern", "pieces", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_three_wrong_losses_in_a_row_are_a_fault(
    pattern: str | None, pieces: tuple[bytes, ...], expected: list[str | None]
) -> None:
    assert wrong(pattern, *pieces) == expected


def test_a_slow_pattern_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "LIMIT_S", 0.2)
    before = time.thread_time()
    assert wrong(r"(a+)+=(?P<loss>\S+)", b"a" * 4000 + b"!\n", b"a=nan\n" * 3) == [None, None]
    assert time.thread_time() - before < BUSY_S


@pytest.mark.parametrize(
    "line", [b"loss ", b"loss" + b" " * 99, b"train_", b"loss 1", b"losstensor("]
)
def test_no_line_takes_long(line: bytes) -> None:
    before = time.thread_time()
    wrong(None, *[(line * 4096)[:4096] + b"\n"] * 20)
    assert time.thread_time() - before < BUSY_S


NANS = (
    "import sys, time\n"
    "for n in range(1, 10):\n"
    "    print(f'step {n} loss', 0.5 if n < 3 else float('nan'), flush=True)\n"
    "    time.sleep(0.02)\n"
)


def test_the_fault_names_rank_loss_and_step_and_is_added_once(pod: Pod) -> None:
    pod.runs(NANS + "print('end', flush=True)\ntime.sleep(600)")
    until(lambda: "end" in pod.log())
    (fact,) = pod.until(lambda s: s["facts"])["facts"]
    assert (fact["kind"], fact["rank"], fact["details"]["loss"]) == ("numeric.nan", 0, "nan")
    assert fact["message"].startswith("rank 0 printed loss nan 3 times in a row by step ")
    assert len(pod.state()["facts"]) == 1


def test_the_fault_is_published_together_with_the_exit_it_leads_to(pod: Pod) -> None:
    pod.run(NANS.replace("0.02", "0") + "sys.exit(3)", stop_siblings=False)
    state = pod.until(lambda s: len(s["facts"]) == 2)
    assert [fact["kind"] for fact in state["facts"]] == ["numeric.nan", "process.exit"]


def test_losses_are_not_read_where_the_command_says_so(pod: Pod) -> None:
    pod.runs(NANS + "print('end', flush=True)\ntime.sleep(600)", loss_pattern="")
    until(lambda: "end" in pod.log())
    state = pod.until(lambda s: s["run"] and s["run"]["step"] == 9)
    assert state["facts"] == []
