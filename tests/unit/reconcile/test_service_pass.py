"""One pass over one service, against an API server and servers in memory."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from fakes import FakeClock, FakeCluster, FakeEngine
from sglang_operator.adapters.ports import EngineKeys
from sglang_operator.api import names
from sglang_operator.api.names import ServiceKey
from sglang_operator.api.reasons import ConditionType
from sglang_operator.errors import ClusterError, ClusterForbidden, EngineUnauthorized, EngineUnreachable
from sglang_operator.reconcile.memory import Memory
from sglang_operator.reconcile.service import RETRY_SECONDS, ServiceReconciler
from sglang_operator.reconcile.threshold import Synchronizer
from sglang_operator.render.enginepatch import PatchArchive

Manifest = dict[str, Any]
KEY = ServiceKey("team", "llama")
OLD_PATCH = PatchArchive(digest="a" * 64, content=b"first")
NEW_PATCH = PatchArchive(digest="b" * 64, content=b"second")


def spec(**threshold: Any) -> Manifest:
    return {
        "model": {"uri": "hf://org/llama"},
        "gpus": {"count": 8},
        "engine": {"image": "sglang:0.5.23"},
        "speculation": {
            "algorithm": "EAGLE3",
            "draftModel": {"uri": "hf://org/draft"},
            "disableThreshold": threshold or {"mode": "Fixed", "batchSize": 8},
        },
    }


class World:
    """One service in a cluster, and the operator that looks after it."""

    def __init__(self, wanted: Manifest | None = None) -> None:
        self.clock, self.cluster, self.engine = FakeClock(), FakeCluster(), FakeEngine()
        metadata = {"name": KEY.name, "namespace": KEY.namespace, "uid": "uid-1", "generation": 1}
        self.cluster.services[KEY] = {"metadata": metadata, "spec": wanted or spec()}
        self.operator = self.start_operator()

    def start_operator(self, patch: PatchArchive = OLD_PATCH, *, metrics_configured: bool = True) -> ServiceReconciler:
        return ServiceReconciler(
            cluster=self.cluster,
            clock=self.clock,
            synchronizer=Synchronizer(engine=self.engine, clock=self.clock, read_back_interval_seconds=60),
            memory=Memory(),
            patch=patch,
            metrics_configured=metrics_configured,
        )

    async def make_pass(self) -> float | None:
        self.cluster.writes.clear()
        self.cluster.notes.clear()
        self.engine.requests.clear()
        return await self.operator.reconcile(KEY)

    def change_spec(self, change: Callable[[Manifest], None]) -> None:
        stored = self.cluster.services[KEY]
        change(stored["spec"])
        stored["metadata"]["generation"] += 1

    def child(self, kind: str, name: str) -> Manifest:
        return self.cluster.children[kind, ServiceKey(KEY.namespace, name)]

    @property
    def deployment(self) -> Manifest:
        return self.child("Deployment", "llama")

    @property
    def status(self) -> Manifest:
        status: Manifest = self.cluster.services[KEY]["status"]
        return status

    def condition(self, kind: ConditionType) -> Manifest:
        return next(item for item in self.status["conditions"] if item["type"] == kind.value)

    def start_pod(self, *, host: str = "10.1.1.1", boot_value: int = 8, container: str = "c1", ranks: int = 1) -> None:
        template = self.deployment["spec"]["template"]
        pod = copy.deepcopy(template)
        pod["metadata"].update({"name": "llama-0", "namespace": KEY.namespace, "uid": "pod-1"})
        pod["status"] = {
            "phase": "Running",
            "podIP": host,
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T11:00:00Z"}
                for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ],
            "initContainerStatuses": [
                {
                    "name": "patch",
                    "restartCount": 0,
                    "state": {
                        "terminated": {
                            "exitCode": 0,
                            "reason": "Completed",
                            "message": '{"result":"Patched","reason":"Patched","message":"","release":"0.5.23"}',
                        }
                    },
                }
            ],
            "containerStatuses": [
                {
                    "name": "engine",
                    "containerID": f"containerd://{container}",
                    "ready": True,
                    "started": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": "2026-01-01T11:00:00Z"}},
                }
            ],
        }
        self.cluster.pods[ServiceKey(KEY.namespace, "llama-0")] = pod
        self.engine.ranks[host] = [boot_value] * ranks
        self.deployment["status"] = {
            "observedGeneration": 1,
            "replicas": 1,
            "updatedReplicas": 1,
            "readyReplicas": 1,
            "availableReplicas": 1,
            "conditions": [],
        }


async def settled(wanted: Manifest | None = None, **pod: Any) -> World:
    """A world in which the service serves and two passes have been made."""
    world = World(wanted)
    await world.make_pass()
    world.start_pod(**pod)
    await world.make_pass()
    return world


async def test_the_first_pass_creates_the_children_in_order_and_one_status_with_all_conditions() -> None:
    world = World()
    await world.make_pass()
    assert world.cluster.writes == [
        "apply ConfigMap llama-specpatch-aaaaaaaa",
        "apply ConfigMap llama-threshold",
        "apply Service llama",
        "apply Deployment llama",
        "status llama",
    ]
    assert [item["type"] for item in world.status["conditions"]] == [kind.value for kind in ConditionType]


async def test_a_serving_service_is_ready_and_synced() -> None:
    world = await settled()
    assert world.condition(ConditionType.READY)["status"] == "True", world.status
    assert world.condition(ConditionType.THRESHOLD_SYNCED)["status"] == "True"
    assert world.status["threshold"]["batchSize"] == 8
    assert world.status["threshold"]["syncedPods"] == 1
    assert world.status["url"] == "http://llama.team.svc:30000"


async def test_an_idle_service_causes_no_write_and_trusts_the_last_read_back() -> None:
    world = await settled()
    for _ in range(3):
        world.clock.passed_seconds += 10
        assert await world.make_pass() is None
        assert world.cluster.writes == []
        assert world.engine.requests == []


async def test_the_threshold_is_read_back_again_after_the_interval() -> None:
    world = await settled()
    world.clock.passed_seconds += 61
    await world.make_pass()
    assert world.engine.requests == ["read 10.1.1.1"]
    assert world.cluster.writes == []


async def test_a_changed_fixed_value_is_persisted_pushed_and_read_back_without_touching_the_deployment() -> None:
    world = await settled(ranks=2)
    world.change_spec(lambda it: it["speculation"]["disableThreshold"].update(batchSize=4))
    assert await world.make_pass() is None
    assert world.engine.requests == ["read 10.1.1.1", "set 10.1.1.1 4", "read 10.1.1.1"]
    assert world.cluster.writes == ["apply ConfigMap llama-threshold", "status llama"]
    assert world.child("ConfigMap", "llama-threshold")["data"]["batchSize"] == "4"
    assert world.status["threshold"]["batchSize"] == 4
    assert "ThresholdChanged" in {note.reason for note in world.cluster.notes}


async def test_a_restarted_container_is_asked_at_once() -> None:
    world = await settled()
    pod = world.cluster.pods[ServiceKey("team", "llama-0")]
    pod["status"]["containerStatuses"][0]["containerID"] = "containerd://c2"
    world.engine.ranks["10.1.1.1"] = [0]
    await world.make_pass()
    assert world.engine.requests == ["read 10.1.1.1", "set 10.1.1.1 8", "read 10.1.1.1"]
    assert world.engine.ranks["10.1.1.1"] == [8]


async def test_a_server_that_says_yes_and_keeps_its_value_is_found_out() -> None:
    world = await settled()
    world.engine.deaf.add("10.1.1.1")
    world.change_spec(lambda it: it["speculation"]["disableThreshold"].update(batchSize=4))
    assert await world.make_pass() == RETRY_SECONDS
    synced = world.condition(ConditionType.THRESHOLD_SYNCED)
    assert (synced["status"], synced["reason"]) == ("False", "EngineRefused")
    assert "llama-0" in synced["message"]


async def test_a_server_that_never_follows_is_asked_less_and_less_often() -> None:
    world = await settled()
    world.engine.deaf.add("10.1.1.1")
    world.change_spec(lambda it: it["speculation"]["disableThreshold"].update(batchSize=4))
    assert [await world.make_pass() for _ in range(5)] == [5.0, 10.0, 20.0, 30.0, 30.0]
    world.engine.deaf.clear()
    assert await world.make_pass() is None
    world.engine.deaf.add("10.1.1.1")
    world.change_spec(lambda it: it["speculation"]["disableThreshold"].update(batchSize=5))
    assert await world.make_pass() == RETRY_SECONDS


async def test_one_rank_that_differs_is_not_synced() -> None:
    world = await settled(ranks=2)
    world.clock.passed_seconds += 61
    world.engine.deaf.add("10.1.1.1")
    world.engine.ranks["10.1.1.1"] = [8, 2]
    await world.make_pass()
    assert world.condition(ConditionType.THRESHOLD_SYNCED)["status"] == "False"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (EngineUnreachable("no reply within 5 s"), "EngineUnreachable"),
        (EngineUnauthorized("the server wants an API key"), "LiveUpdateUnauthorized"),
    ],
)
async def test_a_server_that_can_not_be_asked_is_named_and_tried_again(error: Exception, reason: str) -> None:
    world = await settled()
    world.clock.passed_seconds += 61
    world.engine.errors["10.1.1.1"] = error  # type: ignore[assignment]
    assert await world.make_pass() == RETRY_SECONDS
    assert world.condition(ConditionType.THRESHOLD_SYNCED)["reason"] == reason
    world.engine.errors.clear()
    assert await world.make_pass() is None
    assert world.condition(ConditionType.THRESHOLD_SYNCED)["status"] == "True"


PLACES = {
    "apiKeySecretRef": {"name": "keys", "key": "clients"},
    "adminApiKeySecretRef": {"name": "keys", "key": "admin"},
}
KEYS = EngineKeys(api="hunter2", admin="swordfish")


def keyed() -> Manifest:
    wanted = spec()
    wanted["engine"].update(PLACES)
    return wanted


async def with_keys(held: dict[str, bytes] | ClusterError | None) -> World:
    """A world whose server wants keys, and what the operator gets to read of their Secret."""
    world = World(keyed())
    world.engine.keys["10.1.1.1"] = KEYS
    if held is not None:
        world.cluster.secrets["keys"] = held
    await world.make_pass()
    assert world.cluster.secret_reads == [], "there is no server to be asked yet"
    world.start_pod(boot_value=3)
    await world.make_pass()
    return world


GOOD = {"clients": b"hunter2", "admin": b"swordfish"}


async def test_a_server_with_keys_is_served_with_those_of_its_secret() -> None:
    world = await with_keys(GOOD)
    assert world.engine.ranks["10.1.1.1"] == [8]
    assert world.condition(ConditionType.THRESHOLD_SYNCED)["status"] == "True"
    assert world.cluster.secret_reads == ["team/keys"], "once a pass, for both keys"
    await world.make_pass()
    assert world.cluster.secret_reads == ["team/keys"], "not at all for a server whose last word is trusted"


FORBIDDEN = ClusterForbidden(
    'secrets "keys" is forbidden: User "sglang-operator" cannot get it (HTTP 403).', status=403
)
UNAVAILABLE: list[tuple[dict[str, bytes] | ClusterError | None, str]] = [
    (None, "Secret team/keys does not exist: create it anew"),
    ({"clients": b"hunter2"}, "there is no key admin of Secret team/keys: add it"),
    (GOOD | {"clients": b""}, "key clients of Secret team/keys is empty, which leaves the server open to everyone"),
    (GOOD | {"clients": b"hunter2\n"}, "key clients of Secret team/keys begins or ends with white space or a line"),
    (GOOD | {"admin": b" swordfish"}, "key admin of Secret team/keys begins or ends with white space"),
    (GOOD | {"admin": b"sword\nfish"}, "key admin of Secret team/keys holds other letters than printable ASCII"),
    (GOOD | {"admin": "fisch–".encode()}, "key admin of Secret team/keys holds other letters than printable ASCII"),
    (GOOD | {"admin": b"\xff"}, "key admin of Secret team/keys holds other letters than printable ASCII"),
    (FORBIDDEN, "the operator may not read Secret team/keys: install the chart with rbac.readSecrets=true"),
]


@pytest.mark.parametrize(("held", "told"), UNAVAILABLE)
async def test_a_key_that_can_not_be_had_is_told_with_the_next_step_and_heals_by_itself(
    held: dict[str, bytes] | ClusterError | None, told: str
) -> None:
    world = await with_keys(held)
    synced = world.condition(ConditionType.THRESHOLD_SYNCED)
    assert (synced["status"], synced["reason"]) == ("False", "APIKeyUnavailable")
    assert f"llama-0: {told}" in synced["message"]
    assert world.condition(ConditionType.DEGRADED)["reason"] == "APIKeyUnavailable"
    assert world.condition(ConditionType.READY)["status"] == "True", "the service itself serves"
    assert world.engine.requests == [], "nothing is tried without the key"
    world.cluster.secrets["keys"] = GOOD
    assert await world.make_pass() is None
    assert world.condition(ConditionType.THRESHOLD_SYNCED)["status"] == "True"
    assert world.engine.ranks["10.1.1.1"] == [8]


async def test_a_rotated_secret_is_told_as_the_pod_that_has_the_old_key() -> None:
    world = await with_keys(GOOD)
    world.cluster.secrets["keys"] = {"clients": b"new", "admin": b"newer"}
    world.clock.passed_seconds += 61
    assert await world.make_pass() == RETRY_SECONDS
    synced = world.condition(ConditionType.THRESHOLD_SYNCED)
    assert (synced["status"], synced["reason"]) == ("False", "LiveUpdateUnauthorized")
    assert "kubectl rollout restart" in synced["message"]
    assert (
        "llama-0: 10.1.1.1 refuses the key (HTTP 401); it was started with key clients of Secret team/keys and key"
        in (synced["message"])
    )


async def test_a_key_that_the_operator_knows_no_secret_of_is_told() -> None:
    world = await settled()
    world.engine.keys["10.1.1.1"] = KEYS
    world.clock.passed_seconds += 61
    await world.make_pass()
    synced = world.condition(ConditionType.THRESHOLD_SYNCED)
    assert synced["reason"] == "LiveUpdateUnauthorized"
    assert "its pod names no Secret with one" in synced["message"]


async def test_an_api_server_that_fails_to_hand_over_the_secret_is_asked_again_without_alarm() -> None:
    world = await with_keys(ClusterError("GET keys: unable to transform the key (HTTP 500).", status=500))
    synced = world.condition(ConditionType.THRESHOLD_SYNCED)
    assert (synced["status"], synced["reason"]) == ("False", "Syncing")
    assert "unable to transform" in synced["message"]
    assert world.condition(ConditionType.DEGRADED)["status"] == "False"


async def test_a_rollout_asks_each_pod_with_the_key_that_it_was_started_with() -> None:
    world = await with_keys(GOOD)
    world.change_spec(lambda it: it["engine"].pop("apiKeySecretRef"))
    world.change_spec(lambda it: it["engine"].pop("adminApiKeySecretRef"))
    world.clock.passed_seconds += 61
    world.engine.ranks["10.1.1.1"] = [3]
    await world.make_pass()
    assert world.engine.ranks["10.1.1.1"] == [8], "the old pod still wants its keys"


async def test_keys_are_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    world = await with_keys(GOOD)
    world.engine.keys["10.1.1.1"] = EngineKeys(api="other", admin="others")
    world.clock.passed_seconds += 61
    await world.make_pass()
    shown = repr(
        (world.cluster.services, world.cluster.children, world.cluster.notes, caplog.text, world.operator.memory)
    )
    shown += repr([world.operator.memory.of(KEY), await world.cluster.get_secret("team", "keys")])
    assert "LiveUpdateUnauthorized" in shown
    assert "hunter2" not in shown
    assert "swordfish" not in shown


async def test_without_speculation_no_secret_is_read() -> None:
    wanted = keyed()
    wanted["speculation"] = {"algorithm": "None"}
    world = World(wanted)
    await world.make_pass()
    world.start_pod()
    await world.make_pass()
    assert world.cluster.secret_reads == []


async def test_threshold_and_probe_share_go_in_one_update_and_an_older_patch_gets_the_threshold_alone() -> None:
    world = await settled(spec(mode="Auto", batchSize=16), boot_value=16)
    memory = world.operator.memory.of(KEY)
    assert memory.decision is not None
    memory.decision = dataclasses.replace(memory.decision, batch_size=24, probe_permille=20)
    assert await world.make_pass() is None
    assert world.engine.requests == ["read 10.1.1.1", "set 10.1.1.1 24", "read 10.1.1.1"]
    world.engine.probes["10.1.1.1"] = [0, 0]
    world.engine.ranks["10.1.1.1"] = [24, 24]
    world.clock.passed_seconds += 61
    assert await world.make_pass() is None
    assert world.engine.requests == ["read 10.1.1.1", "set 10.1.1.1 24 probing 20", "read 10.1.1.1"]
    assert world.engine.probes["10.1.1.1"] == [20, 20]
    memory.decision = dataclasses.replace(memory.decision, probe_permille=0)
    assert await world.make_pass() is None
    assert world.engine.probes["10.1.1.1"] == [0, 0]


async def test_a_server_that_keeps_its_probe_share_is_found_out() -> None:
    world = await settled(spec(mode="Auto", batchSize=16), boot_value=16)
    world.engine.probes["10.1.1.1"] = [0]
    world.engine.deaf.add("10.1.1.1")
    memory = world.operator.memory.of(KEY)
    assert memory.decision is not None
    memory.decision = dataclasses.replace(memory.decision, probe_permille=20)
    world.clock.passed_seconds += 61
    assert await world.make_pass() == RETRY_SECONDS
    synced = world.condition(ConditionType.THRESHOLD_SYNCED)
    assert (synced["status"], synced["reason"]) == ("False", "EngineRefused")
    assert "asked for 20 probes in 1000 steps, they hold 0" in synced["message"]


async def test_the_status_tells_how_the_servers_decode_without_drafting() -> None:
    wanted = spec()
    wanted["speculation"]["offPath"] = "Decode"
    world = World(wanted)
    world.engine.off_path = ("ZeroStep", "a mamba model")
    await world.make_pass()
    world.start_pod()
    await world.make_pass()
    assert world.status["threshold"]["offPath"] == "ZeroStep"
    assert world.status["threshold"]["offPathReason"] == "a mamba model"
    synced = world.condition(ConditionType.THRESHOLD_SYNCED)
    assert (synced["status"], synced["reason"]) == ("True", "Synced")
    assert "asks for Decode, which does not run in llama-0 (ZeroStep): a mamba model." in synced["message"]


async def test_a_refused_spec_writes_nothing_and_what_runs_is_still_looked_after() -> None:
    world = await settled()
    world.change_spec(lambda it: it["gpus"].update(count=99))
    world.engine.ranks["10.1.1.1"] = [3]
    world.clock.passed_seconds += 61
    await world.make_pass()
    assert world.cluster.writes == ["status llama"]
    refused = world.condition(ConditionType.SPEC_VALID)
    assert refused["status"] == "False"
    assert "gpus.count" in refused["message"]
    assert world.engine.ranks["10.1.1.1"] == [8]
    assert world.condition(ConditionType.SERVING)["status"] == "True"


async def test_one_child_that_is_refused_does_not_stop_the_others() -> None:
    world = World()
    world.cluster.refuse["llama"] = ClusterForbidden("PATCH llama: forbidden (HTTP 403).", status=403)
    assert await world.make_pass() == RETRY_SECONDS
    assert "apply ConfigMap llama-threshold" in world.cluster.writes
    degraded = world.condition(ConditionType.DEGRADED)
    assert (degraded["status"], degraded["reason"]) == ("True", "OperatorForbidden")
    world.cluster.refuse.clear()
    await world.make_pass()
    assert world.condition(ConditionType.DEGRADED)["status"] == "False"


async def test_a_pass_that_can_not_read_the_cluster_raises_for_the_queue_to_repeat_it() -> None:
    world = World()

    async def failing(key: ServiceKey) -> Manifest | None:
        raise ClusterError(f"GET {key}: the API server can't be reached.")

    world.cluster.get_service = failing  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match="can't be reached"):
        await world.operator.reconcile(KEY)


async def test_a_new_operator_takes_the_persisted_decision_and_writes_nothing() -> None:
    world = await settled(spec(mode="Auto", batchSize=16), boot_value=16)
    memory = world.operator.memory.of(KEY)
    assert memory.decision is not None
    memory.decision = dataclasses.replace(memory.decision, batch_size=48, message="measured")
    await world.make_pass()
    assert world.engine.ranks["10.1.1.1"] == [48]
    world.operator = world.start_operator()
    await world.make_pass()
    assert world.cluster.writes == []
    assert world.engine.requests == ["read 10.1.1.1"]
    assert world.status["threshold"]["batchSize"] == 48


async def test_an_operator_with_a_newer_patch_rolls_nothing_until_the_spec_changes() -> None:
    world = await settled()
    world.operator = world.start_operator(NEW_PATCH)
    await world.make_pass()
    assert world.cluster.writes == []
    world.change_spec(lambda it: it["engine"].update(image="sglang:0.5.24"))
    await world.make_pass()
    assert "apply ConfigMap llama-specpatch-bbbbbbbb" in world.cluster.writes
    assert "apply Deployment llama" in world.cluster.writes
    assert "delete ConfigMap llama-specpatch-aaaaaaaa" not in world.cluster.writes, "a pod still mounts it"
    world.cluster.pods.clear()
    world.start_pod()
    await world.make_pass()
    assert "delete ConfigMap llama-specpatch-aaaaaaaa" in world.cluster.writes


async def test_an_object_of_somebody_else_is_not_taken_over() -> None:
    world = World()
    foreign = {"kind": "Service", "metadata": {"name": "llama", "namespace": "team", "labels": {}}, "spec": {"a": 1}}
    world.cluster.children["Service", KEY] = foreign
    assert await world.make_pass() == RETRY_SECONDS
    assert world.child("Service", "llama") is foreign
    degraded = world.condition(ConditionType.DEGRADED)
    assert degraded["reason"] == "ApplyFailed"
    assert "does not belong" in degraded["message"]


async def test_a_child_that_somebody_changed_is_put_right() -> None:
    world = await settled()
    world.deployment["spec"]["replicas"] = 5
    await world.make_pass()
    assert world.cluster.writes == ["apply Deployment llama"]
    assert world.deployment["spec"]["replicas"] == 1


async def test_without_speculation_there_is_no_threshold_and_no_patch() -> None:
    wanted = spec()
    wanted["speculation"] = {"algorithm": "None"}
    world = World(wanted)
    await world.make_pass()
    assert {kind for kind, _ in world.cluster.children} == {"Service", "Deployment"}
    assert "threshold" not in world.status
    assert world.operator.memory.measured() == ()


async def test_switching_speculation_off_removes_its_children_once_no_pod_needs_them() -> None:
    world = await settled()
    world.change_spec(lambda it: it.update(speculation={"algorithm": "None"}))
    await world.make_pass()
    assert not [write for write in world.cluster.writes if write.startswith("delete")], "a pod could not restart"
    world.cluster.pods.clear()
    await world.make_pass()
    assert {"delete ConfigMap llama-threshold", "delete ConfigMap llama-specpatch-aaaaaaaa"} <= set(
        world.cluster.writes
    )


async def test_a_deleted_service_is_forgotten_and_nothing_is_written() -> None:
    world = await settled()
    world.cluster.services[KEY]["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    await world.make_pass()
    assert world.cluster.writes == []
    assert world.operator.memory.known() == ()


async def test_auto_without_prometheus_says_so_and_holds_the_first_value() -> None:
    world = World(spec(mode="Auto"))
    world.operator = world.start_operator(metrics_configured=False)
    await world.make_pass()
    assert world.condition(ConditionType.METRICS_AVAILABLE)["reason"] == "NotConfigured"
    assert world.status["threshold"]["batchSize"] == 32
    assert names.THRESHOLD_KEY in world.child("ConfigMap", "llama-threshold")["data"]
