r"""Patterns by which a step is found in a line: those with a name, and those for a run without one.

Each has a group `step`. A progress bar counts for itself and begins again; further groups say how its number
becomes the step of the training:

    bar_total       the end of a bar that may begin again: what it counted before is added
    bar_end         the end of the one bar of a whole training; bars with another end are those of validations
    bar_epoch_0     the number of the epoch, the first being 0: with `bar_total`, the epochs before are added
    bar_epoch_1     the same, the first being 1
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

_BAR = r"\d{1,3}%\|[^|]*\| *"
"""As tqdm writes it: how far it is, and the bar itself. Numbers follow."""
_TIME = r" \[\d+:\d\d"
_COUNT = rf"(?P<step>\d+)/(?P<bar_total>\d+){_TIME}"

BY_NAME = {
    "hf": rf"^(?:\x1b\[[0-9;]*[A-Za-z])* *{_BAR}(?P<step>\d+)/(?P<bar_end>\d+){_TIME}",
    "lightning": rf"\bEpoch (?P<bar_epoch_0>\d+): *{_BAR}{_COUNT}",
    "tqdm": rf"(?:^|[| ])(?P<step>\d+)(?:/(?P<bar_total>\d+)|it){_TIME}",
}
"""Patterns of programs that print steps: the Trainer of Hugging Face, PyTorch Lightning, any bar of tqdm."""
JSON = "json:"
"""Begins the name of a pattern that takes the step from a key: `json:global_step`."""
KEY = r"[A-Za-z0-9_.@/-]{1,100}"
NAMES = f"{', '.join(BY_NAME)} or {JSON}KEY"


def expanded(word: str) -> str | None:
    """The pattern that this word stands for. None: it is no such word."""
    if word in BY_NAME:
        return BY_NAME[word]
    if not re.fullmatch(re.escape(JSON) + KEY, word):
        return None
    return rf"""["']{re.escape(word[len(JSON) :])}["'] *: *(?P<step>\d+)"""


class Candidate(NamedTuple):
    """A pattern that is tried by itself."""

    pattern: str
    needs: bytes = b""  # text in small letters that the line has too
    after_trainer: bool = (
        False  # only once the Trainer of Hugging Face has printed a line of its own
    )


WORDS = (
    Candidate(r"(?i:\b(?:global_)?step)\b[\"']?[ \t]*(?:[:=#][ \t]*)?(?P<step>\d+)", needs=b"step"),
    # Tutorials print `Epoch [1/5], Step [100/600]`.
    Candidate(
        r"(?i:\bepoch)[ :=]*\[?(?P<bar_epoch_1>\d+)/\d+\]?,? {0,4}"
        r"(?i:step|batch|iter)[ :=]*\[(?P<step>\d+)/(?P<bar_total>\d+)\]",
        needs=b"epoch",
    ),
    # An iteration may be one of anything; beside a loss it is one of the training.
    Candidate(r"(?i:\biter(?:ation)?)\b[ \t]*(?:[:=#][ \t]*)?(?P<step>\d+)", needs=b"loss"),
)
"""Tried in this order where no pattern is given. The first that is found stays the only one."""
BARS = (
    # Bars are drawn of downloads and of data sets too, so only those that say what they count.
    Candidate(BY_NAME["lightning"], needs=b"%|"),
    Candidate(rf"(?i:\bepoch)[ :]*\[?(?P<bar_epoch_1>\d+)/\d+\]?:? *{_BAR}{_COUNT}", needs=b"%|"),
    Candidate(rf"(?i:\b(?:train|epoch|step|iter)[a-z]*)[ :]{{0,4}}{_BAR}{_COUNT}", needs=b"%|"),
    Candidate(rf"{_BAR}{_COUNT}[^\]]*\bloss", needs=b"%|"),
    Candidate(BY_NAME["hf"], needs=b"%|", after_trainer=True),
)
"""Tried after these, as long as no word was found."""
TRAINER = r"\{'(?:train_)?loss': .*'epoch': "
"""A line of the Trainer of Hugging Face, which names no step: its bar does."""


@functools.cache
def compiled(pattern: str) -> re.Pattern[bytes]:
    """The pattern for a line of output. Most agents need few of them, so none is compiled ahead."""
    return re.compile(pattern.encode(), re.MULTILINE)
