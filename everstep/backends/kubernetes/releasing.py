"""Release the folders of an ended job by a short-lived pod, as only a pod can mount its volumes."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field

from everstep.backends.kubernetes import manifest, names
from everstep.backends.kubernetes.agent_program import ensure_agent
from everstep.backends.kubernetes.api import Json, KubernetesApi, Refused, Unreachable
from everstep.backends.kubernetes.books import ConfigMapBooks
from everstep.backends.kubernetes.pod_facts import created_at, has_ended, trouble
from everstep.backends.kubernetes.reaching import (
    allowing,
    may_be_taken_later,
    reached,
    refusal_wait,
)
from everstep.core.errors import BackendUnavailable, InvalidSpec
from everstep.core.waits import WaitCause, WaitKind
from everstep.protocol import wire

LOG = logging.getLogger(__name__)

LIVES_S = 60.0
"""A pod that did not release them by then never will: no node takes it, or the volume is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderReleaser:
    """Makes and removes such pods, in one namespace.

    While one cannot be created, as for lack of quota, the end of its job waits without a limit: given up, the
    folders would stay its own for good, and each later job would be refused there.
    """

    api: KubernetesApi
    namespace: str
    books: ConfigMapBooks
    settings: manifest.PodSettings
    agent: Json  # the ConfigMap with the agent's program, which such a pod mounts
    refusals: dict[str, str] = field(default_factory=dict)  # of each job that waits, as logged

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def release(self, command: wire.ReleaseCommand) -> WaitCause | None:
        """Release the folders. Returns what that waits for; None once it is done.

        A folder that cannot be released stays the job's, with a warning in the log.
        """
        path = f"{self._pods}/{names.releaser(command['job'], generation=command['generation'])}"
        pod = await reached(self.api.find(path))
        if pod is None:
            return await self._begin(command)
        is_over = has_ended(pod)
        if not is_over and self.api.server_time() < created_at(pod) + LIVES_S:
            name = pod["metadata"]["name"]
            await ensure_agent(self.api, self.namespace, self.agent)
            return WaitKind.RELEASER.of(name, f" {trouble(pod)}".rstrip())
        if pod["status"].get("phase") != "Succeeded":
            _warn(command, trouble(pod) or f"its pod did not end within {LIVES_S:g} s")
        await allowing(self.api.delete(path, {"gracePeriodSeconds": 0}), 404)
        return None

    async def _begin(self, command: wire.ReleaseCommand) -> WaitCause | None:
        stored = await reached(self.books.read(command["job"]))
        document = stored.document
        if document.pods:  # their objects are gone, and nothing proves that their processes are
            _warn(command, f"pod {document.pods[0].name} may still write")
            return None
        if not document.template:
            _warn(command, "the template of its pods is not known")
            return None
        owner = {"name": names.record(command["job"]), "uid": stored.uid}
        template: Json = json.loads(document.template)
        await ensure_agent(self.api, self.namespace, self.agent)
        try:
            body = manifest.releaser(
                document.image, template, command, owner=owner, settings=self.settings
            )
            await self.api.create(self._pods, body)
        except Unreachable as error:
            raise BackendUnavailable(str(error)) from None
        except InvalidSpec as error:
            _warn(command, str(error))
            return None
        except Refused as error:
            if may_be_taken_later(error):
                self._note_refusal(command, str(error))
                return refusal_wait(
                    error, kind=WaitKind.NO_RELEASER, of_quota=WaitKind.NO_RELEASER_QUOTA
                )
            if error.status in {400, 403, 422}:
                _warn(command, str(error))
                return None
            if error.status != 409:
                raise BackendUnavailable(str(error)) from None
        self.refusals.pop(command["job"], None)
        return WaitKind.RELEASE.of()

    def _note_refusal(self, command: wire.ReleaseCommand, refusal: str) -> None:
        job, folders = command["job"], ", ".join(command["folders"])
        if self.refusals.get(job) == refusal:  # it is tried every second
            return
        self.refusals[job] = refusal
        LOG.warning(
            "job %s has ended, but keeps %s until a pod that releases them can be created: %s",
            job,
            folders,
            refusal,
            extra={"job": job},
        )


def _warn(command: wire.ReleaseCommand, why: str) -> None:
    folders, job = ", ".join(command["folders"]), command["job"]
    LOG.warning("%s: still of job %s, which has ended: %s", folders, job, why, extra={"job": job})
