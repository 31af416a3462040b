"""Live updates and the read-back, through the functions that SGLang's files call."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from sglang_specpatch.runtime import engine, hooks, settings, threshold
from sglang_specpatch.runtime.ports import Controller

FIELD, PROBE, OFF_PATH = settings.THRESHOLD, settings.PROBE_PERMILLE, settings.OFF_PATH
TILE = settings.VERIFY_TILE


class Rejected(Exception):
    """What a release raises for an update."""


def _scheduler(live: SimpleNamespace, *off_path: str) -> SimpleNamespace:
    settings = threshold.LiveSettings(lambda: int(live.value), lambda: int(live.permille))
    policy = threshold.ThresholdPolicy(threshold.ConfiguredSteps(3), settings, lambda: None)
    return SimpleNamespace(draft_worker=SimpleNamespace(specpatch=hooks.SpecPatch(policy, *off_path)))


GOOD = [{FIELD: value} for value in (0, 8, 1_000_000)] + [{PROBE: value} for value in (0, 30, 500)]
NO_VALUES: tuple[object, ...] = (3.0, "3", True, None, -1, 10**9)
BAD = [{name: value} for name in (FIELD, PROBE) for value in NO_VALUES] + [
    {FIELD: 8, PROBE: 501},
    {FIELD: -1, PROBE: 30},
]


@pytest.mark.parametrize("updates", GOOD)
def test_good_values_are_accepted(updates: dict[str, int]) -> None:
    scheduler = _scheduler(SimpleNamespace(value=0))
    assert hooks.accepts_update(scheduler, updates)
    for name, value in updates.items():
        hooks.update_check(scheduler, Rejected)(name, value)


@pytest.mark.parametrize("updates", BAD)
def test_bad_values_are_refused_with_a_sentence(updates: dict[str, object], caplog: pytest.LogCaptureFixture) -> None:
    scheduler = _scheduler(SimpleNamespace(value=0))
    assert not hooks.accepts_update(scheduler, {"other": 1, **updates})
    assert "Live update refused: speculative_" in caplog.text
    check = hooks.update_check(scheduler, Rejected)
    for name, value in updates.items():
        problem = settings.refusal(name, value)
        assert _sentence(check, name, value) == ("" if problem is None else f"Live update refused: {problem}")


def _sentence(check: Callable[[str, object], None], name: str, value: object) -> str:
    try:
        check(name, value)
    except Rejected as rejected:
        return str(rejected)
    return ""


def test_updates_of_other_keys_are_none_of_our_business() -> None:
    assert hooks.accepts_update(SimpleNamespace(draft_worker=None), {"pp_max_micro_batch_size": 3})


INACTIVE = [
    (None, "speculative decoding is off (no --speculative-algorithm)"),
    (SimpleNamespace(specpatch_inactive_reason="speculative_eagle_topk=4"), "speculative_eagle_topk=4"),
    (
        type("NGRAMWorker", (), {})(),
        "worker NGRAMWorker has no zero-step state (only EAGLEWorkerV2 of SGLang 0.5.14 and newer has)",
    ),
]


@pytest.mark.parametrize(("worker", "reason"), INACTIVE)
def test_a_server_that_can_not_obey_says_so(worker: object, reason: str) -> None:
    scheduler = SimpleNamespace(draft_worker=worker)
    state: dict[str, object] = {FIELD: 5, PROBE: 30}
    hooks.add_readback(scheduler, state)
    assert (state[FIELD], state[PROBE]) == (5, 30)
    patch = state["specpatch"]
    assert isinstance(patch, dict)
    assert (patch["active"], patch["inactive_reason"]) == (False, reason)
    assert (patch["off_path"], patch["off_path_reason"]) == (None, None)
    for name in (FIELD, PROBE):
        with pytest.raises(Rejected, match=f"{name} has no effect on this server"):
            hooks.update_check(scheduler, Rejected)(name, 5)
        assert not hooks.accepts_update(scheduler, {name: 5})


@pytest.mark.parametrize("off_path", [("Decode",), ("ZeroStep", "the attention backend is not known")])
def test_the_read_back_is_the_live_values_and_the_way_steps_without_drafts_are_run(off_path: tuple[str, ...]) -> None:
    live = SimpleNamespace(value=4, permille=0)
    scheduler = _scheduler(live, *off_path)
    live.value, live.permille = 9, 30
    state: dict[str, object] = {FIELD: 4, PROBE: 0}
    hooks.add_readback(scheduler, state)
    assert (state[FIELD], state[PROBE]) == (9, 30)
    assert state["specpatch"] == {
        "generation": None,
        "release": None,
        "active": True,
        "inactive_reason": None,
        "off_path": off_path[0],
        "off_path_reason": (*off_path, None)[1],
        "verify_tile": "default",
    }


def test_generation_and_release_are_those_of_the_manifest_beside_the_running_tree(tmp_path: Path) -> None:
    place = tmp_path / "sglang/srt/speculative/specpatch"
    place.mkdir(parents=True)
    for source in Path(engine.__file__).parent.glob("*.py"):
        (place / source.name).write_bytes(source.read_bytes())
    (tmp_path / "specpatch-manifest.json").write_text('{"generation": 1, "release": "0.5.23"}')
    spec = importlib.util.spec_from_file_location(
        "placed", place / "__init__.py", submodule_search_locations=[str(place)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["placed"] = module
    try:
        spec.loader.exec_module(module)
        state: dict[str, object] = {}
        module.add_readback(SimpleNamespace(draft_worker=None), state)
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "placed"]:
            del sys.modules[name]
    patch = state["specpatch"]
    assert isinstance(patch, dict)
    assert (patch["generation"], patch["release"]) == (1, "0.5.23")


def _fake_sglang(monkeypatch: pytest.MonkeyPatch, **modules: dict[str, object]) -> None:
    for name in ("sglang", "sglang.srt", "sglang.srt.speculative", "sglang.srt.arg_groups"):
        package = ModuleType(name)
        package.__path__ = []
        monkeypatch.setitem(sys.modules, name, package)
    for name, content in modules.items():
        module = ModuleType(f"sglang.srt.{name.replace('__', '.')}")
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)


def test_the_threshold_is_read_from_the_spec_config_of_newer_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SimpleNamespace(**{FIELD: 3})
    _fake_sglang(monkeypatch, runtime_context={"get_spec": lambda: spec})
    read = engine.setting_reader(FIELD)
    assert read() == 3
    setattr(spec, FIELD, 7)
    assert read() == 7


def test_the_threshold_is_read_from_the_global_arguments_of_older_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    args = SimpleNamespace(**{FIELD: 3})
    _fake_sglang(monkeypatch, runtime_context={}, server_args={"get_global_server_args": lambda: args})
    read = engine.setting_reader(FIELD)
    setattr(args, FIELD, 7)
    assert read() == 7


def test_a_release_that_keeps_it_nowhere_stops_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_sglang(monkeypatch, runtime_context={}, server_args={"get_global_server_args": SimpleNamespace})
    with pytest.raises(AttributeError, match=FIELD):
        engine.setting_reader(FIELD)


class EAGLEWorkerV2:
    """A worker by its name."""

    def __init__(self, **arguments: object) -> None:
        self.adaptive_controller: Controller | None = None
        self.speculative_num_steps = 3
        self.server_args: object = SimpleNamespace(**{"pp_size": 1, **arguments})
        self.specpatch: object = None
        self.specpatch_inactive_reason = ""


def _supported(monkeypatch: pytest.MonkeyPatch, reason: str | None = None, **values: object) -> None:
    spec = SimpleNamespace(**{FIELD: 4, PROBE: 0, OFF_PATH: "auto", TILE: "default", **values})
    _fake_sglang(
        monkeypatch,
        runtime_context={"get_spec": lambda: spec},
        speculative__adaptive_spec_params={"adaptive_unsupported_reason": lambda _: reason},
        speculative__adaptive_runtime_state={"AdaptiveController": lambda worker, _: SimpleNamespace(params=None)},
    )


def test_attaching_gives_the_worker_its_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    _supported(monkeypatch, None, **{PROBE: 30})
    worker = EAGLEWorkerV2()
    hooks.attach(worker)
    assert isinstance(worker.specpatch, hooks.SpecPatch)
    assert (worker.specpatch.policy.threshold, worker.specpatch.policy.probe_permille) == (4, 30)
    assert worker.adaptive_controller is not None


@pytest.mark.parametrize(
    ("arguments", "sglangs_reason", "expected"),
    [
        ({}, "speculative_eagle_topk=4 (only topk=1 is supported)", "speculative_eagle_topk=4"),
        ({}, "attention DP is not supported", "attention DP"),
        ({"pp_size": 2}, None, "pp_size=2"),
        ({"enable_lora": True}, None, "enable_lora=True"),
        ({"enable_hisparse": True}, None, "enable_hisparse=True"),
    ],
)
def test_what_can_not_obey_stays_as_it_was(
    arguments: dict[str, object], sglangs_reason: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _supported(monkeypatch, sglangs_reason)
    worker = EAGLEWorkerV2(**arguments)
    hooks.attach(worker)
    assert worker.adaptive_controller is None
    state: dict[str, object] = {}
    hooks.add_readback(SimpleNamespace(draft_worker=worker), state)
    patch = state["specpatch"]
    assert isinstance(patch, dict)
    assert expected in patch["inactive_reason"]


def test_a_configuration_that_is_not_understood_is_inactive_and_serving_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _supported(monkeypatch)
    worker = EAGLEWorkerV2()
    worker.server_args = object()
    monkeypatch.setitem(
        vars(sys.modules["sglang.srt.speculative.adaptive_spec_params"]),
        "adaptive_unsupported_reason",
        lambda args: args.x,
    )
    hooks.attach(worker)
    assert worker.adaptive_controller is None
    assert "AttributeError" in worker.specpatch_inactive_reason
    assert "it is off" in caplog.text


def test_another_worker_class_is_inactive(monkeypatch: pytest.MonkeyPatch) -> None:
    _supported(monkeypatch)
    worker = type("StandaloneWorkerV2", (EAGLEWorkerV2,), {})()
    hooks.attach(worker)
    assert worker.adaptive_controller is None
    assert "StandaloneWorkerV2" in worker.specpatch_inactive_reason


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({FIELD: "8"}, "speculative_disable_batch_threshold must be a whole number, got '8'"),
        ({PROBE: 501}, "speculative_probe_permille must be from 0 to 500, got 501"),
        ({OFF_PATH: "Decode"}, "speculative_off_path must be one of auto, decode, zero-step, got 'Decode'"),
    ],
)
def test_a_bad_boot_value_stops_the_server(
    values: dict[str, object], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _supported(monkeypatch, None, **values)
    with pytest.raises(ValueError, match=sentence):
        hooks.attach(EAGLEWorkerV2())


def test_the_log_of_overrides_does_not_grow_and_replays_to_the_same_config(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[tuple[str, dict[str, int]]] = [("load", {"max_total_num_tokens": number}) for number in range(3)]
    _fake_sglang(monkeypatch, runtime_context={"get_context": lambda: SimpleNamespace(_overrides_log=log)})
    worker = EAGLEWorkerV2()
    expected: dict[str, int] = {}
    for number in range(1000):
        engine.trim_override_logs(worker)
        entry = {"speculative_num_steps": number % 2, "speculative_num_draft_tokens": number}
        log.append(("adaptive_spec.restore", entry))
        if number % 7 == 0:
            log.append(("update_server_args", {FIELD: number}))
        if number == 500:
            log.append(("other", {"speculative_num_steps": 9, "pp_max_micro_batch_size": 4}))
    engine.trim_override_logs(worker)
    for _, fields in log:
        expected.update(fields)
    assert len(log) <= 64
    assert [entry for entry in log if entry[0] == "load"] == [("load", {"max_total_num_tokens": n}) for n in range(3)]
    assert expected == {
        "max_total_num_tokens": 2,
        "speculative_num_steps": 1,
        "speculative_num_draft_tokens": 999,
        "pp_max_micro_batch_size": 4,
        FIELD: 994,
    }
