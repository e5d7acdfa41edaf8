"""What the name of a file or folder says of the checkpoint in it: by what it is newer than another."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from everstep.protocol import bounds

UNFINISHED = (".tmp", ".part", ".partial", ".incomplete", ".lock")

_FILE = r"(?:\.(?:pt|pth|ckpt|bin|safetensors|tar|npz|pkl|h5|mdl|params|pdparams|msgpack))+$"

# The first that matches counts: `epoch=1-step=200.ckpt` is step 200. A more specific name always comes before
# a less specific one, so that the numbers of a folder are of one kind.
_NAMES = (
    ("step", r"step[-_=.]?(\d+)"),
    ("step", r"iter(?:ation)?[-_=.]?(\d+)"),
    ("epoch and step", rf"-(\d+)_(\d+){_FILE}"),  # MindSpore: the step counts within the epoch
    ("step", r"(?:checkpoint|ckpt)[-_=.]?(\d+)"),
    ("step", r"^(\d+)$"),
    ("epoch", r"epoch[-_=.]?(\d+)"),
    # In other names the number may be no counter: `resnet_50.pt` has the same one for ever.
    (
        "number",
        rf"(?:^|[-_.])(?:model|net|network|weights|params|snapshot|saved?)[-_](\d+){_FILE}",
    ),
    ("time", rf"^(?!best)(?:.*[-_.])?(?:last|latest|checkpoint|ckpt|snapshot|model){_FILE}"),
)
_SAVED_AGAIN = r"_(\d{8}_\d{6})(?:\.\w+)?$"
"""What Cerebras' trainer adds to a name that is there already: the time."""
_KINDS = tuple(dict.fromkeys(kind for kind, _ in _NAMES))
STEPS_OF_AN_EPOCH = 10**9
"""More steps than any epoch has."""
GROUP, AGAIN = "step", "again"
"""Groups of a document's own pattern: the step, and what distinguishes a later save of the same step."""


class BadPattern(ValueError):
    """The pattern cannot be used; the message says why."""


class Name(NamedTuple):
    """The greater one is the newer."""

    kind: int  # how specific the name is: the more the greater
    number: int  # 0 without any: a listing then puts the time of the last change here, in ns
    again: int = 0  # of two saves of one step the greater is the newer

    @property
    def step(self) -> int | None:
        return self.number if self.kind == STEP else None

    @property
    def has_number(self) -> bool:
        """Whether the name has a number. Without any the checkpoint is ordered by its time."""
        return self.kind > TIME

    @property
    def order_number(self) -> int | None:
        """The number that orders the checkpoint among others, if its name has one."""
        return self.number if self.has_number else None


STEP, TIME = len(_KINDS) - 1, 0


def check(pattern: str | None) -> None:
    """Raises BadPattern unless names can be read by this pattern."""
    try:
        groups = {GROUP} if pattern is None else re.compile(pattern).groupindex
    except re.error as error:
        raise BadPattern(f"checkpoints_pattern: {error}") from None
    if GROUP not in groups:
        raise BadPattern(r"checkpoints_pattern: it has no group step, as in 'state_(?P<step>\d+)'")


def read(name: str, pattern: str | None = None) -> Name | None:
    """Parse the name of a checkpoint. None: not a checkpoint, an unfinished one, or a name that is not UTF-8.

    `pattern` is the document's own: with it a name counts if the pattern is found in it, and no other does.
    """
    if name.startswith(".") or is_unfinished(name) or not bounds.is_utf8(name):
        return None
    return _usual(name) if pattern is None else _matched(name, pattern)


def tracked(text: bytes, pattern: str | None) -> Name | None:
    """Parse a tracker file, which holds the name of a checkpoint or only its step."""
    name = text.decode(errors="replace").strip()
    return read(name, pattern) or read(name)


def _matched(name: str, pattern: str) -> Name | None:
    match = re.search(pattern, name)
    groups = {} if match is None else match.groupdict()
    step = _number(groups.get(GROUP))
    if step is None or bounds.step(step) is None:
        return None
    return Name(STEP, step, _number(groups.get(AGAIN)) or 0)


def _number(text: str | None) -> int | None:
    """The digits of the text as one number."""
    digits = "".join(filter(str.isdecimal, text or ""))
    return int(digits) if digits else None


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """What `_NAMES` says, compiled by the first name: an agent without checkpoints never needs it."""
    return tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _NAMES)


def _usual(name: str) -> Name | None:
    for kind, pattern in _patterns():
        match = pattern.search(name)
        if match is None:
            continue
        epoch, digits = ("0", "0", *match.groups())[-2:]
        number = int(epoch) * STEPS_OF_AN_EPOCH + int(digits)
        if bounds.step(number) is not None:  # more digits are a hash, or a time
            later = re.match(_SAVED_AGAIN, name[match.end() :])
            return Name(STEP - _KINDS.index(kind), number, _number(later and later[1]) or 0)
    return None


def is_unfinished(name: str) -> bool:
    return name.endswith(UNFINISHED)
