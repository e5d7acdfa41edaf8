"""A Kubernetes control plane on loopback: etcd, API server, controller manager and scheduler.

Each one can be killed, stopped and started again by itself. All of them end with the process that started
them, and all they write is in one folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import subprocess
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from everstep.processes import free_port
from tests.support.child import Child, ChildFailed
from tests.support.patience import HUNG_S
from tests.testbed.api import UNREACHABLE, Api, ApiError
from tests.testbed.build import CONTROL_PLANE

NODE_GRACE_S = 6
"""Silence of a node after which the controllers call it unreachable; 50 in production."""
SCHEDULER_QPS = 50
"""Requests a second that the scheduler allows itself: its default. Each pod that it places costs some."""

_STARTS = 5  # attempts, each with new ports
_GATES = "--feature-gates=GenericWorkload=true"  # gang scheduling by PodGroup: beta in 1.37, off by default
_USERS = {
    "admin": "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
}
"""Names of the users with a token of their own, and their group."""
_NOT_ITS_CONTROLLER = (
    "-kube-apiserver-serving-clustertrustbundle-publisher-controller"  # needs an alpha API
)


class BinariesMissing(Exception):
    """The control plane is not built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """How an administrator reaches a cluster."""

    url: str
    ca_file: str
    token: str
    kubeconfig: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))

    def with_token(self, token: str) -> ClusterAccess:
        """The same cluster as another user; `kubeconfig` stays the administrator's."""
        return replace(self, token=token)

    def api(self) -> Api:
        """A new client with the rights of an administrator."""
        return Api(url=self.url, ca_file=Path(self.ca_file), token=self.token)


class ControlPlane:
    """The four processes. `api_server` and the others are there to be killed or stopped by a test."""

    def __init__(
        self, folder: Path, *, node_grace_s: int = NODE_GRACE_S, scheduler_qps: int = SCHEDULER_QPS
    ) -> None:
        self.folder = folder
        self._node_grace_s, self._scheduler_qps = node_grace_s, scheduler_qps
        self._binaries = CONTROL_PLANE.binaries_folder()
        self._ports = {
            name: free_port() for name in ("etcd", "peer", "api", "controllers", "scheduler")
        }
        self._tokens = {user: secrets.token_hex(16) for user in _USERS}
        self._children: dict[str, Child] = {}

    @classmethod
    async def start(
        cls,
        folder: Path,
        *,
        node_grace_s: int = NODE_GRACE_S,
        scheduler_qps: int = SCHEDULER_QPS,
    ) -> Self:
        """Start all four and wait until a pod can be created."""
        if names := CONTROL_PLANE.missing():
            raise BinariesMissing(f"{', '.join(names)} not built; run: make testbed")
        folder.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, _STARTS + 1):
            control_plane = cls(folder, node_grace_s=node_grace_s, scheduler_qps=scheduler_qps)
            try:
                await control_plane._start_all()
            except ChildFailed as error:
                control_plane.kill()
                # Another process may have taken a port since it was seen free.
                if "address already in use" not in str(error) or attempt == _STARTS:
                    raise
            except BaseException:
                control_plane.kill()
                raise
            else:
                return control_plane
        raise AssertionError("unreachable: the last attempt returns or raises")

    @property
    def access(self) -> ClusterAccess:
        return ClusterAccess(
            url=f"https://127.0.0.1:{self._ports['api']}",
            ca_file=str(self._serving_certificate),
            token=self._tokens["admin"],
            kubeconfig=str(self._kubeconfig("admin")),
        )

    @property
    def etcd_url(self) -> str:
        return f"http://127.0.0.1:{self._ports['etcd']}"

    def child(self, name: str) -> Child:
        """The running process `etcd`, `kube-apiserver`, `kube-controller-manager` or `kube-scheduler`."""
        return self._children[name]

    def kill(self) -> None:
        """SIGKILL to all. Safe to repeat."""
        for child in reversed(self._children.values()):
            child.kill()

    async def start_etcd(self) -> None:
        client = self.etcd_url
        peer = f"http://127.0.0.1:{self._ports['peer']}"
        self._run(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            "--unsafe-no-fsync",  # nothing in it outlives the tests
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )

    async def start_api_server(self) -> None:
        """Return when it is ready."""
        ca, key = str(self.folder / "ca.crt"), str(self.folder / "ca.key")
        child = self._run(
            "kube-apiserver",
            _GATES,
            "--runtime-config=scheduling.k8s.io/v1beta1=true",
            # A namespace may be bound to nodes of its own: test files share a cluster, not its nodes.
            "--enable-admission-plugins=PodNodeSelector",
            f"--etcd-servers={self.etcd_url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports['api']}",
            f"--cert-dir={self._serving_certificate.parent}",
            "--endpoint-reconciler-type=none",  # refuses loopback addresses
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={ca}",
            f"--service-account-signing-key-file={key}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            f"--client-ca-file={ca}",
            f"--requestheader-client-ca-file={ca}",
            "--requestheader-allowed-names=front-proxy",
            "--kubelet-preferred-address-types=InternalIP",  # names of nodes do not resolve
            "--profiling=false",
        )
        await child.until(self._api_server_ready, within_s=HUNG_S)

    async def start_controller_manager(self) -> None:
        """It ends if the API server is not ready."""
        self._run(
            "kube-controller-manager",
            _GATES,
            *self._as_user("system:kube-controller-manager", port="controllers"),
            f"--controllers=*,{_NOT_ITS_CONTROLLER}",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self.folder / 'ca.key'}",
            f"--root-ca-file={self._serving_certificate}",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            "--node-monitor-period=1s",
            f"--node-monitor-grace-period={self._node_grace_s}s",
            "--node-startup-grace-period=10s",
        )

    async def start_scheduler(self) -> None:
        self._run(
            "kube-scheduler",
            _GATES,
            *self._as_user("system:kube-scheduler", port="scheduler"),
            f"--kube-api-qps={self._scheduler_qps}",
            f"--kube-api-burst={2 * self._scheduler_qps}",
        )

    async def _start_all(self) -> None:
        self._write_credentials()
        await self.start_etcd()
        await self.start_api_server()
        for user in _USERS:
            self._write_kubeconfig(user)
        await self.start_controller_manager()
        await self.start_scheduler()
        async with self.access.api() as api:
            for name in ("kube-controller-manager", "kube-scheduler"):
                await self.child(name).until(
                    lambda: pods_can_be_created(api, "default"), within_s=HUNG_S
                )

    def _run(self, name: str, *flags: str) -> Child:
        if name in self._children:
            self._children[name].kill()
        child = Child(
            [str(self._binaries / name), *flags],
            name=name,
            log=self.folder / f"{name}.log",
            cwd=self.folder,
        )
        self._children[name] = child
        return child

    def _as_user(self, user: str, *, port: str) -> list[str]:
        path = self._kubeconfig(user)
        return [
            f"--kubeconfig={path}",
            f"--authentication-kubeconfig={path}",
            f"--authorization-kubeconfig={path}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports[port]}",
            f"--cert-dir={self.folder / port}",
            "--leader-elect=false",
        ]

    @property
    def _serving_certificate(self) -> Path:
        """Made by the API server, signed by itself."""
        return self.folder / "api" / "apiserver.crt"

    def _kubeconfig(self, user: str) -> Path:
        return self.folder / f"{user.rpartition(':')[2]}.kubeconfig"

    def _write_credentials(self) -> None:
        """A key for service accounts, an authority for clients, a token for each user."""
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)  # of an attempt on other ports
        subject = ["-subj", "/CN=everstep test bed", "-days", "3650", "-nodes"]
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        out = ["-keyout", str(self.folder / "ca.key"), "-out", str(self.folder / "ca.crt")]
        subprocess.run(
            ["openssl", "req", "-x509", *key, *subject, *out], check=True, capture_output=True
        )
        rows = [f'{self._tokens[user]},{user},{user},"{group}"\n' for user, group in _USERS.items()]
        tokens = self.folder / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text("".join(rows))

    def _write_kubeconfig(self, user: str) -> None:
        server = {"server": self.access.url, "certificate-authority": self.access.ca_file}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "testbed", "cluster": server}],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user}}],
            "current-context": "testbed",
        }
        path = self._kubeconfig(user)
        path.touch(mode=0o600)
        path.write_text(json.dumps(content))

    async def _api_server_ready(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            if (
                "END CERTIFICATE" in self._serving_certificate.read_text()
            ):  # else it is being written
                return await self._answers()
        return False

    async def _answers(self) -> bool:
        async with self.access.api() as api:
            try:
                return await api.get_text("/readyz") == "ok"
            except (ApiError, *UNREACHABLE):
                return False


async def pods_can_be_created(api: Api, namespace: str) -> bool:
    """Whether the namespace has its service account: pods are refused until then."""
    try:
        await api.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return True


async def until_pods_can_be_created(api: Api, namespace: str) -> None:
    async with asyncio.timeout(HUNG_S):
        while not await pods_can_be_created(api, namespace):
            await asyncio.sleep(0.02)
