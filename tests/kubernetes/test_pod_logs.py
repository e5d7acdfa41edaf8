"""Lines of a container's log as output of ranks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import cast

import pytest

from everstep.backends.kubernetes.api import Json, KubernetesApi, Refused, Unreachable
from everstep.backends.kubernetes.pod_logs import PodLog, PodLogs
from everstep.backends.tools import RankLog


async def test_lines_are_told_apart_by_generation_and_rank_and_keep_their_time() -> None:
    """The times are as an API server writes them; what no rank printed is left out."""
    api = ScriptedApi(
        [
            b"2026-01-31T12:00:00.5Z [g1 rank 0] step 1\n2026-01-31T12:00:01.25Z [g2 ran",
            b"k 3] [rank 1] of its own\nthe agent's own words\n[g1 rank 0] no time\n",
        ]
    )
    log = PodLog(cast("KubernetesApi", api), "path")
    await log.poll(has_ended=True)
    first, second = sorted(log.lines)
    assert (first, second) == (
        RankLog(generation=1, rank=0, source="path"),
        RankLog(generation=2, rank=3, source="path"),
    )
    assert [(line.text, line.at) for line in log.lines[first].from_start] == [
        ("step 1\n", 1769860800.5),
        ("no time\n", None),
    ]
    assert log.lines[second].from_start[0].text == "[rank 1] of its own\n"


LINES = [b"2026-01-31T12:00:0%d.5Z [g1 rank 0] step %d\n" % (n // 2, n) for n in range(6)]
"""Two in each second."""
NOT_STARTED = Refused(status=400, reason="BadRequest", message="is waiting", retry_after_s=0)
NOT_FOUND = Refused(status=404, reason="NotFound", message="not found", retry_after_s=0)
BROKEN = Unreachable("connection reset")


class ScriptedApi:
    """Each stream of the log is the next row: chunks, and an error at which the stream breaks."""

    def __init__(self, *streams: list[bytes | Exception]) -> None:
        self.streams = list(streams)
        self.pods: list[Json] = []

    async def get(self, *_: object) -> Json:
        return {"items": self.pods}

    async def stream(
        self, _path: str, query: Mapping[str, str], **_options: object
    ) -> AsyncIterator[bytes]:
        since = query.get("sinceTime", "").removesuffix("Z").encode()
        for chunk in self.streams.pop(0):
            if isinstance(chunk, Exception):
                raise chunk
            if chunk >= since[: len(chunk)]:
                yield chunk


@pytest.mark.parametrize(
    ("streams", "lines"),
    [
        ([[*LINES[:2]]], 2),
        ([[NOT_STARTED], [*LINES[:2]]], 2),
        ([[*LINES[:2]], [NOT_STARTED], [*LINES[:4]]], 4),
        ([[*LINES[:2]], [*LINES[:3], BROKEN], [*LINES[:6]]], 6),
        ([[*LINES[:2]], [*LINES[:3]], [*LINES[:6]]], 6),
        ([[*LINES[:2]], [*LINES[:2], LINES[2][:5], BROKEN], [*LINES[:4]]], 4),
        ([[*LINES[:2]], [*LINES[:3], BROKEN], [NOT_FOUND]], 3),
        ([[*LINES[:2]], [*LINES[1:4], BROKEN], [*LINES[3:]]], 6),
        ([[NOT_FOUND]], 0),
    ],
    ids=[
        "whole",
        "late",
        "late again",
        "broken",
        "ended",
        "broken in a line",
        "gone",
        "rotated",
        "never there",
    ],
)
async def test_a_log_is_read_once_whatever_ends_its_streams(
    streams: list[list[bytes | Exception]], lines: int
) -> None:
    """The container ends before the last stream."""
    api = ScriptedApi(*streams)
    log = PodLog(cast("KubernetesApi", api), "path")
    for _ in streams:
        await log.poll(has_ended=len(api.streams) == 1)
        if log.following is not None:
            await log.following
    assert api.streams == []
    assert log.is_over == (streams[-1] != [NOT_FOUND])
    printed = [line.text for of_rank in log.lines.values() for line in of_rank.from_start]
    assert printed == [f"step {number}\n" for number in range(lines)]


async def test_a_pod_made_again_under_its_name_has_a_log_of_its_own() -> None:
    """The first one is not there any more: its name would lead to the log of the second."""
    api = ScriptedApi([*LINES[:2]], [*LINES[2:4]])
    logs = PodLogs(cast("KubernetesApi", api), ["team-a"])
    rank_logs = []
    for uid in ("first", "second"):
        api.pods = [{"metadata": {"name": "demo-0-g1", "uid": uid}, "status": {"phase": "Running"}}]
        rank_logs = await logs.of_job("demo")
    (log,) = rank_logs
    assert [line.text async for line in logs.reader(log).lines()] == ["step 2\n", "step 3\n"]


async def test_lines_without_their_times_are_read_once_as_well() -> None:
    """Of a kubelet that supports neither these nor the time from which they are requested."""
    line = b"[g1 rank 0] step 1\n"
    api = ScriptedApi([line], [line * 2], [line * 3])
    log = PodLog(cast("KubernetesApi", api), "path")
    while api.streams:
        await log.poll(has_ended=False)
        if log.following is not None:
            await log.following
    (lines,) = log.lines.values()
    assert [line.text for line in lines.from_start] == ["step 1\n"] * 3


async def test_lines_that_were_read_or_have_no_reader_are_not_kept() -> None:
    """One rank is followed, the other was left out."""
    chunks: list[bytes | Exception] = [
        b"2026-01-31T12:00:0%d.5Z [g1 rank %d] step\n" % (second, rank)
        for second in range(3)
        for rank in (0, 1)
    ]
    api = ScriptedApi(chunks[:2], chunks[:4], chunks)
    api.pods = [{"metadata": {"name": "demo-0-g1", "uid": "1"}, "status": {"phase": "Running"}}]
    logs = PodLogs(cast("KubernetesApi", api), ["team-a"])
    first, second = await logs.of_job("demo")
    reader = logs.reader(first)
    printed = [line.text async for line in reader.lines()]
    (pod,) = logs.pods.values()
    while api.streams:
        await logs.of_job("demo")
        if pod.following is not None:
            await pod.following
        printed += [line.text async for line in reader.lines()]
    assert printed == ["step\n"] * 3
    assert not reader.unread
    assert pod.lines[first].from_start == pod.lines[second].from_start == []
