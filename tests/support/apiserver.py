"""A real Kubernetes API server on loopback: etcd and kube-apiserver, nothing else.

What needs schemas, defaults, pruning, server-side apply or RBAC is tested against the real thing. Controllers,
scheduler and nodes do not run: a Deployment makes no pods, and a deleted namespace stays.

`running()` starts both processes and ends them again; the pytest fixture `api_server` (in `apiserver_plugin`) does
so once a session. Other programs (kubectl, helm, kopf) find the server by `ApiServer.kubeconfig`.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import requests

Manifest = dict[str, Any]

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMS = ("etcd", "kube-apiserver")
START_SECONDS = 90
STOP_SECONDS = 15
REQUEST_SECONDS = 20
_APPLY = "application/apply-patch+yaml"
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


class ServerFailed(RuntimeError):
    """The API server or etcd could not be built or did not start; the message holds the end of its log."""


class Refused(AssertionError):
    """The API server answered with an error. `status` is the HTTP status, `causes` its list of field errors."""

    def __init__(self, response: requests.Response) -> None:
        self.status = response.status_code
        try:
            body = response.json()
        except requests.JSONDecodeError:
            body = {}
        details = body.get("details") or {}
        self.causes: list[dict[str, str]] = details.get("causes") or []
        super().__init__(f"{response.status_code} {body.get('message') or response.text}")


@dataclass(frozen=True)
class ApiServer:
    """A running API server and how to talk to it, as a member of `system:masters`."""

    url: str
    token: str
    ca_file: pathlib.Path
    kubeconfig: pathlib.Path
    _session: requests.Session = field(default_factory=requests.Session, repr=False)

    def request(self, method: str, path: str, body: object | None = None, **options: Any) -> requests.Response:
        """Send one request; `options` go to requests (`params`, `headers`).

        Raises:
            Refused: the answer is an error.
        """
        headers = {"Authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        response = self._session.request(
            method,
            self.url + path,
            data=None if body is None else json.dumps(body),
            headers=headers,
            verify=str(self.ca_file),
            timeout=REQUEST_SECONDS,
            **options,
        )
        if not response.ok:
            raise Refused(response)
        return response

    def get(self, path: str, **params: str) -> Manifest:
        """Read an object or a list."""
        found: Manifest = self.request("GET", path, params=params).json()
        return found

    def create(self, path: str, manifest: Manifest, **params: str) -> Manifest:
        """Create an object in the collection `path`."""
        made: Manifest = self.request("POST", path, manifest, params=params).json()
        return made

    def apply(self, path: str, manifest: Manifest, *, manager: str = "test", **params: str) -> Manifest:
        """Server-side apply the object at `path`, conflicts forced."""
        params = {"fieldManager": manager, "force": "true", **params}
        made: Manifest = self.request("PATCH", path, manifest, params=params, headers={"Content-Type": _APPLY}).json()
        return made

    def delete(self, path: str) -> None:
        """Delete the object at `path`."""
        self.request("DELETE", path)

    def table(self, path: str) -> Manifest:
        """Read a list as `kubectl get` does: columns and rows."""
        found: Manifest = self.request("GET", path, headers={"Accept": _TABLE}).json()
        return found

    def create_namespace(self, prefix: str = "test") -> str:
        """Create a namespace of its own for a test and return its name."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        self.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        return name


def programs_folder() -> pathlib.Path:
    """Return a folder that holds etcd and kube-apiserver, building them when there is none.

    In this order: `KUBEBUILDER_ASSETS`, the folder on `PATH` that holds both, the cache, where `hack/tools/build.sh`
    builds what is missing (about ten minutes, once).

    Raises:
        ServerFailed: they can't be built.
    """
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        if missing := [program for program in PROGRAMS if not (pathlib.Path(assets) / program).exists()]:
            raise ServerFailed(f"KUBEBUILDER_ASSETS={assets} must hold {' and '.join(missing)}")
        return pathlib.Path(assets)
    found = [shutil.which(program) for program in PROGRAMS]
    folders = {pathlib.Path(program).parent for program in found if program}
    if all(found) and len(folders) == 1:
        return folders.pop()
    cache = os.environ.get("SGLANG_DEV_CACHE") or (
        f"{os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'}/sglang-operator"
    )
    folder = pathlib.Path(cache) / "bin"
    build = subprocess.run([ROOT / "hack/tools/build.sh", folder, *PROGRAMS], timeout=3600, check=False)
    if build.returncode != 0:
        raise ServerFailed(f"hack/tools/build.sh could not build {' and '.join(PROGRAMS)}; its output is above")
    return folder


@contextlib.contextmanager
def running(folder: pathlib.Path) -> Iterator[ApiServer]:
    """Run an API server whose files (keys, data, logs) are in the empty folder `folder`.

    Raises:
        ServerFailed: it is not ready within the deadline, or ended by itself.
    """
    programs = programs_folder()
    with contextlib.ExitStack() as processes:
        etcd_url = f"http://127.0.0.1:{_free_port()}"
        server = _server(folder, _free_port())
        commands = (
            _etcd_command(programs, folder, etcd_url),
            _apiserver_command(programs, folder, server, etcd_url),
        )
        started = [processes.enter_context(_running(command, folder)) for command in commands]
        _await_ready(server, started)
        yield server


def _server(folder: pathlib.Path, port: int) -> ApiServer:
    token = secrets.token_hex(16)
    (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    (folder / "service-account.key").write_text(_signing_key())
    url, ca_file, kubeconfig = f"https://127.0.0.1:{port}", folder / "apiserver.crt", folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": str(ca_file)}}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin", "namespace": "default"}}],
        "current-context": "test",
    }
    kubeconfig.write_text(json.dumps(config))
    return ApiServer(url=url, token=token, ca_file=ca_file, kubeconfig=kubeconfig)


def _signing_key() -> str:
    """Return a fresh P-256 private key in PEM (RFC 5915: version, scalar, curve), for service account tokens.

    Below 2**255 every scalar is less than the curve's order.
    """
    scalar = (secrets.randbits(255) | 1).to_bytes(32, "big")
    der = bytes.fromhex("30310201010420") + scalar + bytes.fromhex("a00a06082a8648ce3d030107")
    text = base64.encodebytes(der).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{text}-----END EC PRIVATE KEY-----\n"


def _etcd_command(programs: pathlib.Path, folder: pathlib.Path, url: str) -> list[str]:
    peer = f"http://127.0.0.1:{_free_port()}"
    return [
        str(programs / "etcd"),
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _apiserver_command(programs: pathlib.Path, folder: pathlib.Path, server: ApiServer, etcd_url: str) -> list[str]:
    key = folder / "service-account.key"
    return [
        str(programs / "kube-apiserver"),
        f"--etcd-servers={etcd_url}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={server.url.rsplit(':', 1)[1]}",
        f"--cert-dir={folder}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        # Nothing here serves Services, and a loopback address may not stand in their endpoints.
        "--endpoint-reconciler-type=none",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        # No controller makes service accounts, and pods are created in tests all the same.
        "--disable-admission-plugins=ServiceAccount",
    ]


@dataclass(frozen=True)
class _Program:
    process: subprocess.Popen[bytes]
    log: pathlib.Path

    def check(self) -> None:
        """Raise when the program has ended by itself."""
        if (code := self.process.poll()) is not None:
            raise ServerFailed(f"{self.log.stem} ended with {code}:\n{self.tail()}")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


@contextlib.contextmanager
def _running(command: Sequence[str], folder: pathlib.Path) -> Iterator[_Program]:
    log = folder / f"{pathlib.Path(command[0]).name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, preexec_fn=_die_with_parent)
    try:
        yield _Program(process, log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)


def _die_with_parent() -> None:
    """Have the kernel end the process when the test session is killed and can't do it."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _await_ready(server: ApiServer, programs: Sequence[_Program]) -> None:
    deadline = time.monotonic() + START_SECONDS
    seen = "nothing"
    while time.monotonic() < deadline:
        for program in programs:
            program.check()
        try:
            server.request("GET", "/readyz")
            # The namespace is made a moment later than the server is ready.
            server.request("GET", "/api/v1/namespaces/default")
        except (requests.RequestException, Refused, OSError) as error:
            seen = str(error)
            time.sleep(0.1)
        else:
            return
    logs = "\n".join(program.tail() for program in programs)
    raise ServerFailed(f"kube-apiserver was not ready within {START_SECONDS} s; last seen: {seen}\n{logs}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
