"""The Helm chart, made from the manifests of `deploy`: what they say once, the chart does not say again.

A template is a manifest in which a few texts are replaced by what the values say. Each has to be there as
often as `REPLACED` says, so that a change of a manifest that the chart would miss fails here.
`deploy/chart` has what kustomize has no file for: the values and their schema, the settings, the notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from everstep.version import __version__
from release.archives import Files

DEPLOY = Path(__file__).parents[1] / "deploy"
OWN = DEPLOY / "chart"
NAME = "everstep"

CONFIG = {
    "apiVersion": "v2",
    "name": NAME,
    "description": "Workers of Everstep for one cluster, and a namespace for its training jobs",
    "type": "application",
    "version": __version__,
    "appVersion": __version__,
    "kubeVersion": ">=1.30.0-0",
    "keywords": ["training", "fault tolerance", "temporal"],
}
"""Chart.yaml."""

WORKERS = "{{ .Release.Namespace }}"
JOBS = "{{ .Values.jobs.namespace }}"


@dataclass(frozen=True, slots=True)
class Replaced:
    """A text of a manifest and what it is in the chart."""

    text: str
    by: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class Template:
    """A manifest that the chart has, with what is replaced there."""

    source: str
    replaced: tuple[Replaced, ...]
    only_if: str = ""
    """The value without which it is left out."""

    @property
    def path(self) -> str:
        return f"templates/{self.source.replace('/', '-')}"


OF_WORKERS = "  - kind: ServiceAccount\n    name: everstep-worker\n"
OF_JOBS = "metadata:\n  name: everstep-jobs\n"
IMAGE = Replaced(
    "image: everstep:0.1.0 # an overlay says where yours is",
    'image: {{ include "everstep.image" . | quote }}',
)
SETTINGS = Replaced(
    "            - configMapRef: {name: everstep-worker}\n",
    "            - configMapRef: {name: everstep-worker}\n"
    "            {{- with .Values.temporal.secret }}\n"
    "            - secretRef: {name: {{ . | quote }}}\n"
    "            {{- end }}\n",
)
PULL_SECRETS = (
    "      {{- with .Values.image.pullSecrets }}\n"
    "      imagePullSecrets: {{- toYaml . | nindent 8 }}\n"
    "      {{- end }}\n"
)

WITH_KEYS = "{{- with .Values.encryption.secret }}\n"
KEYS = (
    Replaced(
        "            - {name: EVERSTEP_KUBE_DEFAULT_NAMESPACE, value: everstep-jobs} "
        "# of jobs that name none\n",
        "            - name: EVERSTEP_KUBE_DEFAULT_NAMESPACE # of jobs that name none\n"
        f"              value: {{{{ .Values.jobs.namespace | quote }}}}\n"
        f"            {WITH_KEYS}"
        "            - {name: EVERSTEP_PAYLOAD_KEYS, value: /etc/everstep/keys}\n"
        "            {{- end }}\n",
    ),
    Replaced(
        "            - {name: tmp, mountPath: /tmp}\n",
        "            - {name: tmp, mountPath: /tmp}\n"
        f"            {WITH_KEYS}"
        "            - {name: payload-keys, mountPath: /etc/everstep/keys, readOnly: true}\n"
        "            {{- end }}\n",
    ),
    Replaced(
        "        - {name: tmp, emptyDir: {}}\n",
        "        - {name: tmp, emptyDir: {}}\n"
        f"        {WITH_KEYS}"
        "        - {name: payload-keys, secret: {secretName: {{ . | quote }}, defaultMode: 0440}}\n"
        "        {{- end }}\n",
    ),
    Replaced(
        "        runAsUser: 10001\n",
        "        runAsUser: 10001\n"
        f"        {WITH_KEYS}"
        "        fsGroup: 10001 # the group that may read the keys\n"
        "        {{- end }}\n",
    ),
)
"""What deploy/encryption adds, where the values name a Secret."""

TEMPLATES: Sequence[Template] = (
    Template(
        "kubernetes/rbac.yaml",
        (
            Replaced("everstep-watch-NAMESPACE", f"everstep-watch-{WORKERS}", 3),
            Replaced(OF_WORKERS, f"{OF_WORKERS}    namespace: {WORKERS}\n", 2),
        ),
    ),
    Template(
        "kubernetes/priority-class.yaml",
        (Replaced("everstep-worker-NAMESPACE", f"everstep-worker-{WORKERS}"),),
    ),
    Template(
        "kubernetes/record-policy.yaml",
        (Replaced("everstep-records-NAMESPACE", f"everstep-records-{WORKERS}", 3),),
    ),
    Template(
        "kubernetes/worker.yaml",
        (
            Replaced("replicas: 2", "replicas: {{ .Values.replicas }}"),
            Replaced(
                "everstep.dev/component: worker} # the second no job can carry\n",
                "everstep.dev/component: worker} # the second no job can carry\n"
                "      annotations: # workers start again when their settings change\n"
                "        checksum/settings: "
                '{{ include (print $.Template.BasePath "/settings.yaml") . | sha256sum }}\n',
            ),
            Replaced(
                "      priorityClassName: everstep-worker-NAMESPACE\n",
                f"{PULL_SECRETS}      priorityClassName: everstep-worker-{WORKERS}\n",
            ),
            IMAGE,
            SETTINGS,
            *KEYS,
            Replaced(
                "          resources:\n"
                "            requests: {cpu: 250m, memory: 400Mi}\n"
                "            limits: {memory: 2Gi}\n",
                "          resources: {{- toYaml .Values.resources | nindent 12 }}\n",
            ),
        ),
    ),
    Template("kubernetes/service.yaml", ()),
    Template(
        "kubernetes/network-policy.yaml",
        (
            Replaced(
                "kubernetes.io/metadata.name: monitoring}",
                "kubernetes.io/metadata.name: {{ .Values.metrics.namespace | quote }}}",
            ),
        ),
    ),
    Template(
        "job-namespace/namespace.yaml",
        (Replaced("name: everstep-jobs", f"name: {JOBS}"),),
        only_if=".Values.jobs.createNamespace",
    ),
    Template(
        "job-namespace/rbac.yaml",
        (
            Replaced(OF_JOBS, f"{OF_JOBS}  namespace: {JOBS}\n", 2),
            Replaced("namespace: everstep # of the workers", f"namespace: {WORKERS}"),
        ),
    ),
    Template(
        "job-namespace/network-policy.yaml",
        (
            Replaced(OF_JOBS, f"{OF_JOBS}  namespace: {JOBS}\n"),
            Replaced(
                "kubernetes.io/metadata.name: everstep}",
                f"kubernetes.io/metadata.name: {WORKERS}}}",
            ),
        ),
    ),
    Template(
        "setup/job.yaml",
        (
            Replaced(
                "metadata:\n  name: everstep-setup\n",
                "metadata:\n  name: everstep-setup-{{ .Release.Revision }}\n",
            ),
            Replaced(
                "      restartPolicy: OnFailure\n",
                f"{PULL_SECRETS}      restartPolicy: OnFailure\n",
            ),
            IMAGE,
            SETTINGS,
        ),
        only_if=".Values.setup.enabled",
    ),
)


class ManifestChanged(Exception):
    """A manifest has not what the chart replaces there."""


def files() -> Files:
    """The files of the chart, below its folder."""
    own = {
        str(path.relative_to(OWN)): path.read_bytes() for path in OWN.rglob("*") if path.is_file()
    }
    made = {template.path: text(template).encode() for template in TEMPLATES}
    config = yaml.safe_dump(CONFIG, sort_keys=False).encode()
    licence = (DEPLOY.parent / "LICENSE").read_bytes()
    return {
        f"{NAME}/{path}": content
        for path, content in {**own, **made, "Chart.yaml": config, "LICENSE": licence}.items()
    }


def text(template: Template) -> str:
    """The template. Raises `ManifestChanged` if the manifest has not what is replaced."""
    manifest = (DEPLOY / template.source).read_text()
    for each in template.replaced:
        times = manifest.count(each.text)
        if times != each.times:
            what = f"deploy/{template.source} has {each.text!r} {times} times, not {each.times}"
            raise ManifestChanged(f"{what}: change release/chart.py with it")
        manifest = manifest.replace(each.text, each.by)
    if not template.only_if:
        return manifest
    return f"{{{{- if {template.only_if} }}}}\n{manifest}{{{{- end }}}}\n"
