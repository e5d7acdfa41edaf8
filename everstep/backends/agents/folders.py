"""Where the folders of one job are: the same for every phase, run and worker. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, replace

from everstep.chronicle.chronicle import Entry
from everstep.core.world import FenceOrder, StartOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFolders:
    """The folders of one job, as its agents find them."""

    base: str  # where relative folders of its document begin
    own: str | None  # its model_dir if it names none

    def at(self, named: str) -> str:
        return posixpath.normpath(posixpath.join(self.base, named))

    def model_dir(self, named: str | None) -> str | None:
        return self.own if named is None else self.at(named)

    def checkpoints(self, named: str | None) -> str | None:
        return None if named is None else self.at(named)

    def named(self, folders: Mapping[str, str]) -> dict[str, str]:
        """All of them, each with the field of the document that names it."""
        own = {} if self.own is None else {self.own: "model_dir"}
        return {self.at(folder): field for folder, field in folders.items()} | own

    def to_fence(self, order: FenceOrder) -> FenceOrder:
        """The order with absolute folders."""
        return replace(
            order,
            workdir=None if order.workdir is None else self.at(order.workdir),
            model_dir=self.model_dir(order.model_dir),
            checkpoints_path=self.checkpoints(order.checkpoints_path),
        )

    def to_record(self, entry: Entry) -> Entry:
        """The entry with absolute folders."""
        return replace(
            entry,
            workdir=None if entry.workdir is None else self.at(entry.workdir),
            model_dir=self.model_dir(entry.model_dir),
        )

    def to_start(self, order: StartOrder) -> StartOrder:
        """The order with absolute folders."""
        return replace(
            order,
            workdir=self.at(order.workdir),
            model_dir=self.model_dir(order.model_dir),
            checkpoints_path=self.checkpoints(order.checkpoints_path),
        )
