"""The command `prune`: removes what ended pods left on this machine, or a cluster's records of ended jobs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Annotated, Any

import typer
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus

from everstep.backends.tools import JobRecordLeft, LeftFiles, WorkflowEnd
from everstep.chronicle import shapes
from everstep.cli.durations import parse_duration
from everstep.cli.output import AsJson, Page, not_empty, show, shown
from everstep.cli.pages import age
from everstep.cli.server import with_server
from everstep.cli.tables import Column, span, table
from everstep.client import machine
from everstep.client.connection import UnlessAbsent, server_name
from everstep.client.exit_codes import Exit, Failed
from everstep.client.home import home
from everstep.client.jobs import ended_jobs
from everstep.client.jobs.ended_jobs import EndedJobFile
from everstep.core.errors import BackendUnavailable, InvalidSpec
from everstep.core.world import Leftover


def prune(
    older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE", help="Only what was last written longer ago than this: 12h, 7d, 2w."
        ),
    ] = "7d",
    cluster: Annotated[
        str, typer.Option(callback=not_empty, help="The name of the cluster.")
    ] = "local",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what ended pods left in EVERSTEP_HOME, logs and evidence, or records of ended jobs of a cluster.

    A pod of which it is not proven that it ended keeps everything. Folders of jobs stay, whether you
    named them (model_dir, checkpoints) or not (EVERSTEP_HOME/jobs): records, results and the number of
    the last start are there. So do the databases of the server and of the cluster. What `run` left of an
    ended job in EVERSTEP_HOME/ended, for `why` and `report` without a server, goes too.

    With --cluster: the record of a job in Kubernetes (a ConfigMap) goes where the job's workflow and the last
    change of the record are at least so old, an hour at least, and the cluster has no pod of the job. So
    does an agent of an earlier version (a ConfigMap too) that is so old and that no pod uses.
    """
    passed_s = parse_duration("--older-than", older_than, hint="; 0s is everything")
    if machine.has_pods(cluster):
        _prune_records(cluster, passed_s, is_dry_run=dry_run, as_json=as_json)
    else:
        _prune_machine(passed_s, is_dry_run=dry_run, as_json=as_json)


def _prune_machine(passed_s: float, *, is_dry_run: bool, as_json: bool) -> None:
    now = time.time()
    with machine.database_can_be_read(", so nothing is removed"):
        pruned = machine.tools().prune(before=now - passed_s, is_dry_run=is_dry_run)
        leftovers = asyncio.run(pruned)
    files = ended_jobs.prune(before=now - passed_s, is_dry_run=is_dry_run)
    removed = [_row(left, now) for left in leftovers if left.kept_because is None]
    left_rows = [
        _row(left, now) | {"why": left.kept_because}
        for left in leftovers
        if left.kept_because is not None
    ]
    summary = {"removed": removed, "kept": left_rows, "bytes": sum(row["bytes"] for row in removed)}
    summary |= {"jobs": [_file_row(file, now) for file in files]}
    show({**summary, "dry_run": is_dry_run, "home": str(home())}, _page, as_json=as_json)


PRUNED = (
    Column("POD", "pod", is_pinned=True),
    Column("JOB", "job"),
    Column("SLOT", "slot"),
    Column("WRITTEN", lambda row: f"{age(row['age_s'])} ago"),
    Column("SIZE", lambda row: _size(row["bytes"])),
)


def _page(value: dict[str, Any]) -> Page:
    if value["removed"]:
        yield table(value["removed"], PRUNED)
    did = "would be removed" if value["dry_run"] else "removed"
    count = len(value["removed"])
    yield f"{count} ended pods, {_size(value['bytes'])} {did} from {shown(value['home'])}"
    if jobs := value["jobs"]:
        size = _size(sum(row["bytes"] for row in jobs))
        yield f"files of {len(jobs)} ended jobs, {size} {did}: {shown(span([row['job'] for row in jobs]))}"
    for why, many in Counter(row["why"] for row in value["kept"]).items():
        yield f"{many} kept: {why}"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def _file_row(file: EndedJobFile, now: float) -> dict[str, Any]:
    return {
        "job": file.job,
        "bytes": file.size,
        "written_at": shapes.moment(file.written_at),
        "age_s": round(max(0.0, now - file.written_at)),
    }


def _row(left: LeftFiles, now: float) -> dict[str, Any]:
    return {
        "pod": left.uid,
        "job": left.job,
        "slot": left.slot,
        "bytes": left.size,
        "written_at": shapes.moment(left.written_at or None),
        "age_s": round(max(0.0, now - left.written_at)),
    }


# -- Records of jobs in a cluster -----------------------------------------------------------------


def _prune_records(cluster: str, passed_s: float, *, is_dry_run: bool, as_json: bool) -> None:
    now = time.time()

    async def pruned(client: Client) -> tuple[list[JobRecordLeft], list[str]]:
        async def end_of(job: Leftover) -> WorkflowEnd:
            return await workflow_end(client, job)

        before = now - passed_s
        tools = machine.tools(cluster)
        return (
            await tools.prune_records(end_of, before=before, is_dry_run=is_dry_run),
            await tools.prune_agents(before=before, is_dry_run=is_dry_run),
        )

    try:
        records, agents = with_server(pruned)
    except InvalidSpec as error:
        raise Failed(Exit.USAGE, f"a setting makes no sense: {error}") from None
    except BackendUnavailable as error:
        problem = f"cluster {cluster} cannot be pruned to its end from here: {error}"
        raise Failed(Exit.UNREACHABLE, f"{problem}; what was removed stays so") from None
    removed = [_record_row(record, now) for record in records if record.reason is None]
    left_rows = [
        _record_row(record, now) | {"why": record.reason}
        for record in records
        if record.reason is not None
    ]
    summary = {"removed": removed, "kept": left_rows, "bytes": sum(row["bytes"] for row in removed)}
    value = {**summary, "agents": agents, "dry_run": is_dry_run, "cluster": cluster}
    show(value, _records_page, as_json=as_json)


async def workflow_end(client: Client, record: Leftover) -> WorkflowEnd:
    """Unknown is not ended: only a clear answer of the job's own server counts."""
    newest = await _described(client, record.job.id, None)
    if newest is not None and newest.status is WorkflowExecutionStatus.RUNNING:
        return WorkflowEnd(doubt="its workflow runs")
    run = newest and await _described(client, record.job.id, record.job.run)
    if run is None and record.server not in ("", server_name(client)):
        return WorkflowEnd(doubt=f"its workflow is one of the server {record.server}")
    ends = [one.close_time.timestamp() for one in (newest, run) if one and one.close_time]
    return WorkflowEnd(at=max(ends, default=None))


async def _described(
    client: Client, job: str, run: str | None
) -> WorkflowExecutionDescription | None:
    with UnlessAbsent():
        return await client.get_workflow_handle(job, run_id=run or None).describe()
    return None


RECORDS = (
    Column("JOB", "job", is_pinned=True),
    Column("NAMESPACE", "namespace"),
    Column("ENDED", lambda row: f"{age(row['age_s'])} ago"),
    Column("SIZE", lambda row: _size(row["bytes"])),
)


def _records_page(value: dict[str, Any]) -> Page:
    if value["removed"]:
        yield table(value["removed"], RECORDS)
    did = "would be removed" if value["dry_run"] else "removed"
    yield f"{len(value['removed'])} records of ended jobs {did} from cluster {shown(value['cluster'])}"
    for why, many in Counter(row["why"] for row in value["kept"]).items():
        yield f"{many} kept: {shown(why)}"
    if value["agents"]:
        yield f"agents that no pod uses, {did}: {', '.join(map(shown, value['agents']))}"


def _record_row(record: JobRecordLeft, now: float) -> dict[str, Any]:
    return {
        "record": record.name,
        "namespace": record.namespace,
        "job": record.job,
        "bytes": record.size,
        "ended_at": shapes.moment(record.ended_at),
        "age_s": None if record.ended_at is None else round(max(0.0, now - record.ended_at)),
    }
