"""The rows of the table that a Kubernetes cluster has besides those of any cluster."""

from __future__ import annotations

from collections.abc import Mapping

from tests.chaos import kubernetes_deeds as deeds
from tests.chaos.actions import ANYWHERE, Action
from tests.chaos.on_kubernetes import OnKubernetes
from tests.support.wire import Wire
from tests.support.world import HAS_COMPILER
from tests.testbed.weather import Mood

LOST = {"node": 1, "crash": 1}
"""A node that is away may be back before it is missed: its processes have ended all the same."""

ON_KUBERNETES: Mapping[str, Action[OnKubernetes]] = {
    **ANYWHERE,
    # Pods.
    "kill a rank": Action(how=deeds.kill_rank, costs={"crash": 1}),
    "stop a rank": Action(how=deeds.stop_rank),
    "hang a rank": Action(how=deeds.hang_rank, costs={"hang": 1}),
    "closed storage": Action(how=deeds.close_storage, costs={"storage": 1, "crash": 1}),
    "kill a container": Action(how=deeds.hit_pod("container-kill"), costs={"crash": 1}),
    "evict a pod": Action(how=deeds.hit_pod("node-pressure"), costs={"*": 1}),
    "delete a pod": Action(how=deeds.delete_pod, costs={"*": 1}),
    # Nodes.
    "node crash": Action(how=deeds.lose_node("node-crash"), costs=LOST),
    "kubelet death": Action(how=deeds.lose_node("kubelet-death"), costs={"node": 1}),
    "partition": Action(how=deeds.lose_node("partition"), costs={"node": 1}),
    "a slow node": Action(how=deeds.slow_pod),
    **({"step a node's clock": Action(how=deeds.step_node_clock)} if HAS_COMPILER else {}),
    "report a node": Action(how=deeds.report_node, costs={"node": 1}),
    "drain a node": Action(how=deeds.drain, costs={"maintenance": 1, "preempted": 1}),
    # The control plane, and the way to it.
    "kill the API server": Action(how=deeds.kill_api_server),
    "stop the API server": Action(how=deeds.stop_part("kube-apiserver")),
    "stop the scheduler": Action(how=deeds.stop_part("kube-scheduler")),
    "stop the controllers": Action(how=deeds.stop_part("kube-controller-manager")),
    "stop etcd": Action(how=deeds.stop_part("etcd")),
    "cut the API server off": Action(how=deeds.break_api_wire(Wire.cut)),
    "refuse to the API server": Action(how=deeds.break_api_wire(Wire.refuse)),
    "hold requests": Action(how=deeds.break_api_wire(Wire.hold)),
    "hold the API's answers": Action(how=deeds.break_api_wire(Wire.hold_answers)),
    "a busy API server": Action(how=deeds.turn_weather(Mood.BUSY)),
    "a slow API server": Action(how=deeds.turn_weather(Mood.SLOW)),
    "half-open watches": Action(how=deeds.turn_weather(Mood.HALF_OPEN)),
    "torn answers": Action(how=deeds.turn_weather(Mood.TORN)),
}
"""All rows of the Kubernetes backend."""
