"""What is answered to a request to save now. Pure."""

from __future__ import annotations

from typing import Any

from everstep.core.slots import format_ranges
from everstep.core.state import JobState, Mode
from everstep.core.world import SaveState


def is_over(state: JobState, generation: int) -> bool:
    """Whether the ranks that were to save do not run on: a restart, a pause or the end began."""
    is_running = state.mode in (Mode.WATCHING, Mode.DECIDING)
    return state.generation != generation or not is_running or state.incident is not None


def answer(
    save: SaveState | None, signal: str, *, within_s: float, why: str = ""
) -> dict[str, Any]:
    """The fields of the answer. `save` is None if nothing is known of it: `why` says so."""
    save = save or SaveState()
    saved = save.saved
    return {
        "saved": saved is not None,
        "step": None if saved is None else saved.step,
        "path": None if saved is None else saved.path,
        "signalled": len(save.signalled),
        "text": why or _sentence(save, signal, within_s),
    }


def _sentence(save: SaveState, signal: str, within_s: float) -> str:
    if save.saved is not None:
        what = "a checkpoint" if save.saved.step is None else f"step {save.saved.step}"
        return f"{what} was saved ({save.saved.path.rpartition('/')[2]})"
    if save.signalled:
        return f"no new checkpoint was seen within {within_s:g} s; {_ranks(save.signalled)} got {signal}"
    if save.deaf:
        none = f"{_ranks(save.deaf)} {'has' if len(save.deaf) == 1 else 'have'} no handler for {signal}"
        return (
            f"nothing was saved: {none}, which would end a process; the script has to install one"
        )
    if save.silent:
        return f"nothing was saved: no agent answered within {within_s:g} s"
    return "nothing was saved: no rank runs"


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {format_ranges(ranks)}"
