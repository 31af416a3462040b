"""Run by `helm test`: is the custom resource served, and may the operator do all that it needs to?

Runs in the operator's image as the operator's service account; asks the API server, changes nothing.
"""

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from sglang_operator.adapters.kube import CALLS, SECRETS, ApiCall
from sglang_operator.api import names
from sglang_operator.settings import from_environment

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def ask(path: str, body: object = None) -> dict[str, Any]:
    """Make one request as the service account; POST when there is a body."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    trust = ssl.create_default_context(cafile=ACCOUNT / "ca.crt")
    # Python 3.13 would refuse the certificates of many clusters, which lack an authority key identifier.
    trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
    token = (ACCOUNT / "token").read_text(encoding="ascii").strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server + path, data=data, headers=headers)  # noqa: S310 - always https
    with urllib.request.urlopen(request, timeout=15, context=trust) as response:  # noqa: S310
        answer: dict[str, Any] = json.load(response)
    return answer


def resource_problem() -> str | None:
    """Say what is wrong with the custom resource, if anything."""
    try:
        served = ask(f"/apis/{names.API_VERSION}")["resources"]
    except urllib.error.HTTPError as error:
        return f"{names.API_VERSION} is not served (HTTP {error.code}): install the chart with crds.install=true"
    missing = {names.PLURAL, f"{names.PLURAL}/status", f"{names.PLURAL}/scale"} - {kind["name"] for kind in served}
    return f"{names.API_VERSION} lacks {', '.join(sorted(missing))}: upgrade the CRD" if missing else None


def calls() -> list[ApiCall]:
    """Return the calls whose rights the chart was told to give."""
    may_read_secrets = os.environ.get("MAY_READ_SECRETS") != "false"
    return [call for call in CALLS if call != SECRETS or may_read_secrets]


def refused(namespace: str) -> list[str]:
    """Return the calls that the operator makes and may not make; an empty namespace means all of them."""
    found = []
    for call in calls():
        resource, _, subresource = call.resource.partition("/")
        for verb in sorted(call.verbs):
            attributes = {"namespace": namespace, "verb": verb, "group": call.group, "resource": resource}
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": {**attributes, "subresource": subresource}},
            }
            answer = ask("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
            if not answer["status"]["allowed"]:
                where = f"namespace {namespace}" if namespace else "all namespaces"
                found.append(f"must be allowed to {verb} {call.resource} of API group '{call.group}' in {where}")
    return found


def main() -> int:
    """Print every problem; 0 when there is none."""
    problem = resource_problem()
    problems = [problem] if problem else []
    for namespace in from_environment().watch_namespaces or ("",):
        problems += refused(namespace)
    for line in problems or [f"{names.API_VERSION} is served, and the operator's rights suffice"]:
        print(line)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
