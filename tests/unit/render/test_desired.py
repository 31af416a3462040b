"""All children together: order, ownership, revisions, and what may never roll a pod."""

from __future__ import annotations

import base64
import copy
import dataclasses
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from render_support import DECISION, PROPERTY, UID, archive, only, rendered, service

from sglang_operator.api import names
from sglang_operator.api.decision import Decision
from sglang_operator.api.v1alpha1 import InferenceService, Manifest, ThresholdEvidence, ThresholdSource
from sglang_operator.errors import SpecError
from sglang_operator.render import network
from sglang_operator.render.desired import Rendered, render
from sglang_operator.render.enginepatch import PinnedPatch

CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "model.revision": st.sampled_from(["main", "v2"]),
    "model.servedName": st.sampled_from(["a", "b/c"]),
    "model.cache": st.sampled_from([{}, {"claimName": "weights"}, {"sizeLimit": "1Ti"}]),
    "model.tokenSecretRef": st.just({"name": "hub"}),
    "replicas": st.integers(0, 256),
    "gpus.count": st.integers(1, 8),
    "gpus.architecture": st.sampled_from(["Blackwell", "Any"]),
    "gpus.product": st.lists(st.sampled_from(["NVIDIA-B200", "NVIDIA-B300"]), max_size=2, unique=True),
    "engine.port": st.integers(1024, 65535),
    "engine.args": st.sampled_from([[], ["--trust-remote-code"], ["--chat-template", "$(HOME)/x"]]),
    "engine.env": st.sampled_from([[], [{"name": "A", "value": "$$"}], [{"name": "HOME", "value": "/x"}]]),
    "engine.startupTimeoutSeconds": st.integers(30, 86400),
    "speculation.algorithm": st.sampled_from(["EAGLE", "EAGLE3", "None"]),
    "speculation.numSteps": st.integers(1, 32),
    "rollout.strategy": st.sampled_from(["Recreate", "RollingUpdate"]),
    "podTemplate.labels": st.sampled_from([{}, {"team": "a"}]),
    "podTemplate.tolerations": st.sampled_from([[], [{"operator": "Exists"}]]),
    "podTemplate.affinity": st.sampled_from(
        [
            {"podAntiAffinity": {}},
            {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
                        ]
                    }
                }
            },
        ]
    ),
}
SERVICE_NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
SPECS = st.fixed_dictionaries({}, optional=CHANGES)
MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
COUNTS = st.integers(0, 2**31 - 1)
RATES = st.builds(
    lambda batch_sizes, on, off, gain: ThresholdEvidence(
        batch_sizes=batch_sizes,
        drafting_tokens_per_second=on,
        not_drafting_tokens_per_second=off,
        gain_percent=gain,
        sampled_at="2026-11-30T12:00:00Z",
    ),
    st.sampled_from(("1", "33-48", "257+")),
    COUNTS,
    COUNTS,
    COUNTS,
)
DECISIONS = st.builds(
    Decision,
    batch_size=st.integers(0, names.THRESHOLD_MAX),
    source=st.sampled_from(ThresholdSource),
    decided_at=MOMENTS,
    message=st.text(max_size=50),
    probe_permille=st.integers(0, names.PROBE_MAX_PERMILLE),
    evidence=st.none() | RATES,
)


def pinned(result: Rendered) -> PinnedPatch:
    """What the operator finds on the Deployment that it made."""
    annotations = only(result, "Deployment")["metadata"]["annotations"]
    return PinnedPatch(
        digest=annotations[names.ANNOTATION_PATCH], spec_revision=annotations[names.ANNOTATION_SPEC_REVISION]
    )


def kinds(result: Rendered) -> list[tuple[str, str]]:
    return [(manifest["kind"], manifest["metadata"]["name"]) for manifest in result.manifests]


def test_children_come_in_the_order_in_which_pods_need_them() -> None:
    assert kinds(rendered(service())) == [
        ("ConfigMap", f"llama-specpatch-{archive().digest[:8]}"),
        ("ConfigMap", "llama-threshold"),
        ("Service", "llama"),
        ("Deployment", "llama"),
    ]


def test_every_child_is_owned_labelled_and_sealed() -> None:
    for manifest in rendered(service()).manifests:
        metadata = manifest["metadata"]
        assert metadata["namespace"] == "team"
        assert metadata["labels"][names.LABEL_SERVICE] == "llama"
        assert metadata["labels"][names.LABEL_MANAGED_BY] == names.MANAGED_BY
        assert metadata["ownerReferences"] == [
            {
                "apiVersion": "serving.sglang-operator.io/v1alpha1",
                "kind": "InferenceService",
                "name": "llama",
                "uid": UID,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
        assert re.fullmatch("[0-9a-f]{16}", metadata["annotations"][names.ANNOTATION_APPLIED])


def test_the_seal_changes_with_the_content_and_with_nothing_else() -> None:
    def seals(given: InferenceService) -> dict[str, str]:
        return {
            f"{m['kind']} {m['metadata']['name']}": m["metadata"]["annotations"][names.ANNOTATION_APPLIED]
            for m in rendered(given).manifests
        }

    first, more = seals(service()), seals(service({"replicas": 2}))
    assert {name for name in first if first[name] != more[name]} == {"Deployment llama"}


def test_the_patch_is_whole_in_an_immutable_config_map() -> None:
    config_map = only(rendered(service()), "ConfigMap", archive().digest[:8])
    assert config_map["immutable"] is True
    assert base64.b64decode(config_map["binaryData"]["specpatch.pyz"]) == archive().content
    assert config_map["metadata"]["annotations"][names.ANNOTATION_PATCH] == archive().digest
    (volume,) = [
        volume
        for volume in only(rendered(service()), "Deployment")["spec"]["template"]["spec"]["volumes"]
        if volume["name"] == "specpatch"
    ]
    assert volume["configMap"]["name"] == config_map["metadata"]["name"]


def test_the_service_leads_to_the_pods_on_the_servers_port() -> None:
    result = rendered(service({"engine.port": 8000}))
    spec = only(result, "Service")["spec"]
    deployment = only(result, "Deployment")["spec"]
    assert spec["ports"] == [{"name": "http", "port": 8000, "targetPort": "http", "protocol": "TCP"}]
    assert spec["selector"] == deployment["selector"]["matchLabels"]
    assert spec["selector"].items() <= deployment["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("rollout", "strategy"),
    [
        ({}, {"type": "Recreate"}),
        (
            {"strategy": "RollingUpdate"},
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        ),
    ],
)
def test_pods_are_never_replaced_with_a_surge(rollout: Manifest, strategy: Manifest) -> None:
    assert only(rendered(service({"rollout": rollout})), "Deployment")["spec"]["strategy"] == strategy


def test_a_rollout_may_take_longer_than_a_start() -> None:
    spec = only(rendered(service({"engine.startupTimeoutSeconds": 7200})), "Deployment")["spec"]
    assert spec["progressDeadlineSeconds"] == 7800
    longer = {"rollout.progressDeadlineSeconds": 9000}
    assert only(rendered(service(longer)), "Deployment")["spec"]["progressDeadlineSeconds"] == 9000
    with pytest.raises(SpecError, match=r"progressDeadlineSeconds \(3600\) must be above .* \(3600\)"):
        rendered(service({"rollout.progressDeadlineSeconds": 3600}))


def test_speculation_without_a_draft_model_that_slipped_through_is_refused() -> None:
    with pytest.raises(SpecError, match=r"spec\.speculation\.draftModel must be set"):
        rendered(service({"speculation": {"algorithm": "EAGLE3"}}))


def test_a_new_operators_patch_restarts_nothing() -> None:
    before = rendered(service())
    after = rendered(service(), patch=archive(b"a newer patch"), pinned=pinned(before))
    assert only(after, "Deployment") == only(before, "Deployment")
    assert (after.revision, after.patch_digest) == (before.revision, archive().digest)
    assert kinds(after) == kinds(before)[1:], "the old patch's ConfigMap can't be rendered, so it must be kept"
    assert after.patch_config_map == kinds(before)[0][1]


def test_a_changed_spec_takes_the_new_patch_with_it() -> None:
    newer = archive(b"a newer patch")
    after = rendered(service({"engine.port": 8000}), patch=newer, pinned=pinned(rendered(service())))
    assert after.patch_digest == newer.digest
    assert kinds(after)[0] == ("ConfigMap", f"llama-specpatch-{newer.digest[:8]}")


@pytest.mark.parametrize("changes", [{"replicas": 3}, {"rollout": {"strategy": "RollingUpdate"}}])
def test_what_changes_no_pod_keeps_the_old_patch_too(changes: dict[str, Any]) -> None:
    before = rendered(service())
    after = rendered(service(changes), patch=archive(b"a newer patch"), pinned=pinned(before))
    assert after.revision == before.revision


def test_a_lost_patch_is_replaced_by_the_present_one() -> None:
    newer = archive(b"a newer patch")
    assert rendered(service(), patch=newer, pinned=None).patch_digest == newer.digest


def test_switching_speculation_off_takes_the_patch_out() -> None:
    before = rendered(service())
    after = rendered(service({"speculation.algorithm": "None"}), pinned=pinned(before))
    assert after.patch_digest is None
    assert names.ANNOTATION_PATCH not in only(after, "Deployment")["metadata"]["annotations"]


def test_a_decision_counts_with_speculation_alone() -> None:
    plain = service(speculates=False)
    without = render(plain, decision=None, patch=archive(), pinned=None)
    assert without == rendered(plain)
    with pytest.raises(ValueError, match="without a decision"):
        render(service(), decision=None, patch=archive(), pinned=None)


@given(name=SERVICE_NAMES, changes=SPECS, decision=DECISIONS)
@PROPERTY
def test_rendering_is_the_same_each_time_and_changes_nothing_that_it_was_given(
    name: str, changes: dict[str, Any], decision: Decision
) -> None:
    given_service = service(changes, name=name)
    before = given_service.model_dump_json()
    first = rendered(given_service, decision=decision)
    kept = copy.deepcopy(first)
    assert rendered(given_service, decision=decision) == first
    assert rendered(service(changes, name=name), decision=decision) == first
    assert given_service.model_dump_json() == before
    first.manifests[-1]["spec"]["template"]["spec"].clear()
    assert rendered(given_service, decision=decision) == kept, "a caller's change leaked into the next rendering"


@given(changes=SPECS)
@PROPERTY
def test_no_two_places_of_a_manifest_are_one_object(changes: dict[str, Any]) -> None:
    seen: set[int] = set()

    def visit(value: object) -> None:
        if isinstance(value, (dict, list)):
            assert id(value) not in seen, value
            seen.add(id(value))
            for item in value.values() if isinstance(value, dict) else value:
                visit(item)

    result = rendered(service(changes))
    visit(list(result.manifests))


@given(changes=SPECS, decision=DECISIONS)
@PROPERTY
def test_a_decision_moves_the_threshold_and_no_pod(changes: dict[str, Any], decision: Decision) -> None:
    given_service = service(changes)
    one, other = rendered(given_service), rendered(given_service, decision=decision)
    assert one.revision == other.revision
    assert only(one, "Deployment") == only(other, "Deployment")
    if one.patch_digest is not None:
        config_map = only(other, "ConfigMap", "-threshold")
        assert config_map["data"] == {
            "batchSize": str(decision.batch_size),
            "probePermille": str(decision.probe_permille),
        }
        assert network.read_decision(config_map) == decision


@given(name=SERVICE_NAMES, changes=SPECS)
@PROPERTY
def test_names_fit_everywhere(name: str, changes: dict[str, Any]) -> None:
    for manifest in rendered(service(changes, name=name)).manifests:
        metadata = manifest["metadata"]
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", metadata["name"])
        assert all(len(value) <= 63 for value in metadata["labels"].values())


@given(start=st.from_regex(r"[a-z][-a-z0-9]{49}", fullmatch=True), ends=st.sets(SERVICE_NAMES, min_size=2, max_size=2))
@PROPERTY
def test_two_long_names_never_share_a_child(start: str, ends: set[str]) -> None:
    one, other = (kinds(rendered(service(name=(start + end)[:63].rstrip("-")))) for end in sorted(ends))
    if one[-1] != other[-1]:
        assert not set(one) & set(other)


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {}},
        {"data": {"batchSize": "many"}},
        {"data": {"batchSize": "08"}},
        {"data": {"batchSize": "-1"}},
        {"data": {"batchSize": "1000001"}},
        {"data": {"batchSize": "32", "probePermille": "501"}},
        {"data": {"batchSize": "32", "probePermille": ""}},
        {"data": None},
        {"metadata": {}},
        {"metadata": {"annotations": None}},
    ],
)
def test_a_decision_that_somebody_made_unreadable_is_none(changes: Manifest) -> None:
    config_map = network.threshold_config_map(service(), DECISION)
    assert network.read_decision(config_map) == DECISION
    assert network.read_decision({**config_map, **changes}) is None


def test_a_decision_without_a_probe_share_probes_nothing() -> None:
    config_map = network.threshold_config_map(service(), dataclasses.replace(DECISION, probe_permille=7))
    assert network.read_decision(config_map) == dataclasses.replace(DECISION, probe_permille=7)
    assert network.read_decision({**config_map, "data": {"batchSize": "32"}}) == DECISION


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (names.ANNOTATION_DECIDED_AT, "yesterday"),
        (names.ANNOTATION_DECIDED_AT, "2026-11-30T12:00:00"),
        (names.ANNOTATION_DECISION_SOURCE, "Guess"),
        (names.ANNOTATION_DECISION_EVIDENCE, "{}"),
        (names.ANNOTATION_DECISION_EVIDENCE, "many"),
    ],
)
def test_a_decision_with_a_bad_annotation_is_none(annotation: str, value: str) -> None:
    config_map = network.threshold_config_map(service(), DECISION)
    config_map["metadata"]["annotations"][annotation] = value
    assert network.read_decision(config_map) is None


def test_the_time_of_a_decision_is_written_in_utc() -> None:
    moment = datetime(2026, 11, 30, 14, 0, 0, 250_000, tzinfo=timezone(timedelta(hours=2)))
    config_map = network.threshold_config_map(service(), dataclasses.replace(DECISION, decided_at=moment))
    assert config_map["metadata"]["annotations"][names.ANNOTATION_DECIDED_AT] == "2026-11-30T12:00:00.250000Z"
