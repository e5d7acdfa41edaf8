"""The command to start ranks: how long its answer may take, and what a refusal means."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.agent.routes import READ_S, SOON_S
from everstep.backends.agents.client.link import Link, NoAnswer, Refused
from everstep.backends.agents.client.watch import Agents
from everstep.backends.agents.commands import ranks
from everstep.protocol import wire

REFUSAL = "log_pattern: multiple repeat at position 15"


class FailingLink(Link):
    """A link to an agent that starts nothing."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.within_s: list[float] = []

    async def request(
        self, _method: str, _path: str, _body: Any = None, *, within_s: float = 0.0
    ) -> dict[str, Any]:
        self.within_s.append(within_s)
        raise self._error

    def close(self) -> None:
        """There is no connection."""


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (Refused(400, REFUSAL), REFUSAL),
        (Refused(413, "a body has 0 to 4194304 bytes"), "a body has 0 to 4194304 bytes"),
        (Refused(wire.NO_STORAGE, "the storage of /out does not answer"), None),
        (Refused(wire.STALE, "generation 3 is in the fence of /out"), None),
        (Refused(wire.UNAUTHORIZED, "the token is missing or wrong"), None),
        (NoAnswer("it is stopped"), None),
    ],
)
async def test_a_command_that_an_agent_never_accepts_fails_the_start_with_its_reason(
    error: Exception, why: str | None
) -> None:
    """Whatever else keeps it from starting may be over in a moment: it is ordered again."""
    link = FailingLink(error)
    agents = Agents(
        link=lambda _: link,
        is_gone=lambda _: False,
        clock=lambda: 1.0,
        changed=lambda _: None,
        is_cut_off=lambda _: False,
    )
    command: Any = {"generation": 1, "order": wire.RunOrder()}
    run = await ranks.run_of(agents, "u", 1, lambda: command)
    assert run == why
    assert ranks.state_of({0: run}).failed == ({} if why is None else {0: why})
    assert link.within_s[0] > READ_S + SOON_S, "an agent with slow storage has time to answer"
