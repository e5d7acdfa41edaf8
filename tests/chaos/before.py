"""The version before this one, as files of its own from the history of this clone.

Before the first release it is the commit that recorded the histories of the loop last: no older version has
jobs that the code of today can go on with. After it, it is the newest release.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

PROGRAM = ("everstep", "workflows", "activities", "worker.py")
"""What a worker consists of."""
HISTORIES = "tests/replay/histories"


class NoneBefore(Exception):
    """There is no version before in this clone; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clone:
    """A repository with its history."""

    root: Path

    def version_before(self) -> str:
        """The commit of the version before. Raises NoneBefore."""
        try:
            self._git("rev-parse", "--verify", "--quiet", "HEAD")
        except subprocess.CalledProcessError:
            raise NoneBefore("these files are no clone") from None
        try:
            return self._git("describe", "--tags", "--abbrev=0", "--match=v[0-9]*", "HEAD^")
        except subprocess.CalledProcessError:
            pass  # nothing is released yet
        commit = self._git("log", "-1", "--format=%H", "--", HISTORIES)
        if commit in self._cut_off():
            raise NoneBefore("the clone is shallow and has no version before")
        if commit == self._git("rev-parse", "HEAD"):
            raise NoneBefore("the loop itself has changed with this commit: jobs begin anew")
        return commit

    def _cut_off(self) -> list[str]:
        """The commits of a shallow clone that seem to be the first ones."""
        shallow = self.root / self._git("rev-parse", "--git-path", "shallow")
        return shallow.read_text().split() if shallow.exists() else []

    def extract(self, commit: str, folder: Path) -> Path:
        """The program of a commit, in this folder."""
        folder.mkdir()
        archive = subprocess.run(
            ["git", "archive", commit, *PROGRAM], cwd=self.root, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
        return folder

    def _git(self, *words: str) -> str:
        command = ["git", *words]
        run = subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True)
        return run.stdout.strip()
