"""The pods of the cluster, as the verbs of all clusters of agents use them."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from everstep.backends.agents.client.link import REQUEST_S, Link, NoAnswer, tls_link
from everstep.backends.agents.commands import ranks
from everstep.backends.agents.pod import Pod
from everstep.backends.agents.ports import Pods
from everstep.backends.kubernetes import credentials, manifest, names
from everstep.backends.kubernetes.api import KubernetesApi, Refused, Unreachable
from everstep.backends.kubernetes.watch import ClusterWatch, job_of
from everstep.protocol import wire

_PORTS = range(20_000, 30_000)  # below those that a kernel gives to connections


@dataclass(slots=True)
class PodLink(Link):
    """A link that is made when it is first used: before, the pod may have no address."""

    make: Callable[[], Awaitable[Link]]
    link: Link | None = None
    is_closed: bool = False

    async def request(
        self, method: str, path: str, body: Any = None, *, within_s: float = REQUEST_S
    ) -> dict[str, Any]:
        if self.link is None:
            made = await self.make()
            return await self._settled(made).request(method, path, body, within_s=within_s)
        return await self.link.request(method, path, body, within_s=within_s)

    def _settled(self, made: Link) -> Link:
        """The one link: this new one, unless a request beside this one was faster."""
        if self.link is None:
            self.link = made
        if self.is_closed:
            self.link.close()  # which keeps no connection from now on
        return self.link

    def close(self) -> None:
        self.is_closed = True
        if self.link is not None:
            self.link.close()


@dataclass(slots=True)
class KubernetesPods(Pods):
    """The pods of one namespace, seen through the watch."""

    api: KubernetesApi
    namespace: str
    watch: ClusterWatch
    handshakes: asyncio.Semaphore
    credentials: dict[str, dict[str, str]] = field(default_factory=dict)  # by job
    contexts: dict[str, ssl.SSLContext] = field(default_factory=dict)  # the same, for connections
    _readings: dict[str, object] = field(default_factory=dict)
    """Job -> a token that `forget` drops: what was requested with an older one may be an earlier run's."""

    def link(self, uid: str) -> Link:
        async def make() -> Link:
            pod, address = self.watch.pod(uid), self.watch.address(uid)
            if pod is None or address is None:
                raise NoAnswer(f"pod {uid} has no address")
            secret = await self.credentials_of(job := job_of(pod))
            return tls_link(
                uid,
                host=address,
                port=manifest.PORT,
                tls=self._context(job, secret),
                token=secret[wire.TOKEN],
                turns=self.handshakes,
            )

        return PodLink(make)

    def _context(self, job: str, secret: dict[str, str]) -> ssl.SSLContext:
        """The TLS context for agents with these credentials. Making one takes time."""
        is_kept = self.credentials.get(job) is secret
        if is_kept and job in self.contexts:
            return self.contexts[job]
        try:
            context = credentials.client_context(secret)
        except (ssl.SSLError, ValueError, TypeError) as error:  # of an empty text, of no ASCII
            raise _unreadable(job, error) from None
        if is_kept:
            self.contexts[job] = context
        return context

    async def credentials_of(self, job: str) -> dict[str, str]:
        """Raises NoAnswer where they cannot be read."""
        if job not in self.credentials:
            reading = self._readings.setdefault(job, object())
            path = f"/api/v1/namespaces/{self.namespace}/secrets/{names.secret(job)}"
            try:
                secret = await self.api.get(path)
            except (Refused, Unreachable) as error:
                raise NoAnswer(f"the credentials of {job}: {error}") from None
            try:
                entries = credentials.read(secret.get("data") or {})
            except ValueError as error:
                raise _unreadable(job, error) from None
            is_current = self._readings.get(job) is reading
            if not self.watch.has_pods(job):  # no end of a pod will lead to `forget`
                self._readings.pop(job, None)
                is_current = False
            if not is_current:
                return entries  # of a run that ended meanwhile, perhaps: the next one has others
            self.credentials.setdefault(job, entries)
        return self.credentials[job]

    def forget(self, job: str) -> None:
        """Drop the credentials of a job without pods: once it has ended, its next run has others."""
        self.credentials.pop(job, None)
        self.contexts.pop(job, None)
        self._readings.pop(job, None)

    def is_gone(self, uid: str) -> bool:
        """The agent is the first process of its container: when that has ended nothing of it is left."""
        return uid in self.watch.ended

    def is_cut_off(self, uid: str) -> bool:  # noqa: ARG002  # an agent may answer even if its kubelet does not
        return False

    async def have_ended(self, pod: Pod) -> bool:
        return self.is_gone(pod.uid) or pod.service == "down"

    async def end(self, pod: Pod) -> bool:
        return await self.have_ended(pod)

    def host(self, pod: Pod | None) -> str:
        address = None if pod is None else self.watch.address(pod.uid)
        return address or "pod-without-address.invalid"

    def address(self, pod: Pod) -> str | None:
        address = self.watch.address(pod.uid)
        return None if address is None else f"tcp:{address}:{manifest.PORT}"

    def check_hosts(self, pods: Sequence[Pod]) -> tuple[str, ...]:  # noqa: ARG002  # they use addresses
        return ("localhost",)

    def place(self, pod: Pod, accelerator: str) -> ranks.RunPlace:
        return ranks.RunPlace(
            uid=pod.uid,
            agent=f"{manifest.HOME}/{wire.SOCKET}",
            devices=pod.devices,
            accelerator=accelerator,
            metrics=None,
        )

    def free_port(self) -> int:
        return random.choice(_PORTS)

    def accelerator(self, requested: str) -> str:
        return requested


def _unreadable(job: str, error: Exception) -> NoAnswer:
    return NoAnswer(f"Secret {names.secret(job)} is not as Everstep wrote it: {error}")
