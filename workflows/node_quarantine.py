"""NodeQuarantine: the isolated nodes of one cluster, for ever. It drives `core.recovering.quarantine`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from everstep.chronicle import shapes
from everstep.core import names
from everstep.core.bounds import TEXT_MOST, cut
from everstep.core.counting import fault_counts
from everstep.core.errors import CommandRejected
from everstep.core.escaping import in_markdown
from everstep.core.node_names import check_place
from everstep.core.recovering import quarantine
from everstep.core.recovering.isolations import ENTRIES_MOST, IsolatedNode
from everstep.core.recovering.quarantine import DeviceAnswer, Quarantine, QuarantineAnswer
from workflows import options, signatures
from workflows.inputs import checked_cluster, read, required
from workflows.renewing import is_full

T = TypeVar("T")

LEAST_WAIT_S = 1.0
"""Seconds between two looks at the clock of a cluster."""
ROWS_SHOWN = 20
"""Isolated nodes on the workflow's page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a run begins with; all but the cluster is handed over by the run before it."""

    cluster: str
    quarantine: Quarantine | None = None
    unsettled: tuple[
        str, ...
    ] = ()  # nodes whose isolation the cluster may not show as the quarantine has it


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
        # One call about a node at a time. Its task ends once the cluster shows what the book has.
        self._settling: dict[str, asyncio.Task[str]] = {}
        self._failing: dict[str, str] = {}  # node -> why the call about it failed last
        self._unsettled_before = opening.unsettled

    @workflow.run
    async def run(self, *_raw: Any) -> None:
        checked_cluster(required(self._input).cluster)
        await self._learn()
        for node in self._unsettled_before:
            self._begin_to_settle(node)  # a thousand of them must not keep this run from its end
        while not is_full():
            await self._wait_until_due()
        await workflow.wait_condition(workflow.all_handlers_finished)
        opening = Opening(
            cluster=self._quarantine.cluster,
            quarantine=self._quarantine,
            unsettled=self._unsettled(),
        )
        workflow.continue_as_new(opening, initial_versioning_behavior=options.UPGRADED)

    async def _learn(self) -> None:
        """After a terminate nothing is lost: read what the run before kept, and what the cluster shows."""
        if self._is_known:
            return
        earlier = await self._call(
            signatures.earlier_quarantine, summary="read what the run before kept"
        )
        isolated = await self._call(signatures.cluster_isolations, summary="read the isolations")
        earlier = replace(earlier, cluster=self._quarantine.cluster)
        self._quarantine = quarantine.with_isolations_of_cluster(earlier, isolated, workflow.time())
        self._is_known = True
        self._show()
        await self._settle_all(sorted(earlier.nodes.keys() - isolated.keys()))

    async def _wait_until_due(self) -> None:
        """Wait until a fault has lasted for too long or a device is sound, by the cluster's clock."""
        due = quarantine.next_change_at(self._quarantine)
        wait_s = None if due is None else LEAST_WAIT_S
        if due is not None and self._cluster_time:
            wait_s = max(due - self._cluster_time, LEAST_WAIT_S)
        try:
            await workflow.wait_condition(
                lambda: is_full() or quarantine.next_change_at(self._quarantine) != due,
                timeout=wait_s,
                timeout_summary="until the next node is due",
            )
        except TimeoutError:
            reached = await self._call(signatures.reach, summary="read the cluster's clock")
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
        """Bring the cluster in line for all nodes that changed since, or begin to."""
        self._show()
        await self._settle_all(quarantine.changed_isolations(before, self._quarantine))

    async def _settle_all(self, nodes: Iterable[str]) -> None:
        """Settle these nodes at once: where the cluster refuses one call, it refuses them all."""
        nodes = [*nodes]
        for node in nodes:
            self._begin_to_settle(node)
        for node in nodes:
            await self._settle(node)

    def _begin_to_settle(self, node: str) -> None:
        task = self._settling.get(node)
        if task is None or task.done():
            self._settling[node] = asyncio.create_task(self._follow(node))

    async def _settle(self, node: str, *, to_the_end: bool = False) -> str:
        """Make the cluster show what the book has of the node, which may change meanwhile.

        The book is changed first and at once; here one call after the other follows it. Returns why the
        cluster refuses the isolation for good, else nothing. Once the calls fail they go on without this one;
        `to_the_end` waits for them until this run ends.
        """
        self._begin_to_settle(node)
        task = self._settling[node]
        await workflow.wait_condition(
            lambda: task.done() or (node in self._failing and (not to_the_end or is_full()))
        )
        if task.done():
            return task.result()
        if to_the_end:
            why = f"the cluster does not store it yet ({self._failing[node]}); send it again"
            raise ApplicationError(why, type="CommandRejected", non_retryable=True)
        return ""

    async def _follow(self, node: str) -> str:
        """Order calls about a node until the cluster shows what the book has. Returns why it cannot."""
        how = options.FIRST_SETTLING
        while True:
            entry = self._quarantine.nodes.get(node)
            try:
                if entry is None:
                    await self._call(
                        signatures.release_on_cluster, node, how=how, summary=f"release {node}"
                    )
                else:
                    await self._call(
                        signatures.isolate_on_cluster,
                        node,
                        entry.reason,
                        how=how,
                        summary=f"isolate {node}",
                    )
            except ActivityError as error:
                cause = error.cause
                why = cut(getattr(cause, "message", None) or str(error), TEXT_MOST)
                if isinstance(cause, ApplicationError) and cause.type == "ClusterRefused":
                    return self._give_up(node, entry, why)
                self._failing[node], how = why, options.LATER_SETTLING
            else:
                if self._quarantine.nodes.get(node) == entry:
                    self._failing.pop(node, None)
                    return ""

    def _give_up(self, node: str, entry: IsolatedNode | None, why: str) -> str:
        """Forget an isolation that the cluster refuses, unless the book has another one by now."""
        workflow.logger.warning("the cluster refuses to isolate or release %s: %s", node, why)
        self._failing.pop(node, None)
        if entry is not None and self._quarantine.nodes.get(node) == entry:
            self._quarantine, _ = quarantine.release(self._quarantine, node)
            self._show()
        return why

    def _unsettled(self) -> tuple[str, ...]:
        """The nodes that the cluster may not show yet as the book has them."""
        nodes = (node for node, task in self._settling.items() if not task.done())
        return tuple(sorted(nodes)[:ENTRIES_MOST])

    async def _call(
        self,
        called: Callable[..., Awaitable[T]],
        *args: Any,
        how: Mapping[str, Any] = options.CALL,
        summary: str,
    ) -> T:
        return await workflow.execute_activity(
            called,
            args=args,
            task_queue=names.cluster_queue(self._quarantine.cluster),
            summary=summary,
            **how,
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
                "failing": self._failing.get(entry.node),
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
        before = self._quarantine
        self._quarantine, answer = quarantine.isolate(before, request)
        for node in sorted(before.nodes.keys() - self._quarantine.nodes.keys()):
            self._begin_to_settle(node)  # its time was over, and its room was needed
        if answer.verdict == "full" and request.by == quarantine.OPERATOR:
            # More than one was accepted for the same room. A job goes by the verdict.
            raise ApplicationError(answer.why, type="CommandRejected", non_retryable=True)
        self._show()
        if answer.verdict == "isolated":
            why = await self._settle(request.node, to_the_end=True)
            if why and request.node not in self._quarantine.nodes:
                raise ApplicationError(why, type="CommandRejected", non_retryable=True)
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
        node = quarantine.node_from(argument)
        # An isolation that was accepted is ended, whatever its name.
        if node not in self._quarantine.nodes:
            check_place(node, command="release")

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
