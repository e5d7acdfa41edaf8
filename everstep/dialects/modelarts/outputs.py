"""Which output of a ModelArts document holds its checkpoints: nothing in it says so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from everstep.dialects.modelarts import shapes as theirs

UNLIKE = 3
LIKENESSES: Mapping[int, re.Pattern[str]] = {
    0: re.compile(r"ckpt|ckp|check_?point", re.IGNORECASE),
    1: re.compile(r"model|weight|snapshot|save", re.IGNORECASE),
    UNLIKE: re.compile(r"log|board|summar|profil|metric|eval|result|cache|tmp", re.IGNORECASE),
}
"""What an output is called that holds checkpoints, the likeliest first, and one that does not."""


def of_checkpoints(says: theirs.Document) -> int | None:
    """Which output is looked at for checkpoints: the one that is called most like it, else the first."""
    outputs = enumerate(says.algorithm.outputs)
    likeness = {i: _likeness({*_called_so(says, o)}) for i, o in outputs if o.local_dir}
    return min(likeness, key=lambda i: (likeness[i], i), default=None)


def _likeness(names: Iterable[str]) -> int:
    found = {kind for kind, pattern in LIKENESSES.items() if any(map(pattern.search, names))}
    return min(found, default=UNLIKE - 1)


def _called_so(says: theirs.Document, output: theirs.Output) -> Iterator[str]:
    """The output's own name and folder, and what of the document is given that folder."""
    folder = (output.local_dir or "").rstrip("/")
    yield from filter(None, (output.name, folder.rpartition("/")[2]))
    given = [*says.algorithm.environments.items(), *_parameters(says)]
    yield from (name for name, value in given if value.rstrip("/") == folder)
    yield from re.findall(
        rf"--?([\w-]+)[= ]\W?{re.escape(folder)}(?![\w-])", says.algorithm.command or ""
    )


def _parameters(says: theirs.Document) -> Iterator[tuple[str, str]]:
    parameters = (says.algorithm.model_extra or {}).get("parameters")
    for one in parameters if isinstance(parameters, list) else ():
        name, value = (
            (one.get(key) for key in ("name", "value")) if isinstance(one, dict) else (0, 0)
        )
        if isinstance(name, str) and isinstance(value, str):
            yield name, value
