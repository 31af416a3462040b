"""etcd, API server, controllers and scheduler, in the cluster's own namespaces."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable

from localcluster import certificates
from localcluster.settings import API_ADDRESS, API_PORT, CLUSTER_DOMAIN, POD_SUBNET, SERVICE_SUBNET, Cluster
from localcluster.supervisor import Component, always

_ETCD = "127.0.0.1:2379"
NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


def components(cluster: Cluster) -> tuple[Component, ...]:
    """In the order in which they are wanted; each waits for the one it talks to."""

    def api_ready() -> bool:
        return _api_ready(cluster)

    return (
        _component(cluster, "etcd", _etcd_flags(cluster)),
        _component(cluster, "kube-apiserver", _apiserver_flags(cluster), _etcd_listens),
        _component(cluster, "kube-controller-manager", _controller_flags(cluster), api_ready),
        _component(cluster, "kube-scheduler", _scheduler_flags(cluster), api_ready),
    )


def _component(
    cluster: Cluster, name: str, flags: tuple[str, ...], may_start: Callable[[], bool] = always
) -> Component:
    return Component(name, (cluster.program(name), *flags), cluster.logs / f"{name}.log", may_start)


def _etcd_listens() -> bool:
    host, _, port = _ETCD.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=0.2).close()
    except OSError:
        return False
    return True


def _api_ready(cluster: Cluster) -> bool:
    """Whether the API server serves, its own roles included: before that, its clients give up at once."""
    trust = ssl.create_default_context(cafile=str(cluster.pki / "ca.crt"))
    connection = http.client.HTTPSConnection(API_ADDRESS, API_PORT, timeout=0.5, context=trust)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _etcd_flags(cluster: Cluster) -> tuple[str, ...]:
    return (
        f"--data-dir={cluster.state / 'etcd'}",
        # The data is thrown away with the cluster, so there is nothing to protect from a power cut.
        "--unsafe-no-fsync",
        f"--listen-client-urls=http://{_ETCD}",
        f"--advertise-client-urls=http://{_ETCD}",
        "--listen-peer-urls=http://127.0.0.1:2380",
    )


def _apiserver_flags(cluster: Cluster) -> tuple[str, ...]:
    pki = cluster.pki
    service_account_key = pki / certificates.SERVICE_ACCOUNT_KEY
    return (
        f"--etcd-servers=http://{_ETCD}",
        f"--bind-address={API_ADDRESS}",
        f"--advertise-address={API_ADDRESS}",
        f"--secure-port={API_PORT}",
        f"--cert-dir={pki}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'kubelet-client.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-cluster-ip-range={SERVICE_SUBNET}",
        f"--service-account-key-file={service_account_key}",
        f"--service-account-signing-key-file={service_account_key}",
        f"--service-account-issuer=https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
    )


def _controller_flags(cluster: Cluster) -> tuple[str, ...]:
    pki = cluster.pki
    kubeconfig = pki / "kube-controller-manager.kubeconfig"
    return (
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={pki / certificates.SERVICE_ACCOUNT_KEY}",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        f"--cluster-cidr={POD_SUBNET}",
        "--allocate-node-cidrs=false",
    )


def _scheduler_flags(cluster: Cluster) -> tuple[str, ...]:
    kubeconfig = cluster.pki / "kube-scheduler.kubeconfig"
    return (
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
    )
