"""Who else may log in to a machine, and whether it is served all the same."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from everstep.client.exit_codes import Exit, Failed
from everstep.client.serving import other_users

ME = 1001


def user(name: str, uid: int, home: str, shell: str) -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", uid, uid, "", home, shell))


ROWS = {
    "one who logs in": (user("ada", 1002, "/homes/ada", "/bin/bash"), True),
    "an empty field is the usual shell": (user("bob", 1003, "/homes/bob", ""), True),
    "ourselves": (user("me", ME, "/homes/me", "/bin/bash"), False),
    "root may do anything anyway": (user("root", 0, "/root", "/bin/bash"), False),
    "a service": (user("www", 33, "/homes/www", "/bin/sh"), False),
    "nobody": (user("nobody", 65534, "/homes/nobody", "/bin/sh"), False),
    "one without a shell": (user("svc", 1004, "/homes/svc", "/usr/sbin/nologin"), False),
    "one whose shell does nothing": (user("old", 1005, "/homes/old", "/bin/false"), False),
    "one who has no way in": (user("locked", 1007, "/homes/locked", "/bin/bash"), False),
    "one whose home is gone": (user("left", 1006, "/gone", "/bin/bash"), False),
}


@pytest.mark.parametrize(("entry", "counts"), ROWS.values(), ids=ROWS)
def test_who_counts_as_another_user(entry: pwd.struct_passwd, counts: bool) -> None:
    users = other_users.login_users(
        [entry],
        me=ME,
        is_folder=lambda path: path.startswith(("/homes", "/root")),
        is_locked=lambda entry: entry.pw_name == "locked",
    )
    assert users == ([entry.pw_name] if counts else [])


def test_an_account_without_password_and_key_is_locked(tmp_path: Path) -> None:
    shadow = tmp_path / "shadow"
    shadow.write_text("ada:$y$j9T$x:1::::::\nsvc:!:1::::::\nold:*:1::::::\nkeys:!:1::::::\n")
    (tmp_path / "keys" / ".ssh").mkdir(parents=True)
    (tmp_path / "keys" / ".ssh" / "authorized_keys").touch()
    is_locked = other_users.locked_by(shadow)
    users = [user(name, 1002, str(tmp_path / name), "") for name in ("ada", "svc", "old", "keys")]
    assert [entry.pw_name for entry in users if is_locked(entry)] == ["svc", "old"]


def test_where_passwords_may_not_be_looked_at_nobody_is_locked(tmp_path: Path) -> None:
    assert not other_users.locked_by(tmp_path / "none")(user("ada", 1002, "/", ""))


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that ada uses too."""
    table = [user("ada", 1002, "/", "/bin/bash")]
    monkeypatch.setattr(pwd, "getpwall", lambda: table)


@pytest.mark.usefixtures("shared")
def test_root_does_not_serve_others_unless_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(Failed, match=r"ada.*you are root.*--allow-other-users") as refused:
        other_users.warn_or_refuse(allowed=False)
    assert refused.value.code is Exit.USAGE
    other_users.warn_or_refuse(allowed=True)


@pytest.mark.usefixtures("shared")
def test_a_user_is_told_who_else_could_start_jobs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: ME)
    other_users.warn_or_refuse(allowed=False)
    assert "(ada) could start jobs as you" in caplog.text
    caplog.clear()
    other_users.warn_or_refuse(allowed=True)
    assert caplog.messages == []


def test_a_machine_of_ones_own_is_served_in_silence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pwd, "getpwall", lambda: [user("root", 0, "/root", "/bin/bash")])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    other_users.warn_or_refuse(allowed=False)
    assert caplog.messages == []
