"""Agents as a worker watches them: a long poll for each, its newest state, since when it is silent.

A worker has to notice the end of a rank at once, in a thousand pods, and must not take a living agent for a
dead one: a restart because of that would end healthy training.

The obvious way is a request every few seconds, and an agent that misses some of them is dead. If requests are
rare, each fault is noticed late; if they are frequent, most of them bring nothing. And a time-out proves no
end. The agent may be starting or stopped, the network may be cut, or this worker may have had no processor.
A fact may also be lost with the answer that carried it.

So each agent gets one long poll at a time: it answers once there is news, or after `POLL_S`. Mere progress is
no news and comes less often (`_quiet_s`). A poll that fails stores one thing: since when the agent is silent.
That is the time of the request, and an agent that never answered is not silent. The core decides what silence
means. Only `is_gone`, the cluster's proof, shows that an agent ended. An agent repeats its facts until a poll
reports that they are in the books (`note_stored`). So a lost answer, or a worker that is killed, costs a
repeat and loses nothing.

`Agents.watch` starts a task that polls one agent until it is forgotten or proven gone. Every answer, also
that of a command, goes through `add_answer`, where no older state replaces a newer one. Every poll that fails
goes through `note_silence`. Both call `changed` if that is news of the pod. Clocks of machines differ, so
times in a stored state are in the cluster's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from everstep.backends.agents.client.link import REQUEST_S, Link, NoAnswer, Refused, request_once
from everstep.core.errors import BackendUnavailable, NoAgentAvailable
from everstep.protocol import wire
from everstep.protocol.shapes import in_time_of

POLL_S = 10.0
QUIET_S, QUIET_S_MAX = 0.5, 5.0
ANSWERS_PER_S = 400
"""A poll is answered after POLL_S at the latest; if only the training went on, after QUIET_S, or later where
there are more agents than ANSWERS_PER_S allows, but within QUIET_S_MAX. So many answers of agents with eight
ranks each take a twentieth of a processor."""
RETRY_LEAST_S, RETRY_S = 0.01, 0.05
RETRY_SHARE = 0.05
"""An agent that has been silent for t seconds is tried again after this share of t, but within RETRY_LEAST_S
and RETRY_S. One that starts takes tenths of a second, and its job waits for its first answer."""
LAST_WORDS_S = 60.0
"""The newest state of an agent is kept for so long after its pod is gone: its facts may not be stored yet."""
TRIES_PER_S = 1_000
"""Most requests to agents that do not answer: there are thousands of these while a large job starts."""


STATE_NOW = f"{wire.STATE}?since=-1&wait_s=0"
"""Requests the state of an agent without waiting for news."""


def _news_key(state: wire.AgentState | None) -> object:
    """The part of a state whose change is news. Further steps and checkpoints are none."""
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
    """One agent, and its newest state."""

    link: Link
    state: wire.AgentState | None = None
    answered_at: float | None = None  # the newest answer, by the cluster's clock
    silent_since: float | None = None
    has_answered: bool = False  # any worker, ever
    is_gone: bool = False  # it is proven that it ended
    boot: str | None = None
    clock_lead_s: float | None = None  # how far its clock is ahead of the cluster's
    stored_up_to: int = 0  # the facts of this boot up to this number are in the books
    task: asyncio.Task[None] | None = None


@dataclass(slots=True, kw_only=True)
class Agents:
    """All agents that this worker watches, each by one long poll."""

    link: Callable[[str], Link]  # to the agent of this pod's uid
    is_gone: Callable[[str], bool]  # whether it is proven that the agent of this uid ended
    clock: Callable[[], float]
    changed: Callable[[str], None]  # something about the pod of this uid is new
    is_cut_off: Callable[[str], bool]
    last_words_s: float = LAST_WORDS_S
    by_uid: dict[str, WatchedAgent] = field(default_factory=dict)
    unanswered: set[str] = field(default_factory=set)  # agents whose newest poll got no answer
    cut_off: set[str] = field(default_factory=set)  # agents that get no requests

    def watch(self, uid: str, *, has_answered: bool = False) -> WatchedAgent:
        """Start polling this agent, if it is not polled yet.

        `has_answered`: it answered another worker, so that its absence is its end and no late start.
        """
        watched = self.by_uid.get(uid)
        if watched is None:
            watched = self.by_uid[uid] = WatchedAgent(link=self.link(uid))
        watched.has_answered = watched.has_answered or has_answered
        if watched.task is None or watched.task.done():
            watched.task = asyncio.create_task(self._follow(uid, watched), name=f"agent {uid}")
        return watched

    def forget(self, uid: str) -> None:
        watched = self.by_uid.pop(uid, None)
        self.unanswered.discard(uid)
        self.cut_off.discard(uid)
        if watched is not None:
            watched.link.close()
            if watched.task is not None:
                watched.task.cancel()

    def forget_later(self, uid: str) -> None:
        """Forget an agent whose pod is gone, once a worker had time to store what it reported."""
        if uid in self.by_uid:
            asyncio.get_running_loop().call_later(self.last_words_s, self.forget, uid)

    async def _follow(self, uid: str, watched: WatchedAgent) -> None:
        """Poll the agent as long as it lives. One that ends without being forgotten is gone."""
        first_try: float | None = None  # of the failed polls since its newest answer
        while True:
            if self.is_cut_off(uid):
                self.cut_off.add(uid)
                await asyncio.sleep(max(RETRY_S, len(self.cut_off) / TRIES_PER_S))
                continue
            self.cut_off.discard(uid)
            since = watched.state["version"] if watched.state is not None else -1
            requested_at = self.clock()
            try:
                path = f"{wire.STATE}?since={since}&wait_s={POLL_S:g}&quiet_s={self._quiet_s():g}"
                if watched.stored_up_to:
                    path += f"&boot={watched.boot}&after={watched.stored_up_to}"
                answer = await watched.link.request("GET", path, within_s=POLL_S + 2 * REQUEST_S)
                self.add_answer(uid, answer)
                self.unanswered.discard(uid)
                first_try = None
            except (NoAnswer, Refused) as error:
                self.unanswered.add(uid)
                first_try = requested_at if first_try is None else first_try
                if self.is_gone(uid):
                    self.unanswered.discard(uid)
                    if watched.has_answered:  # else it never ran, and its end is no news
                        watched.is_gone = True
                        self.changed(uid)
                    return
                self.note_silence(uid, watched, requested_at=self.clock() - error.waited_s)
                silent = len(self.unanswered)
                await asyncio.sleep(retry_s(self.clock() - first_try, silent=silent))

    def _quiet_s(self) -> float:
        """How long an agent holds back mere progress: ANSWERS_PER_S, shared by all agents."""
        return min(QUIET_S_MAX, max(QUIET_S, len(self.by_uid) / ANSWERS_PER_S))

    def add_answer(self, uid: str, answer: Mapping[str, Any]) -> wire.AgentState | None:
        """Store the state that an agent answered, if it is the newest. Returns the newest one.

        Raises NoAnswer if a field that is read here is missing or of another type.
        """
        watched = self.by_uid.get(uid)
        state: wire.AgentState = answer  # type: ignore[assignment]  # an agent answers with this
        if watched is None or self.is_cut_off(uid):
            return state
        old, was_silent = watched.state, watched.silent_since is not None
        try:
            state = self._in_cluster_time(watched, state)
            if old is not None:
                alive_at = watched.answered_at if was_silent else None
                state = with_spans_of_ends(state, old, alive_at=alive_at)
            newest = -1 if old is None or old["boot"] != state["boot"] else old["version"]
            is_newer = state["version"] > newest
            is_news = is_newer and _news_key(old) != _news_key(state)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise NoAnswer(f"{uid} answered no state of an agent: {error!r}") from None
        watched.has_answered = True
        watched.silent_since, watched.answered_at = None, self.clock()
        if is_newer:
            watched.state = state
        if was_silent or is_news:
            self.changed(uid)
        return watched.state

    def _in_cluster_time(self, watched: WatchedAgent, state: wire.AgentState) -> wire.AgentState:
        if watched.boot != state["boot"]:
            watched.boot, watched.clock_lead_s, watched.stored_up_to = state["boot"], None, 0
        watched.clock_lead_s = clock_lead_s(state, now=self.clock(), before_s=watched.clock_lead_s)
        return in_cluster_time(state, watched.clock_lead_s)

    def note_stored(self, uid: str, state: wire.AgentState) -> None:
        """The facts of this state are in the books: the next request says so, and the agent drops them."""
        watched = self.by_uid.get(uid)
        if watched is not None and watched.boot == state["boot"]:
            numbers = (fact["n"] for fact in state["facts"])
            watched.stored_up_to = max([watched.stored_up_to, *numbers])

    def note_silence(self, uid: str, watched: WatchedAgent, *, requested_at: float) -> None:
        """Note that a request sent at `requested_at` got no answer.

        Silence begins with that request: while the worker sent none, for want of a processor, no answer was
        due. It is no silence if another request was answered since, or if the agent never answered any
        worker: it may not have started yet.
        """
        answered_since = watched.answered_at is not None and watched.answered_at > requested_at
        if watched.silent_since is not None or not watched.has_answered or answered_since:
            return
        watched.silent_since = requested_at
        self.changed(uid)

    async def request(
        self, uid: str, method: str, path: str, body: Any = None, *, within_s: float = REQUEST_S
    ) -> dict[str, Any]:
        """Send one request to the agent. Raises NoAnswer, also if its node is cut off, or Refused."""
        if self.is_cut_off(uid):
            raise NoAnswer(f"{uid} is cut off")
        watched = self.by_uid.get(uid)
        if watched is None:
            return await request_once(self.link(uid), method, path, body, within_s=within_s)
        return await watched.link.request(method, path, body, within_s=within_s)

    async def request_any(
        self, uids: Iterable[str], path: str, body: Any, *, within_s: float
    ) -> dict[str, Any]:
        """The answer of one agent about the storage, which all of them share: the first that answers.

        `within_s`: what that agent may spend in its storage. Raises NoAgentAvailable if none answers,
        BackendUnavailable if one cannot reach the storage. However many agents are stopped, it takes no
        longer than with two of them.
        """
        why = "its pods are not there yet, or not there any more"
        async for uid in self._in_turn(list(uids)):
            try:
                return await self.request_patiently(uid, path, body, within_s=within_s + REQUEST_S)
            except NoAnswer as silent:
                why = str(silent)
            except Refused as refused:
                if refused.status == wire.NO_STORAGE:
                    raise BackendUnavailable(refused.why) from None
                why = str(refused)
        raise NoAgentAvailable(f"no agent of the job answers: {why}")

    async def _in_turn(self, uids: list[str]) -> AsyncIterator[str]:
        """The first; then those of the rest that answer a short request, sent to all of them at once."""
        for uid in uids[:1]:
            yield uid
        answers = await asyncio.gather(*(self._answers(uid) for uid in uids[1:]))
        for uid, does in zip(uids[1:], answers, strict=True):
            if does:
                yield uid

    async def _answers(self, uid: str) -> bool:
        try:
            await self.request(uid, "GET", STATE_NOW)
        except NoAnswer:
            return False
        except Refused:
            pass  # that is an answer too
        return True

    async def request_patiently(
        self, uid: str, path: str, body: Any, *, within_s: float
    ) -> dict[str, Any]:
        """Wait for slow storage, but not for an agent that stays silent. Raises NoAnswer or Refused."""
        answer = asyncio.ensure_future(self.request(uid, "POST", path, body, within_s=within_s))
        try:
            while not (await asyncio.wait({answer}, timeout=REQUEST_S))[0]:
                watched = self.by_uid.get(uid)
                if watched is not None and (watched.is_gone or watched.silent_since is not None):
                    raise NoAnswer(f"{uid} is silent")
            return answer.result()
        finally:
            answer.cancel()

    async def poll(self, uid: str) -> wire.AgentState | None:
        """Request the agent's state now; None if there is no answer."""
        watched = self.watch(uid)
        try:
            return self.add_answer(uid, await self.request(uid, "GET", f"{STATE_NOW}&fresh=1"))
        except (NoAnswer, Refused) as error:
            self.note_silence(uid, watched, requested_at=self.clock() - error.waited_s)
            return None

    async def command(self, uid: str, path: str, body: Any) -> wire.AgentState | None:
        """The state once the command is carried out or begun; None if it is not."""
        try:
            return self.add_answer(uid, await self.request(uid, "POST", path, body))
        except (NoAnswer, Refused):
            return None

    async def close(self) -> None:
        tasks = [watched.task for watched in self.by_uid.values() if watched.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for watched in self.by_uid.values():
            watched.link.close()


def retry_s(tried_s: float, *, silent: int) -> float:
    """The pause before the next poll of an agent silent for `tried_s`, while `silent` agents are."""
    return max(min(max(tried_s * RETRY_SHARE, RETRY_LEAST_S), RETRY_S), silent / TRIES_PER_S)


# -- Times of an agent in the cluster's time --------------------------------------------------------
# Both clocks are monotonic, and each began at the time of its machine. If a machine's clock was set in
# between, they differ by a constant.

LEAD_LEAST_S = 1.0
"""A smaller difference is the time that an answer took, and no other clock."""


def clock_lead_s(state: wire.AgentState, *, now: float, before_s: float | None) -> float:
    """How far the agent's clock is ahead, after one more answer.

    An answer that took long makes the lead seem smaller, so the largest of all answers counts.
    """
    newest_s = state["now"] - now
    return newest_s if before_s is None else max(before_s, newest_s)


def in_cluster_time(state: wire.AgentState, lead_s: float) -> wire.AgentState:
    """The state with all its times in the cluster's time."""
    if abs(lead_s) < LEAD_LEAST_S:
        return state
    translated: wire.AgentState = in_time_of("AgentState", state, lead_s)
    return translated


def with_spans_of_ends(
    state: wire.AgentState, old: wire.AgentState, *, alive_at: float | None
) -> wire.AgentState:
    """Add `ended_between` to the ranks of an agent of an earlier version, whose states have none.

    `alive_at`: when the old state arrived, if the agent was silent since: it may have been suspended.
    """
    if state["run"] is None or old["run"] is None:
        return state
    old_ranks = {(rank["rank"], rank["pid"]): rank for rank in old["run"]["ranks"]}
    ranks = [
        _with_span(rank, old_ranks.get((rank["rank"], rank["pid"])), alive_at)
        for rank in state["run"]["ranks"]
    ]
    return {**state, "run": {**state["run"], "ranks": ranks}}


def _with_span(
    rank: wire.RankSeen, old: wire.RankSeen | None, alive_at: float | None
) -> wire.RankSeen:
    exited_at, fields = rank["exited_at"], set(rank)
    if "ended_between" in fields or old is None or exited_at is None:
        return rank
    if old["exited_at"] is not None:
        return {**rank, "ended_between": old.get("ended_between")}
    if alive_at is None or alive_at >= exited_at:
        return rank
    return {**rank, "ended_between": (alive_at, exited_at)}
