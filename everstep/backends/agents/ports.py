"""The two ports of a cluster of agents: its books and its pods.

The books say what is wanted of each job, durably and for every worker. The pods are what there is.

Any worker may be killed between two lines, and an order may be carried out twice, by two workers at once, or
long after a newer one. Two obvious places for what a worker has done so far both fail. Its memory ends with
it. A statement to a database for each effect (fence written, pod made) comes too late from a slow worker: it
then stores its result over that of a newer generation.

So all that is stored of a job (its record, its pods, its facts) changes in transactions of this job alone. An
order reads the record there, raises if another generation owns the job, and assigns a new record. Either no
other worker can change the job meanwhile, or `work` runs again on what that worker stored. So `work` sends no
request and has no effect outside the books. SQLite and an API server can both keep such books. Claims of
folders concern several jobs and are made apart.

Requests to agents come between transactions. What a request may leave behind is stored before it: the folders
before the fence is written, the port before ranks start. Its result is stored after it, in a transaction that
checks the generation again. If a worker is killed in between, another one reads the record and repeats the
request; every request may arrive twice. That processes ended is stored only with proof, from their agent or
from `Pods`; until then it is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from everstep.backends.agents.client.link import Link
from everstep.backends.agents.client.watch import Agents
from everstep.backends.agents.commands import ranks
from everstep.backends.agents.job_record import JobRecord
from everstep.backends.agents.pod import Pod
from everstep.backends.rules import ownership
from everstep.backends.rules.ownership import FolderClaim
from everstep.core.facts import Fact
from everstep.core.world import JobRef
from everstep.protocol import wire

T = TypeVar("T")


class JobBooks(Protocol):
    """One job inside one transaction. What is changed here is stored as a whole, or not at all."""

    record: JobRecord
    """As it is stored; assign another one to change it. Of a job not known yet: an empty one."""

    def refuse_others(self, ref: JobRef) -> None:
        """Raise WrongCluster if this run of the job began in other books than these."""

    def refuse_unknown(self, generation: int) -> None:
        """Raise WrongCluster for a generation that these books never gave."""
        ownership.refuse_unknown(self.record, generation)

    def pods(self) -> Sequence[Pod]:
        """The job's pods by slot, without those that leave: at most one for each slot."""

    def leaving(self) -> Sequence[Pod]:
        """The job's pods that were ordered to end and of which something may still be there."""

    def set_answered(self, uid: str) -> None:
        """The agent of this pod answered a worker. Repeatable."""

    def set_lost(self, uid: str) -> None:
        """The agent of this pod ended, proven. Repeatable."""

    def standbys(self) -> Sequence[Pod]:
        """The pods that stand by; in place of its slot a spare has a number behind all slots."""

    def end_standbys(self, *, spares: Collection[int] = ()) -> None:
        """Order every pod that stands by to end, except spares of these numbers. Repeatable."""

    def end_pods(self, grace_s: float) -> None:
        """Order every pod of the job to end, those included that may not have been made. Repeatable."""

    def forget(self) -> None:
        """Forget the reported facts and give up all claims of the job. Repeatable."""

    def drop(self, uid: str) -> None:
        """Forget a leaving pod that had to end by itself and cannot be reached. Repeatable."""

    def add_fact(self, fact: Fact) -> None:
        """Report the fact to the job. One whose identity was reported before is ignored."""

    def facts_after(self, cursor: str) -> tuple[tuple[Fact, ...], str]:
        """The facts reported after the cursor in the order in which they came, and the cursor behind them."""

    def present_faults(self) -> tuple[Fact, ...]:
        """Faults that the cluster sees now on nodes and devices of the job, as `add_fact` got them."""

    def rehearsed_checks(self, pod: Pod) -> Mapping[str, bool]:
        """Checks that an operator lets fail on this pod's node: name -> whether the hardware is to blame."""


def record_of(books: JobBooks, ref: JobRef, generation: int = 0) -> JobRecord:
    """The job's record. Raises WrongCluster if these are not its books, or never gave the generation."""
    books.refuse_others(ref)
    books.refuse_unknown(generation)
    return books.record


def owned_record(books: JobBooks, ref: JobRef, generation: int) -> JobRecord:
    """The job's record. Raises StaleGeneration if another generation owns the job, or as `record_of`."""
    record = record_of(books, ref, generation)
    ownership.refuse_other(record, generation)
    return record


class Books(Protocol):
    """The store of every job's record, shared by all workers."""

    @property
    def identity(self) -> str:
        """A unique name of these books. It never changes."""

    async def change(self, job_id: str, work: Callable[[JobBooks], T]) -> T:
        """Run `work` in a transaction of this job and return its result.

        Atomic: no other transaction changes the job in between, and an exception changes nothing. `work`
        reads and changes only its argument, as it may run several times before one run is stored. It never
        involves another job. Raises BackendUnavailable if the books cannot be reached; then the change
        may have been stored or not, and the caller repeats it.
        """

    async def claim(self, job_id: str, claims: Sequence[FolderClaim]) -> None:
        """Make the folders this job's alone, all of them or none.

        A folder without a place is left to its fence. Raises FolderTaken if one is another job's. Repeatable.
        """


class Pods(Protocol):
    """The pods of the cluster: all that their agents cannot report."""

    def link(self, uid: str) -> Link:
        """A connection to the agent of this pod; made when first used, kept open."""

    def is_gone(self, uid: str) -> bool:
        """Whether it is proven that the agent of this pod ended. False where that is not known."""

    def is_cut_off(self, uid: str) -> bool:
        """Whether the cluster reports the pod's node as out of reach: its agent gets no requests then."""

    async def have_ended(self, pod: Pod) -> bool:
        """Whether it is proven that no process of the pod runs, its agent aside. Changes nothing."""

    async def end(self, pod: Pod) -> bool:
        """End the processes of a pod whose agent does not; return whether it is proven that none is left.

        False means not yet, or unknown; the caller calls again.
        """

    def host(self, pod: Pod | None) -> str:
        """The name or address at which the other pods of its job reach this one; None: one not made yet."""

    def address(self, pod: Pod) -> str | None:
        """Where other agents of the job reach its agent, as in `wire.Neighbour`; None: not known yet."""

    def check_hosts(self, pods: Sequence[Pod]) -> tuple[str, ...]:
        """The names that each of these pods must be able to resolve before ranks start there."""

    def place(self, pod: Pod, accelerator: str) -> ranks.RunPlace:
        """What the ranks' environment has of this pod; `accelerator` is that of the document."""

    def free_port(self) -> int:
        """A port on which the ranks of a new generation can meet, in the pod of its first rank."""

    def accelerator(self, requested: str) -> str:
        """The kind of devices that the checks look for if the document has `requested`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The settings of a cluster of agents."""

    ranks: ranks.RankSettings
    fence_margin_s: float
    thresholds: wire.Thresholds  # of the checks before a start


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCluster:
    """Everything that the verbs of a cluster of agents are carried out with."""

    books: Books
    pods: Pods
    agents: Agents
    settings: AgentSettings
    now: Callable[[], float]  # the cluster's time
