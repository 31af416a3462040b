"""The cluster's own certificate authority and the certificates and kubeconfigs signed by it, made with openssl."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

from localcluster.commands import run
from localcluster.settings import (
    API_ADDRESS,
    API_PORT,
    CLUSTER_DOMAIN,
    KUBERNETES_SERVICE_ADDRESS,
    NODES,
    Cluster,
)

# A cluster lives for hours; a clock that is a day behind must not break it.
_DAYS = "365"
_EMPTY_CONFIG = "[req]\ndistinguished_name = name\n[name]\n"

CA = "ca"
SERVICE_ACCOUNT_KEY = "service-accounts.key"


@dataclass(frozen=True)
class _Certificate:
    """`organization` and `common_name` are the group and the user that the API server sees."""

    name: str
    common_name: str
    organization: str = ""
    server: bool = False


API_SERVER = _Certificate("apiserver", "kube-apiserver", server=True)
_CERTIFICATES = (
    API_SERVER,
    _Certificate("kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
    _Certificate("admin", "local-admin", "system:masters"),
    _Certificate("kube-controller-manager", "system:kube-controller-manager"),
    _Certificate("kube-scheduler", "system:kube-scheduler"),
    _Certificate("kube-proxy", "system:kube-proxy"),
    *(_Certificate(node.name, f"system:node:{node.name}", "system:nodes") for node in NODES),
)


def create(cluster: Cluster) -> None:
    """Writes all keys, certificates and kubeconfigs, the user's own one included. Needs openssl 3."""
    cluster.pki.mkdir(mode=0o700, parents=True)
    (cluster.pki / "openssl.cnf").write_text(_EMPTY_CONFIG)
    key_usage = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    _openssl_request(cluster, CA, "/CN=local-cluster", key_usage)
    for certificate in _CERTIFICATES:
        _create_signed(cluster, certificate)
        if not certificate.server:
            _write_kubeconfig(cluster, certificate.name, cluster.pki / f"{certificate.name}.kubeconfig")
    # The API server signs tokens with RSA only when the key is RSA, and some clients verify nothing else.
    run(["openssl", "genrsa", "-out", str(cluster.pki / SERVICE_ACCOUNT_KEY), "2048"])
    _write_kubeconfig(cluster, "admin", cluster.kubeconfig)


def _create_signed(cluster: Cluster, certificate: _Certificate) -> None:
    organization = f"/O={certificate.organization}" if certificate.organization else ""
    usage = "serverAuth" if certificate.server else "clientAuth"
    extensions = ["-CA", _file(cluster, f"{CA}.crt"), "-CAkey", _file(cluster, f"{CA}.key")]
    extensions += ["-addext", f"extendedKeyUsage={usage}", "-addext", "basicConstraints=CA:FALSE"]
    if certificate.server:
        extensions += ["-addext", f"subjectAltName={_server_names()}"]
    _openssl_request(cluster, certificate.name, f"{organization}/CN={certificate.common_name}", extensions)


def _server_names() -> str:
    service = "kubernetes.default.svc"
    names = ["localhost", "kubernetes", "kubernetes.default", service, f"{service}.{CLUSTER_DOMAIN}"]
    addresses = ["127.0.0.1", API_ADDRESS, KUBERNETES_SERVICE_ADDRESS]
    return ",".join([*(f"DNS:{name}" for name in names), *(f"IP:{address}" for address in addresses)])


def _openssl_request(cluster: Cluster, name: str, subject: str, extensions: list[str]) -> None:
    argv = ["openssl", "req", "-x509", "-config", _file(cluster, "openssl.cnf"), "-days", _DAYS, "-subj", subject]
    argv += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"]
    argv += ["-keyout", _file(cluster, f"{name}.key"), "-out", _file(cluster, f"{name}.crt")]
    run([*argv, *extensions])


def _file(cluster: Cluster, name: str) -> str:
    return str(cluster.pki / name)


def _write_kubeconfig(cluster: Cluster, name: str, target: Path) -> None:
    def data(file: str) -> str:
        return base64.b64encode((cluster.pki / file).read_bytes()).decode()

    server = f"https://{API_ADDRESS}:{API_PORT}"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": cluster.name, "cluster": {"server": server, "certificate-authority-data": data(f"{CA}.crt")}}
        ],
        "users": [
            {
                "name": name,
                "user": {"client-certificate-data": data(f"{name}.crt"), "client-key-data": data(f"{name}.key")},
            }
        ],
        "contexts": [{"name": cluster.name, "context": {"cluster": cluster.name, "user": name}}],
        "current-context": cluster.name,
    }
    # JSON is YAML, so every client reads it.
    target.touch(mode=0o600)
    target.write_text(json.dumps(config, indent=2) + "\n")
