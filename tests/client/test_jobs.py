"""Jobs from Python: the same answers as those of the command line, with an event loop and without."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

import everstep
from everstep import aio
from everstep.client import blocking
from everstep.client.connection import NoServer
from everstep.client.job import AsyncJob, result_of
from everstep.client.jobs import ended_jobs, glances
from everstep.client.jobs.ended_jobs import EndedJob
from everstep.report import render
from tests.cli.conftest import AsyncCli, cli, served
from tests.cli.ranks import Ranks
from tests.cli.standin import EVENT, document, record, status, working
from tests.support.patience import HUNG_S

__all__ = ["cli", "served"]  # fixtures

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
HEAVY = ("temporalio", "pydantic", "yaml", "asyncio", "everstep.client")


def test_the_package_loads_nothing_before_a_name_of_it_is_used() -> None:
    """The agent and the train library are in it, and run where nothing else is installed."""
    shows = f"import sys, everstep; print([name for name in {HEAVY!r} if name in sys.modules])"
    used = "everstep.Failed; print('everstep.client' in sys.modules, 'temporalio' in sys.modules)"
    command = [sys.executable, "-S", "-c", f"{shows}; {used}"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.split("\n") == ["[]", "True False", ""]


def test_every_public_name_is_there() -> None:
    assert set(everstep.__all__) == set(everstep._PLACES)
    assert all(getattr(everstep, name) is not None for name in everstep.__all__)
    assert {*everstep.__all__, "aio"} <= {*dir(everstep)}
    with pytest.raises(AttributeError, match="no attribute 'jobs'"):
        everstep.jobs  # type: ignore[attr-defined]  # noqa: B018  # there is none


def test_a_job_has_the_same_methods_with_an_event_loop_and_without() -> None:
    names = {name for name in vars(AsyncJob) if not name.startswith("_")} - {"html"}
    assert {name for name in vars(blocking.Job) if not name.startswith("_")} == {*names, "id"}


async def test_a_job_answers_what_the_command_line_prints(served: AsyncCli, client: Client) -> None:
    """Of one that has ended: of a job that runs each look shows something newer."""
    async with working(client):
        job = await aio.submit(document())
        await job.stop(reason="completed")
        await job.wait()
        answers = {
            "status": await job.status(),
            "restarts": await job.restarts(),
            "events": await job.past_events(),
            "why": await job.why(),
            "show": await job.document(),
        }
        for command, answer in answers.items():
            assert answer == (await served(command, job.id, "--json")).json


async def test_events_come_until_the_job_has_ended(served: AsyncCli, client: Client) -> None:
    async with working(client), asyncio.timeout(HUNG_S):
        job = await aio.submit(document())
        messages = []
        async for event in job.events():
            messages.append(event["message"])
            await job.stop(reason="completed")
        result = await job.wait()
    assert messages == [EVENT["message"]]
    assert (result.state, result.reason, result.step, result.restarts) == (
        *("completed", "because"),
        *(41, 2),
    )
    assert result.check() is result


async def test_a_wait_has_its_limit_and_a_failed_job_is_an_error(
    served: AsyncCli, client: Client
) -> None:
    async with working(client):
        job = await aio.submit(document())
        with pytest.raises(TimeoutError):
            await job.wait(timeout_s=0.1)
        await job.stop(reason="failed")
        failed = await job.wait()
    with pytest.raises(everstep.Failed, match="demo is failed: because") as raised:
        failed.check()
    assert raised.value.code is everstep.Exit.JOB_FAILED


async def test_commands_are_those_of_the_command_line(served: AsyncCli, client: Client) -> None:
    async with working(client):
        job = await aio.submit(document(), job_id="other")
        assert (await job.checkpoint())["saved"]
        assert not (await job.checkpoint(within_s=1.0))["saved"]
        answer = await job.hot_update({"limits": {"hang_s": 9}}, now=True)
        assert (answer["id"], answer["command"], answer["accepted"]) == (
            "other",
            "hot_update",
            True,
        )
        await job.set_budget("pod", None)
        await job.restart(level="pod")
        commands = await client.get_workflow_handle("other").query("told")
        await job.stop()
    of_each_run = {"id", "by"}
    arguments = [{key: one[key] for key in one.keys() - of_each_run} for one in commands]
    assert arguments[2:] == [
        {"update": "hot_update", "patch": {"limits": {"hang_s": 9}}, "when": "now"},
        {"update": "set_budget", "name": "pod", "limit": None},
        {"update": "restart", "level": "pod"},
    ]


async def test_without_an_event_loop_each_call_waits_for_its_answer(
    served: AsyncCli, client: Client
) -> None:
    def as_in_a_notebook() -> tuple[list[str], list[str], str]:
        """A loop runs already in the thread of a notebook; the calls run on another one."""
        job = everstep.submit(document())
        messages = []
        for event in job.events():
            messages.append(event["message"])
            job.stop(reason="completed")
        states = [str(glance.status.get("state")) for glance in job.watch()]
        return messages, states, job._repr_html_()

    async with working(client), asyncio.timeout(HUNG_S):
        messages, states, html = await asyncio.to_thread(as_in_a_notebook)
    assert messages == [EVENT["message"]]
    assert states[-1] == "completed"
    assert "<strong>demo</strong> completed" in html


def test_an_interrupted_call_is_cancelled_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else Ctrl-C in a notebook would leave server and worker of a `run` behind."""
    begun, cleaned = threading.Event(), threading.Event()

    async def long() -> None:
        begun.set()
        try:
            await asyncio.sleep(HUNG_S)
        finally:
            cleaned.set()

    def interrupted(*_: object) -> None:
        assert begun.wait(HUNG_S)
        raise KeyboardInterrupt

    monkeypatch.setattr("concurrent.futures.Future.result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        blocking.result(long())
    assert cleaned.is_set()


async def test_without_a_server_an_error_names_the_way_out(cli: Any) -> None:
    with pytest.raises(everstep.Failed, match="no Temporal server answers at") as raised:
        await aio.job("demo").status()
    assert raised.value.code is everstep.Exit.UNREACHABLE


@pytest.mark.parametrize(
    ("source", "options", "sentence"),
    [
        ({"kind": "TrainingJob"}, {}, "the document: "),
        ("nosuch.yaml", {}, "nosuch.yaml: No such file"),
        ([], {}, "a command is a list of texts"),
        ("nosuch-program-here.yaml", {"processes": 4}, "--processes is for a command"),
        (["nosuch-program"], {}, "no such program"),
    ],
)
async def test_what_cannot_run_is_one_sentence(
    cli: Any, source: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(everstep.Failed, match=sentence) as raised:
        await aio.run(source, **options)
    assert raised.value.code is everstep.Exit.USAGE


def test_a_status_as_html_leaves_out_what_is_unknown_and_escapes_the_rest() -> None:
    html = render.status_html({"id": "<b>", "silence": "no worker", "step": None}, [record(1)])
    assert "&lt;b&gt;" in html
    assert "no worker" in html
    assert "<td>1</td>" in html
    assert "XID 79" in html
    assert "step" not in html


def test_a_result_says_how_a_job_ended() -> None:
    result = result_of({"id": "a", "state": "stopped", "restarts": None})
    assert (result.is_completed, result.restarts, result.reason) == (False, 0, None)


async def test_the_task_of_the_page_may_be_retried(
    served: AsyncCli, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt finds the job of the first one, while that runs and when it has ended."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (code,) = [block for block in blocks if "airflow" in block]
    decorators = types.ModuleType("airflow.decorators")
    decorators.task = lambda **_options: lambda function: function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "airflow.decorators", decorators)
    (tmp_path / "train.yaml").write_text(json.dumps(document()))
    names: dict[str, Any] = {"everstep": everstep}
    exec(code.replace("/jobs/train.yaml", str(tmp_path / "train.yaml")), names)  # ours
    async with working(client), asyncio.timeout(HUNG_S):
        attempts = [asyncio.ensure_future(asyncio.to_thread(names["train"], "1")) for _ in range(2)]
        await until_runs(aio.job("train-1"))
        await aio.job("train-1").stop(reason="completed")
        assert await asyncio.gather(*attempts) == [2, 2]
        assert await asyncio.to_thread(names["train"], "1") == 2


async def until_runs(job: AsyncJob) -> None:
    while True:
        with contextlib.suppress(everstep.Failed):
            if (await job.status())["state"] == "running":
                return
        await asyncio.sleep(0.05)


async def test_who_looks_at_a_job_sees_its_end_although_its_server_ends_with_it(
    served: AsyncCli, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook: `run` ends server and worker with the job, and another call waits for that job."""
    job = aio.job("demo")
    async with working(client), asyncio.timeout(HUNG_S):
        await aio.submit(document())
        ways = (job.watch(every_s=0.05), job.events())
        for way in ways:
            await anext(way)
        handle, begun, outage = client.get_workflow_handle("demo"), asyncio.Event(), asyncio.Event()

        async def until_outage(_handle: object) -> Any:
            begun.set()
            await outage.wait()
            return await no_server()

        monkeypatch.setattr(type(handle), "result", until_outage)
        waiting = asyncio.ensure_future(job.wait())
        await begun.wait()
        monkeypatch.setattr(AsyncJob, "_connected", no_server)
        monkeypatch.setattr(glances, "find", no_server)
        write_ended_job_of(job)
        outage.set()
        *_, last = [look async for look in ways[0]]
        assert (last.status["state"], last.silence) == ("completed", None)
        assert [event async for event in ways[1]] == []
        assert (await waiting).state == "completed"
        await handle.terminate()


async def no_server(*_: object, **__: object) -> Any:
    raise NoServer(everstep.Exit.UNREACHABLE, "no Temporal server answers")


def write_ended_job_of(job: AsyncJob) -> None:
    """Write what `run` leaves of a job that has completed."""
    ended_jobs.write(
        EndedJob(
            id=job.id,
            lives=1,
            status={**status(job.id, "completed"), "submissions": 1},
            restarts=[],
            events=[{**EVENT, "life": 1}],
            explanation={},
            report={},
        )
    )


async def test_logs_are_the_lines_of_all_ranks_by_time(cli: Any, tmp_path: Path) -> None:
    ranks = Ranks(tmp_path / "home")
    for generation in (1, 2):
        for rank in (1, 0):
            ranks.print(generation, rank, f"one of {rank}\n")
    job = aio.job("demo")
    lines = [(line["generation"], line["text"]) async for line in job.logs()]
    assert lines == [(n, f"one of {rank}") for n in (1, 2) for rank in (1, 0)]
    (last,) = [line async for line in job.logs(ranks=[0], tail=1)]
    assert (last["generation"], last["rank"], last["text"]) == (2, 0, "one of 0")
    with pytest.raises(everstep.Failed, match="rank 7 of demo left no log"):
        await anext(job.logs(ranks=[7]))


async def test_logs_are_followed_over_restarts_until_the_job_has_ended(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks, job = Ranks(tmp_path / "home"), aio.job("demo")
    ranks.print(1, 0, "before\n")
    news = iter(
        [(1, "of the same run\n"), (2, "of the next run, cut sh"), (2, "ort\n"), (2, "end")]
    )

    async def is_open() -> bool:
        """Something is printed before each look; the job ends with the last of it."""
        generation, text = next(news)
        ranks.print(generation, 0, text)
        return text != "end"

    monkeypatch.setattr(job, "_is_open", is_open)
    lines = [(line["generation"], line["text"].strip()) async for line in job.logs(follow=True)]
    assert lines == [
        (1, "before"),
        (1, "of the same run"),
        (2, "of the next run, cut short"),
        (2, "end"),
    ]
