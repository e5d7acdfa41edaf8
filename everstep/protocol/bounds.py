"""What ranks, files and tools bring into an agent's state, bounded so that every reader can take it."""

from __future__ import annotations

import re

NUMBER_MOST = STEP_MOST = 2**53
"""Up to here every reader of JSON has whole numbers exactly. A step is one of them, from 0 on."""
DOCUMENT_NUMBER = 2**63
"""Numbers of a document are below, and so is what a command to an agent has of them."""

_NO_TEXT = (
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, the cursor: the whole sequence goes
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"
)


def plain(text: str) -> str:
    """The text as valid UTF-8; of control characters it keeps tabs and line ends.

    Bytes that are no UTF-8, as in a file's name, arrive as halves of characters, which JSON cannot carry on.
    """
    return re.sub(_NO_TEXT, _instead, text)


def _instead(match: re.Match[str]) -> str:
    part = match[0]
    if "\ud800" <= part <= "\udfff":
        return "\N{REPLACEMENT CHARACTER}"
    return " " if len(part) == 1 else ""


def is_utf8(text: str) -> bool:
    """Whether it can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def step(number: float) -> int | None:
    """The number as a step; None for what no training counts to."""
    return int(number) if 0 <= number <= STEP_MOST else None
