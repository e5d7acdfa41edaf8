"""The manifests of pods: what the API server takes, and what a template may say."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.agent import build
from everstep.backends.kubernetes import credentials, manifest, names
from everstep.backends.kubernetes.api import Json
from everstep.backends.kubernetes.avoided_nodes import NodesToAvoid
from everstep.core.errors import InvalidSpec
from everstep.core.world import JobRef, PlaceOrder
from everstep.dialects.registry import compile_document, read_text
from everstep.protocol import wire
from tests.testbed.api import Api, ApiError
from tests.testbed.controlplane import until_pods_can_be_created

DRY_RUN = {"dryRun": "All", "fieldValidation": "Strict"}
SETTINGS = manifest.PodSettings(books="abc123", agent="everstep-agent-0")
OWNER = {"name": names.record("demo"), "uid": "00000000-0000-0000-0000-000000000000"}
ORDER = PlaceOrder(
    job=JobRef(id="demo", run="r1"),
    phase="main",
    generation=3,
    slots=(0, 1),
    recreate=(0, 1),
    image="registry.example.test/train:1",
)


AVOIDED = NodesToAvoid(hosts=["n1"], names=["n2", "n3"])


def pod(template: Mapping[str, Any] | None = None, **changed: Any) -> Json:
    avoided = changed.pop("avoided", None)
    order = replace(ORDER, pod_template=template or {}, **changed)
    return manifest.pod(order, 1, owner=OWNER, settings=SETTINGS, nodes_to_avoid=avoided)


def container(made: Json) -> Json:
    return next(one for one in made["spec"]["containers"] if one["name"] == manifest.CONTAINER)


@pytest.fixture(scope="module")
async def restricted(api: Api, namespace: str) -> str:
    """A namespace that takes only pods of the restricted Pod Security level."""
    enforce = {"pod-security.kubernetes.io/enforce": "restricted"}
    await api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": enforce}})
    return namespace


async def dry_run(api: Api, namespace: str, made: Json) -> Json:
    return await api.create(f"/api/v1/namespaces/{namespace}/pods", made, **DRY_RUN)


FULL_TEMPLATE = {
    "metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}, "annotations": {"team": "nlp"}},
    "spec": {
        "nodeSelector": {"pool": "gpu"},
        "priorityClassName": "system-cluster-critical",
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
        "securityContext": {"runAsUser": 2000},
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
        "initContainers": [
            {
                "name": "fetch",
                "image": "fetch:1",
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
        "containers": [
            {
                "name": "train",
                "resources": {"requests": {"cpu": "2"}, "limits": {"rdma/hca": "1"}},
                "env": [{"name": "HOME", "value": "/data/home"}, {"name": "A", "value": "1"}],
                "volumeMounts": [
                    {"name": "data", "mountPath": "/data"},
                    {"name": "shm", "mountPath": "/dev/shm"},
                ],
            }
        ],
    },
}


@pytest.mark.parametrize(
    "made",
    [
        pod(),
        pod(FULL_TEMPLATE, accelerator="nvidia", accelerators_per_node=8, avoided=AVOIDED),
        pod(last_choice=("n1", "n2")),
        pod(job=JobRef(id="Ä job/with $(EVERYTHING) " + "x" * 300, run="r"), phase="p" * 40),
    ],
    ids=["smallest", "full template", "last choice", "odd names"],
)
async def test_the_api_server_takes_it_at_the_restricted_level(
    api: Api, restricted: str, made: Json
) -> None:
    if made["spec"].get("priorityClassName"):
        made["spec"]["priorityClassName"] = ""  # of the test bed only system pods may have one
    accepted = await dry_run(api, restricted, made)
    assert accepted["spec"]["containers"][0]["command"] == container(made)["command"]


async def test_what_the_server_refuses_it_says_in_its_own_words(api: Api, restricted: str) -> None:
    made = pod({"spec": {"nodeSelecter": {"pool": "gpu"}}})
    with pytest.raises(ApiError, match=r'unknown field "spec\.nodeSelecter"'):
        await dry_run(api, restricted, made)


async def test_agent_and_credentials_fit_into_their_objects(
    api: Api, restricted: str, tmp_path: Path
) -> None:
    agent = build.build(tmp_path / "agent.pyz", is_small=True).read_bytes()
    content = base64.b64encode(agent).decode()
    maps = f"/api/v1/namespaces/{restricted}/configmaps"
    body = {"metadata": {"name": names.agent(agent)}, "binaryData": {manifest.AGENT_FILE: content}}
    await api.create(maps, body, **DRY_RUN)
    secret = {"metadata": {"name": names.secret("demo")}, "stringData": credentials.make("demo")}
    accepted = await api.create(f"/api/v1/namespaces/{restricted}/secrets", secret, **DRY_RUN)
    assert accepted["data"].keys() > set(credentials.OF_AGENTS)


def test_a_pod_mounts_no_key_of_the_worker() -> None:
    volume = next(one for one in pod()["spec"]["volumes"] if "secret" in one)
    mounted = {item["key"] for item in volume["secret"]["items"]}
    assert not mounted & {credentials.CLIENT_KEY, credentials.CLIENT_CERTIFICATE}
    assert not pod()["spec"]["automountServiceAccountToken"]


def test_the_pod_that_releases_folders_has_the_volumes_of_the_job_and_nothing_else() -> None:
    mount = {"name": "models", "mountPath": "/models"}
    spec = {
        "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
        "initContainers": [{"name": "prepare", "image": "i"}],
        "containers": [
            {"name": "train", "volumeMounts": [mount], "resources": {"limits": {"cpu": "8"}}},
            {"name": "side", "image": "i"},
        ],
    }
    command: wire.ReleaseCommand = {
        "job": "demo",
        "cluster": "abc123",
        "generation": 3,
        "folders": ["/models/$x"],
        "earlier": [],
    }
    made = manifest.releaser("trainer", {"spec": spec}, command, owner=OWNER, settings=SETTINGS)
    (one,) = made["spec"]["containers"]
    assert mount in one["volumeMounts"]
    assert not {"env", "resources"} & one.keys()
    assert '"/models/$$x"' in one["command"][-1]
    volumes = {volume["name"] for volume in made["spec"]["volumes"]}
    assert volumes == {"everstep-agent", "everstep-tmp", "models"}
    assert made["metadata"]["name"] == "demo-release-g3"
    assert names.SLOT not in made["metadata"]["labels"]


def test_a_template_adds_to_our_container_and_keeps_what_it_does_not_name() -> None:
    made = container(pod(FULL_TEMPLATE, accelerator="nvidia", accelerators_per_node=8))
    assert made["resources"]["limits"] == {"nvidia.com/gpu": "8", "rdma/hca": "1"}
    env = {one["name"]: one.get("value") for one in made["env"]}
    assert env["HOME"] == "/data/home"
    assert env["A"] == "1"
    assert "EVERSTEP_NODE" in env
    mounts = {one["mountPath"] for one in made["volumeMounts"]}
    assert mounts == {"/data", "/dev/shm", *manifest.VOLUMES.values()}


def test_a_template_is_not_changed() -> None:
    template: dict[str, Any] = {
        "spec": {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": []}]
                    }
                }
            }
        }
    }
    before = repr(template)
    pod(template, avoided=NodesToAvoid(hosts=["n1"]))
    assert repr(template) == before


def test_every_alternative_of_a_template_keeps_off_isolated_nodes() -> None:
    terms = [
        {"matchExpressions": [{"key": "pool", "operator": "In", "values": [pool]}]}
        for pool in ("a", "b")
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    template = {"spec": {"affinity": {"nodeAffinity": required}}}
    made = pod(template, avoided=NodesToAvoid(hosts=["n2", "n1"], names=["n4", "n3"]))
    affinity = made["spec"]["affinity"]["nodeAffinity"]
    for term in affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]:
        assert len(term["matchExpressions"]) == 2
        rule = term["matchExpressions"][-1]
        assert (rule["operator"], rule["values"]) == ("NotIn", ["n1", "n2"])
        fields = [(one["key"], one["operator"], one["values"]) for one in term["matchFields"]]
        assert fields == [("metadata.name", "NotIn", [name]) for name in ("n3", "n4")]


def test_names_of_different_jobs_differ() -> None:
    jobs = ("demo", "Demo", "de mo", "de-mo", "x" * 60, "x" * 61, "-", "")
    assert len({names.job_label(job) for job in jobs}) == len(jobs)
    assert all(len(names.pod(job, slot=99_999, generation=2**53)) <= 253 for job in jobs)


@pytest.mark.parametrize("job", ["Demo", "de mo", "x" * 60, "-", ""])
def test_a_job_called_as_the_label_of_another_one_has_another_label(job: str) -> None:
    """Under one label both would have the same record, Secret and pods."""
    label = names.job_label(job)
    assert names.job_label(label) != label
    assert len(names.job_label(label)) <= 63


def restarting(action: str) -> dict[str, Any]:
    """A container beside the ranks, with this action for one of its exit codes."""
    codes = {"operator": "In", "values": [42]}
    rules = [{"action": one, "exitCodes": codes} for one in ("Restart", action)]
    return {
        "name": "helper",
        "image": "helper",
        "restartPolicy": "Never",
        "restartPolicyRules": rules,
    }


def test_a_container_beside_the_ranks_may_be_started_again_by_itself() -> None:
    made = pod({"spec": {"containers": [restarting("Restart")]}})
    assert made["spec"]["containers"][1] == restarting("Restart")


@pytest.mark.parametrize(
    ("field", "template"),
    [
        ("spec.pod_template.status", {"status": {}}),
        ("spec.pod_template.spec", {"spec": []}),
        ("spec.pod_template.metadata.name", {"metadata": {"name": "mine"}}),
        (
            "spec.pod_template.metadata.labels.everstep.dev/slot",
            {"metadata": {"labels": {"everstep.dev/slot": "7"}}},
        ),
        ("spec.pod_template.spec.restartPolicy", {"spec": {"restartPolicy": "Always"}}),
        ("spec.pod_template.spec.nodeName", {"spec": {"nodeName": "n0"}}),
        # Ranks would see processes of the node, or of the agent's other containers.
        *(
            (f"spec.pod_template.spec.{key}: must be left to Everstep", {"spec": {key: value}})
            for key in ("hostPID", "shareProcessNamespace")
            for value in (True, False)
        ),
        ("spec.pod_template.spec.containers", {"spec": {"containers": {}}}),
        ("spec.pod_template.spec.containers.0", {"spec": {"containers": ["train"]}}),
        (
            "spec.pod_template.spec.containers.0.command",
            {"spec": {"containers": [{"name": "train", "command": ["python"]}]}},
        ),
        (
            "spec.pod_template.spec.containers.0.restartPolicy",
            {"spec": {"containers": [{"name": "train", "restartPolicy": "Always"}]}},
        ),
        (
            "spec.pod_template.spec.containers.0.restartPolicyRules",
            {"spec": {"containers": [{"name": "train", "restartPolicyRules": []}]}},
        ),
        (
            "spec.pod_template.spec.containers.1.restartPolicyRules.1.action: is RestartAllContainers",
            {"spec": {"containers": [{"name": "side"}, restarting("RestartAllContainers")]}},
        ),
        (
            "spec.pod_template.spec.initContainers.0.restartPolicyRules.1.action: is RestartAll",
            {"spec": {"initContainers": [restarting("RestartAllContainers")]}},
        ),
        (
            "spec.pod_template.spec.containers.0.volumeMounts.0: a mountPath is needed",
            {"spec": {"containers": [{"name": "train", "volumeMounts": [{"name": "data"}]}]}},
        ),
        (
            "spec.pod_template.spec.volumes.0.name",
            {"spec": {"volumes": [{"name": "everstep-home", "emptyDir": {}}]}},
        ),
        (
            "spec.pod_template.spec.containers.1.name: there are two containers called side",
            {"spec": {"containers": [{"name": "side"}, {"name": "side"}]}},
        ),
        (
            "spec.pod_template.spec.containers.1.name: there are two containers called train",
            {"spec": {"containers": [{"name": "train"}, {"name": "train"}]}},
        ),
        (
            "spec.pod_template.spec.initContainers.0.name",
            {"spec": {"initContainers": [{"name": "train"}]}},
        ),
        (
            "spec.pod_template.spec.containers.1.image: is 'Side: 1': an image is",
            {"spec": {"containers": [{"name": "train"}, {"name": "side", "image": "Side: 1"}]}},
        ),
        (
            "spec.pod_template.spec.initContainers.0.image: is 'Fetch:1': an image is",
            {"spec": {"initContainers": [{"name": "fetch", "image": "Fetch:1"}]}},
        ),
        (
            "spec.pod_template.spec.volumes.0.image.reference: is 'Data:1': an image is",
            {"spec": {"volumes": [{"name": "data", "image": {"reference": "Data:1"}}]}},
        ),
        (
            "spec.pod_template.metadata.namespace: is theirs, and the workers of this cluster make",
            {"metadata": {"namespace": "theirs"}},
        ),
        *(
            (
                f"spec.pod_template.spec.{key}: is everstep-worker, whose rights reach the Secrets",
                {"spec": {key: "everstep-worker", "automountServiceAccountToken": True}},
            )
            for key in ("serviceAccountName", "serviceAccount")
        ),
        (
            "spec.pod_template.metadata.labels.everstep.dev/component: is reserved for Everstep",
            {"metadata": {"labels": {"everstep.dev/component": "worker"}}},
        ),
        ("spec.pod_template: a value of the wrong kind", {"spec": {"affinity": []}}),
        ("spec.pod_template: a value of the wrong kind", {"metadata": {"labels": {1: "x"}}}),
        (
            "spec.pod_template: a value of the wrong kind",
            {"spec": {"containers": [{"name": "train", "volumeMounts": {}}]}},
        ),
        *(
            (
                "spec.pod_template.spec.containers.0.volumeMounts.0.mountPath: nothing can be",
                {
                    "spec": {
                        "containers": [
                            {"name": "train", "volumeMounts": [{"name": "x", "mountPath": path}]}
                        ]
                    }
                },
            )
            for path in (
                "/everstep",
                "/everstep/",
                "/everstep/other",
                "/everstep/agent",
                "//a/../everstep",
            )
        ),
    ],
)
def test_a_template_that_would_break_the_pod_is_refused(
    field: str, template: Mapping[str, Any]
) -> None:
    with pytest.raises(InvalidSpec) as refused:
        pod(template)
    assert field in str(refused.value)


@pytest.mark.parametrize(
    "template",
    [
        {"metadata": None, "spec": None},
        {"metadata": {"labels": None, "annotations": None}},
        {"spec": {"affinity": None, "initContainers": None, "volumes": None}},
        {"spec": {"affinity": {"nodeAffinity": None}}},
        {"spec": {"containers": [{"name": "train", "env": None, "restartPolicy": None}]}},
    ],
)
def test_a_null_in_a_template_is_as_good_as_nothing(template: Mapping[str, Any]) -> None:
    """The API server takes it so; a template of Helm has many."""
    assert pod(template, avoided=AVOIDED) == pod(avoided=AVOIDED)


def test_the_name_of_a_phase_makes_a_label_whatever_its_end() -> None:
    assert pod(phase="a-")["metadata"]["labels"][names.PHASE] == "a"


NO_IMAGES = (
    "UPPER CASE:??",
    "Train:1",
    "train:",
    "train: 1",
    "train@sha256:12",
    "registry.example.com:port/train",
    "https://registry.example.com/train",
    "-train",
    "train:" + 129 * "1",
)
IMAGES = (
    "train",
    "train:1.0_B-x",
    "team/sub__team/train-2",
    "localhost:5000/train",
    "Registry.Example.com/train:latest",
    "[::1]:5000/train",
    f"train:1@sha256:{64 * 'a'}",
    f"train@sha256:{64 * '0'}",
)


@pytest.mark.parametrize("image", IMAGES)
def test_each_form_of_an_image_makes_a_pod(image: str) -> None:
    assert pod(None, image=image)["spec"]["containers"][0]["image"] == image


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("spec.image", {"image": None}),
        *(("spec.image", {"image": image}) for image in NO_IMAGES),
        (
            "spec.accelerators_per_node",
            {"accelerator": "nvidia", "accelerators_per_node": "all"},
        ),
    ],
)
def test_what_a_pod_cannot_do_without_is_named(field: str, changed: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidSpec) as refused:
        pod(None, **changed)
    assert field in str(refused.value)


def test_the_document_of_the_page_is_valid_and_makes_a_pod() -> None:
    text = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
    _, _, rest = text.partition("## A job\n\n")
    document = read_text(textwrap.dedent(rest.partition("\n\n")[0]))
    [phase] = compile_document(document).phases
    assert phase.image is not None
    made = pod(phase.pod_template, image=phase.image)
    assert {"name": "models", "mountPath": "/models"} in container(made)["volumeMounts"]


def lines_of_page() -> dict[str, dict[str, Any]]:
    """What the page says of a pod, and the spec of a template whose lines change that."""
    page = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
    _, _, section = page.partition("### What a pod gets\n")
    section, _, _ = section.partition("\n## ")
    rows: dict[str, dict[str, Any]] = {}
    for what, change in re.findall(r"^\| (.+?) \| (.+) \|$", section, re.MULTILINE)[2:]:
        spec: Any = {}
        for code in re.findall(r"`([a-zA-Z]+: [^`]*)`", change):
            spec = manifest.merged(spec, yaml.safe_load(code))
        rows[what] = spec
    return rows


PAGE_LINES = lines_of_page()


async def test_a_pod_has_what_the_page_says(api: Api, namespace: str) -> None:
    accepted = await dry_run(api, namespace, pod())
    assert accepted["status"]["qosClass"] == "BestEffort"
    assert accepted["spec"]["securityContext"] == {
        **dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 1000),
        "fsGroupChangePolicy": "OnRootMismatch",
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert accepted["spec"]["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert "/dev/shm" not in {
        mount["mountPath"] for mount in accepted["spec"]["containers"][0]["volumeMounts"]
    }


@pytest.mark.parametrize("what", PAGE_LINES)
async def test_the_lines_of_the_page_change_what_a_pod_has(
    api: Api, namespace: str, what: str
) -> None:
    """The namespace enforces no level."""
    without_level = f"plain-{namespace}"
    with contextlib.suppress(ApiError):  # an earlier one of these made it
        await api.create("/api/v1/namespaces", {"metadata": {"name": without_level}})
        await until_pods_can_be_created(api, without_level)
        account = {"metadata": {"name": "of-a-job"}}
        await api.create(f"/api/v1/namespaces/{without_level}/serviceaccounts", account)
    assert PAGE_LINES[what]
    spec = json.loads(json.dumps(PAGE_LINES[what]).replace('"..."', '"of-a-job"'))
    usual = await dry_run(api, without_level, pod())
    accepted = await dry_run(api, without_level, pod({"spec": spec}))
    assert accepted["spec"] != usual["spec"]
    if "BestEffort" in what:
        assert accepted["status"]["qosClass"] == "Burstable"


def test_an_agent_starts_without_what_the_image_has_installed() -> None:
    command = container(pod())["command"]
    assert command[:4] == ["python3", "-I", "-S", f"{manifest.AGENT}/{manifest.AGENT_FILE}"]


def test_an_agent_gets_the_settings_of_its_cluster() -> None:
    settings = replace(SETTINGS, orphan_s=60.0, log_mb=64.0)
    made = manifest.pod(ORDER, 1, owner=OWNER, settings=settings)
    words = container(made)["command"]
    options = dict(itertools.pairwise(words))
    assert (options["--orphan-s"], options["--log-mb"]) == ("60", "64")


def test_slots_of_a_job_share_no_node_and_a_template_adds_to_that() -> None:
    rule = {"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": "other"}}}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}
    made = pod({"spec": {"affinity": {"podAntiAffinity": required}}})
    rules = made["spec"]["affinity"]["podAntiAffinity"]
    [first, of_job] = rules["requiredDuringSchedulingIgnoredDuringExecution"]
    assert first == rule
    assert of_job["topologyKey"] == "kubernetes.io/hostname"
    labels = made["metadata"]["labels"]
    job, slot = of_job["labelSelector"]["matchExpressions"]
    assert (job["operator"], job["values"]) == ("In", [labels["everstep.dev/job"]])
    assert (slot["operator"], slot["values"]) == ("NotIn", [labels["everstep.dev/slot"]])


def at(made: Json, path: str) -> Any:
    """A value of the pod by the keys that lead to it; of a list the element of that name."""
    value: Any = made
    for key in path.split("."):
        value = (
            next(one for one in value if one.get("name") == key)
            if isinstance(value, list)
            else value[key]
        )
    return value


SIDECAR = {"name": "side", "image": "side:1", "restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("template", "path", "value"),
    [
        ({"spec": {"nodeSelector": {"pool": "gpu"}}}, "spec.nodeSelector", {"pool": "gpu"}),
        ({"spec": {"hostNetwork": True}}, "spec.hostNetwork", True),
        (
            {"spec": {"imagePullSecrets": [{"name": "registry"}]}},
            "spec.imagePullSecrets",
            [{"name": "registry"}],
        ),
        (
            {"spec": {"initContainers": [SIDECAR]}},
            "spec.initContainers",
            [{**SIDECAR, "terminationMessagePolicy": "FallbackToLogsOnError"}],
        ),
        ({"spec": {"containers": [SIDECAR]}}, "spec.containers.side", SIDECAR),
        ({"spec": {"priorityClassName": "high"}}, "spec.priorityClassName", "high"),
        ({"spec": {"schedulerName": "volcano"}}, "spec.schedulerName", "volcano"),
        ({"spec": {"terminationGracePeriodSeconds": 60}}, "spec.terminationGracePeriodSeconds", 60),
        (
            {"spec": {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]}},
            "spec.volumes.shm.emptyDir.medium",
            "Memory",
        ),
        (
            {"spec": {"containers": [{"name": "train", "resources": {"limits": {"rdma/hca": 1}}}]}},
            "spec.containers.train.resources.limits",
            {"nvidia.com/gpu": "8", "rdma/hca": 1},
        ),
        (
            {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}},
            "metadata.labels",
            {**pod()["metadata"]["labels"], "kueue.x-k8s.io/queue-name": "team"},
        ),
        (
            {"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "false"}}},
            "metadata.annotations",
            {**pod()["metadata"]["annotations"], "karpenter.sh/do-not-disrupt": "false"},
        ),
        ({"metadata": {"namespace": ""}}, "metadata.labels", pod()["metadata"]["labels"]),
    ],
)
def test_a_template_is_merged_into_the_pod(
    template: Mapping[str, Any], path: str, value: object
) -> None:
    made = pod(template, accelerator="nvidia", accelerators_per_node=8)
    assert at(made, path) == value
    assert at(made, "spec.containers.train.command")


def test_autoscalers_leave_a_job_alone_by_default() -> None:
    annotations = pod()["metadata"]["annotations"]
    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert annotations["karpenter.sh/do-not-disrupt"] == "true"


def test_a_pod_tolerates_the_silence_of_its_node_and_what_the_template_adds() -> None:
    made = pod({"spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}})
    tolerations = made["spec"]["tolerations"]
    assert {"key": "gpu", "operator": "Exists"} in tolerations
    silence = [one for one in tolerations if one.get("effect") == "NoExecute"]
    assert {one["key"].partition("/")[2] for one in silence} == {"not-ready", "unreachable"}
    assert not any("tolerationSeconds" in one for one in silence)


def test_a_cluster_names_its_devices_and_its_domains() -> None:
    settings = replace(
        SETTINGS, resources={"ascend": "huawei.com/ascend-1980"}, topology=("rack", "zone")
    )
    order = replace(ORDER, accelerator="ascend", accelerators_per_node=8)
    made = manifest.pod(order, 1, owner=OWNER, settings=settings)
    assert container(made)["resources"]["limits"] == {"huawei.com/ascend-1980": "8"}
    terms = made["spec"]["affinity"]["podAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert [(one["weight"], one["podAffinityTerm"]["topologyKey"]) for one in terms] == [
        (100, "rack"),
        (50, "zone"),
    ]


GANG = manifest.Gang(name="demo-g3", size=4)
KUEUE = {"kueue.x-k8s.io/queue-name": "team"}


@pytest.mark.parametrize(
    ("template", "has_pod_groups", "group"),
    [
        ({}, True, {"podGroupName": "demo-g3"}),
        ({}, False, None),
        ({"metadata": {"labels": KUEUE}}, True, None),
        ({"spec": {"schedulerName": "volcano"}}, True, None),
        ({"spec": {"schedulingGroup": {"podGroupName": "mine"}}}, True, {"podGroupName": "mine"}),
    ],
)
def test_pods_join_the_group_of_their_job_unless_the_template_groups_them(
    template: Mapping[str, Any], has_pod_groups: bool, group: object
) -> None:
    settings = replace(SETTINGS, has_pod_groups=has_pod_groups)
    order = replace(ORDER, pod_template=template)
    made = manifest.pod(order, 1, owner=OWNER, settings=settings, gang=GANG)
    assert made["spec"].get("schedulingGroup") == group


def test_kueue_gets_the_group_and_its_size() -> None:
    order = replace(ORDER, pod_template={"metadata": {"labels": KUEUE}})
    metadata = manifest.pod(order, 1, owner=OWNER, settings=SETTINGS, gang=GANG)["metadata"]
    assert metadata["labels"]["kueue.x-k8s.io/pod-group-name"] == "demo-g3"
    assert metadata["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "4"


@pytest.mark.parametrize(
    ("priority", "name"),
    [(-1, None), (0, "low"), (99, "low"), (100, "high"), (1_000_000, "high")],
)
def test_a_priority_takes_the_class_of_the_highest_that_it_reaches(
    priority: int, name: str | None
) -> None:
    settings = replace(SETTINGS, priority_classes={100: "high", 0: "low"})
    made = manifest.pod(replace(ORDER, priority=priority), 0, owner=OWNER, settings=settings)
    assert made["spec"].get("priorityClassName") == name


def test_the_priority_class_of_a_template_wins() -> None:
    settings = replace(SETTINGS, priority_classes={0: "low"})
    order = replace(ORDER, pod_template={"spec": {"priorityClassName": "mine"}})
    made = manifest.pod(order, 0, owner=OWNER, settings=settings)
    assert made["spec"]["priorityClassName"] == "mine"


# -- the last choice -----------------------------------------------------------------------------

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def test_a_pod_prefers_other_nodes_than_its_last_choice_beside_what_its_template_prefers() -> None:
    of_template = {
        "weight": 1,
        "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]},
    }
    template = {"spec": {"affinity": {"nodeAffinity": {PREFERRED: [of_template]}}}}
    made = pod(template, last_choice=("n1", "not a name"), avoided=AVOIDED)
    affinity = made["spec"]["affinity"]["nodeAffinity"]
    rule = {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}
    preference = {"weight": 100, "preference": {"matchFields": [rule]}}
    assert affinity[PREFERRED] == [of_template, preference]
    assert "nodeAffinity" not in pod()["spec"]["affinity"]
