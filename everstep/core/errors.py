"""Our exceptions, and what a caller may do about each.

    EverstepError
    ├── InvalidSpec          the document is wrong: report it to its author, never retry
    ├── FolderTaken          a folder of the job is another living job's: as a wrong document
    ├── CommandRejected      an operator's command makes no sense now: say why
    ├── StaleGeneration      a newer generation owns the job: stop, touch nothing
    ├── ClusterRefused       the cluster takes no such request, however often: report it, never retry
    ├── BackendUnavailable   the path to the cluster is broken: try again later
    │   └── WrongCluster     the cluster lacks what the job has seen: change nothing, report it
    ├── PayloadClosed        no key here opens what the server stores: add the key, try again
    ├── KeysUnusable         the folder of keys is not as it has to be: report it before anything begins
    └── LifecycleBug         a pair of state and event without a row: a bug of ours

A dead node, a crashed rank and a failed heal are none of these: they are facts (`facts.py`).
"""

from __future__ import annotations

from typing import Literal


class EverstepError(Exception):
    """The base class, by which an edge distinguishes our errors from others."""


class InvalidSpec(EverstepError):
    """A job document that cannot be run. `problems` names every field at once."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{field}: {message}" for field, message in problems))


Overlap = Literal["is", "in", "around"]
"""A folder is another one, lies in it, or contains it."""


class FolderTaken(EverstepError):
    """A job that may not begin: another one that lives writes to a folder of its document."""

    def __init__(
        self,
        field: str,
        folder: str,
        owner: str,
        *,
        overlap: Overlap = "is",
        owned: str | None = None,
        is_same_cluster: bool = True,
    ) -> None:
        """`overlap`: how the folder lies to the owner's, which is `owned` if that is known.

        `is_same_cluster`: the owner is a job of the same cluster, which removes what is left of it.
        """
        self.owner = owner
        hint = "what a terminated job leaves is removed within a minute"
        if not is_same_cluster:
            hint = f"if it is gone for good, remove {owned or folder}/.everstep"
        whose = f"job {owner}, which has not ended,"
        other = "a folder" if owned is None else owned
        what = {
            "is": f"{whose} writes to {folder}",
            "in": f"{folder} lies in {other} to which {whose} writes",
            "around": f"{folder} contains {other} to which {whose} writes",
        }[overlap]
        super().__init__(f"{field}: {what}; give this one a folder of its own ({hint})")


class CommandRejected(EverstepError):
    """An operator's command that is refused; the message is the sentence they read."""


class StaleGeneration(EverstepError):
    """A command of an older generation reached the backend after a newer one was given out."""

    def __init__(self, job: str, *, ordered: int, current: int) -> None:
        super().__init__(
            f"generation {ordered} of {job} is over: generation {current} owns the job"
        )


class ClusterRefused(EverstepError):
    """The cluster can be reached and refuses a request for what it is: it would refuse the same one again."""


class BackendUnavailable(EverstepError):
    """The backend cannot be reached. Nothing is known about the job; nothing may be concluded."""


class NoAgentAvailable(BackendUnavailable):
    """No agent of the job answers a question that only agents can answer. The cluster itself is reachable."""


class WrongCluster(BackendUnavailable):
    """The cluster's database lacks the job or part of it: pods that it lacks may still run."""

    def __init__(self, job: str, what: str) -> None:
        super().__init__(
            f"{what}; start a worker with the right one, or, if that is gone for good: everstep adopt {job}"
        )

    @classmethod
    def strange(cls, job: str) -> WrongCluster:
        return cls(
            job,
            f"job {job} is not in the cluster database of this worker (its EVERSTEP_HOME is another)",
        )

    @classmethod
    def copied(cls, job: str, *, original: str, copy: str) -> WrongCluster:
        return cls(
            job,
            f"job {job} is in the cluster database {original}; that of this worker, {copy}, is a copy of it",
        )

    @classmethod
    def older(cls, job: str, *, newest: int, ordered: int) -> WrongCluster:
        return cls(
            job,
            f"the cluster database of this worker has job {job} up to generation {newest}, it is at "
            f"{ordered}: an older copy",
        )


class PayloadClosed(EverstepError):
    """A payload that no key of this process opens; the message names the key and shows nothing else of it."""


class KeysUnusable(EverstepError):
    """The keys of payloads cannot be used: a folder, a file or its rights are not as they have to be."""


class LifecycleBug(EverstepError):
    """The lifecycle met a (state, event) pair without a row in its table."""
