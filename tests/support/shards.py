"""A share of the tests, settled by their names and the commit.

All shares of one commit make the whole; the next commit is met by others, so that every test has its
turn again and again.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Number `index` of `count` shares of the tests at `commit`, counted from one."""

    index: int
    count: int
    commit: str

    @classmethod
    def parse(cls, text: str, *, commit: str) -> Shard:
        """The share that `2/4` stands for; a ValueError with a sentence otherwise."""
        found = re.fullmatch(r"(\d{1,3})/(\d{1,3})", text, flags=re.ASCII)
        index, count = (int(found[1]), int(found[2])) if found is not None else (0, 0)
        if not 1 <= index <= count:
            raise ValueError(
                f"a share of the tests is K/N with K from 1 to N, such as 2/4: not {text!r}"
            )
        return cls(index=index, count=count, commit=commit)

    def __str__(self) -> str:
        return f"share {self.index}/{self.count} of the tests at commit {self.commit[:12]}"

    def has(self, test: str) -> bool:
        digest = hashlib.sha256(f"{self.commit} {test}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.index - 1


def current_commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
