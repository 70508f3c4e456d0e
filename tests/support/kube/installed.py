"""`deploy/kubernetes` in a namespace of the cluster, as an overlay installs it."""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kube import images, own_image
from kube.cluster import Cluster, is_true

FOLDER = own_image.ROOT / "deploy" / "kubernetes"
FLEET = "default"
TOKEN = "the-token"
"""Of the gateway's replicas."""
_PLURALS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "CustomResourceDefinition": "customresourcedefinitions",
    "PodDisruptionBudget": "poddisruptionbudgets",
}


@dataclass(frozen=True)
class Installation:
    """Gateway and controllers of the fleet `default`, with the models in a folder of the nodes."""

    cluster: Cluster
    namespace: str
    models: Path

    def install(self, *files: str) -> None:
        """Create the objects of these files of the folder; of all without any."""
        token = base64.b64encode(TOKEN.encode()).decode()
        secret = {"metadata": {"name": "trisect-gateway"}, "data": {"token": token}}
        self.cluster.create(f"/api/v1/namespaces/{self.namespace}/secrets", secret)
        for file in files or ("fleets.yaml", "gateway.yaml", "controller.yaml", "users.yaml"):
            for manifest in map(self._here, yaml.safe_load_all((FOLDER / file).read_text())):
                collection = self._collection(manifest)
                # Another test's installation may have left what belongs to no namespace.
                if not self.cluster.api.get(f"{collection}/{manifest['metadata']['name']}").is_success:
                    self.cluster.create(collection, manifest)
        if files:
            return
        crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/fleets.trisect.dev"
        self.cluster.await_until(crd, is_true("Established"))

    def role(self) -> dict[str, Any]:
        """The controllers' Role as it is installed."""
        documents = yaml.safe_load_all((FOLDER / "controller.yaml").read_text())
        return next(one for one in documents if one["kind"] == "Role")

    def put_role(self, role: dict[str, Any]) -> None:
        """Replace the controllers' Role."""
        path = f"{self._collection(role)}/{role['metadata']['name']}"
        self.cluster.api.put(path, json=role).raise_for_status()

    def user(self, name: str) -> Path:
        """A kubeconfig of somebody with the Role `trisect-user` and no other right."""
        accounts = f"/api/v1/namespaces/{self.namespace}/serviceaccounts"
        self.cluster.create(accounts, {"metadata": {"name": name}})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "trisect-user"}
        subject = {"kind": "ServiceAccount", "name": name, "namespace": self.namespace}
        binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
        bindings = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.namespace}/rolebindings"
        self.cluster.create(bindings, binding)
        kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        asked = {**kind, "spec": {"expirationSeconds": 3600}}
        token = self.cluster.create(f"{accounts}/{name}/token", asked)["status"]["token"]
        document = yaml.safe_load(self.cluster.kubeconfig.read_text())
        document["users"][0]["user"] = {"token": token}
        path = self.cluster.folder / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path

    @property
    def fleet(self) -> str:
        """The path of the Fleet object."""
        return f"/apis/trisect.dev/v1alpha1/namespaces/{self.namespace}/fleets/{FLEET}"

    def want(self, plan: dict[str, Any]) -> None:
        """Make the Fleet object, or change its plan; no profiles say whether it keeps its promises."""
        spec = {"plan": plan, "allowViolations": True}
        if self.cluster.api.get(self.fleet).is_success:
            kind = {"Content-Type": "application/merge-patch+json"}
            self.cluster.api.patch(self.fleet, json={"spec": spec}, headers=kind).raise_for_status()
            return
        document = {
            "apiVersion": "trisect.dev/v1alpha1",
            "kind": "Fleet",
            "metadata": {"name": FLEET},
            "spec": spec,
        }
        self.cluster.create(self.fleet.rpartition("/")[0], document)

    def pods(self, component: str) -> list[dict[str, Any]]:
        """The pods of `gateway`, `controller` or `server`."""
        selector = f"app.kubernetes.io/component={component},trisect.dev/fleet={FLEET}"
        where = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={selector}"
        return list(self.cluster.get(where)["items"])

    def processes(self, pod_name: str) -> tuple[int, ...]:
        """The processes of a pod's container."""
        pod = self.cluster.get(f"/api/v1/namespaces/{self.namespace}/pods/{pod_name}")
        container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        return self.cluster.node(pod["spec"]["nodeName"]).pids(container)

    def lease(self) -> dict[str, Any]:
        """The Lease's spec; empty before there is one."""
        where = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"
        found = self.cluster.get(where)["items"]
        return dict(found[0]["spec"]) if found else {}

    def leader(self) -> str:
        """The pod that leads; empty where none does."""
        return str(self.lease().get("holderIdentity") or "")

    def targets(self, port: int) -> list[tuple[str, int]]:
        """The Service's ready addresses, as kube-proxy has them."""
        where = f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"
        slices = self.cluster.get(f"{where}?labelSelector=kubernetes.io/service-name=trisect")["items"]
        ends = [end for one in slices for end in one["endpoints"] or () if end["conditions"]["ready"]]
        return [(address, port) for end in ends for address in end["addresses"]]

    def _collection(self, manifest: dict[str, Any]) -> str:
        version, kind = manifest["apiVersion"], manifest["kind"]
        root = f"/api/{version}" if version == "v1" else f"/apis/{version}"
        plural = _PLURALS.get(kind, f"{kind.lower()}s")
        scoped = kind.startswith("Cluster") or kind == "CustomResourceDefinition"
        return f"{root}/{plural}" if scoped else f"{root}/namespaces/{self.namespace}/{plural}"

    def _here(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """A manifest with this namespace, the nodes' images and their folder with the models."""
        if "namespace" in manifest["metadata"]:
            manifest["metadata"]["namespace"] = self.namespace
        for subject in manifest.get("subjects", ()):
            subject["namespace"] = self.namespace
        if manifest["kind"] == "ClusterRoleBinding":
            manifest["metadata"]["name"] += f"-{self.namespace}"
        if manifest["kind"] == "Deployment" and manifest["metadata"]["name"] == "trisect-controller":
            pod = manifest["spec"]["template"]["spec"]
            (models,) = (volume for volume in pod["volumes"] if volume["name"] == "models")
            del models["persistentVolumeClaim"]
            models["hostPath"] = {"path": str(self.models)}
            settings = {"TRISECT_MODELS": f"host:{self.models}", "TRISECT_IMAGE": images.TRITON}
            settings["TRISECT_PULL"] = "never"
            variables = {one["name"]: one["value"] for one in pod["containers"][0]["env"]} | settings
            pod["containers"][0]["env"] = [{"name": n, "value": v} for n, v in variables.items()]
        return manifest


def condition(fleet: dict[str, Any]) -> dict[str, Any]:
    """The condition `Applied` of a Fleet; empty before a controller wrote one."""
    return next((c for c in fleet.get("status", {}).get("conditions", ()) if c["type"] == "Applied"), {})


def is_applied(fleet: dict[str, Any]) -> bool:
    """Whether its present generation is applied."""
    found = condition(fleet)
    generation = fleet["metadata"]["generation"]
    return found.get("status") == "True" and found.get("observedGeneration") == generation
