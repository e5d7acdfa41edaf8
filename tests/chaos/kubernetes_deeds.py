"""How chaos hits pods, nodes and the control plane of a Kubernetes cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.chaos.deeds import lasting, sent, slow_down, step_clock
from tests.chaos.ground import Hit, awake, say, send
from tests.chaos.on_kubernetes import NAMESPACE, PODS, OnKubernetes, namespace_of, processes_in
from tests.chaos.plan import Event
from tests.kubernetes.jobs import set_writable
from tests.support.starving import stopped
from tests.support.wire import Wire
from tests.support.world import LIBRARY
from tests.testbed.api import UNREACHABLE, ApiError
from tests.testbed.controlplane import ControlPlane
from tests.testbed.machines import FaultRefused
from tests.testbed.weather import Mood

How = Callable[[OnKubernetes, Event], Awaitable[Hit | None]]

NODE_LASTS = 4
"""Times as long as other things a node is away: the controllers notice after some seconds."""


# -- Ranks and pods ---------------------------------------------------------------------------------


async def kill_rank(ground: OnKubernetes, event: Event) -> Hit | None:
    if not (hit := send(ground.ranks(event), signal.SIGKILL)):
        return None
    return Hit(text=str(hit), jobs=(event.job,), must_restart=True)


async def stop_rank(ground: OnKubernetes, event: Event) -> Hit | None:
    if not (pids := awake(ground.ranks(event))):
        return None
    return lasting(event, ground, f"stopped {pids}", stopped(*pids))


async def hang_rank(ground: OnKubernetes, event: Event) -> Hit | None:
    """SIGSTOP, for good: only a restart ends it."""
    if not (hit := send(awake(ground.ranks(event)), signal.SIGSTOP)):
        return None
    return Hit(text=str(hit), jobs=(event.job,), must_restart=True)


async def close_storage(ground: OnKubernetes, event: Event) -> Hit | None:
    """The folder of records and checkpoints takes nothing for a while; the script ends as it saves."""
    what, folder = f"storage {event.job}", ground.folders[event.job].checkpoints.parent
    if ground.is_busy(what) or not folder.exists():
        return None
    set_writable(folder, False)

    async def undo() -> None:
        set_writable(folder, True)

    ground.for_a_while(what, event.lasts_s, undo)
    return Hit(text=f"for {event.lasts_s:g} s", jobs=(event.job,))


def hit_pod(fault: str) -> How:
    """A fault of the kubelet of a pod."""

    async def how(ground: OnKubernetes, event: Event) -> Hit | None:
        for pod in await ground.pods(event):
            try:
                await ground.machines.fault(fault, namespace=NAMESPACE, pod=pod.name)
            except FaultRefused:
                continue
            return Hit(text=pod.name, jobs=(event.job,))
        return None

    return how


async def delete_pod(ground: OnKubernetes, event: Event) -> Hit | None:
    """As a person does with `kubectl delete pod`."""
    for pod in await ground.pods(event):
        try:
            await ground.api.delete(f"{PODS}/{pod.name}")
        except (ApiError, *UNREACHABLE):
            continue
        return Hit(text=pod.name, jobs=(event.job,))
    return None


# -- Nodes ------------------------------------------------------------------------------------------


def lose_node(fault: str) -> How:
    """The node of a slot is hit, and back after a while."""

    async def how(ground: OnKubernetes, event: Event) -> Hit | None:
        pods = await ground.pods(event)
        if not pods or ground.is_busy(pods[0].node):
            return None
        node = pods[0].node
        jobs = await ground.jobs_on(node)
        await ground.machines.fault(fault, node=node)

        async def undo() -> None:
            await ground.machines.fault("node-return", node=node)

        ground.for_a_while(node, NODE_LASTS * event.lasts_s, undo)
        return Hit(text=f"{node} for {NODE_LASTS * event.lasts_s:g} s", jobs=jobs)

    return how


async def slow_pod(ground: OnKubernetes, event: Event) -> Hit | None:
    """All processes beside a rank, its agent too, get a tenth of the time for a while."""
    pids = ground.ranks(event)
    if not pids or ground.is_busy(what := f"slow pod of {event.job}"):
        return None
    namespace = namespace_of(pids[0])
    assert namespace != namespace_of(os.getpid())
    return slow_down(ground, event, what, partial(processes_in, namespace))


async def step_node_clock(ground: OnKubernetes, event: Event) -> Hit | None:
    """The wall clock of a node steps: that of all processes of its pods."""
    pods, pids = await ground.pods(event), ground.ranks(event)
    if ground.worlds is None or not pods or not pids:
        return None
    assert f"/{LIBRARY}" in Path(f"/proc/{pids[0]}/maps").read_text()
    return step_clock(ground, event, ground.worlds[pods[0].node], pods[0].node)


async def drain(ground: OnKubernetes, event: Event) -> Hit | None:
    """Cordon the node of a slot and evict its pods, as `kubectl drain` does; uncordon it after a while."""
    pods = await ground.pods(event)
    if not pods:
        return None
    node = pods[0].node
    try:
        await ground.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
        jobs = await ground.jobs_on(node)
        for item in (await ground.api.get(PODS, fieldSelector=f"spec.nodeName={node}"))["items"]:
            name = item["metadata"]["name"]
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            await ground.api.create(f"{PODS}/{name}/eviction", eviction)
    except (ApiError, *UNREACHABLE):
        jobs = (event.job,)

    async def undo() -> None:
        await ground.uncordon(node)

    ground.for_a_while(f"drain of {node}", event.lasts_s, undo)
    return Hit(text=f"{node} for {event.lasts_s:g} s", jobs=jobs)


async def report_node(ground: OnKubernetes, event: Event) -> Hit | None:
    """An operator reports the node of a slot as faulty; it is released after a while."""
    pods = await ground.pods(event)
    if not pods:
        return None
    fault = {"kind": "node.fault", "node": pods[0].node, "message": "chaos"}
    ground.in_background(sent(ground, event, "report_fault", fault), f"event {event.number}")
    ground.for_a_while(f"report of {pods[0].node}", event.lasts_s, ground.release)
    return Hit(text=pods[0].node, jobs=(event.job,))


# -- The control plane ------------------------------------------------------------------------------


async def kill_api_server(ground: OnKubernetes, event: Event) -> Hit | None:
    if ground.is_busy("kube-apiserver"):
        return None
    ground.plane.child("kube-apiserver").kill()

    async def undo() -> None:
        await ground.plane.start_api_server()

    ground.for_a_while("kube-apiserver", event.lasts_s, undo)
    return Hit(text=f"for {event.lasts_s:g} s")


def stop_part(name: str) -> How:
    """A process of the control plane stands still for a while."""

    async def how(ground: OnKubernetes, event: Event) -> Hit | None:
        if ground.is_busy(name) or ground.plane.child(name).returncode is not None:
            return None
        return lasting(event, ground, name, standing_still(ground.plane, name))

    return how


@contextmanager
def standing_still(plane: ControlPlane, name: str) -> Iterator[None]:
    with stopped(plane.child(name).pid):
        yield


def break_api_wire(how_broken: Callable[[Wire], None]) -> How:
    """The way between the second worker and the API server is broken for a while."""

    async def how(ground: OnKubernetes, event: Event) -> Hit | None:
        if ground.is_busy("API wire"):
            return None
        how_broken(ground.api_wire)

        async def undo() -> None:
            ground.api_wire.release()
            ground.api_wire.accept()

        ground.for_a_while("API wire", event.lasts_s, undo)
        return Hit(text=f"for {event.lasts_s:g} s")

    return how


LATE_S = 1.5
"""So late is each answer of a slow API server."""
WEATHER_LASTS = 4
"""Times as long as other things the weather lasts: a worker sends few requests while no job recovers."""


def turn_weather(mood: Mood) -> How:
    """The API server answers the first worker as one in trouble for a while; what it met is printed after."""

    async def how(ground: OnKubernetes, event: Event) -> Hit | None:
        if ground.is_busy("weather"):
            return None
        met = ground.weather.met
        ground.weather.turn(mood, late_s=LATE_S)

        async def undo() -> None:
            ground.weather.turn(Mood.CLEAR)
            say(f"{event.number:3} {event.action} met {ground.weather.met - met} answers")

        ground.for_a_while("weather", WEATHER_LASTS * event.lasts_s, undo)
        return Hit(text=f"for {WEATHER_LASTS * event.lasts_s:g} s")

    return how
