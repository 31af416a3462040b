"""The forms of texts: the same in Python and in the API server, and nothing that Kubernetes would refuse later.

The patterns are read by two engines, Python's `re` and RE2. Texts of each form, and the same texts damaged, must be
judged alike by both.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inferenceservice import at, collection, service

from apiserver import ApiServer, Refused
from sglang_operator.api import forms
from sglang_operator.api.forms import Form

Manifest = dict[str, Any]

# A form | how a text of that form gets into a spec, where no other rule looks at it.
PLACES: dict[str, Callable[[str], Manifest]] = {
    "CPU_FORM": lambda text: at("engine.resources.cpu", text),
    "SIZE_FORM": lambda text: at("model.cache.sizeLimit", text),
    "LABEL_VALUE_FORM": lambda text: at("gpus.product.0", text),
    "OPTIONAL_LABEL_VALUE_FORM": lambda text: at("podTemplate.labels", {"team": text}),
    "LABEL_KEY_FORM": lambda text: at("podTemplate.nodeSelector", {text: "x"}),
    "RESOURCE_NAME_FORM": lambda text: at("gpus.resourceName", text),
    "OBJECT_NAME_FORM": lambda text: at("model.cache.claimName", text),
    "SECRET_KEY_FORM": lambda text: at("model.tokenSecretRef", {"name": "a", "key": text}),
    "MODEL_URI_FORM": lambda text: at("model.uri", text),
    "SERVED_NAME_FORM": lambda text: at("model.servedName", text),
    "REVISION_FORM": lambda text: at("model.revision", text),
    "QUANTIZATION_FORM": lambda text: at("model.quantization", text),
    "ENV_NAME_FORM": lambda text: at("engine.env.0", {"name": text}),
    "IMAGE_FORM": lambda text: at("engine.image", text),
    "ARGUMENT_FORM": lambda text: at("engine.args.0", text),
    "ENV_VALUE_FORM": lambda text: at("engine.env.0", {"name": "A", "value": text}),
}
ODD_LETTERS = "\n\t \u2028é٣ſ\x00-./:@_AZaz09"


def accepted(server: ApiServer, path: str, manifest: Manifest) -> bool:
    try:
        server.create(path, manifest, dryRun="All", fieldValidation="Strict")
    except Refused as refusal:
        if refusal.status != 422:
            raise
        return False
    return True


def stored(server: ApiServer, changes: Manifest) -> bool:
    return accepted(server, collection("default"), service(changes))


def well_formed(form: Form, text: str) -> bool:
    try:
        form.check(text)
    except ValueError:
        return False
    return True


@st.composite
def damaged(draw: st.DrawFn, form: Form) -> str:
    """A text of the form, as it is or with one letter put in."""
    text = draw(st.from_regex(re.compile(form.pattern, re.ASCII), fullmatch=True))[: form.max_length - 1]
    place = draw(st.integers(0, len(text)))
    letter: str = draw(st.sampled_from(["", *ODD_LETTERS]))
    return text[:place] + letter + text[place:]


def test_every_form_is_compared() -> None:
    assert set(PLACES) == {name for name, value in vars(forms).items() if isinstance(value, Form)}


@pytest.mark.parametrize("name", PLACES)
def test_python_and_the_api_server_agree(crd_server: ApiServer, name: str) -> None:
    form: Form = getattr(forms, name)
    judged: set[bool] = set()

    @settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(damaged(form))
    def agree(text: str) -> None:
        judged.add(well_formed(form, text))
        assert stored(crd_server, PLACES[name](text)) == well_formed(form, text), repr(text)

    agree()
    assert judged == {True, False}


@pytest.mark.parametrize("name", PLACES)
def test_lengths_agree(crd_server: ApiServer, name: str) -> None:
    form: Form = getattr(forms, name)
    letters = {
        "CPU_FORM": "1",
        "SIZE_FORM": "1",
        "MODEL_URI_FORM": "/",
        "RESOURCE_NAME_FORM": "a",
        "LABEL_KEY_FORM": "a",
    }
    for length in (form.max_length, form.max_length + 1):
        text = letters.get(name, "a") * length
        assert stored(crd_server, PLACES[name](text)) == well_formed(form, text), length


def config_map(**metadata: object) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "case", **metadata}}


LABEL_VALUES = ["", "a", "A-1", "a.b_c", "-a", "a-", ".a", "a b", "é", "a" * 63, "a" * 64, "a/b", "1.0", "true"]


@pytest.mark.parametrize("value", LABEL_VALUES)
def test_label_values_are_those_of_kubernetes(crd_server: ApiServer, value: str) -> None:
    theirs = accepted(crd_server, "/api/v1/namespaces/default/configmaps", config_map(labels={"team": value}))
    assert stored(crd_server, at("podTemplate.labels", {"team": value})) == theirs


LABEL_KEYS = [
    "a",
    "A.b",
    "example.com/a",
    "example.com/" + "a" * 63,
    "example.com/" + "a" * 64,
    "a" * 64,
    "Example.com/a",
    "example..com/a",
    "-a.com/b",
    "a/b/c",
    "/a",
    "a/",
    "a b",
    "a-",
    ".".join(["a" * 60] * 4) + "/b",
]


@pytest.mark.parametrize("key", LABEL_KEYS)
def test_label_keys_are_those_of_kubernetes(crd_server: ApiServer, key: str) -> None:
    theirs = accepted(crd_server, "/api/v1/namespaces/default/configmaps", config_map(labels={key: "x"}))
    assert stored(crd_server, at("podTemplate.labels", {key: "x"})) == theirs


@pytest.mark.parametrize("name", ["a", "a.b", "a..b", "A", "a_b", "-a", "a-", "1", "a" * 253, "a" * 254])
def test_object_names_are_those_of_kubernetes(crd_server: ApiServer, name: str) -> None:
    manifest = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    theirs = accepted(crd_server, "/api/v1/namespaces/default/serviceaccounts", manifest)
    assert stored(crd_server, at("podTemplate.serviceAccountName", name)) == theirs


QUANTITIES = [
    "1",
    "8",
    "500m",
    "1.5",
    "0.5m",
    "1e3",
    "16Gi",
    "0.5Ti",
    "1.125k",
    "16G",
    "16gb",
    "16GB",
    "16 Gi",
    "-1",
    "1,5",
    "Gi",
    "0x8",
]


@pytest.mark.parametrize("text", [*QUANTITIES, *(f"{number}Gi" for number in range(7, 10))])
def test_accepted_quantities_are_quantities_for_kubernetes(crd_server: ApiServer, text: str) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "case"},
        "spec": {"hard": {"requests.memory": text}},
    }
    try:
        crd_server.create("/api/v1/namespaces/default/resourcequotas", quota, dryRun="All")
        theirs = True
    except Refused:
        theirs = False
    ours = [stored(crd_server, at(f"engine.resources.{field}", text)) for field in ("cpu", "memory")]
    assert theirs or not any(ours)


def test_sizes_and_cpus_are_told_apart(crd_server: ApiServer) -> None:
    sizes = {text for text in QUANTITIES if stored(crd_server, at("engine.resources.memory", text))}
    cpus = {text for text in QUANTITIES if stored(crd_server, at("engine.resources.cpu", text))}
    assert sizes == {"16Gi", "0.5Ti", "1.125k", "16G"}
    assert cpus == {"1", "8", "500m", "1.5", "0.5m"}


def test_what_is_accepted_for_the_pod_makes_a_pod(crd_server: ApiServer) -> None:
    # A seeded sample of texts that the forms allow, in the Deployment that would carry them.
    generator = random.Random(0)
    for _ in range(20):
        letters = [generator.choice("abcXYZ019") + generator.choice("a-._b") * 3 + "z" for _ in range(4)]
        label, value, node_key, node_value = letters
        changes = at("podTemplate", {"labels": {label: value}, "nodeSelector": {node_key: node_value}})
        assert stored(crd_server, changes)
        pod = {
            "metadata": {"labels": {"app": "x", label: value}},
            "spec": {
                "nodeSelector": {node_key: node_value},
                "containers": [{"name": "engine", "image": "example/sglang:v0.5.23"}],
            },
        }
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "case"},
            "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": pod},
        }
        assert accepted(crd_server, "/apis/apps/v1/namespaces/default/deployments", deployment)
