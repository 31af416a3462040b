"""How long a decision takes from the tick that makes it until every rank was read back with it, on the local cluster.

    python3 hack/bench/live_update.py

Drives one service in `mode: Auto` through a load that makes the operator move its threshold, takes both moments from
the operator's own log, and prints seconds and their ratio to the tuning interval. A sample waits at most one interval
in Prometheus before the tick, so interval + these seconds bound the way from a sample to the read-back.
"""

from __future__ import annotations

import pathlib
import re
import statistics
import sys
import time
from datetime import datetime

HACK = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HACK), str(HACK / "cluster")]

import yaml  # noqa: E402

import deploy  # noqa: E402 - the folders above are no installed packages
from localcluster.client import RESOURCE, LocalCluster  # noqa: E402

SAMPLE = HACK.parent / "manifests/samples/local-demo.yaml"
NAME = "local-demo"
INTERVAL_SECONDS = 5
PHASES = "1:20,24:45,64:45"
LOAD_SECONDS = 115
_DECIDED = re.compile(r"^(\S+ \S+) .*reconcile\.tuning: (\S+): threshold (\d+):")
_READ_BACK = re.compile(r"^(\S+ \S+) .*reconcile\.service: (\S+): ThresholdSynced: .* read back with (\d+)\.")


def main() -> int:
    """Run the load and print the table; returns 1 if no decision was seen."""
    cluster = LocalCluster()
    cluster.manage("up", "--name", cluster.name)
    deploy.provide(cluster, deploy.engine_image("0.5.23"))
    deploy.install_operator(cluster)
    with cluster.namespace("bench") as namespace:
        cluster.apply(yaml.safe_load(SAMPLE.read_text()), namespace=namespace)
        cluster.kubectl(
            *("wait", "--for=condition=Ready", f"{RESOURCE}/{NAME}", "--namespace", namespace, "--timeout=240s"),
            timeout_seconds=250,
        )
        service = cluster.get(RESOURCE, NAME, "--namespace", namespace)
        cluster.apply(deploy.load_pod(service, PHASES), namespace=namespace)
        time.sleep(LOAD_SECONDS)
        log = cluster.kubectl("logs", "--namespace", deploy.NAMESPACE, "deployment/sglang-operator")
    return report(measured(log, f"{namespace}/{NAME}"))


def measured(log: str, service: str) -> list[tuple[int, float]]:
    """Return each decision's threshold and the seconds until it was read back."""
    found: list[tuple[int, float]] = []
    decided: dict[int, datetime] = {}
    for line in log.splitlines():
        if (match := _DECIDED.match(line)) and match[2] == service:
            decided[int(match[3])] = _moment(match[1])
        elif (match := _READ_BACK.match(line)) and match[2] == service and int(match[3]) in decided:
            seconds = (_moment(match[1]) - decided.pop(int(match[3]))).total_seconds()
            found.append((int(match[3]), seconds))
    return found


def report(found: list[tuple[int, float]]) -> int:
    """Print the table."""
    if not found:
        print("no decision was read back")
        return 1
    print("threshold  seconds  of one interval")
    for threshold, seconds in found:
        print(f"{threshold:>9}  {seconds:7.3f}  {seconds / INTERVAL_SECONDS:15.3f}")
    values = [seconds for _, seconds in found]
    print(f"median {statistics.median(values):.3f} s, longest {max(values):.3f} s, interval {INTERVAL_SECONDS} s")
    return 0


def _moment(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f")


if __name__ == "__main__":
    sys.exit(main())
