"""A share of the tests, settled by their names and the commit.

All shares of one commit make the whole; the next commit has others, so that every test has its turn
again and again. A test that was measured (`seconds`) goes to the share with the shortest time so far, long
ones first. The others are dealt like cards, file by file, since tests of a file take about as long as each
other; a file with a time-out of its own is slow and comes first.
"""

from __future__ import annotations

import hashlib
import math
import re
import subprocess
from collections.abc import Mapping
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
        match = re.fullmatch(r"(\d{1,3})/(\d{1,3})", text, flags=re.ASCII)
        index, count = (int(match[1]), int(match[2])) if match is not None else (0, 0)
        if not 1 <= index <= count:
            raise ValueError(
                f"a share of the tests is K/N with K from 1 to N, such as 2/4: not {text!r}"
            )
        return cls(index=index, count=count, commit=commit)

    def __str__(self) -> str:
        return f"share {self.index}/{self.count} of the tests at commit {self.commit[:12]}"

    def of(self, timeouts_s: Mapping[str, float], seconds: Mapping[str, float]) -> frozenset[str]:
        """The names of this share's tests.

        `timeouts_s` has all tests with their own time-out, or 0; `seconds` how long some of them take.
        """

        def place(test: str) -> tuple[float, str, int]:
            return -timeouts_s[test], test.partition("::")[0], self._hash(test)

        this = (self.index - 1 + self._hash("")) % self.count
        cards = sorted(timeouts_s.keys() - seconds.keys(), key=place)
        measured = {test: seconds[test] for test in timeouts_s if test in seconds}
        return frozenset([*cards[this :: self.count], *self._balanced(measured)[this]])

    def _balanced(self, seconds: Mapping[str, float]) -> list[list[str]]:
        """All shares of these tests. Tests of about the same length take turns by the commit."""

        def place(test: str) -> tuple[int, int]:
            return -math.frexp(seconds[test])[1], self._hash(test)

        shares: list[list[str]] = [[] for _ in range(self.count)]
        totals_s = [0.0] * self.count
        for test in sorted(seconds, key=place):
            shortest = totals_s.index(min(totals_s))
            shares[shortest].append(test)
            totals_s[shortest] += seconds[test]
        return shares

    def _hash(self, text: str) -> int:
        digest = hashlib.sha256(f"{self.commit} {text}".encode()).digest()
        return int.from_bytes(digest[:8], "big")


def current_commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
