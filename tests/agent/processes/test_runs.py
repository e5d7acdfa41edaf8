"""What becomes of a run: start, output, steps, end."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from everstep.agent.processes.rank_monitor import RULES_TOO_SLOW
from everstep.agent.processes.run import log_path
from everstep.agent.routes import SOON_S
from everstep.protocol import wire
from tests.agent.pod import FOREVER, Pod, Refused, exits, is_running, until
from tests.support.patience import HUNG_S


def ended(state: wire.AgentState) -> bool:
    return state["run"] is not None and all(r["exited_at"] for r in state["run"]["ranks"])


def test_each_rank_runs_the_command_with_its_own_environment(pod: Pod) -> None:
    pod.run("import os; print('I am', os.environ['RANK'])", ranks=3)
    state = pod.until(ended)
    assert state["run"] is not None
    assert state["run"]["started_at"] is not None
    assert [rank["code"] for rank in state["run"]["ranks"]] == [0, 0, 0]
    assert [pod.log(rank) for rank in range(3)] == [f"I am {rank}\n" for rank in range(3)]
    assert [fact["details"]["code"] for fact in exits(state)] == [0, 0, 0]


def test_a_pod_that_stood_by_has_the_slot_of_its_run(pod: Pod) -> None:
    before = pod.state()["slot"]
    pod.runs(FOREVER, env={"EVERSTEP_SLOT": str(before + 3)})
    assert pod.state()["slot"] == before + 3


FILES = {"params.yaml": "a: 1\n", "more.json": "{}\n"}


def test_the_command_finds_its_files_where_it_names_them(pod: Pod) -> None:
    script = "import sys; print([open(path).read() for path in sys.argv[1:]])"
    command = [sys.executable, "-c", script, "{params}", "{more}"]
    pod.run(command, files=FILES)
    pod.until(ended)
    assert pod.log() == "['a: 1\\n', '{}\\n']\n"
    assert pod.file("files/params.yaml") == "a: 1"


def test_a_shell_finds_them_too(pod: Pod) -> None:
    pod.run(["/bin/sh", "-c", "cat {params}; echo {other}"], files=FILES)
    pod.until(ended)
    assert pod.log() == "a: 1\n{other}\n"


def test_files_of_a_newer_run_take_the_place_of_older_ones(pod: Pod) -> None:
    pod.runs(FOREVER, files=FILES)
    pod.runs(FOREVER, generation=2, files={"params.yaml": "a: 2\n"})
    assert pod.file("files/params.yaml") == "a: 2"


def test_a_name_leads_nowhere_else(pod: Pod) -> None:
    pod.runs(FOREVER, files={"../../outside": "x\n"})
    assert pod.file("files/outside") == "x"
    assert not (pod.home / "../../outside").exists()


def test_files_that_cannot_be_written_are_told_and_nothing_starts(pod: Pod) -> None:
    (pod.home / "files").write_text("in the way")
    pod.run(FOREVER, files=FILES)
    state = pod.until(lambda state: state["run"] is not None and state["run"]["failed"])
    assert state["run"] is not None
    assert "files" in str(state["run"]["failed"])
    assert state["run"]["ranks"] == []


def test_start_is_answered_with_a_state_that_shows_it(pod: Pod) -> None:
    requested_at = time.monotonic()
    state = pod.run(FOREVER)
    answered_s = time.monotonic() - requested_at
    assert state["run"] is not None
    assert state["run"]["started_at"] is not None or answered_s >= SOON_S
    assert state["run"]["counts"] == {"schedule_count": 1}


def test_same_generation_again_changes_nothing(pod: Pod) -> None:
    pids = pod.runs(FOREVER)
    assert pod.runs(FOREVER) == pids


def test_older_generation_is_refused_and_changes_nothing(pod: Pod) -> None:
    pids = pod.runs(FOREVER, generation=7)
    for path, body in (
        (wire.STOP, {"generation": 6}),
        (wire.FENCE, {"generation": 6, "run": "r", "folders": []}),
    ):
        with pytest.raises(Refused) as refused:
            pod.ask("POST", path, body)
        assert refused.value.status == wire.STALE
    assert pod.state()["generation"] == 7
    assert is_running(pids[0])


def test_newer_run_ends_the_older_one_first(pod: Pod) -> None:
    old = pod.runs(FOREVER, generation=1)
    new = pod.runs(FOREVER, generation=2)
    assert not is_running(old[0])
    assert is_running(new[0])
    assert pod.state()["stopped_below"] == 2


def test_crash_is_told_with_its_exception_and_its_last_lines(pod: Pod) -> None:
    pod.run("print('before')\nraise ValueError('no such thing')")
    state = pod.until(ended)
    (fact,) = exits(state)
    assert fact["details"]["code"] == 1
    assert fact["details"]["exception"] == "ValueError: no such thing"
    assert fact["rank"] == 0
    assert fact["details"]["log"].startswith("before\nTraceback")
    assert pod.log() == fact["details"]["log"] + "\n"
    assert fact["details"]["log_path"] == str(log_path(pod.home / wire.LOGS, 1, 0))


TOO_MUCH = 300_000
WORDS = {
    "as PyTorch writes it": '{"message": {"message": "m.NanError: loss", "extraInfo": {}}}',
    "in a word": '{"message": "m.NanError: loss\\nin a layer"}',
}
NO_WORDS = {
    "no JSON": "m.NanError: loss",
    "a list": '["m.NanError: loss"]',
    "no text": '{"message": {"message": 3}}',
    "nothing": '{"message": ""}',
    "too much": '{"message": "' + "x" * TOO_MUCH + '"}',
}
ERROR_FILE_SCRIPT = """
import os, pathlib
pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(TEXT)
raise ValueError("by the way")
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "m.NanError: loss") for text in WORDS.values()),
        *((text, "ValueError: by the way") for text in NO_WORDS.values()),
    ],
    ids=[*WORDS, *NO_WORDS],
)
def test_what_a_rank_wrote_before_it_failed_counts_more_than_its_traceback(
    pod: Pod, text: str, message: str
) -> None:
    source = repr(text).replace(
        "x" * TOO_MUCH, f"' + 'x' * {TOO_MUCH} + '"
    )  # no argument is so long
    pod.run(ERROR_FILE_SCRIPT.replace("TEXT", source))
    (fact,) = exits(pod.until(ended))
    assert fact["details"]["exception"] == message
    assert fact["message"] == f"exit code 1: {message}"


def test_what_an_earlier_process_wrote_is_nothing_of_the_next_one(pod: Pod) -> None:
    pod.run(ERROR_FILE_SCRIPT.replace("TEXT", repr(WORDS["in a word"])))
    pod.until(ended)
    pod.run("raise ValueError('another')", generation=2)
    fact = exits(pod.until(lambda state: ended(state) and state["generation"] == 2))[-1]
    assert fact["details"]["exception"] == "ValueError: another"


def test_a_file_for_last_words_that_the_document_named_is_not_taken_from_it(pod: Pod) -> None:
    pod.run(
        "import os; print(os.environ['TORCHELASTIC_ERROR_FILE'])",
        env={"TORCHELASTIC_ERROR_FILE": "own"},
    )
    pod.until(ended)
    assert pod.log() == "own\n"


def test_of_a_long_log_the_end_is_told_and_patterns_are_looked_for_in_more_of_it(pod: Pod) -> None:
    pod.run(
        "for n in range(300): print('line', n, flush=True)\nraise SystemExit(3)",
        log_rules={"near": "line 29[0-9]", "far": "line 120\n", "too_far": "line 99\n"},
    )
    (fact,) = exits(pod.until(ended))
    assert fact["details"]["log"].splitlines() == [f"line {n}" for n in range(280, 300)]
    assert fact["details"]["log_rules"] == "near,far"


def test_a_pattern_that_takes_for_ever_is_left_and_the_end_is_told(pod: Pod) -> None:
    rules = {"good": "a!", "endless": "(a+)+$", "strange": "(?P<"}
    pod.run("print('a' * 4000 + '!')\nraise SystemExit(3)", log_rules=rules)
    (fact,) = exits(pod.until(ended))
    assert fact["details"]["log_rules"] == "good"
    assert fact["message"].endswith(RULES_TOO_SLOW), "whose rules are slow hears of it"
    assert len(fact["details"]["log"].encode()) <= 4_096


def test_last_words_of_who_never_made_a_step_are_told(pod: Pod) -> None:
    pod.run([sys.executable, "nothing.py"])
    (fact,) = exits(pod.until(ended))
    assert fact["message"].startswith("exit code 2: ")
    assert "can't open file" in fact["message"]


def test_last_line_after_a_step_explains_nothing(pod: Pod) -> None:
    """Its first step may be read after its end: neither is to be seen without the other."""
    pod.run("print('step 5')\nraise SystemExit(3)", log_pattern=r"step (?P<step>\d+)")
    (fact,) = exits(pod.until(ended))
    assert fact["message"] == "exit code 3"


TQDM = r"""
import os, sys
print("loading", flush=True)
for n in range(30):
    print(f"\r {n}%|x  | {n}/100 [00:01<00:09, 4.5it/s]", end="", file=sys.stderr, flush=True)
END
"""


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("os.kill(os.getpid(), 9)", "signal 9"),
        ("os.kill(os.getpid(), 15)", "signal 15: loading"),
        ("sys.exit(3)", "exit code 3: loading"),
    ],
)
def test_a_progress_bar_explains_no_end(pod: Pod, end: str, message: str) -> None:
    """As under HF Trainer, whose steps no pattern reads. Who is killed prints nothing about it at all."""
    pod.run(TQDM.replace("END", end))
    (fact,) = exits(pod.until(ended))
    assert fact["message"] == message


def test_signal_is_told(pod: Pod) -> None:
    pod.run("import os; os.kill(os.getpid(), 11)")
    (fact,) = exits(pod.until(ended))
    assert fact["details"]["signal"] == signal.SIGSEGV
    assert fact["details"]["code"] is None


def test_rank_that_ends_badly_ends_its_siblings_and_only_it_is_the_cause(pod: Pod) -> None:
    pod.run(
        "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(9)\ntime.sleep(60)", ranks=3
    )
    state = pod.until(ended)
    causes = [fact["rank"] for fact in exits(state) if not fact["details"].get("consequence")]
    assert causes == [1]
    assert state["run"] is not None
    assert not state["run"]["stopped"]


def test_siblings_live_on_where_they_are_needed(pod: Pod) -> None:
    script = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(9)\ntime.sleep(60)"
    pids = pod.runs(script, ranks=2, stop_siblings=False)
    pod.until(exits)
    assert is_running(pids[0])


def test_command_that_does_not_exist_is_told(pod: Pod) -> None:
    pod.run(["no-such-command"])
    state = pod.until(lambda s: s["run"] and s["run"]["failed"])
    assert state["run"] is not None
    assert "no-such-command: No such file" in str(state["run"]["failed"])
    assert state["run"]["started_at"] is None
    assert [fact["kind"] for fact in state["facts"]] == ["start.failed"]


def test_working_folder_that_does_not_exist_is_told(pod: Pod) -> None:
    pod.run(FOREVER, workdir="/nowhere/at/all")
    state = pod.until(lambda s: s["run"] and s["run"]["failed"])
    assert state["run"] is not None
    assert "/nowhere/at/all" in str(state["run"]["failed"])


def seen_at(pod: Pod, step: int) -> float:
    """When the agent saw this step; the script makes the next one then."""
    run = pod.until(lambda s: s["run"] and s["run"]["step"] == step)["run"]
    (pod.home / f"go-{step}").touch()
    assert run is not None
    return run["step_at"] or 0.0


def test_steps_are_read_with_the_time_they_came(pod: Pod) -> None:
    before = time.time()
    pod.run(
        "import os, time\nfor n in range(3):\n    print('step', n, flush=True)\n"
        "    while not os.path.exists(f'go-{n}'): time.sleep(0.005)"
    )
    first, second, third = (seen_at(pod, n) for n in range(3))
    run = pod.state()["run"]
    assert run is not None
    assert before < first < second < third < time.time()
    assert run["first_step_at"] == first
    assert run["longest_gap_s"] == pytest.approx(max(second - first, third - second), abs=0.01)


def test_end_of_a_rank_tells_its_own_step(pod: Pod) -> None:
    ends = "import os; r = os.environ['RANK']; print('step', 5 + int(r)); raise SystemExit(int(r))"
    pod.run(ends, ranks=2)
    pod.until(lambda state: any(fact["details"]["code"] for fact in exits(state)))
    (fact,) = [fact for fact in exits(pod.state()) if fact["details"]["code"]]
    assert (fact["rank"], fact["details"]["at_step"]) == (1, 6)


def test_pattern_of_the_document_says_what_a_step_is(pod: Pod) -> None:
    pod.run("print('step 99')\nprint('iter=12/40')", log_pattern=r"iter=(?P<step>\d+)/")
    state = pod.until(lambda s: s["run"] and s["run"]["step"] is not None)
    assert state["run"] is not None
    assert state["run"]["step"] == 12


def test_first_step_wakes_even_who_asks_for_quiet(pod: Pod) -> None:
    """It is news, unlike the looks and the steps after it, which wake other polls."""
    pod.run(
        "import time, sys\nsys.stdin.read()\n"
        "import os\nwhile not os.path.exists('go'): time.sleep(0.005)\nprint('step 1')\ntime.sleep(60)"
    )
    state = pod.until(lambda s: s["run"] and s["run"]["started_at"])
    requested_at = time.monotonic()
    (pod.home / "go").touch()
    state = pod.quietly(state["version"], quiet_s=20.0)
    assert time.monotonic() - requested_at < 18.0
    assert state["run"] is not None
    assert state["run"]["step"] == 1


def test_shell_command_runs_in_the_working_folder(pod: Pod) -> None:
    pod.run(["/bin/sh", "-c", "pwd"])
    pod.until(ended)
    assert pod.log() == f"{pod.home}\n"


def test_rank_has_no_open_files_of_the_agent(pod: Pod) -> None:
    pod.run("import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:-1])")
    pod.until(ended)
    assert pod.log() == "[0, 1, 2]\n"


def test_rank_has_usual_signals(pod: Pod) -> None:
    pod.run(["grep", "Sig", "/proc/self/status"])
    pod.until(ended)
    lines = dict(line.split(":\t") for line in pod.log().splitlines())
    ordinary = (1 << 31) - 1
    assert int(lines["SigIgn"], 16) & ordinary == 0
    assert int(lines["SigBlk"], 16) & ordinary == 0


def test_log_can_be_read_in_pieces_and_from_its_end(pod: Pod) -> None:
    pod.run("print('0123456789' * 3, end='')")
    pod.until(ended)
    first = pod.ask("GET", f"{wire.LOG}?rank=0&generation=1&offset=5&limit=10")
    assert first == {"text": "5678901234", "offset": 5, "next": 15}
    assert pod.log(offset=-4) == "6789"
    assert pod.log(offset=1000) == ""


def test_exit_of_a_rank_is_told_even_if_its_child_keeps_the_output_open(pod: Pod) -> None:
    pod.run(
        "import os, sys, time\n"
        "if os.fork() == 0:\n    time.sleep(60)\nprint('last words', flush=True)\nos._exit(3)"
    )
    state = pod.until(ended)
    assert exits(state)[0]["details"]["log"] == "last words"


def test_ranks_are_gone_after_quit(pod: Pod) -> None:
    pids = pod.runs(FOREVER, ranks=2)
    assert pod.ask("POST", wire.QUIT, {"grace_s": 0.0}) == {}
    assert pod.agent.wait(HUNG_S) == 0
    assert not any(is_running(pid) for pid in pids)
    until(lambda: not pod.marked())
