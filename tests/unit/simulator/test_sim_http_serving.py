"""The simulated engine as a client of the model sees it."""

from __future__ import annotations

import asyncio
import itertools
import time

import aiohttp
import pytest
from simulated_engine import Starter, eventually

CHAT = {"model": "served", "messages": [{"role": "user", "content": "hello there"}]}


def generation(tokens: int = 20, **more: object) -> dict[str, object]:
    return {"text": "hello there", "sampling_params": {"max_new_tokens": tokens}, **more}


async def test_generate_from_text_and_from_ids(start: Starter) -> None:
    engine = await start()
    status, answer = await engine.post("/generate", generation(12))
    assert status == 200
    assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"]) == len(answer["text"].split()) == 12
    assert answer["meta_info"]["prompt_tokens"] == 3
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 12}
    assert answer["meta_info"]["e2e_latency"] > 0
    _, answer = await engine.post("/generate", {"input_ids": [5] * 40})
    assert answer["meta_info"]["prompt_tokens"] == 40
    assert answer["meta_info"]["completion_tokens"] == 128, "SGLang's default"


async def test_generate_streams_ever_longer_texts(start: Starter) -> None:
    engine = await start()
    *parts, last = await engine.events("/generate", generation(30, stream=True))
    assert last == "[DONE]"
    counts = [part["meta_info"]["completion_tokens"] for part in parts]
    assert counts == sorted(set(counts))
    assert counts[0] == 1
    assert counts[-1] == 30
    assert all(later["text"].startswith(earlier["text"]) for earlier, later in itertools.pairwise(parts))
    assert [part["meta_info"]["finish_reason"] is None for part in parts] == [True] * (len(parts) - 1) + [False]


async def test_stream_interval_thins_the_stream(start: Starter) -> None:
    engine = await start(stream_interval=10)
    *parts, _ = await engine.events("/generate", generation(40, stream=True))
    counts = [part["meta_info"]["completion_tokens"] for part in parts]
    assert all(later - earlier >= 10 for earlier, later in itertools.pairwise(counts[:-1]))
    assert counts[-1] == 40


async def test_completions_and_chat(start: Starter) -> None:
    engine = await start()
    status, answer = await engine.post("/v1/completions", {"model": "served", "prompt": "hello", "max_tokens": 7})
    assert (status, answer["object"]) == (200, "text_completion")
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 7,
        "total_tokens": 9,
        "prompt_tokens_details": None,
    }
    status, answer = await engine.post("/v1/chat/completions", {**CHAT, "max_completion_tokens": 9})
    assert (status, answer["object"], answer["model"]) == (200, "chat.completion", "served")
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"].split()) == answer["usage"]["completion_tokens"] == 9
    assert choice["finish_reason"] == "length"


async def test_chat_streams_parts_that_add_up(start: Starter) -> None:
    engine = await start()
    body = {**CHAT, "max_tokens": 25, "stream": True, "stream_options": {"include_usage": True}}
    *parts, usage, last = await engine.events("/v1/chat/completions", body)
    assert last == "[DONE]"
    assert usage["usage"]["completion_tokens"] == 25
    assert {part["object"] for part in parts} == {"chat.completion.chunk"}
    text = "".join(part["choices"][0]["delta"]["content"] for part in parts)
    assert len(text.split()) == 25
    assert [part["choices"][0]["finish_reason"] for part in parts][-2:] == [None, "length"]


async def test_models_and_model_info(start: Starter) -> None:
    engine = await start(context_length=4096)
    _, models = await engine.get("/v1/models")
    assert [(card["id"], card["max_model_len"]) for card in models["data"]] == [("served", 4096)]
    for path in ("/model_info", "/get_model_info"):
        _, info = await engine.get(path)
        assert (info["model_path"], info["is_generation"]) == ("org/model", True)


@pytest.mark.parametrize(
    ("path", "body", "complaint"),
    [
        ("/generate", {}, "exactly one of text and input_ids"),
        ("/generate", {"text": "a", "input_ids": [1]}, "exactly one of text and input_ids"),
        ("/generate", {"text": ["a", "b"]}, "text must be a string"),
        ("/generate", {"input_ids": []}, "input_ids must be a list"),
        ("/generate", {"input_ids": [[1], [2]]}, "input_ids must be a list"),
        ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 0}}, "max_new_tokens must be a whole number"),
        ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 5000}}, "maximum context length of 4096"),
        ("/generate", {"text": "a", "sampling_params": 3}, "sampling_params must be"),
        ("/generate", [1], "the body must be a JSON object"),
        ("/v1/completions", {"prompt": ["a"]}, "prompt must be a string"),
        ("/v1/chat/completions", {"messages": []}, "messages must be a list"),
        ("/v1/chat/completions", {"messages": ["hi"]}, "messages must be a list"),
        ("/set_internal_state", {"args": {}}, "server_args must be a JSON object"),
    ],
)
async def test_bad_requests_get_a_sentence(start: Starter, path: str, body: object, complaint: str) -> None:
    engine = await start(context_length=4096)
    status, answer = await engine.post(path, body)
    assert status == 400
    assert complaint in answer["error"]["message"]


async def test_a_body_that_is_not_json(start: Starter) -> None:
    engine = await start()
    status, answer = await engine.request("POST", "/generate", data=b"\xff{")
    assert status == 400
    assert "not JSON" in answer["error"]["message"]


async def test_health_while_loading_and_after(start: Starter) -> None:
    engine = await start({"SGLANG_SIM_LOAD_SECONDS": "1"}, ready=False)
    assert (await engine.get("/health"))[0] == 503
    assert (await engine.get("/health_generate"))[0] == 503
    assert (await engine.post("/generate", generation()))[0] == 503
    assert (await engine.get("/server_info"))[1]["status"] == "loading"

    async def healthy() -> bool:
        return (await engine.get("/health"))[0] == 200

    await eventually(healthy)
    asked = time.monotonic()
    assert (await engine.get("/health_generate"))[0] == 200
    assert time.monotonic() - asked >= 0.9, "the real one looks for an answer after a second"


async def test_health_at_once_where_the_pod_asks_for_that(start: Starter) -> None:
    engine = await start({"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"})
    asked = time.monotonic()
    assert (await engine.get("/health"))[0] == 200
    assert time.monotonic() - asked < 0.9
    asked = time.monotonic()
    assert (await engine.get("/health_generate"))[0] == 200
    assert time.monotonic() - asked >= 0.9


async def test_the_rest_waits_in_the_queue(start: Starter) -> None:
    engine = await start(max_running_requests=4)
    tasks = [asyncio.create_task(engine.post("/generate", generation(200))) for _ in range(10)]

    async def four_run_and_six_wait() -> bool:
        waiting = await engine.sample("sglang:num_queue_reqs")
        return (waiting, await engine.sample("sglang:num_running_reqs")) == (6, 4)

    await eventually(four_run_and_six_wait)
    assert (await engine.post("/flush_cache", {}))[0] == 400
    async with asyncio.timeout(20):
        answers = await asyncio.gather(*tasks)
    assert {status for status, _ in answers} == {200}
    assert await engine.sample("sglang:num_queue_reqs") == await engine.sample("sglang:num_running_reqs") == 0
    assert await engine.sample("sglang:generation_tokens_total") == 2000
    assert await engine.sample("sglang:num_requests_total") == 10
    assert (await engine.post("/flush_cache", {}))[0] == 200


async def test_a_client_that_goes_away_frees_its_place(start: Starter) -> None:
    engine = await start()
    for stream in (False, True):
        task = asyncio.create_task(engine.post("/generate", generation(100_000, stream=stream)))
        await engine.running(1)
        task.cancel()
        await engine.running(0)
    assert await engine.sample("sglang:num_aborted_requests_total") == 2


async def test_stops_within_two_seconds_under_load(start: Starter) -> None:
    engine = await start()
    tasks = [asyncio.create_task(engine.post("/generate", generation(100_000))) for _ in range(3)]
    await engine.running(3)
    asked = time.monotonic()
    engine.stop.set()
    async with asyncio.timeout(10):
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, aiohttp.ClientError) for end in ends)
    assert time.monotonic() - asked < 2
