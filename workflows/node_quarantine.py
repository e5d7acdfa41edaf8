"""NodeQuarantine: the isolated nodes of one cluster, for ever. It drives `core.recovering.quarantine`."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, replace
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from everstep.chronicle import shapes
from everstep.core import names
from everstep.core.errors import CommandRejected
from everstep.core.escaping import in_markdown
from everstep.core.recovering import fault_counts, quarantine
from everstep.core.recovering.quarantine import DeviceAnswer, Quarantine, QuarantineAnswer
from everstep.core.world import ClusterReached
from workflows import options
from workflows.inputs import read, required

LEAST_WAIT_S = 1.0
"""Between two looks at the clock of a cluster."""
ROWS_SHOWN = 20
"""Isolated nodes on the workflow's page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a run begins with; all but the cluster is handed over by the run before it."""

    cluster: str
    quarantine: Quarantine | None = None


@workflow.defn(name=names.NODE_QUARANTINE)
class NodeQuarantine:
    """One per cluster, reached by update-with-start."""

    @workflow.init
    def __init__(self, *raw: Any) -> None:
        self._input = read(raw, Opening)
        nothing = Opening(cluster="")  # until `run` fails
        opening = nothing if isinstance(self._input, ApplicationError) else self._input
        self._quarantine = opening.quarantine or Quarantine(cluster=opening.cluster)
        self._is_known = opening.quarantine is not None
        self._cluster_time = 0.0  # as it was reported last
        self._marking: dict[str, asyncio.Lock] = {}  # one call about a node's mark at a time

    @workflow.run
    async def run(self, *_raw: Any) -> None:
        required(self._input)
        await self._learn()
        while not self._is_full():
            await self._wait_until_due()
        await workflow.wait_condition(workflow.all_handlers_finished)
        opening = Opening(cluster=self._quarantine.cluster, quarantine=self._quarantine)
        workflow.continue_as_new(opening)

    def _is_full(self) -> bool:
        info = workflow.info()
        suggested = info.is_continue_as_new_suggested()
        return suggested or info.get_current_history_length() > options.EVENTS_KEPT

    async def _learn(self) -> None:
        """After a terminate nothing is lost: read what the run before kept, and the cluster's own marks."""
        if self._is_known:
            return
        earlier: Quarantine = await self._call(
            "earlier_quarantine", result_type=Quarantine, summary="read what the run before kept"
        )
        marks = await self._call("marks", result_type=dict[str, str], summary="read the marks")
        earlier = replace(earlier, cluster=self._quarantine.cluster)
        self._quarantine = quarantine.with_marks_of_cluster(earlier, marks, workflow.time())
        self._is_known = True
        self._show()
        for node in sorted(earlier.nodes.keys() - marks.keys()):
            await self._settle(node)

    async def _wait_until_due(self) -> None:
        """Wait until a fault has lasted for too long or a device is sound, by the cluster's clock."""
        due = quarantine.next_change_at(self._quarantine)
        wait_s = None if due is None else LEAST_WAIT_S
        if due is not None and self._cluster_time:
            wait_s = max(due - self._cluster_time, LEAST_WAIT_S)
        try:
            await workflow.wait_condition(
                lambda: self._is_full() or quarantine.next_change_at(self._quarantine) != due,
                timeout=wait_s,
                timeout_summary="until the next node is due",
            )
        except TimeoutError:
            reached: ClusterReached = await self._call(
                "reach", result_type=ClusterReached, summary="read the cluster's clock"
            )
            await self._pass_time(reached.now)

    async def _pass_time(self, now: float) -> list[str]:
        """Isolate and release what is due; the names that were released."""
        before, self._cluster_time = self._quarantine, now
        self._quarantine = quarantine.pass_time(self._quarantine, now)
        for node in quarantine.expired_nodes(self._quarantine, now):
            self._quarantine, _ = quarantine.release(self._quarantine, node)
        await self._settle_changed(before)
        return sorted(before.nodes.keys() - self._quarantine.nodes.keys())

    async def _settle_changed(self, before: Quarantine) -> None:
        """Bring the marks of all nodes in line that changed since."""
        self._show()
        for node in quarantine.changed_marks(before, self._quarantine):
            await self._settle(node)

    async def _settle(self, node: str) -> None:
        """Make the cluster's mark agree with the book, which may change meanwhile.

        The book is changed first and at once; here one call after the other follows it.
        """
        async with self._marking.setdefault(node, asyncio.Lock()):
            while True:
                entry = self._quarantine.nodes.get(node)
                if entry is None:
                    await self._call("release_mark", node, summary=f"release {node}")
                else:
                    await self._call("mark", node, entry.reason, summary=f"isolate {node}")
                if self._quarantine.nodes.get(node) == entry:
                    return

    async def _call(
        self, name: str, *args: Any, result_type: type | None = None, summary: str
    ) -> Any:
        return await workflow.execute_activity(
            name,
            args=args,
            result_type=result_type,
            task_queue=names.cluster_queue(self._quarantine.cluster),
            summary=summary,
            **options.CALL,
        )

    @workflow.query(
        name="state", description="all that a new run begins with; nothing before it has been read"
    )
    def state(self, _argument: Any = None) -> Quarantine | None:
        return self._quarantine if self._is_known else None

    @workflow.query(
        name="nodes",
        description="every isolated node: why, by whom, until when; {counts: true}: fault counts too",
    )
    def nodes(self, argument: Any = None) -> list[dict[str, Any]]:
        wants_counts = isinstance(argument, dict) and argument.get("counts") is True
        return [*self._isolated_rows(), *(self._count_rows() if wants_counts else ())]

    def _count_rows(self) -> list[dict[str, Any]]:
        """A row for each node with devices whose faults are counted."""
        rows: dict[str, list[dict[str, Any]]] = {}
        for fault in fault_counts.standing(self._quarantine.faults, self._cluster_time):
            entry = {
                "device": fault.device,
                "code": fault.code,
                "at": shapes.moment(fault.at),
                "until": shapes.moment(fault.counts_at + fault.window_s),
                "times": fault.times,
                "limit": fault.limit,
            }
            rows.setdefault(fault.node, []).append(entry)
        return [{"name": node, "counts": counts} for node, counts in rows.items()]

    def _isolated_rows(self) -> list[dict[str, Any]]:
        return [
            {
                "name": entry.node,
                "state": state,
                "reason": f"{before}{entry.reason}",
                "by": entry.by,
                "since": shapes.moment(entry.since),
                "until": shapes.moment(entry.until),
            }
            for state, before, entries in (
                ("isolated", "", self._quarantine.nodes),
                ("ready", "not isolated until an operator agrees: ", self._quarantine.held),
            )
            for entry in entries.values()
        ]

    @workflow.update(name="isolate", description="{node, reason, by, until}")
    async def isolate(self, argument: Any = None) -> QuarantineAnswer:
        await workflow.wait_condition(lambda: self._is_known)
        request = quarantine.request_from(argument, now=workflow.time())
        self._quarantine, answer = quarantine.isolate(self._quarantine, request)
        if answer.verdict == "full" and request.by == quarantine.OPERATOR:
            # More than one was accepted for the same room. A job goes by the verdict.
            raise ApplicationError(answer.why, type="CommandRejected", non_retryable=True)
        self._show()
        if answer.verdict == "isolated":
            await self._settle(request.node)
        return answer

    @workflow.signal(name="isolate", description="the same, for a job that waits for no answer")
    async def isolate_unanswered(self, argument: Any = None) -> None:
        try:
            self._isolate_is_sensible(argument)
            await self.isolate(argument)
        except (CommandRejected, ApplicationError) as error:
            workflow.logger.warning("the signal isolate was refused: %s", error)

    @workflow.update(name="release", description="let a node be used again: {node}")
    async def release(self, argument: Any = None) -> dict[str, Any]:
        node = quarantine.node_from(argument)
        await workflow.wait_condition(lambda: self._is_known)
        self._quarantine, was_isolated = quarantine.release(self._quarantine, node)
        self._show()
        await self._settle(node)
        return {"released": was_isolated, "node": node}

    @workflow.update(name="note_faults", description="count device faults: {faults}")
    async def note_faults(self, argument: Any = None) -> DeviceAnswer:
        report = quarantine.device_report_from(argument, now=workflow.time())
        await workflow.wait_condition(lambda: self._is_known)
        before, self._cluster_time = self._quarantine, report.now
        self._quarantine, answer = quarantine.take_report(self._quarantine, report)
        await self._settle_changed(before)
        return answer

    @workflow.update(name="expire", description="release what was isolated only until now: {now}")
    async def expire(self, argument: Any = None) -> dict[str, Any]:
        return {"released": await self._pass_time(quarantine.now_from(argument))}

    # A handler that raises what is no failure would wedge the quarantine for every job: whatever is
    # wrong with an argument is said before it is accepted.

    @isolate.validator
    def _isolate_is_sensible(self, argument: Any = None) -> None:
        request = quarantine.checked_request(argument, now=workflow.time())
        if request.by == quarantine.OPERATOR:
            quarantine.check_room(self._quarantine, request)

    @release.validator
    def _release_is_sensible(self, argument: Any = None) -> None:
        quarantine.node_from(argument)

    @note_faults.validator
    def _faults_are_sensible(self, argument: Any = None) -> None:
        quarantine.device_report_from(argument, now=workflow.time())

    @expire.validator
    def _time_is_sensible(self, argument: Any = None) -> None:
        quarantine.check_now(argument)

    def _show(self) -> None:
        entries = ((e.node, e.reason, e.by) for e in self._quarantine.nodes.values())
        first = list(itertools.islice(entries, ROWS_SHOWN))
        rows = [f"| {' | '.join(map(in_markdown, entry))} |" for entry in first]
        if more := len(self._quarantine.nodes) - len(first):
            rows.append(f"| and {more} more: `everstep nodes` | | |")
        workflow.set_current_details("\n".join(["| node | why | by |", "|---|---|---|", *rows]))
