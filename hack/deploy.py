"""Put the product on the local cluster: build its images from their Dockerfiles, load them, install the chart.

The demo and the cluster tests both use this, so that what they show is what a user gets from the same chart.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

from localcluster.client import LocalCluster, Manifest

ROOT = pathlib.Path(__file__).parents[1]
RELEASE = "sglang-operator"
NAMESPACE = "sglang-operator-system"
OPERATOR_REPOSITORY = "docker.io/sglang-operator/operator"
OPERATOR_TAG = "dev"
ENGINE_REPOSITORY = "docker.io/sglang-operator/engine-sim"
PROMETHEUS_URL = "http://prometheus.monitoring.svc:9090"
BUILD_SECONDS = 900
GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
CHART = str(ROOT / "charts/sglang-operator")


@dataclass(frozen=True)
class Image:
    """An image to build: its full name, the folder it is built from, its Dockerfile there, and build arguments."""

    tag: str
    context: pathlib.Path
    dockerfile: str = "Dockerfile"
    arguments: tuple[tuple[str, str], ...] = ()


OPERATOR_IMAGE = Image(f"{OPERATOR_REPOSITORY}:{OPERATOR_TAG}", ROOT)


def engine_image(release: str) -> Image:
    """The test image with SGLang's real sources of this release and the simulated server."""
    return Image(f"{ENGINE_REPOSITORY}:{release}", ROOT, "tests/simulator/Dockerfile", (("SGLANG_RELEASE", release),))


def provide(cluster: LocalCluster, image: Image) -> str:
    """Build an image unless nothing changed since the last time, and load it into every node.

    Returns the SHA-256 of the image's archive, in hexadecimal.
    """
    arguments = [word for name, value in image.arguments for word in ("--build-arg", f"{name}={value}")]
    archive = cluster.manage(
        "build-image",
        *("--name", cluster.name, "--load", "--tag", image.tag, "--file", str(image.context / image.dockerfile)),
        *arguments,
        str(image.context),
        timeout_seconds=BUILD_SECONDS,
    )
    with pathlib.Path(archive.splitlines()[0]).open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def chart_values(**overrides: object) -> Sequence[str]:
    """The chart's values on a local cluster, as `--set-json` flags: short intervals, so that people see it move."""
    values: dict[str, object] = {
        "image": {"repository": OPERATOR_REPOSITORY, "tag": OPERATOR_TAG, "pullPolicy": "Never"},
        "prometheus": {"url": PROMETHEUS_URL, "maxAgeSeconds": 30},
        "tuning": {
            "intervalSeconds": 5,
            "dwellSeconds": 10,
        },
        "resyncIntervalSeconds": 30,
        # Both nodes of the local cluster carry the GPU taint.
        "tolerations": [GPU_TOLERATION],
        **overrides,
    }
    return [word for name, value in values.items() for word in ("--set-json", f"{name}={json.dumps(value)}")]


def install_operator(cluster: LocalCluster, **values: object) -> str:
    """Build the operator's image and install or upgrade the chart; returns what helm printed once the operator is up.

    `values` replace the chart's top-level values of `chart_values`.
    """
    # The tag stays the same while people work on the operator: the annotation rolls the pod when its image changed.
    rolled_by = {f"{RELEASE}.io/image": provide(cluster, OPERATOR_IMAGE)[:16]}
    return cluster.helm(
        *("upgrade", "--install", RELEASE, CHART, "--namespace", NAMESPACE, "--create-namespace"),
        *("--wait", "--timeout", "120s"),
        *chart_values(podAnnotations=rolled_by, **values),
        timeout_seconds=180,
    )


def load_pod(service: Manifest, phases: str) -> Manifest:
    """A pod that sends requests to an InferenceService of the test image, as `64:60,1:30`: in parallel, for seconds."""
    engine, template = service["spec"]["engine"], service["spec"]["podTemplate"]
    container = {
        "name": "load",
        "image": engine["image"],
        "imagePullPolicy": "Never",
        "command": ["python3", "-m", "engine_sim.load", "--url", service["status"]["url"], "--phases", phases],
        "volumeMounts": template["volumeMounts"],
    }
    spec = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": template["volumes"],
        "tolerations": [GPU_TOLERATION],
        "terminationGracePeriodSeconds": 0,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "load"}, "spec": spec}
