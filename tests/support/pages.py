"""A page of docs/ as its reader follows it: the files that it shows, and its commands in their order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\S*)(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MENTIONED = re.compile(r"(?:`|^    )(everstep [^`\n]+)(?:`|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The files of a page that its reader saves, and the commands to run."""

    files: dict[str, str]
    commands: tuple[str, ...]
    mentioned: tuple[str, ...]  # commands within a sentence

    @classmethod
    def read(cls, path: Path) -> Page:
        text = path.read_text()
        fences = FENCE.findall(text)
        return cls(
            files={name: body for _, name, body in fences if name},
            commands=tuple(
                line
                for kind, _, body in fences
                if kind == "sh"
                for line in body.replace("\\\n", " ").splitlines()
                if line.strip()
            ),
            mentioned=tuple(dict.fromkeys(MENTIONED.findall(FENCE.sub("", text)))),
        )
