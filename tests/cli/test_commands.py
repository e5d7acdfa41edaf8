"""The table of commands, and what stands in for the names that other tools use."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from everstep.cli.main import ELSEWHERE, GROUPS, main
from everstep.client.exit_codes import Exit
from everstep.processes import free_port
from tests.support.machine import EVERSTEP, ROOT
from tests.support.patience import HUNG_S

NAMES = [command.name for command in chain(*GROUPS.values())]


def test_a_name_of_other_tools_leads_to_the_command_of_ours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["cancel", "demo"]) == Exit.USAGE
    message = "everstep: there is no command cancel; try `everstep stop --help`\n"
    assert capsys.readouterr().err == message


def test_such_names_are_none_of_ours_and_lead_to_some_of_ours() -> None:
    assert not set(ELSEWHERE) & set(NAMES)
    assert set(ELSEWHERE.values()) <= set(NAMES)


@pytest.mark.parametrize("command", ["status", "logs", "why", "report", "watch", "stop", "adopt"])
@pytest.mark.parametrize("job_id", ["", " "])
def test_an_empty_job_id_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], command: str, job_id: str
) -> None:
    assert main([command, job_id]) == Exit.USAGE
    assert re.search(r"Invalid value for '\[?ID\]?': may not be empty", capsys.readouterr().err)


@pytest.mark.parametrize(
    "words", [["doctor"], ["nodes"], ["isolate", "n1"], ["release", "n1"], ["validate", "-"]]
)
def test_an_empty_name_of_a_cluster_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main([*words, "--cluster", ""]) == Exit.USAGE
    assert "Invalid value for '--cluster': may not be empty" in capsys.readouterr().err


def test_a_mistyped_command_is_shown_one_that_is_alike(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["statsu"]) == Exit.USAGE
    assert "Did you mean 'status'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "schema",
        *(
            pytest.param(w, marks=pytest.mark.long)
            for w in ("explain examples/two_phases.yaml", "--version")
        ),
    ],
)
def test_a_reader_that_closes_its_pipe_is_no_failure(words: str) -> None:
    """An exit code 1 of `everstep watch` would say that the job failed."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        ended = subprocess.run(
            [*EVERSTEP, *words.split()],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            timeout=HUNG_S,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (Exit.DONE, "")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["list", "--state", "nope"],
            "Invalid value for '--state': 'nope' is not one of 'pending',",
        ),
        (["run", "--id", "a/b", "--", "true"], "'a/b' cannot be the ID of a job; "),
        (
            ["report-fault", "x", "--file", os.devnull],
            "/dev/null is empty; write a fault message of Mind",
        ),
        (["why", "x", "abc"], "N abc: give a whole number (`everstep why --help`)"),
        (["why", "x", "1.5"], "N 1.5: give a whole number ("),
        (["why", "x", "9" * 5000], "N 999"),
        (["logs", "x", "--tail", "-1"], "--tail -1: give 0 or more ("),
        (["logs", "x", "--rank", "-1"], "--rank -1: give 0 or more ("),
        (["logs", "x", "--rank", "0", "--rank", "first"], "--rank first: give a whole number ("),
        (["events", "x", "--limit", "0"], "--limit 0: give 1 or more ("),
        (["events", "x", "--limit", "101"], "--limit 101: give 100 or less ("),
        (["stop", "x", "--grace-s", "soon"], "--grace-s soon: give a number ("),
        (["stop", "x", "--grace-s", "-1"], "--grace-s -1: give 0 or more ("),
        (["stop", "x", "--grace-s", "nan"], "--grace-s nan: give "),
        (["dev", "--port", "65536"], "--port 65536: give 65535 or less ("),
        (["stop", "x", "--grace-s", "1e999"], "--grace-s 1e999: give 86400 or less ("),
        (["run", "--hang-s", "inf", "--", "true"], "--hang-s inf: give 31536000 or less ("),
        (["why", "x", "0"], "N 0: give 1 or more ("),
        (["why", "x", "-12"], "there is no option -1, and no argument takes a negative number ("),
        (["why", "x", "--loud"], "there is no option --loud (`everstep why --help`)"),
        (["why", "x", "--phas", "y"], "there is no option --phas; try --phase ("),
        (["run", "--process", "4"], "there is no option --process; try --processes ("),
        (["run", "--proces", "4"], "there is no option --proces; try --processes ("),
        (["why", "x", "1", "2", "{}"], "leave out 2 {}: there is no such argument ("),
        (["why"], "ID is missing ("),
        (["isolate", "n0", "--reason"], "--reason is without its value ("),
        (["why", "x", "--json=yes"], "--json takes no value ("),
    ],
)
def test_wrong_usage_is_one_line_in_our_own_words(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main(words) == Exit.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"everstep: {sentence}")


def test_a_command_prints_nothing_that_libraries_log(tmp_path: Path) -> None:
    """The client of Kubernetes logs which file it has not found, as a line of its own."""
    foreign = ("TEMPORAL_", "EVERSTEP_", "KUBE")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    ended = subprocess.run(
        [*EVERSTEP, "doctor", "--cluster", "gpu"],
        env={**env, "HOME": str(tmp_path), "TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}"},
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (Exit.UNREACHABLE, "")


HOLDER = """
import os, signal, sys
from pathlib import Path
from everstep.backends.local.database import nodes
from everstep.backends.local.database.store import Store
from everstep.backends.local.settings import LocalSettings

settings = LocalSettings(home=Path(sys.argv[1]), nodes=2)
store = Store(settings.database)
store._within(lambda db: nodes.set_up(db, settings))
print("stops", flush=True)
store._within(lambda db: os.kill(os.getpid(), signal.SIGSTOP))
"""
"""Stops itself while it writes the database."""


def test_a_command_prints_what_we_log_ourselves(tmp_path: Path) -> None:
    """It wakes the process for which it waits, and ends it if that is not enough."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
        try:
            ended = subprocess.run(
                [*EVERSTEP, "fault", "node-down", "n1"],
                env={**os.environ, "EVERSTEP_HOME": str(tmp_path)},
                capture_output=True,
                text=True,
                timeout=HUNG_S,
                check=False,
            )
        finally:
            holder.kill()
    what = f"process {holder.pid} was stopped while it wrote the database; it goes on now"
    assert (ended.returncode, ended.stderr) == (Exit.DONE, f"note   {what}\n")
