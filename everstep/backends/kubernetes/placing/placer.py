"""Create the pods of a job that its record wants, and return how far they are.

A call of `ensure_placed` stores the wanted pods in the record, withdraws pods that wait with wrong nodes to
avoid, claims the folders, brings the pods that exist in line with the record (`PodReconciler`), creates the
missing ones with their Secret and group, stores their uids, and gives back places that a gang holds in vain.
Any worker may repeat any of it, as the record has everything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from everstep.backends.agents.client.watch import Agents
from everstep.backends.kubernetes import (
    credentials,
    folders,
    gangs,
    kueue,
    manifest,
    names,
    network,
)
from everstep.backends.kubernetes.agent_program import ensure_agent
from everstep.backends.kubernetes.api import Json, KubernetesApi, Refused, Unreachable
from everstep.backends.kubernetes.avoided_nodes import HOSTNAME, NodesToAvoid, rule_for
from everstep.backends.kubernetes.books import (
    ConfigMapBooks,
    JobSession,
    PodEntry,
    Stored,
    isolated_nodes,
)
from everstep.backends.kubernetes.node_facts import maintenance
from everstep.backends.kubernetes.placing.entries import (
    gang_of,
    is_created_in,
    joined_group,
    missing_pods,
    nodes_to_avoid,
    note_ready,
    owner,
    standby_entries,
    stood_up_s,
    want_pods,
    want_standbys,
    wanted_entries,
)
from everstep.backends.kubernetes.placing.place_state import place_state, with_isolated
from everstep.backends.kubernetes.placing.queues import JobQueues
from everstep.backends.kubernetes.placing.reconciler import PodReconciler, PodsBeforeRecord
from everstep.backends.kubernetes.placing.withdrawals import Withdrawals
from everstep.backends.kubernetes.pod_facts import is_owned
from everstep.backends.kubernetes.pods import KubernetesPods
from everstep.backends.kubernetes.reaching import (
    all_at_once,
    allowing,
    both,
    may_be_taken_later,
    reached,
    refusal_wait,
)
from everstep.backends.kubernetes.watch import ClusterWatch
from everstep.backends.rules.ownership import FolderClaim
from everstep.core.errors import BackendUnavailable, InvalidSpec
from everstep.core.waits import WaitCause
from everstep.core.world import PlaceOrder, PlaceState

logger = logging.getLogger(__name__)

_NO_QUERY: Mapping[str, str] = {}
_MOMENT_S = 0.1
_KEPT_S = 1.0
_QUEUE_S = 5.0
"""Between looks at why a queue holds pods back, and at which nodes are isolated."""
CREATED_PER_CALL = 128
"""So a call of a large job ends well before it counts as stuck, and the uids of its pods are stored."""
Answer = Json | Refused | BackendUnavailable
"""The answer to a creation: the pod, a refusal that may end by itself, or why there is none."""
Answers = Mapping[str, Answer]
"""The answer for each pod to create, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlacer:
    """Creates the pods of the jobs of one namespace."""

    api: KubernetesApi
    namespace: str
    home: str  # the namespace of the workers: isolated nodes are stored there
    books: ConfigMapBooks
    watch: ClusterWatch
    pods: KubernetesPods
    agents: Agents
    settings: manifest.PodSettings
    agent: Json  # the ConfigMap with the agent's program, which its pods mount
    groups: gangs.PodGroups
    withdrawals: Withdrawals
    reconciler: PodReconciler
    queues: JobQueues

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}"

    async def ensure_placed(self, order: PlaceOrder) -> tuple[PlaceState, float | None]:
        """Return how far the pods are, and when to call again if no watch reports it.

        Each step returns the job's record as it left it (`stored`); the next one starts from that.
        """
        isolated, (pods, stored) = await both(
            reached(isolated_nodes(self.api, self.home)), self.reconciler.find_pods(order.job.id)
        )
        avoided = self._nodes_to_avoid(nodes_to_avoid(order) | isolated)
        trial_pod = self._trial_pod(order, avoided)
        stored = await self._store_wanted_pods(order, stored, isolated)
        stored = await self._withdraw_outdated(order, stored, avoided)
        now = self.agents.clock()
        due = self._due(order, stored, now=now)
        to_create = set(due[:CREATED_PER_CALL])
        if due:  # claim before anything is created: the claim may be refused
            await self.books.claim(order.job.id, self._claims(order, trial_pod))
        sight = PodsBeforeRecord(pods, stored)
        stored, problem = await self._create_due(order, sight, to_create, avoided, trial_pod)
        self.reconciler.watch_agents(stored)
        await self._keep_mounted(order.job.id, stored)
        queue_problem = await self.queues.problem(order, stored)
        stuck_until = await self._withdraw_if_stuck(order, stored, now=now)
        state = self._state(order.slots, wanted_entries(stored), problem or queue_problem)
        state = replace(state, stood_up_s=_spares_taken(order, stored))
        state = with_isolated(state, self._pods_of(stored), self.watch.all_nodes(), isolated)
        if not state.placed and self._is_tried_as_one(order, stored):
            state = replace(state, places=None)  # all or none: how many would fit is unknown
        again = [] if stuck_until is None else [stuck_until]
        again += [e.created_from for e in missing_pods(order, stored) if e.created_from > now]
        if len(due) > len(to_create) and not problem:
            again.append(now)
        if any(self.pods.is_gone(entry.uid) for entry in wanted_entries(stored).values()):
            again.append(now + _KEPT_S)  # a failed pod is kept until its successor is due
        has_all_nodes = all(entry.node for entry in wanted_entries(stored).values())
        if queue_problem or (avoided and not has_all_nodes):
            # What the queue says, and which nodes are isolated, may change while no pod does.
            again.append(now + _QUEUE_S)
        return state, min(again, default=None)

    def _trial_pod(self, order: PlaceOrder, avoided: NodesToAvoid) -> Json:
        """One of the pods, made before anything is changed. Raises InvalidSpec if none can be made."""
        no_owner = {"name": "", "uid": ""}
        slot = order.slots[0]
        return manifest.pod(
            order, slot, owner=no_owner, settings=self.settings, nodes_to_avoid=avoided
        )

    async def _store_wanted_pods(
        self, order: PlaceOrder, stored: Stored, isolated: Iterable[str]
    ) -> Stored:
        """Store which pods the order wants. None is created or removed yet."""
        is_usable = self._usable(order, isolated)

        def may_be_used(entry: PodEntry) -> bool:
            # One that waits for a node was made to keep off those of the pods that it now replaces.
            return bool(entry.node) and is_usable(entry)

        if stored.document.record.placed is None:
            # An ended job of this ID may have left its claims.
            await self.books.release(order.job.id)
        free_places = partial(self.queues.free_places, order)
        _, stored = await self.books.transacted(
            order.job.id,
            lambda session: want_pods(session, order, may_be_used, free_places),
            start=stored,
        )
        return stored

    async def _withdraw_outdated(
        self, order: PlaceOrder, stored: Stored, avoided: NodesToAvoid
    ) -> Stored:
        """Withdraw waiting pods that were made to avoid other nodes: each is removed and created again."""
        gang, fingerprint = gang_of(order, stored), avoided.fingerprint
        if kueue.queue_of(order):
            await self.queues.keep_off(stored, avoided)
            stored = await self.withdrawals.withdraw_outdated_in_queue(
                stored, fingerprint=fingerprint
            )
            if gang.size > 1:
                return stored
            # A pod alone in its group was left by the call above: it is withdrawn as without a queue.
        return await self.withdrawals.withdraw_outdated(gang, stored, fingerprint=fingerprint)

    def _due(self, order: PlaceOrder, stored: Stored, *, now: float) -> list[str]:
        """The names of the pods that may be created by now."""
        with_room = self.queues.with_room(missing_pods(order, stored), stored)
        return [entry.name for entry in with_room if entry.created_from <= now]

    async def _create_due(
        self,
        order: PlaceOrder,
        sight: PodsBeforeRecord,
        due: Collection[str],
        avoided: NodesToAvoid,
        trial_pod: Json,
    ) -> tuple[Stored, WaitCause | None]:
        """Create the pods that are due, and their group. Also returns what holds either up; None: nothing.

        Before that, the pods that exist are brought in line with the record. Pods that need to wait for
        nothing are created at the same time.
        """
        stored = sight.stored
        answers: Answers = {}
        sync = self.reconciler.sync(order.job.id, sight)
        if not due:
            stored = await sync
        else:
            at_once = [entry for entry in self._ready(order, stored) if entry.name in due]
            (stored, _), answers = await both(
                both(sync, self._ensure_mounted(order.job.id, stored)),
                self._create(order, stored, at_once, avoided, gang_of(order, stored)),
            )
        gang = gang_of(order, stored)
        missing = missing_pods(order, stored)
        rest = [e for e in missing if e.name in due and e.name not in answers]
        create_rest = partial(self._create, order, stored, rest, avoided, gang)
        ensure_group = self._ensure_group(order, gang, stored, trial_pod)
        if gang.needs_group:
            group = await ensure_group
            # Pods without their group cannot be scheduled, and would take quota from a gang that can.
            answers_of_rest = {} if group.refusal else await create_rest()
        else:
            answers_of_rest, group = await both(create_rest(), ensure_group)
        stored, refusal = await self._store_uids(order, stored, {**answers, **answers_of_rest})
        return stored, refusal or group.refusal or group.problem

    def _ready(self, order: PlaceOrder, stored: Stored) -> list[PodEntry]:
        """The pods to be created that need neither a new Secret, nor a group, nor the end of another pod."""
        if gang_of(order, stored).needs_group or order.job.id not in self.pods.credentials:
            return []
        return [entry for entry in missing_pods(order, stored) if not entry.is_withdrawn]

    async def _withdraw_if_stuck(
        self, order: PlaceOrder, stored: Stored, *, now: float
    ) -> float | None:
        """Give back the places that a gang held for too long. Returns when to look again."""
        if manifest.is_grouped_by_us(order, self.settings):
            return None
        gang = gang_of(order, stored)
        if (stuck_at := self.withdrawals.stuck_at(gang, stored)) is None:
            return None
        stuck_in_s = stuck_at - self.api.server_time()
        if stuck_in_s <= 0:
            await self.withdrawals.withdraw(gang, stored)
        return now + max(0.0, stuck_in_s) + _MOMENT_S

    def _is_tried_as_one(self, order: PlaceOrder, stored: Stored) -> bool:
        """Whether the scheduler places all pods of the order or none, and has not placed them yet.

        A single new pod beside pods that stay is placed by itself, so its place can be counted.
        """
        is_grouped = manifest.is_grouped_by_us(order, self.settings) or kueue.queue_of(order)
        gang = gang_of(order, stored)
        is_one_try = gang.needs_group or gang.size == len(order.slots)
        return bool(is_grouped) and is_one_try and not self.withdrawals.are_bound(gang, stored)

    async def ensure_standby(self, order: PlaceOrder) -> tuple[PlaceState, float | None]:
        """How far the pods are that stand by, and when one that failed is created again."""
        isolated = await reached(isolated_nodes(self.api, self.home))
        may_be_used = self._usable(order, isolated)
        pods, stored = await self.reconciler.find_pods(order.job.id)
        want = partial(
            want_standbys,
            order=order,
            may_be_used=may_be_used,
            made_as=manifest.made_as(order),
            now=self.agents.clock(),
        )
        _, stored = await self.books.transacted(order.job.id, want, start=stored)
        stored = await self.reconciler.sync(order.job.id, PodsBeforeRecord(pods, stored))
        job_nodes = {entry.node for entry in wanted_entries(stored).values() if entry.node}
        avoided = self._nodes_to_avoid(nodes_to_avoid(order) | isolated | job_nodes)
        missing = [entry for entry in standby_entries(stored).values() if not entry.uid]
        now = self.agents.clock()
        refusal = None
        if due := [entry for entry in missing if entry.created_from <= now]:
            await self._ensure_mounted(order.job.id, stored)
            answers = await self._create(order, stored, due, avoided)
            stored, refusal = await self._store_uids(order, stored, answers)
        self.reconciler.watch_agents(stored)
        await self._keep_mounted(order.job.id, stored)
        stored = await self._note_ready(order.job.id, stored)
        again = (entry.created_from for entry in missing if entry.created_from > now)
        state = self._state(order.recreate, standby_entries(stored), refusal)
        return state, min(again, default=None)

    async def _note_ready(self, job: str, stored: Stored) -> Stored:
        """Store which pods that stand by are ready since this call."""
        entries = standby_entries(stored).values()
        new = {e.uid for e in entries if e.ready_at is None and self._has_answered(e)}
        if not new:
            return stored
        note = partial(note_ready, uids=new, now=self.agents.clock())
        _, stored = await self.books.transacted(job, note, start=stored)
        return stored

    def _state(
        self, slots: Sequence[int], entries: Mapping[int, PodEntry], refusal: WaitCause | None
    ) -> PlaceState:
        return place_state(slots, entries, watch=self.watch, agents=self.agents, refusal=refusal)

    def _pods_of(self, stored: Stored) -> Iterator[Json]:
        """The pods of the slots that are there."""
        pods = (self.watch.pod(entry.uid) for entry in wanted_entries(stored).values())
        return (pod for pod in pods if pod is not None)

    def _claims(self, order: PlaceOrder, pod: Json) -> list[FolderClaim]:
        spec, namespace = pod["spec"], self.namespace
        return folders.claims(spec, manifest.CONTAINER, order.folders, namespace=namespace)

    def _usable(self, order: PlaceOrder, isolated: Iterable[str]) -> Callable[[PodEntry], bool]:
        """Whether a pod that stands by may become one of the order's."""
        avoided = {*isolated, *nodes_to_avoid(order)}
        devices, made_as = manifest.devices_of(order), manifest.made_as(order)

        def may_be_used(entry: PodEntry) -> bool:
            is_sound = not entry.node or self._takes_pods(entry.node)
            is_gone = entry.is_lost or (bool(entry.uid) and self.pods.is_gone(entry.uid))
            fits = entry.devices == devices and entry.node not in avoided
            return is_sound and fits and not is_gone and entry.made_as == made_as

        return may_be_used

    def _takes_pods(self, name: str) -> bool:
        """Whether the node is ready and in no maintenance."""
        node = self.watch.node(name)
        is_open = node is None or not maintenance(node)
        return is_open and self.watch.service(name)[0] == "ready"

    def _nodes_to_avoid(self, node_names: Iterable[str]) -> NodesToAvoid:
        """These nodes as affinity names them."""
        nodes = {name: self.watch.node(name) for name in node_names}
        return rule_for(
            {
                name: None if node is None else node["metadata"].get("labels", {})
                for name, node in nodes.items()
            }
        )

    def _of_nodes_there(self, avoided: NodesToAvoid) -> NodesToAvoid:
        """Those of the nodes that the cluster has now. An absent one gets no pod before it is back."""
        nodes = [node["metadata"] for node in self.watch.all_nodes()]
        hosts = {metadata.get("labels", {}).get(HOSTNAME) for metadata in nodes}
        names_there = {metadata["name"] for metadata in nodes}
        return NodesToAvoid(
            hosts=hosts.intersection(avoided.hosts), names=names_there.intersection(avoided.names)
        )

    async def _ensure_group(
        self, order: PlaceOrder, gang: manifest.Gang, stored: Stored, pod: Json
    ) -> gangs.GroupState:
        """The group of these pods, if there is to be one. `pod`: one of them."""
        is_grouped = manifest.is_grouped_by_us(order, self.settings)
        if not is_grouped or not gang.size or self.withdrawals.are_bound(gang, stored):
            return gangs.GroupState()
        return await self.groups.ensure(
            order.job.id,
            gang,
            owner=owner(stored),
            priority_class=pod["spec"].get("priorityClassName", ""),
        )

    async def _keep_mounted(self, job: str, stored: Stored) -> None:
        """Have what kubelets mount as long as pods wait for it: an operator may delete it at any time.

        So may `prune`, which removes an agent that no pod used a moment before.
        """
        entries = (*wanted_entries(stored).values(), *standby_entries(stored).values())
        if any(entry.node and not self._has_answered(entry) for entry in entries):
            await self._ensure_mounted(job, stored)

    def _has_answered(self, entry: PodEntry) -> bool:
        agent = self.agents.by_uid.get(entry.uid)
        return entry.has_answered or (agent is not None and agent.state is not None)

    async def _ensure_mounted(self, job: str, stored: Stored) -> None:
        """Have what a kubelet mounts into the pods, also after it was deleted, and their NetworkPolicy."""
        agent = ensure_agent(self.api, self.namespace, self.agent)
        secret, policy = self._ensure_secret(job, stored), self._ensure_policy(job, stored)
        await both(both(secret, policy), agent)

    async def _ensure_policy(self, job: str, stored: Stored) -> None:
        """One that is there stays as it is: its selectors never change."""
        body = network.job_policy(
            job,
            books=self.books.identity,
            owner=owner(stored),
            workers_in=self.settings.workers_in,
        )
        await allowing(self.api.create(network.policies_path(self.namespace), body), 409)

    async def _ensure_secret(self, job: str, stored: Stored) -> None:
        metadata = {
            "name": names.secret(job),
            "labels": names.labels(self.books.identity, job),
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "controller": True, **owner(stored)}
            ],
        }
        # If it was deleted: new pods and those that there are still have to know each other.
        entries = self.pods.credentials.get(job) or credentials.make(job)
        body = {"metadata": metadata, "immutable": True, "stringData": entries}
        await allowing(self.api.create(f"{self._path}/secrets", body), 409)

    async def _create(
        self,
        order: PlaceOrder,
        stored: Stored,
        entries: Sequence[PodEntry],
        avoided: NodesToAvoid,
        gang: manifest.Gang | None = None,
    ) -> Answers:
        """Create the pods. `gang`: that of the pods that the order's generation creates."""

        async def create(entry: PodEntry) -> Answer:
            new_group = gang if is_created_in(entry, order.job.id, order.generation) else None

            def pod_that_avoids(nodes: NodesToAvoid) -> Json:
                body = manifest.pod(
                    order,
                    entry.slot,
                    owner=owner(stored),
                    settings=self.settings,
                    nodes_to_avoid=nodes,
                    gang=joined_group(entry) or new_group,
                )
                body["metadata"]["name"] = entry.name
                return body

            try:
                return await self._create_avoiding(pod_that_avoids, avoided)
            except BackendUnavailable as error:
                return error

        answers = await all_at_once(map(create, entries))
        return {entry.name: answer for entry, answer in zip(entries, answers, strict=True)}

    async def _store_uids(
        self, order: PlaceOrder, stored: Stored, answers: Answers
    ) -> tuple[Stored, WaitCause | None]:
        """Store the uids of new pods. Also returns why one can only be created later; None: none.

        Raises BackendUnavailable where one creation had no answer, once the uids of the others are stored: a
        busy API server is not to create all of them again for one that is late.
        """

        def note(session: JobSession) -> None:
            for entry in session.entries:
                pod = answers.get(entry.name)
                if not entry.uid and isinstance(pod, dict):
                    session.update(replace(entry, uid=pod["metadata"]["uid"]))

        _, stored = await self.books.transacted(order.job.id, note, start=stored)
        for answer in answers.values():
            if isinstance(answer, BackendUnavailable):
                raise answer
        refusals = (refusal_wait(one) for one in answers.values() if isinstance(one, Refused))
        return stored, next(refusals, None)

    async def _create_avoiding(
        self, pod_that_avoids: Callable[[NodesToAvoid], Json], avoided: NodesToAvoid
    ) -> Json | Refused:
        """The pod that keeps off these nodes, or the refusal. Raises InvalidSpec for one of the document.

        The rule that keeps a pod off nodes is ours. Where the API server refuses the pod for it, the rule
        names only nodes that are there; where it refuses that too, the pod waits.
        """
        try:
            return await self._create_one(pod_that_avoids(avoided))
        except InvalidSpec as error:
            if not avoided:
                raise
            await self._create_one(pod_that_avoids(NodesToAvoid()), {"dryRun": "All"})
            logger.warning("the rule that keeps pods off nodes is refused: %s", error)
            refusal = Refused(
                status=422, reason="", message=f"keeping off nodes: {error}", retry_after_s=0.0
            )
        body = pod_that_avoids(nodes_there := self._of_nodes_there(avoided))
        # The first fingerprint: of the nodes that the pod was to keep off. It is not made again for those.
        fingerprints = " ".join(filter(None, (avoided.fingerprint, nodes_there.fingerprint)))
        body["metadata"]["annotations"][names.KEEPS_OFF] = fingerprints
        try:
            return await self._create_one(body)
        except InvalidSpec:
            return refusal

    async def _create_one(self, body: Json, query: Mapping[str, str] = _NO_QUERY) -> Json | Refused:
        """The pod; or the refusal, where it may be taken later. Raises InvalidSpec where it never is."""
        path = f"{self._path}/pods"
        try:
            return await self.api.create(path, body, {"fieldValidation": "Strict", **query})
        except Unreachable as error:
            raise BackendUnavailable(str(error)) from None
        except Refused as error:
            if error.reason == "AlreadyExists":
                return await self._existing(f"{path}/{body['metadata']['name']}", body)
            if may_be_taken_later(error):
                return error
            if error.status in {400, 403, 422}:
                what = f"the API server refuses the pod: {error}"
                raise InvalidSpec([("spec.pod_template", what)]) from None
            raise BackendUnavailable(str(error)) from None

    async def _existing(self, path: str, body: Json) -> Json | Refused:
        """The pod of this name, created by a worker that was killed after that; or why it is in the way."""
        pod, metadata = await reached(self.api.get(path)), body["metadata"]
        if is_owned(pod, metadata["ownerReferences"][0]["uid"]):
            return pod
        job = metadata["annotations"][names.JOB]
        what = f"pod {metadata['name']} is not of job {job}, and in the way of its own"
        return Refused(status=409, reason="AlreadyExists", message=what, retry_after_s=0.0)


def _spares_taken(order: PlaceOrder, stored: Stored) -> dict[int, float]:
    """The slots that this order gave a spare, each with the seconds in which that had stood up."""
    new = (e for e in wanted_entries(stored).values() if e.generation == order.generation)
    return {entry.slot: took_s for entry in new if (took_s := stood_up_s(entry)) is not None}
