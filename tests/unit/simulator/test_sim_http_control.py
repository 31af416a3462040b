"""The simulated engine as the operator and Prometheus see it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import aiohttp
import pytest
from simulated_engine import Running, Starter

from sglang_operator.simulate.curves.curve import Mode
from sglang_operator.simulate.curves.families import curve_by_name

FIELD = "speculative_disable_batch_threshold"
PROBE = "speculative_probe_permille"


async def threshold(engine: Running, field: str = FIELD) -> list[object]:
    """The threshold, or another setting, that each rank group reports."""
    _, info = await engine.get("/server_info")
    return [state.get(field) for state in info["internal_states"]]


async def update(engine: Running, **values: object) -> tuple[int, object]:
    return await engine.post("/set_internal_state", {"server_args": values})


async def load(engine: Running, concurrency: int, tokens: int) -> None:
    """Let that many requests run side by side to their end."""
    body = {"input_ids": [1] * 16, "sampling_params": {"max_new_tokens": tokens}}
    async with asyncio.timeout(30):
        await asyncio.gather(*(engine.post("/generate", body) for _ in range(concurrency)))


async def test_server_info_says_what_the_patch_says(start: Starter) -> None:
    engine = await start()
    for path in ("/server_info", "/get_server_info"):
        _, info = await engine.get(path)
        (state,) = info["internal_states"]
        assert (state[FIELD], state[PROBE]) == (8, 0)
        assert state["specpatch"] == {
            "generation": 2,
            "release": "0.5.23",
            "active": True,
            "inactive_reason": None,
            "off_path": "Decode",
            "off_path_reason": None,
            "verify_tile": "default",
        }
        assert state["effective_max_running_requests_per_dp"] == 64
        assert (info["version"], info["tp_size"], info["status"]) == ("0.5.23", 8, "ready")


async def test_the_off_path_is_what_the_flag_says(start: Starter) -> None:
    engine = await start(off_path="zero-step")
    _, info = await engine.get("/server_info")
    patch = info["internal_states"][0]["specpatch"]
    assert patch["off_path"] == "ZeroStep"
    assert patch["off_path_reason"] == "chosen by --speculative-off-path zero-step"
    assert await engine.sample("sglang:spec_off_path", path="ZeroStep") == 1


async def test_a_live_update_is_taken_and_read_back(start: Starter) -> None:
    engine = await start()
    for value in (0, 1, 12, 1_000_000):
        assert await update(engine, **{FIELD: value}) == (200, [True])
        assert await threshold(engine) == [value]
    assert await engine.sample("sglang:spec_disable_batch_threshold") == 8, "published with the next step"
    await load(engine, 1, 2)
    assert await engine.sample("sglang:spec_disable_batch_threshold") == 1_000_000


@pytest.mark.parametrize("field", [FIELD, PROBE])
@pytest.mark.parametrize("value", [-1, 1_000_001, 8.0, 1e300, "12", True])
@pytest.mark.parametrize("numeric_updates", [True, False])
async def test_a_bad_value_is_refused_and_changes_nothing(
    start: Starter, field: str, value: object, numeric_updates: bool
) -> None:
    engine = await start(numeric_updates=numeric_updates)
    status, answer = await update(engine, **{FIELD: 12, PROBE: 30, field: value})
    assert status == 400
    assert isinstance(answer, dict)
    assert answer["detail"].startswith(f"Live update refused: {field} must be")
    assert await threshold(engine) == [8]
    assert await threshold(engine, PROBE) == [0]


async def test_both_settings_are_taken_in_one_update(start: Starter) -> None:
    engine = await start(dp_size=2)
    assert await update(engine, **{FIELD: 12, PROBE: 30}) == (200, [True, True])
    assert await threshold(engine) == [12, 12]
    assert await threshold(engine, PROBE) == [30, 30]
    assert await update(engine, **{PROBE: 0}) == (200, [True, True])
    assert await threshold(engine) == [12, 12]


async def test_probes_show_in_the_counters(start: Starter) -> None:
    engine = await start()
    assert await engine.sample("sglang:spec_probe_steps_total") == 0, "there before the first request"
    await update(engine, **{PROBE: 500})
    await load(engine, 4, 200)
    where = {"mode": "off", "batch_size": "3-4"}
    probes = await engine.sample("sglang:spec_probe_steps_total", **where) or 0
    counted = await engine.sample("sglang:spec_mode_steps_total", **where) or 0
    assert probes >= 8
    assert 0 < counted < probes
    assert await engine.sample("sglang:spec_mode_requests_total", **where) == pytest.approx(4 * counted, abs=counted)
    assert await engine.sample("sglang:spec_probe_steps_total", mode="on") == 0
    assert await engine.sample("sglang:spec_probe_permille") == 500
    assert await engine.sample("sglang:spec_mode_transitions_total") == 0


@pytest.mark.parametrize("value", ["eight", None, [8]])
async def test_what_is_no_number_is_refused_by_the_http_layer(start: Starter, value: object) -> None:
    engine = await start()
    status, _ = await update(engine, **{FIELD: value})
    assert status == 400
    assert await threshold(engine) == [8]


async def test_text_that_is_a_number_becomes_one_for_sglangs_own_keys(start: Starter) -> None:
    engine = await start()
    assert await update(engine, pp_max_micro_batch_size="12") == (200, [True])
    assert await threshold(engine, "pp_max_micro_batch_size") == [12]


async def test_one_bad_key_refuses_all(start: Starter) -> None:
    engine = await start()
    assert await update(engine, **{FIELD: 12, "no_such_key": 1}) == (200, [False])
    assert await update(engine, **{FIELD: 12, "pp_max_micro_batch_size": 65}) == (200, [False])
    assert await threshold(engine) == [8]
    assert await update(engine, **{FIELD: 12, "pp_max_micro_batch_size": 64}) == (200, [True])
    _, info = await engine.get("/server_info")
    assert info["internal_states"][0]["pp_max_micro_batch_size"] == 64


async def test_the_oldest_release_says_true_when_it_refuses(start: Starter) -> None:
    engine = await start(answers_true_always=True, numeric_updates=False)
    assert await update(engine, **{FIELD: 12, "no_such_key": 1}) == (200, [True])
    assert await threshold(engine) == [8]


async def test_without_speculation_the_patch_is_inactive(start: Starter) -> None:
    engine = await start(speculative_algorithm=None, threshold=0)
    _, info = await engine.get("/server_info")
    (state,) = info["internal_states"]
    assert state["specpatch"]["active"] is False
    assert "speculative decoding is off" in state["specpatch"]["inactive_reason"]
    assert await update(engine, **{FIELD: 4}) == (200, [False])
    await load(engine, 2, 10)
    assert await engine.sample("sglang:spec_mode_steps_total") is None
    assert await engine.sample("sglang:generation_tokens_total") == 20


async def test_an_inactive_patch_says_why_and_goes_on_drafting(start: Starter) -> None:
    engine = await start(inactive_reason="speculative_eagle_topk=4 (only topk=1 is supported)", threshold=1)
    _, info = await engine.get("/server_info")
    assert "topk=4" in info["internal_states"][0]["specpatch"]["inactive_reason"]
    assert await update(engine, **{FIELD: 4}) == (200, [False])
    await load(engine, 1, 50)
    assert (await engine.sample("sglang:spec_verify_calls_total") or 0) > 0


async def test_an_unpatched_tree_knows_no_threshold(start: Starter, tmp_path: Path) -> None:
    engine = await start(tree=str(tmp_path / "elsewhere"), threshold=None, probe_permille=None, off_path=None)
    _, info = await engine.get("/server_info")
    assert FIELD not in info["internal_states"][0]
    assert "specpatch" not in info["internal_states"][0]
    assert await update(engine, **{FIELD: 4}) == (200, [False])


async def test_data_parallel_groups_are_reported_and_set_together(start: Starter) -> None:
    engine = await start(dp_size=2)
    assert await update(engine, **{FIELD: 5}) == (200, [True, True])
    assert await threshold(engine) == [5, 5]
    await load(engine, 8, 40)
    for rank in ("0", "1"):
        assert (await engine.sample("sglang:spec_mode_tokens_total", dp_rank=rank) or 0) > 0
    _, info = await engine.get("/server_info")
    assert info["internal_states"][0]["effective_max_running_requests_per_dp"] == 32


async def test_the_mode_follows_batch_size_and_shows_in_the_counters(start: Starter) -> None:
    engine = await start()
    await load(engine, 4, 60)
    assert (await engine.sample("sglang:spec_mode_steps_total", mode="on", batch_size="3-4") or 0) > 5
    assert await engine.sample("sglang:spec_mode_steps_total", mode="off") == 0
    await load(engine, 16, 60)
    assert (await engine.sample("sglang:spec_mode_steps_total", mode="off", batch_size="13-16") or 0) > 5
    assert (await engine.sample("sglang:spec_mode_transitions_total", to="off") or 0) >= 1
    await update(engine, **{FIELD: 0})
    await load(engine, 16, 60)
    assert (await engine.sample("sglang:spec_mode_steps_total", mode="on", batch_size="13-16") or 0) > 5
    for mode in (Mode.ON, Mode.OFF):
        where = {"mode": mode.value, "batch_size": "13-16"}
        tokens = await engine.sample("sglang:spec_mode_tokens_total", **where)
        seconds = await engine.sample("sglang:spec_mode_seconds_total", **where)
        assert tokens is not None
        assert seconds is not None
        expected = curve_by_name("triton-decode").tokens_per_second(mode, 16)
        assert tokens / seconds == pytest.approx(expected, rel=0.25), mode


async def test_metrics_have_sglangs_names_and_labels(start: Starter) -> None:
    engine = await start()
    await load(engine, 2, 20)
    for name in (
        "sglang:num_running_reqs",
        "sglang:num_queue_reqs",
        "sglang:token_usage",
        "sglang:gen_throughput",
        "sglang:spec_accept_length",
    ):
        assert await engine.sample(name, model_name="served", engine_type="unified", tp_rank="0") is not None, name
    assert await engine.sample("sglang:prompt_tokens_total", model_name="served", is_streaming="false") == 32
    assert await engine.sample("sglang:time_to_first_token_seconds_count") == 2
    assert await engine.sample("sglang:e2e_request_latency_seconds_bucket", le="+Inf") == 2
    assert 1 < (await engine.sample("sglang:spec_accept_length") or 0) < 4
    _, text = await engine.get("/metrics")
    assert "_created" not in text


async def test_open_metrics_are_served_to_who_asks_for_them(start: Starter) -> None:
    engine = await start()
    await load(engine, 1, 20)
    _, text = await engine.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert text.count("# EOF") == 1
    assert text.endswith("# EOF\n")
    assert "spec_mode_steps_total{" in text


async def test_no_metrics_unless_enabled(start: Starter) -> None:
    engine = await start(enable_metrics=False)
    assert (await engine.get("/metrics"))[0] == 404
    await load(engine, 2, 20)
    assert await threshold(engine) == [8]


async def test_faults_of_live_updates(start: Starter) -> None:
    engine = await start(dp_size=2)
    await engine.post("/simulator/faults", {"refuse_updates": True})
    assert await update(engine, **{FIELD: 3}) == (200, [False, False])
    await engine.post("/simulator/faults", {"refuse_updates": False, "lie_about_updates": True})
    assert await update(engine, **{FIELD: 3}) == (200, [True, True])
    assert await threshold(engine) == [8, 8]
    await engine.post("/simulator/faults", {"lie_about_updates": False, "rank_differs": True})
    assert await update(engine, **{FIELD: 3}) == (200, [True, True])
    assert await threshold(engine) == [3, 8]
    assert (await engine.request("DELETE", "/simulator/faults"))[1] == {"active": []}
    assert await update(engine, **{FIELD: 3}) == (200, [True, True])
    assert await threshold(engine) == [3, 3]


@pytest.mark.parametrize(
    ("fault", "method", "path"),
    [
        ("hang_health", "GET", "/health"),
        ("hang_health", "GET", "/health_generate"),
        ("hang_metrics", "GET", "/metrics"),
        ("hang_updates", "POST", "/set_internal_state"),
    ],
)
async def test_faults_that_hang(start: Starter, fault: str, method: str, path: str) -> None:
    engine = await start({"SGLANG_SIM_FAULTS": fault})
    with pytest.raises(TimeoutError):
        await engine.request(method, path, json={"server_args": {}}, timeout=aiohttp.ClientTimeout(total=1.5))
    assert (await engine.get("/server_info"))[0] == 200
    assert (await engine.get("/simulator/faults"))[1] == {"active": [fault]}
    await engine.request("DELETE", "/simulator/faults")
    asked = time.monotonic()
    assert (await engine.request(method, path, json={"server_args": {}}))[0] == 200
    assert time.monotonic() - asked < 5


async def test_dropped_counters_leave_the_rest(start: Starter) -> None:
    engine = await start({"SGLANG_SIM_FAULTS": "drop_counters"})
    await load(engine, 2, 20)
    assert await engine.sample("sglang:spec_mode_steps_total") is None
    assert await engine.sample("sglang:generation_tokens_total") == 40


async def test_unknown_faults_are_refused(start: Starter) -> None:
    engine = await start()
    status, answer = await engine.post("/simulator/faults", {"burn": True})
    assert status == 400
    assert "no fault 'burn'" in answer["error"]["message"]


async def test_drift_changes_curve_and_acceptance(start: Starter) -> None:
    engine = await start()
    assert (await engine.post("/simulator/drift", {"curve": "founding", "accept_length": 1.3}))[0] == 200
    _, info = await engine.get("/server_info")
    assert info["simulated_engine"]["curve"] == "founding"
    assert info["simulated_engine"]["accept_length"] == pytest.approx(1.3)
    for wrong in ({"curve": "nope"}, {"accept_length": 9}, {"accept_length": "x"}, {"speed": 2}):
        assert (await engine.post("/simulator/drift", wrong))[0] == 400


@pytest.mark.parametrize(
    ("keys", "sent", "path", "status"),
    [
        ({"api_key": "user"}, None, "/server_info", 401),
        ({"api_key": "user"}, "wrong", "/server_info", 401),
        ({"api_key": "user"}, "user", "/server_info", 200),
        ({"api_key": "user"}, "user", "/flush_cache", 200),
        ({"api_key": "user"}, None, "/flush_cache", 401),
        ({"admin_api_key": "boss"}, None, "/server_info", 200),
        ({"admin_api_key": "boss"}, None, "/flush_cache", 401),
        ({"admin_api_key": "boss"}, "boss", "/flush_cache", 200),
        ({"api_key": "user", "admin_api_key": "boss"}, "user", "/flush_cache", 401),
        ({"api_key": "user", "admin_api_key": "boss"}, "boss", "/server_info", 401),
        ({"api_key": "user", "admin_api_key": "boss"}, None, "/metrics", 200),
        ({"api_key": "user", "admin_api_key": "boss"}, None, "/health", 200),
    ],
)
async def test_api_keys(start: Starter, keys: dict[str, str], sent: str | None, path: str, status: int) -> None:
    engine = await start(**keys)
    headers = {"Authorization": f"Bearer {sent}"} if sent else {}
    assert (await engine.get(path, headers=headers))[0] == status


async def test_a_live_update_wants_the_admin_key(start: Starter) -> None:
    engine = await start(api_key="user", admin_api_key="boss")
    body = {"server_args": {FIELD: 3}}
    assert (await engine.post("/set_internal_state", body))[0] == 401
    assert (await engine.post("/set_internal_state", body, headers={"Authorization": "Bearer user"}))[0] == 401
    assert await engine.post("/set_internal_state", body, headers={"Authorization": "Bearer boss"}) == (200, [True])
