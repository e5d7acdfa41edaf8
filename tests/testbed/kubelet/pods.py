"""One pod on a node: from its volumes to its terminal phase, and its removal."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from tests.testbed.api import STRATEGIC_MERGE, UNREACHABLE, Api, ApiError, Json
from tests.testbed.kubelet.container import Container, ContainerSpec, Ending, HollowContainer
from tests.testbed.kubelet.environment import (
    ConfigError,
    Lookup,
    command_line,
    expand,
    service_variables,
    variables,
)
from tests.testbed.kubelet.hollow_agents import HollowAgents
from tests.testbed.kubelet.probes import Probe
from tests.testbed.kubelet.status import (
    ContainerState,
    condition,
    is_sidecar,
    is_up,
    phase_of,
    pod_status,
)
from tests.testbed.kubelet.volumes import References, VolumeMaker, mounts_of

ABSENT_REGISTRY = "absent.example.test/"
"""Images of it cannot be pulled; every other image is the machine's own root."""

BY_KUBELET = "TerminationByKubelet"
"""Why a pod is a target of disruption that its own node ends."""

_FINAL_PHASES = ("Succeeded", "Failed")
_PROBES = {"startupProbe", "livenessProbe", "readinessProbe"}
_POLL_S = 0.01
_RETRY_S = 0.2  # of what a pod waits for; a kubelet takes seconds
_LAST_WORDS_BYTES = 2_048
_RESTART_AFTER_S = (0.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)


class Host(Protocol):
    """What a pod needs of its node."""

    api: Api
    ip: str
    connected: asyncio.Event
    """Set while the node reaches the API server."""
    start_delay_s: float
    pods_may_begin: asyncio.Event
    """Set unless a test holds new pods before their first container."""
    references: References
    is_hollow: bool
    """Its containers have no processes."""
    hollow_agents: HollowAgents
    """What answers for the agents in such containers."""


class PodWorker:
    """Runs one pod. The newest object of the API server comes in by `update`."""

    def __init__(self, host: Host, pod: Json, *, folder: Path, ip: str) -> None:
        self.pod = pod
        self._host = host
        self._folder = folder
        self._ip = ip
        self._started_at = time.time()
        self._containers: dict[str, Container | HollowContainer] = {}
        self._states: dict[str, ContainerState] = {}
        self._is_over = False
        self._failure: tuple[str, str] | None = (
            None  # reason and message, where the node ended the pod
        )
        self._conditions: list[Json] = []  # beside those of every pod
        self._out_of_memory: set[str] = set()  # containers that the kernel ended
        self._changed = asyncio.Event()
        self._removed = False
        self._reporting = asyncio.Lock()  # one at a time: an older status must not arrive later

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def is_over(self) -> bool:
        """No container of it runs, and none will."""
        return self._is_over

    def update(self, pod: Json) -> None:
        self.pod = pod
        self._changed.set()

    def object_removed(self) -> None:
        """The object is gone from the API server: nothing may run for it any longer."""
        self._removed = True
        self.kill_containers()
        self._changed.set()

    def kill_containers(self, name: str | None = None) -> None:
        """SIGKILL to one container, or to all."""
        for container_name, container in self._containers.items():
            if name in {None, container_name}:
                container.kill()

    def kill_for_memory(self, name: str) -> None:
        """The kernel ends a container that uses more memory than its limit."""
        self._out_of_memory.add(name)
        self.kill_containers(name)

    def evict(self, reason: str, message: str) -> None:
        """The node ends the pod to have its resources back; the object stays, failed."""
        self._failure = (reason, message)
        now = time.time()
        self._conditions = [
            condition("DisruptionTarget", holds=True, at=now, reason=BY_KUBELET, message=message)
        ]
        self.kill_containers()

    def log(self, name: str, *, previous: bool = False) -> Path | None:
        """The output of the newest process of a container, or of the one before; None if there is none."""
        processes = sorted(
            self._folder.glob(f"containers/{name}/*"), key=lambda path: int(path.name)
        )
        place = 2 if previous else 1
        return processes[-place] / "log" if len(processes) >= place else None

    def is_running(self, name: str) -> bool:
        container = self._containers.get(name)
        return container is not None and container.is_running

    async def run(self, *, refuse: tuple[str, str] | None = None) -> None:
        """Return when the pod is gone from the API server, or over and nothing is left to do for it.

        `refuse`: reason and message, if the node does not take the pod.
        """
        self._failure = refuse
        self._is_over = self.pod.get("status", {}).get("phase") in _FINAL_PHASES
        working = asyncio.create_task(self._work())
        try:
            while not self._is_deleting and not working.done():
                await self._wait_for_change(working)
            if self._is_deleting:
                await self._stop(working)
            else:
                await working
            if not self._is_over:
                self._is_over = True
                await self._report()
            while not self._is_deleting:
                await self._wait_for_change()
            await self._delete_object()
            shutil.rmtree(self._folder, ignore_errors=True)
        finally:
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working

    @property
    def _is_deleting(self) -> bool:
        return self._removed or "deletionTimestamp" in self.pod["metadata"]

    async def _wait_for_change(
        self, *tasks: asyncio.Task[None], timeout_s: float | None = None
    ) -> None:
        self._changed.clear()
        change = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait(
                {change, *tasks}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            change.cancel()

    # From here on: what runs.

    async def _work(self) -> None:
        """Return when no container is left to run."""
        if self._failure is not None or self._is_over:
            return
        spec = self.pod["spec"]
        adopted = self._adopt()
        if not adopted:
            await asyncio.sleep(self._host.start_delay_s)
            await self._host.pods_may_begin.wait()
        lookup, volumes = await self._volumes()
        sidecars: dict[str, asyncio.Task[None]] = {}
        try:
            for container in spec.get("initContainers", ()):
                if is_sidecar(container):
                    work = self._run_container(container, lookup, volumes, policy="Always")
                    sidecars[container["name"]] = asyncio.create_task(work)
                    await self._until_started(container["name"])
                elif not await self._run_init(container, lookup, volumes):
                    break
            else:
                async with asyncio.TaskGroup() as group:
                    policy = spec.get("restartPolicy", "Always")
                    for container in spec["containers"]:
                        work = self._run_container(container, lookup, volumes, policy=policy)
                        group.create_task(work)
            await self._end_sidecars(sidecars)
        finally:
            for task in sidecars.values():
                task.cancel()

    async def _until_started(self, name: str) -> None:
        while (state := self._states.get(name)) is None or not is_up(state):
            await asyncio.sleep(_POLL_S)

    async def _end_sidecars(self, sidecars: Mapping[str, asyncio.Task[None]]) -> None:
        """After all others, the last one first; they are not started again."""
        for name, task in reversed([*sidecars.items()]):
            task.cancel()
            container = self._containers.get(name)
            if container is not None:
                await self._end(container, self._grace_s)
                self._note_end(name, container)

    async def _end(self, container: Container | HollowContainer, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after the grace period."""
        container.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await container.ended()
        except TimeoutError:
            container.kill()
            await container.ended()

    @property
    def _grace_s(self) -> float:
        return float(self.pod["spec"].get("terminationGracePeriodSeconds", 30))

    def _note_end(self, name: str, container: Container | HollowContainer) -> None:
        self._states[name] = replace(
            self._states.get(name, ContainerState()),
            started_at=container.started_at,
            ending=container.ending,
        )

    def _adopt(self) -> bool:
        """Take over what an earlier kubelet of this node has started."""
        for path in sorted(self._folder.glob("containers/*/*"), key=lambda path: int(path.name)):
            if container := Container.adopt(path):
                self._containers[path.parent.name] = container
        return bool(self._containers)

    async def _volumes(self) -> tuple[Lookup, dict[str, str]]:
        """Wait until everything exists that volumes and variables name."""
        while True:
            try:
                await self._host.connected.wait()
                lookup = await self._host.references.fetch(self.pod)
                if self._host.is_hollow:
                    return lookup, {}
                maker = VolumeMaker(self._host.api, self.pod, lookup, self._folder / "volumes")
                volumes = await maker.make()
                return lookup, volumes
            except (ConfigError, ApiError, *UNREACHABLE) as error:
                self._wait_all("ContainerCreating", str(error))
                await self._report()
                await asyncio.sleep(_RETRY_S)

    async def _run_init(self, spec: Json, lookup: Lookup, volumes: dict[str, str]) -> bool:
        """Run one init container to its end, again where the pod's policy says so; False if the pod fails."""
        while True:
            ending = await self._run_once(spec, lookup, volumes)
            if ending.code == 0:
                return True
            if self.pod["spec"].get("restartPolicy") == "Never":
                self._failure = ("", "")
                return False
            await self._back_off(spec["name"], ending)

    async def _run_container(
        self, spec: Json, lookup: Lookup, volumes: dict[str, str], *, policy: str
    ) -> None:
        while True:
            ending = await self._run_once(spec, lookup, volumes)
            if policy == "Never" or (policy == "OnFailure" and ending.code == 0):
                return
            await self._back_off(spec["name"], ending)

    async def _back_off(self, name: str, ending: Ending) -> None:
        state = self._states[name]
        delay_s = _RESTART_AFTER_S[min(state.restart_count, len(_RESTART_AFTER_S) - 1)]
        self._states[name] = ContainerState(
            restart_count=state.restart_count + 1,
            last_ending=(state.started_at, ending),
            waiting_reason="CrashLoopBackOff",
            waiting_message=f"back-off {delay_s:g}s restarting failed container",
        )
        del self._containers[name]
        if delay_s:
            await self._report()
            await asyncio.sleep(delay_s)

    async def _run_once(self, spec: Json, lookup: Lookup, volumes: dict[str, str]) -> Ending:
        name = spec["name"]
        container = self._containers.get(name)
        if container is None:
            container = await self._start(spec, lookup, volumes)
            self._containers[name] = container
        await container.started()
        before = self._states.get(name, ContainerState())
        container_id = f"{self.pod['metadata']['uid']}.{name}.{before.restart_count}"
        state = replace(
            before,
            container_id=container_id,
            started_at=container.started_at,
            has_started="startupProbe" not in spec,
            is_ready="readinessProbe" not in spec,
        )
        probing = None
        if container.is_running:
            self._states[name] = state
            await self._report()
            if isinstance(container, Container) and _PROBES & spec.keys():
                probing = asyncio.create_task(self._probe(spec, container))
        try:
            ending = self._with_last_words(spec, self._explained(name, await container.ended()))
        finally:
            if probing is not None:
                probing.cancel()
        self._states[name] = replace(state, started_at=container.started_at, ending=ending)
        if len(self.pod["spec"]["containers"]) > 1 or "initContainers" in self.pod["spec"]:
            await self._report()
        return ending

    async def _probe(self, spec: Json, container: Container) -> None:
        """Report what probes show, and end a container that does not start or does not live."""
        if "startupProbe" in spec:
            await self._end_at_failure("startupProbe", spec, container)
        async with asyncio.TaskGroup() as group:
            if "livenessProbe" in spec:
                group.create_task(self._end_at_failure("livenessProbe", spec, container))
            if "readinessProbe" in spec:
                group.create_task(self._follow_readiness(spec, container))

    async def _end_at_failure(self, kind: str, spec: Json, container: Container) -> None:
        async for passes in Probe.of(spec, kind, container, self._ip).verdicts():
            if not passes:
                await self._end(
                    container, spec[kind].get("terminationGracePeriodSeconds", self._grace_s)
                )
                return
            if kind == "startupProbe":
                await self._show(spec["name"], has_started=True)
                return

    async def _follow_readiness(self, spec: Json, container: Container) -> None:
        async for is_ready in Probe.of(spec, "readinessProbe", container, self._ip).verdicts():
            await self._show(spec["name"], is_ready=is_ready)

    async def _show(self, name: str, **changes: bool) -> None:
        state = self._states[name]
        changed = replace(state, **changes)  # type: ignore[arg-type]  # fields of one type
        if changed != state:
            self._states[name] = changed
            await self._report()

    async def _start(
        self, spec: Json, lookup: Lookup, volumes: dict[str, str]
    ) -> Container | HollowContainer:
        """Start a process for a container, as soon as its image and its variables exist."""
        attempts = 0
        while True:
            if spec["image"].startswith(ABSENT_REGISTRY):
                reason = "ErrImagePull" if attempts == 0 else "ImagePullBackOff"
                message = f'failed to pull image "{spec["image"]}": not found'
            else:
                folder = self._new_folder(spec["name"])
                if self._host.is_hollow:
                    return await self._start_hollow(folder, spec, lookup)
                try:
                    return Container.start(folder, self._container_spec(spec, lookup, volumes))
                except ConfigError as error:
                    reason, message = "CreateContainerConfigError", str(error)
            attempts += 1
            self._states[spec["name"]] = ContainerState(
                waiting_reason=reason, waiting_message=message
            )
            await self._report()
            await asyncio.sleep(_RETRY_S)
            lookup, _ = await self._volumes()

    def _explained(self, name: str, ending: Ending) -> Ending:
        return replace(ending, reason="OOMKilled") if name in self._out_of_memory else ending

    def _with_last_words(self, spec: Json, ending: Ending) -> Ending:
        """The ending of a container that failed, with the end of its log where the policy says so."""
        if not ending.code or spec.get("terminationMessagePolicy") != "FallbackToLogsOnError":
            return ending
        log = self.log(spec["name"])
        text = "" if log is None else log.read_bytes()[-_LAST_WORDS_BYTES:].decode(errors="replace")
        return replace(ending, last_words=text)

    async def _start_hollow(self, folder: Path, spec: Json, lookup: Lookup) -> HollowContainer:
        container = HollowContainer(folder)
        secrets = [one["secret"]["secretName"] for one in self._volume_sources("secret")]
        words = command_line(spec, self._variables(spec, lookup)) if secrets else []
        if "--listen" in words and (secret := lookup("secrets", secrets[0])):
            await self._host.hollow_agents.serve(words, secret, container)
        return container

    def _volume_sources(self, kind: str) -> list[Json]:
        return [one for one in self.pod["spec"].get("volumes", ()) if kind in one]

    def _new_folder(self, name: str) -> Path:
        """The folder of the next process of a container."""
        folder = self._folder / "containers" / name
        return folder / str(len(list(folder.glob("*"))))

    def _container_spec(
        self, spec: Json, lookup: Lookup, volumes: Mapping[str, str]
    ) -> ContainerSpec:
        env = self._variables(spec, lookup)
        security = {
            **self.pod["spec"].get("securityContext", {}),
            **spec.get("securityContext", {}),
        }
        hostname = self.pod["spec"].get("hostname") or self.name
        group = security.get("fsGroup")
        return ContainerSpec(
            argv=command_line(spec, env),
            env=env,
            cwd=expand(spec.get("workingDir", "/"), env),
            hostname=hostname,
            uid=security.get("runAsUser"),
            gid=security.get("runAsGroup", security.get("runAsUser")),
            groups=[group] if group is not None else [],
            mounts=mounts_of(spec, dict(volumes)),
            files={"/etc/hosts": f"127.0.0.1 localhost\n{self._ip} {hostname}\n"},
            read_only_root=bool(security.get("readOnlyRootFilesystem")),
        )

    def _variables(self, spec: Json, lookup: Lookup) -> dict[str, str]:
        pod = {**self.pod, "status": {"podIP": self._ip, "hostIP": self._host.ip}}
        return variables(spec, pod, lookup, service_variables(self._host.api.url))

    # From here on: what ends.

    async def _stop(self, working: asyncio.Task[None]) -> None:
        """SIGTERM, the grace period, SIGKILL. A later deletion may shorten the grace period."""
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError, ExceptionGroup):
            await working
        began = time.monotonic()
        for names in self._turns_to_end():
            await self._stop_some([self._containers[name] for name in names], began)
        for name, container in self._containers.items():
            self._note_end(name, container)

    def _turns_to_end(self) -> list[list[str]]:
        """All containers but the sidecars at once, then those one by one, the last one first."""
        sidecars = [
            one["name"]
            for one in self.pod["spec"].get("initContainers", ())
            if is_sidecar(one) and one["name"] in self._containers
        ]
        main_containers = [name for name in self._containers if name not in sidecars]
        return [main_containers, *([name] for name in reversed(sidecars))]

    async def _stop_some(
        self, containers: Sequence[Container | HollowContainer], began: float
    ) -> None:
        for container in containers:
            container.signal(signal.SIGTERM)
        ended = asyncio.create_task(_all_ended(containers))
        while not ended.done():
            grace_s = self.pod["metadata"].get("deletionGracePeriodSeconds", 0)
            left_s = 0.0 if self._removed else began + grace_s - time.monotonic()
            if left_s <= 0:
                for container in containers:
                    container.kill()
                await ended
            else:
                await self._wait_for_change(ended, timeout_s=left_s)

    # From here on: what is reported.

    def _wait_all(self, reason: str, message: str) -> None:
        for spec in (*self.pod["spec"].get("initContainers", ()), *self.pod["spec"]["containers"]):
            if spec["name"] not in self._containers:
                self._states[spec["name"]] = ContainerState(
                    waiting_reason=reason, waiting_message=message
                )

    async def report_again(self) -> None:
        """Another one has written into the status, for example while the node was silent."""
        await self._report()

    async def _report(self) -> None:
        """Write the status as it is then. Wait until the API server can be reached."""
        async with self._reporting:
            await self._write_status()

    async def _write_status(self) -> None:
        while not self._removed:
            await self._host.connected.wait()
            body = {"metadata": {"uid": self.pod["metadata"]["uid"]}, "status": self._status()}
            try:
                await self._host.api.patch(f"{self._path}/status", body, kind=STRATEGIC_MERGE)
                return
            except ApiError as error:
                if error.status in {404, 409}:  # removed, or another pod of this name
                    self._removed = True
                    return
                if error.status < 500 and error.status != 429:
                    raise
            except UNREACHABLE:
                pass
            await asyncio.sleep(_RETRY_S)

    def _status(self) -> Json:
        phase = phase_of(self.pod, self._states, is_final=self._is_over)
        reason, message = self._failure or ("", "")
        if self._is_over and phase not in _FINAL_PHASES:
            phase = "Failed"
        status = pod_status(
            self.pod,
            self._states,
            phase=phase,
            started_at=self._started_at,
            now=time.time(),
            host_ip=self._host.ip,
            pod_ip=self._ip,
            reason=reason,
            message=message,
        )
        status["conditions"] += self._conditions
        return status

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.pod['metadata']['namespace']}/pods/{self.name}"

    async def _delete_object(self) -> None:
        """Confirm a deletion. A finalizer may keep the object: once is enough."""
        while not self._removed:
            await self._host.connected.wait()
            preconditions = {"uid": self.pod["metadata"]["uid"]}
            try:
                await self._host.api.delete(
                    self._path, gracePeriodSeconds=0, preconditions=preconditions
                )
                return
            except ApiError as error:
                if error.status in {404, 409}:
                    return
                raise
            except UNREACHABLE:
                await asyncio.sleep(_RETRY_S)


async def _all_ended(containers: Sequence[Container | HollowContainer]) -> None:
    for container in containers:
        await container.ended()
