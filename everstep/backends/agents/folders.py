"""Where the folders of one job are: the same for every phase, run and worker. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, replace

from everstep.chronicle.chronicle import Entry
from everstep.protocol.wire import RunOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFolders:
    """The folders of one job, as its agents find them."""

    base: str  # where relative folders of its document begin
    default_model_dir: str | None  # its model_dir if it names none

    def at(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.base, path))

    def model_dir(self, path: str | None) -> str | None:
        return self.default_model_dir if path is None else self.at(path)

    def checkpoints(self, path: str | None) -> str | None:
        return None if path is None else self.at(path)

    def field_of_each(self, folders: Mapping[str, str]) -> dict[str, str]:
        """All folders as absolute paths, each with the field of the document that names it."""
        default = {} if self.default_model_dir is None else {self.default_model_dir: "model_dir"}
        return {self.at(folder): field for folder, field in folders.items()} | default

    def to_run(self, run: RunOrder) -> RunOrder:
        """The order of a run with absolute folders."""
        return run._replace(
            workdir=self.at(run.workdir),
            model_dir=self.model_dir(run.model_dir),
            checkpoints_path=self.checkpoints(run.checkpoints_path),
        )

    def to_record(self, entry: Entry) -> Entry:
        """The entry with absolute folders."""
        return replace(
            entry,
            workdir=None if entry.workdir is None else self.at(entry.workdir),
            model_dir=self.model_dir(entry.model_dir),
        )
