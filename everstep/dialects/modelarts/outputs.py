"""Guess which output of a ModelArts document holds its checkpoints, as no field of it does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from everstep.dialects.modelarts import shapes as ma_shapes

UNLIKE = 3
LIKENESSES: Mapping[int, re.Pattern[str]] = {
    0: re.compile(r"ckpt|ckp|check_?point", re.IGNORECASE),
    1: re.compile(r"model|weight|snapshot|save", re.IGNORECASE),
    UNLIKE: re.compile(r"log|board|summar|profil|metric|eval|result|cache|tmp", re.IGNORECASE),
}
"""Names of outputs with checkpoints, the likeliest first, and names of outputs without."""


def of_checkpoints(document: ma_shapes.Document) -> int | None:
    """The index of the output whose names are most like those of checkpoints, else the first one."""
    outputs = enumerate(document.algorithm.outputs)
    likeness = {i: _likeness({*_names_of(document, o)}) for i, o in outputs if o.local_dir}
    return min(likeness, key=lambda i: (likeness[i], i), default=None)


def _likeness(names: Iterable[str]) -> int:
    kinds = {kind for kind, pattern in LIKENESSES.items() if any(map(pattern.search, names))}
    return min(kinds, default=UNLIKE - 1)


def _names_of(document: ma_shapes.Document, output: ma_shapes.Output) -> Iterator[str]:
    """Names of the output: its name and folder, and of variables and options that have that folder."""
    folder = (output.local_dir or "").rstrip("/")
    yield from filter(None, (output.name, folder.rpartition("/")[2]))
    texts = [*document.algorithm.environments.items(), *_parameters(document)]
    yield from (name for name, value in texts if value.rstrip("/") == folder)
    yield from re.findall(
        rf"--?([\w-]+)[= ]\W?{re.escape(folder)}(?![\w-])", document.algorithm.command or ""
    )


def _parameters(document: ma_shapes.Document) -> Iterator[tuple[str, str]]:
    parameters = (document.algorithm.model_extra or {}).get("parameters")
    for one in parameters if isinstance(parameters, list) else ():
        name, value = (
            (one.get(key) for key in ("name", "value")) if isinstance(one, dict) else (0, 0)
        )
        if isinstance(name, str) and isinstance(value, str):
            yield name, value
