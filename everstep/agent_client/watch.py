"""Agents as a worker watches them: one long poll each, what it said last, since when it is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from everstep.agent import wire
from everstep.agent_client.link import ASK_S, Link, NoAnswer, Refused, ask_once
from everstep.core.errors import BackendUnavailable, NobodyToAsk

POLL_S = 10.0
QUIET_S, QUIET_S_MAX = 0.5, 2.0
ANSWERS_PER_S = 100
RETRY_S = 0.05

NOW = f"{wire.STATE}?since=-1&wait_s=0"
"""What an agent knows at this moment."""


def _gist(state: wire.AgentState | None) -> object:
    """What of a state is news. That steps and checkpoints follow each other is none: that is how it goes."""
    if state is None:
        return None
    run = state["run"]
    about_run = None
    if run is not None:
        exits = tuple((r["rank"], r["exited_at"], *r.get("can", ())) for r in run["ranks"])
        marks = (run["started_at"], run["failed"], run["stopped"], run["first_step_at"])
        about_run = (run["generation"], exits, marks)
    return state["boot"], state["stopped_below"], state["evidence"], state["facts_seen"], about_run


@dataclass(slots=True, kw_only=True)
class WatchedAgent:
    """One agent, and what it said last."""

    link: Link
    state: wire.AgentState | None = None
    heard_at: float | None = None  # our clock
    silent_since: float | None = None
    has_answered: bool = False  # to anybody, ever
    is_gone: bool = False
    boot: str | None = None
    ahead_s: float | None = None  # its clock, of ours
    written: int = 0  # so many facts of this boot are in the books
    task: asyncio.Task[None] | None = None


@dataclass(slots=True, kw_only=True)
class Agents:
    """All agents that this worker cares for, each behind one long poll."""

    link: Callable[[str], Link]  # to the agent of this pod's uid
    is_gone: Callable[[str], bool]  # and whether that is proven of it
    clock: Callable[[], float]
    changed: Callable[[str], None]  # something about the pod of this uid is new
    is_cut_off: Callable[[str], bool]
    known: dict[str, WatchedAgent] = field(default_factory=dict)

    def watch(self, uid: str, *, has_answered: bool = False) -> WatchedAgent:
        """`has_answered`: another worker heard it, so that its absence is its end and no late start."""
        mine = self.known.get(uid)
        if mine is None:
            mine = self.known[uid] = WatchedAgent(link=self.link(uid))
        mine.has_answered = mine.has_answered or has_answered
        if mine.task is None or mine.task.done():
            mine.task = asyncio.create_task(self._follow(uid, mine), name=f"agent {uid}")
        return mine

    def forget(self, uid: str) -> None:
        mine = self.known.pop(uid, None)
        if mine is not None:
            mine.link.close()
            if mine.task is not None:
                mine.task.cancel()

    async def _follow(self, uid: str, mine: WatchedAgent) -> None:
        """As long as it lives. One that ends without being forgotten is gone."""
        while True:
            if self.is_cut_off(uid):
                await asyncio.sleep(RETRY_S)
                continue
            since = mine.state["version"] if mine.state is not None else -1
            asked_at = self.clock()
            try:
                path = f"{wire.STATE}?since={since}&wait_s={POLL_S:g}&quiet_s={self._quiet_s():g}"
                path += f"&boot={mine.boot}&after={mine.written}" if mine.written else ""
                self.hear(uid, await mine.link.ask("GET", path, within_s=POLL_S + 2 * ASK_S))
            except (NoAnswer, Refused):
                if mine.has_answered and self.is_gone(uid):
                    mine.is_gone = True
                    self.changed(uid)
                    return
                self.not_heard(uid, mine, asked_at=asked_at)
                await asyncio.sleep(RETRY_S)

    def _quiet_s(self) -> float:
        """The more agents, the later each tells that all goes on: so many answers come per second."""
        return min(QUIET_S_MAX, max(QUIET_S, len(self.known) / ANSWERS_PER_S))

    def hear(self, uid: str, said: Mapping[str, Any]) -> wire.AgentState | None:
        """A state, wherever it comes from: the newest counts."""
        mine = self.known.get(uid)
        state: wire.AgentState = said  # type: ignore[assignment]  # what an agent says is this
        if mine is None or self.is_cut_off(uid):
            return state
        mine.has_answered = True
        state = self._in_our_time(mine, state)
        was_silent, mine.silent_since, mine.heard_at = mine.silent_since, None, self.clock()
        old = mine.state
        if old is None or old["boot"] != state["boot"] or old["version"] < state["version"]:
            mine.state = state
        if was_silent is not None or _gist(old) != _gist(mine.state):
            self.changed(uid)
        return mine.state

    def _in_our_time(self, mine: WatchedAgent, state: wire.AgentState) -> wire.AgentState:
        if mine.boot != state["boot"]:
            mine.boot, mine.ahead_s, mine.written = state["boot"], None, 0
        mine.ahead_s = ahead_s(state, now=self.clock(), known_s=mine.ahead_s)
        return in_ours(state, mine.ahead_s)

    def written(self, uid: str, state: wire.AgentState) -> None:
        """The facts of this state are in the books: the next question tells the agent, which lets them go."""
        mine = self.known.get(uid)
        if mine is not None and mine.boot == state["boot"]:
            mine.written = max([mine.written, *(fact["n"] for fact in state["facts"])])

    def not_heard(self, uid: str, mine: WatchedAgent, *, asked_at: float) -> None:
        """It left a question unanswered, and has said nothing else since that was put.

        Silence begins with the question: while nobody asked (we had no processor, say), it owed no answer.
        One that never answered any worker is not there yet; one that answered another worker was.
        """
        is_heard = mine.heard_at is not None and mine.heard_at > asked_at
        if mine.silent_since is not None or not mine.has_answered or is_heard:
            return
        mine.silent_since = asked_at
        self.changed(uid)

    async def ask(
        self, uid: str, method: str, path: str, body: Any = None, *, within_s: float = ASK_S
    ) -> dict[str, Any]:
        """A command to the agent; `NoAnswer` if it cannot be reached or must not be."""
        if self.is_cut_off(uid):
            raise NoAnswer(f"{uid} is cut off")
        mine = self.known.get(uid)
        if mine is None:
            return await ask_once(self.link(uid), method, path, body, within_s=within_s)
        return await mine.link.ask(method, path, body, within_s=within_s)

    async def ask_any(
        self, uids: Iterable[str], path: str, body: Any, *, within_s: float
    ) -> dict[str, Any]:
        """What the first agent says that answers, after this time in its storage: all see the same one.

        Raises NobodyToAsk if none does, BackendUnavailable if that one cannot get at the storage.
        However many agents are stopped, that takes no longer than with two of them.
        """
        why = "its pods are not there yet, or not there any more"
        async for uid in self._in_turn(list(uids)):
            try:
                return await self._ask_patiently(uid, path, body, within_s=within_s + ASK_S)
            except NoAnswer as silent:
                why = str(silent)
            except Refused as refused:
                if refused.status == wire.NO_STORAGE:
                    raise BackendUnavailable(refused.why) from None
                why = str(refused)
        raise NobodyToAsk(f"no agent of the job answers: {why}")

    async def _in_turn(self, uids: list[str]) -> AsyncIterator[str]:
        """The first; then those of the others that answer at all, which they are asked side by side."""
        for uid in uids[:1]:
            yield uid
        answers = await asyncio.gather(*(self._answers(uid) for uid in uids[1:]))
        for uid, does in zip(uids[1:], answers, strict=True):
            if does:
                yield uid

    async def _answers(self, uid: str) -> bool:
        try:
            await self.ask(uid, "GET", NOW)
        except NoAnswer:
            return False
        except Refused:
            pass  # that is an answer too
        return True

    async def _ask_patiently(
        self, uid: str, path: str, body: Any, *, within_s: float
    ) -> dict[str, Any]:
        """Slow storage is waited for, an agent that is silent, and stays so, is not."""
        answer = asyncio.ensure_future(self.ask(uid, "POST", path, body, within_s=within_s))
        try:
            while not (await asyncio.wait({answer}, timeout=ASK_S))[0]:
                known = self.known.get(uid)
                if known is not None and (known.is_gone or known.silent_since is not None):
                    raise NoAnswer(f"{uid} is silent")
            return answer.result()
        finally:
            answer.cancel()

    async def look(self, uid: str) -> wire.AgentState | None:
        """Ask the agent now; None if it does not answer."""
        mine, asked_at = self.watch(uid), self.clock()
        try:
            return self.hear(uid, await self.ask(uid, "GET", f"{NOW}&fresh=1"))
        except (NoAnswer, Refused):
            self.not_heard(uid, mine, asked_at=asked_at)
            return None

    async def command(self, uid: str, path: str, body: Any) -> wire.AgentState | None:
        """What it knows once the command is carried out or begun; None if it is not."""
        try:
            return self.hear(uid, await self.ask(uid, "POST", path, body))
        except (NoAnswer, Refused):
            return None

    async def close(self) -> None:
        tasks = [mine.task for mine in self.known.values() if mine.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for mine in self.known.values():
            mine.link.close()


# -- What an agent tells of time, in the cluster's time -------------------------------------------
# Neither clock is ever set, but each began by the machine's clock of its day: if somebody set that in
# between, they differ by a constant.

OUT_S = 1.0
"""Less than this is the way that an answer took, and no other clock."""


def ahead_s(state: wire.AgentState, *, now: float, known_s: float | None) -> float:
    """How far the agent's clock is before ours, after one more answer. A late one only seems behind."""
    seen = state["now"] - now
    return seen if known_s is None else max(known_s, seen)


def in_ours(state: wire.AgentState, ahead_s: float) -> wire.AgentState:
    """The same state with all its times in our time."""
    if abs(ahead_s) < OUT_S:
        return state

    def ours(at: float | None) -> float | None:
        return None if at is None else at - ahead_s

    run = state["run"]
    if run is not None:
        run = run.copy()
        run["started_at"] = ours(run["started_at"])
        run["step_at"] = ours(run["step_at"])
        run["first_step_at"] = ours(run["first_step_at"])
        run["moved_at"] = ours(run["moved_at"])
        run["output_at"] = ours(run.get("output_at"))
        run["io_at"] = ours(run.get("io_at"))
        run["busy_at"] = ours(run.get("busy_at"))
        run["saved_at"] = ours(run.get("saved_at"))
        run["unmatched_since"] = ours(run.get("unmatched_since"))
        if strange := run.get("unrecognised"):
            strange["since"] = ours(strange["since"]) or 0.0
        run["ranks"] = [_rank_in_ours(rank, ahead_s) for rank in run["ranks"]]
    translated = state.copy()
    translated["now"] = state["now"] - ahead_s
    translated["run"] = run
    translated["facts"] = [_fact_in_ours(fact, ahead_s) for fact in state["facts"]]
    return translated


def _rank_in_ours(rank: wire.RankSeen, ahead_s: float) -> wire.RankSeen:
    translated = rank.copy()
    translated["started_at"] = rank["started_at"] - ahead_s
    if rank["exited_at"] is not None:
        translated["exited_at"] = rank["exited_at"] - ahead_s
    return translated


def _fact_in_ours(fact: wire.FactSeen, ahead_s: float) -> wire.FactSeen:
    translated = fact.copy()
    translated["at"] = fact["at"] - ahead_s
    return translated
