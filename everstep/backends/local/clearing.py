"""Ends all processes of a state directory: for a demo, for tests, to start over."""

from __future__ import annotations

import time
from pathlib import Path

from everstep.backends.local.reconciling import liveness
from everstep.backends.local.reconciling.agents import clean_up, kill_agent, reap_agents
from everstep.backends.local.reconciling.liveness import Life
from everstep.backends.local.settings import LocalSettings

POLL_S = 0.01


def end_all(home: Path) -> None:
    """Every agent of this directory and all that they started are gone when this returns.

    No worker may live: it would start them again.
    """
    settings = LocalSettings(home=home)
    if not settings.agents.is_dir():
        return
    for path in settings.agents.iterdir():
        folder = settings.folder(path.name)
        liveness.shut(folder.path)
        while {folder.life(), liveness.sweep(path)} != {Life.GONE}:
            kill_agent(folder)
            time.sleep(POLL_S)
        clean_up(folder)
    reap_agents()
