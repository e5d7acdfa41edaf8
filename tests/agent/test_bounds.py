"""Whatever ranks, files and tools say, an agent's state can be read, stored and shown by others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everstep.agent.facts import Facts
from everstep.agent.observing import devices, steps
from everstep.agent.processes.rank import RankFolder
from everstep.agent.storage import checkpoint_names
from everstep.protocol import bounds, wire
from tests.agent.pod import Pod, exits

HALF = "\udcff"
PARTS = (
    HALF,
    "\ud83d",
    "\0",
    "\x1b",
    "\x1b[31m",
    "\x85",
    "\u2028",
    "\r",
    "\n",
    "\t",
    "step_7",
    "字",
)
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=2), max_size=8).map("".join)
"""Any text, with control characters and halves of characters."""
BAD_FILE = f"cannot open data-{HALF}.bin"
HUGE = "9" * 26


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (f"open {HALF}", "open \ufffd"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("a\0b\rc\x85d", "a b c d"),
        ("tab\tand\nline, schön 字 👩\u200d🔬", "tab\tand\nline, schön 字 👩\u200d🔬"),
    ],
)
def test_text_is_valid_and_without_controls(text: str, read: str) -> None:
    assert bounds.plain(text) == read


@given(TEXTS)
@example("\x1b" + HALF + "[m")
def test_every_text_can_be_encoded_and_is_changed_once(text: str) -> None:
    plain = bounds.plain(text)
    assert plain.encode().decode() == plain
    assert bounds.plain(plain) == plain
    assert plain.count("\n") == text.count("\n")


@given(st.from_regex(rb"step[ =:]*[0-9]{1,400}\n", fullmatch=True))
@example(f"step {HUGE}\n".encode())
@example(b"step " + b"9" * 5000 + b"\n")
def test_a_step_is_read_up_to_its_bound_and_no_further(line: bytes) -> None:
    step = steps.StepReader(steps.Search(steps.pattern(None))).newest(line)
    assert step is None or 0 <= step <= bounds.STEP_MOST


@pytest.mark.parametrize(
    "number", [b"-1", b"1e999", b"nan", b"inf", HUGE.encode(), b"9007199254740993.5"]
)
def test_what_is_no_step_is_none_whatever_the_pattern_finds(number: bytes) -> None:
    search = steps.Search(steps.pattern(r"at (?P<step>\S+)"))
    assert steps.StepReader(search).newest(b"at " + number + b"\n") in (None, bounds.STEP_MOST)
    assert steps.StepReader(search).newest(b"at 7\nat " + HUGE.encode() + b"\n") == 7


@given(TEXTS)
@example(f"step_{HUGE}")
@example(f"model-{HUGE}_7.ckpt")
@example(f"step_5{HALF}.pt")
@example("checkpoint_" + "1" * 32)
def test_a_name_tells_a_step_that_others_can_keep_or_none(name: str) -> None:
    read = checkpoint_names.read(name)
    assert read is None or (bounds.is_utf8(name) and read.number <= bounds.STEP_MOST)


@given(
    st.builds(
        dict,
        kind=TEXTS,
        message=TEXTS,
        details=st.dictionaries(st.text(), TEXTS | st.none() | st.integers() | st.booleans()),
    )
)
def test_a_fact_can_be_sent_on(details: dict[str, object]) -> None:
    facts = Facts("b")
    facts.add(at=1.0, generation=1, rank=0, **details)
    json.dumps(facts.open, ensure_ascii=False).encode()


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", HUGE * 20, "[1]"])
def test_what_devices_show_breaks_no_look_and_is_no_sign_of_life(
    tmp_path: Path, value: str
) -> None:
    metrics_file = tmp_path / "n0.json"
    metrics_file.write_text(f'{{"devices": {{"0": {{"utilisation": {value}}}}}}}')
    first, second = (
        devices.utilisation(devices.simulated(str(metrics_file)), [0]) for _ in range(2)
    )
    assert not devices.have_moved(first, second)
    use = devices.Use([0], None)
    assert [use.changed(one, works=False) for one in (first, second)][1] is not True


def test_what_a_rank_can_do_is_told_in_words_that_others_can_read(tmp_path: Path) -> None:
    folder = RankFolder(tmp_path / "ranks" / "g1-r0")
    folder.path.mkdir(parents=True)
    (folder.path / wire.CAPABILITIES).write_text('["guard", "\\ud800", "a\\u0000b"]')
    folder.poll()
    json.dumps(folder.can, ensure_ascii=False).encode()
    assert "guard" in folder.can


def test_an_agent_reads_no_step_where_none_can_be_and_tells_last_words_that_can_be_sent(
    pod: Pod,
) -> None:
    words = json.dumps({"message": {"message": f"OSError: {BAD_FILE}"}})
    script = (
        "import os, pathlib\n"
        "print('step 3', flush=True)\n"
        f"print('step {HUGE}', flush=True)\n"
        f"pathlib.Path(os.environ['{wire.LAST_WORDS_FILE}']).write_text({words!r})\n"
        "os._exit(3)"
    )
    pod.runs(script)
    state = pod.until(exits)
    assert state["run"] is not None
    assert state["run"]["step"] == 3
    (fact,) = [fact for fact in state["facts"] if fact["kind"] == "process.exit"]
    json.dumps(state, ensure_ascii=False).encode()
    assert fact["details"]["exception"] == "OSError: cannot open data-\ufffd.bin"
