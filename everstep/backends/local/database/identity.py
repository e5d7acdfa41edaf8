"""The identity of the books, and whether their file is a copy of the file that got it.

The books store where their file was: path, device, inode, machine. A copy (`cp -a` of a state directory)
has the identity of its original, whose pods it does not serve: it gets an identity of its own and forgets
every job, so that each has to be adopted. A file counts as a copy only if

- books with the same identity are at the stored path, in another file; unless the file here is the stored
  one, moved, and those were not opened since; or
- neither file nor machine are the stored ones: the original may run where it cannot be seen.

A file at the stored path that cannot be read may be the original: then these books are not opened.

All else is the same books: moved, mounted elsewhere, with another device number after a reboot, or restored
from a backup to where they were.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import sqlite3
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from everstep.backends.local.database.settings_table import setting, store_setting
from everstep.backends.local.database.store import Db, Store
from everstep.backends.local.reconciling.slow_storage import READ_S, read
from everstep.core.errors import BackendUnavailable

LOG = logging.getLogger(__name__)

MACHINE = Path("/etc/machine-id")

_NO_BOOKS = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
"""The file is no database, or has no table of ours."""

_TABLES_OF_JOBS = ("jobs", "claims", "queue", "pods", "facts")


@dataclass(frozen=True, slots=True, kw_only=True)
class BooksFile:
    """The location of the database file."""

    path: str
    device: int
    inode: int
    machine: str  # empty: unknown

    def is_same(self, other: BooksFile) -> bool:
        return (self.device, self.inode) == (other.device, other.inode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """The database of which this one is a copy."""

    cluster: str  # its identity
    path: str
    copy: str  # where the copy was found


def file_at(path: Path) -> BooksFile | None:
    """The file there; None if there is none. Raises OSError where that cannot be seen."""
    try:
        real = path.resolve(strict=True)
        status = real.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    machine = ""
    with contextlib.suppress(OSError):
        machine = MACHINE.read_text().strip()
    return BooksFile(path=str(real), device=status.st_dev, inode=status.st_ino, machine=machine)


def identity_at(path: str) -> str:
    """The identity of the books there; empty if it is a file of something else. Raises OSError."""
    try:
        with _opened(path, "ro") as db:
            return setting(db, "cluster") or ""
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) in _NO_BOOKS:
            return ""
        raise OSError(
            f"{path} may be the original of this cluster database and cannot be read: {error}; "
            "remove it if it is not"
        ) from None


def settle_copy(cluster: str, stored: BooksFile, here: BooksFile) -> bool:
    """Find out whether the file here is a copy of the stored one. `cluster`: the identity in both.

    If the stored file itself was moved away and a copy is in its place, the file here is the original: its
    place is then stored in that copy, which will count as one. Raises OSError if a file cannot be seen.
    """
    there = _other_file(stored, here)
    if there is None:  # a copy only where the original may be out of sight
        return _may_run_elsewhere(stored, here)
    if identity_at(there.path) != cluster:  # something else is at the stored path by now
        return False
    # The stored file itself was moved here: the one in its place is the copy, unless it was opened since.
    is_original = here.is_same(stored) and _mark_as_copy(there.path, stored, here)
    return not is_original


def _other_file(stored: BooksFile, here: BooksFile) -> BooksFile | None:
    """The file at the stored path, if it is another one than the file here."""
    there = None if stored.path == here.path else file_at(Path(stored.path))
    return None if there is None or there.is_same(here) else there


def _may_run_elsewhere(stored: BooksFile, here: BooksFile) -> bool:
    """Whether neither file nor machine are the stored ones: the original cannot be seen from here."""
    is_known = "" not in (stored.machine, here.machine)
    return is_known and stored.machine != here.machine and stored.inode != here.inode


def _mark_as_copy(copy: str, stored: BooksFile, original: BooksFile) -> bool:
    """Store in a copy where its original is. False if the copy was opened since it was made."""
    try:
        with _opened(copy, "rw") as db:
            db.execute("BEGIN IMMEDIATE")
            if _stored_file(db) != stored:
                return False
            _store_file(db, original)
            db.execute("COMMIT")
    except sqlite3.Error as error:
        raise OSError(f"{copy}: {error}") from None
    return True


@contextlib.contextmanager
def _opened(path: str, mode: str) -> Iterator[Db]:
    uri = f"{Path(path).as_uri()}?mode={mode}"
    with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
        db.row_factory = sqlite3.Row
        yield db


async def settle(store: Store, path: Path) -> str:
    """The identity of the books at this path, a new one if they are a copy. Raises BackendUnavailable."""
    cluster, stored = await store.run(lambda db: (identity(db), _stored_file(db)))
    here = await read(str(path), partial(file_at, path), within_s=READ_S)
    if here is None:
        raise BackendUnavailable(f"{path} is missing")
    if stored is not None:
        settle_here = partial(settle_copy, cluster, stored, here)
        if await read(stored.path, settle_here, within_s=READ_S):
            LOG.warning(
                "%s is a copy of %s: it has an identity of its own now, and refuses the jobs of the original "
                "until they are adopted",
                here.path,
                stored.path,
            )
            return await store.run(lambda db: _become_copy(db, stored, here))
    if not await store.run(lambda db: _update_file(db, stored, here)):
        return await settle(store, path)  # another process was first
    return cluster


# -- In the books -------------------------------------------------------------------------------


def identity(db: Db) -> str:
    """The unique name of this state directory's cluster, which marks its pods on the machine."""
    name = setting(db, "cluster")
    return name if name is not None else _fresh_identity(db)


def _stored_file(db: Db) -> BooksFile | None:
    """The stored location of the database file; None in a new one."""
    text = setting(db, "file")
    return None if text is None else BooksFile(**json.loads(text))


def _store_file(db: Db, file: BooksFile) -> None:
    store_setting(db, "file", json.dumps(asdict(file)))


def _update_file(db: Db, stored: BooksFile | None, here: BooksFile) -> bool:
    """Store the location of the file. False if the stored one is no longer `stored`."""
    if _stored_file(db) not in (stored, here):
        return False
    _store_file(db, here)
    return True


def _become_copy(db: Db, stored: BooksFile, here: BooksFile) -> str:
    """Take a new identity and forget the jobs, which are those of the original."""
    if _stored_file(db) == stored:  # else another worker was first
        original = Original(cluster=identity(db), copy=here.path, path=stored.path)
        store_setting(db, "original", json.dumps(asdict(original)))
        _store_file(db, here)
        _fresh_identity(db)
        for table in _TABLES_OF_JOBS:
            db.execute(f"DELETE FROM {table}")
    return identity(db)


def original(db: Db, cluster: str) -> Original | None:
    """The books with this identity, if these are a copy of them."""
    fields = json.loads(setting(db, "original") or "{}")
    return Original(**fields) if fields.get("cluster") == cluster else None


def _fresh_identity(db: Db) -> str:
    fresh = secrets.token_hex(3)
    store_setting(db, "cluster", fresh)
    return fresh
