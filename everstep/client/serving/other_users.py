"""Finds other users who can log in to this machine: its server accepts them all, so they could start jobs
as us.
"""

from __future__ import annotations

import logging
import os
import pwd
from collections.abc import Callable, Iterable
from pathlib import Path

from everstep.client.exit_codes import Exit, Failed

LOG = logging.getLogger(__name__)

FIRST_LOGIN = 1000
UNMAPPED_UID = 65534
NO_SHELLS = frozenset({"nologin", "false", "sync", "true"})
NAMED_MOST = 3
SHADOW = Path("/etc/shadow")
LOCKED = ("!", "*")


def login_users(
    table: Iterable[pwd.struct_passwd],
    *,
    me: int,
    is_folder: Callable[[str], bool],
    is_locked: Callable[[pwd.struct_passwd], bool],
) -> list[str]:
    """Names of other users who can log in: a person's UID, a real shell, a home that exists, not locked."""
    return [
        entry.pw_name
        for entry in table
        if entry.pw_uid >= FIRST_LOGIN
        and entry.pw_uid not in (me, UNMAPPED_UID)
        and Path(entry.pw_shell).name not in NO_SHELLS
        and is_folder(entry.pw_dir)
        and not is_locked(entry)
    ]


def problem(users: list[str]) -> str:
    """The sentence about serving a machine that these users use too."""
    some = ", ".join(users[:NAMED_MOST]) + (" ..." if len(users) > NAMED_MOST else "")
    return f"other users of this machine ({some}) could start jobs as you: its server accepts every user"


def other_users() -> list[str]:
    """Names of the other users of this machine who can log in."""
    return login_users(
        pwd.getpwall(),
        me=os.geteuid(),
        is_folder=lambda path: Path(path).is_dir(),
        is_locked=locked_by(SHADOW),
    )


def locked_by(shadow: Path) -> Callable[[pwd.struct_passwd], bool]:
    """A test whether an account has neither password nor key. It is always False if that is unreadable."""
    try:
        rows = [line.split(":") for line in shadow.read_text().splitlines()]
    except (OSError, ValueError):
        return lambda _entry: False
    without = {row[0] for row in rows if len(row) > 1 and row[1].startswith(LOCKED)}
    return lambda entry: (
        entry.pw_name in without and not (Path(entry.pw_dir) / ".ssh" / "authorized_keys").exists()
    )


def warn_or_refuse(*, allowed: bool) -> None:
    """Log a warning if there are other users; raise `Failed` if we are root. `allowed`: do nothing."""
    if allowed or not (users := other_users()):
        return
    if os.geteuid() == 0:
        hint = "serve as a user of your own, or say --allow-other-users"
        raise Failed(Exit.USAGE, f"{problem(users)}, and you are root; {hint}")
    LOG.warning("%s; --allow-other-users accepts that", problem(users))
