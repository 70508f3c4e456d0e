"""etcd, the API server, the scheduler and the controller manager."""

import secrets
import signal
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx
import yaml
from certificates import Authority, Signed
from host_ports import free_ports

from kube import network
from kube.processes import Process

URL = f"https://{network.API_ADDRESS}"
_READY_S = 180.0


@dataclass(frozen=True)
class Credentials:
    """The authority that all trust, and a token for each user."""

    folder: Path
    authority: Authority
    tokens: dict[str, str]

    @classmethod
    def make(cls, folder: Path, nodes: tuple[str, ...]) -> Self:
        users = {"admin": "system:masters", **{f"system:node:{node}": "system:nodes" for node in nodes}}
        tokens = {user: secrets.token_hex(16) for user in users}
        lines = [f'{tokens[user]},{user},{user},"{group}"' for user, group in users.items()]
        (folder / "tokens.csv").write_text("\n".join(lines) + "\n")
        return cls(folder, Authority(folder), tokens)

    def kubeconfig(self, user: str) -> Path:
        """The file by which `user` reaches the API server."""
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        if path.exists():  # a program that starts may be reading it
            return path
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "test",
                    "cluster": {"server": URL, "certificate-authority": str(self.authority.certificate)},
                }
            ],
            "users": [{"name": user, "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(document))
        path.chmod(0o600)
        return path

    def sign(self, name: str, address: str, organisation: str | None = None) -> Signed:
        return self.authority.sign(name, addresses=(address,), organisation=organisation)


class ControlPlane:
    """The four programs. Losing its API server ends the scheduler, so both are started together."""

    def __init__(self, folder: Path, credentials: Credentials) -> None:
        self.credentials = credentials
        client_port, peer_port, scheduler_port, manager_port = free_ports(4)
        etcd_url = f"http://127.0.0.1:{client_port}"
        admin = credentials.kubeconfig("admin")
        key = credentials.sign("service-accounts", "127.0.0.1")
        self.etcd = Process("etcd", _etcd(folder, etcd_url, f"http://127.0.0.1:{peer_port}"), folder)
        self.api_server = Process("kube-apiserver", _api_server(credentials, etcd_url, key), folder)
        self.scheduler = Process(
            "kube-scheduler", ["kube-scheduler", *_serving(admin, scheduler_port)], folder
        )
        self.controller_manager = Process(
            "kube-controller-manager",
            [
                "kube-controller-manager",
                *_serving(admin, manager_port),
                f"--service-account-private-key-file={key.key}",
                f"--root-ca-file={credentials.authority.certificate}",
            ],
            folder,
        )

    @property
    def processes(self) -> tuple[Process, ...]:
        return self.etcd, self.api_server, self.scheduler, self.controller_manager

    def start(self, *, controllers: bool = True) -> None:
        network.add_bridge(network.API_BRIDGE, f"{network.API_ADDRESS}/32")
        self.etcd.start()
        self.start_api_server()
        if controllers:
            self.controller_manager.start()

    def start_api_server(self) -> None:
        self.api_server.start()
        self.await_ready()
        self.scheduler.start()

    def stop_api_server(self) -> None:
        """Everything goes on without it, as after a failure of the control plane."""
        self.scheduler.end(signal.SIGKILL)
        self.api_server.end(signal.SIGKILL)

    def client(self) -> httpx.Client:
        """A client with all rights."""
        return httpx.Client(
            base_url=URL,
            verify=self.trust(),
            headers={"Authorization": f"Bearer {self.credentials.tokens['admin']}"},
            timeout=30.0,
        )

    def trust(self) -> ssl.SSLContext:
        """What a client believes."""
        return ssl.create_default_context(cafile=str(self.credentials.authority.certificate))

    def await_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        with self.client() as client:
            while True:
                self.api_server.check_alive()
                self.etcd.check_alive()
                answer = _status(client, "/readyz")
                if answer == 200:
                    return
                assert time.monotonic() < deadline, f"{answer}: {self.api_server.last_lines()}"
                time.sleep(0.2)


def _status(client: httpx.Client, path: str) -> int | str:
    try:
        return client.get(path).status_code
    except httpx.HTTPError as error:
        return str(error)


def _etcd(folder: Path, url: str, peer_url: str) -> list[str]:
    return [
        "etcd",
        f"--data-dir={folder}/etcd",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=default={peer_url}",
        "--logger=zap",
        "--log-level=warn",
    ]


def _api_server(credentials: Credentials, etcd_url: str, accounts: Signed) -> list[str]:
    served = credentials.sign("api-server", network.API_ADDRESS)
    towards_kubelets = credentials.sign("api-server-client", "127.0.0.1", "system:masters")
    authority = credentials.authority.certificate
    return [
        "kube-apiserver",
        f"--etcd-servers={etcd_url}",
        f"--bind-address={network.API_ADDRESS}",
        f"--advertise-address={network.API_ADDRESS}",
        "--secure-port=443",
        f"--service-cluster-ip-range={network.SERVICES}",
        f"--tls-cert-file={served.certificate}",
        f"--tls-private-key-file={served.key}",
        f"--client-ca-file={authority}",
        f"--token-auth-file={credentials.folder}/tokens.csv",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={accounts.certificate}",
        f"--service-account-signing-key-file={accounts.key}",
        f"--kubelet-client-certificate={towards_kubelets.certificate}",
        f"--kubelet-client-key={towards_kubelets.key}",
        f"--kubelet-certificate-authority={authority}",
        # For logs: no name server knows the nodes' names.
        "--kubelet-preferred-address-types=InternalIP",
        "--profiling=false",
    ]


def _serving(kubeconfig: Path, port: int) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
    ]
