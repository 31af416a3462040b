from __future__ import annotations

import asyncio
import json
import sys

import pytest
from simulated_engine import Running, Starter

from engine_sim import load
from engine_sim.load_plan import Length, Phase, length_from_text, phases_from_text


def test_phases() -> None:
    assert phases_from_text("1:30, 64:2.5,r2.5:20,0:1") == (
        Phase(30, concurrency=1),
        Phase(2.5, concurrency=64),
        Phase(20, rate=2.5),
        Phase(1, concurrency=0),
    )


@pytest.mark.parametrize(
    "text", ["", "64", "64:", ":30", "-1:30", "64:0", "64:-1", "64:inf", "r0:3", "rx:3", "5000:1", "1:90000"]
)
def test_bad_phases_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"give concurrency:seconds|longer than"):
        phases_from_text(text)


def test_lengths() -> None:
    assert length_from_text("128") == Length(128, 128)
    assert length_from_text("100-200") == Length(100, 200)
    for text in ("", "0", "5-1", "a-b", "-5", "2000000"):
        with pytest.raises(ValueError, match="is no length"):
            length_from_text(text)


async def run(engine: Running, *arguments: str) -> tuple[int, list[dict[str, object]]]:
    """Run the client as a process of its own; its exit code and lines."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "engine_sim.load", "--url", engine.url, *arguments,
        stdout=asyncio.subprocess.PIPE, cwd=load.__file__.rpartition("/engine_sim/")[0],
    )  # fmt: skip
    try:
        async with asyncio.timeout(30):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode or 0, [json.loads(line) for line in out.splitlines()]


async def test_a_closed_loop_in_phases(start: Starter) -> None:
    engine = await start()
    code, lines = await run(
        engine, "--phases", "1:1,8:1.5,0:0.5", "--output-tokens", "20-40", "--report-seconds", "0.25"
    )
    assert code == 0
    summary = lines[-1]
    assert summary["summary"] is True
    assert summary["failed"] == 0
    assert summary["succeeded"] == summary["started"], "those under way were given the last phase to end"
    assert {line["concurrency"] for line in lines if "phase" in line} == {1, 8, 0}
    assert max(int(str(line["in_flight"])) for line in lines if "in_flight" in line) == 8
    assert await engine.sample("sglang:generation_tokens_total") == summary["output_tokens"]


async def test_an_open_loop_streams_and_is_bounded_in_number(start: Starter) -> None:
    engine = await start()
    options = ("--phases", "r50:20", "--stream", "--chat", "--output-tokens", "10", "--max-requests", "20")
    code, lines = await run(engine, *options)
    assert code == 0
    assert lines[-1]["started"] == 20
    assert float(str(lines[-1]["at_seconds"])) < 10


async def test_failures_are_told(start: Starter) -> None:
    engine = await start(api_key="k")
    code, lines = await run(engine, "--phases", "2:0.7")
    assert code == 1
    assert lines[-1]["succeeded"] == 0
    assert "status 401" in str(lines[-1]["last_error"])


def test_a_wrong_command_line_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert load.main(["--url", "http://127.0.0.1:1", "--phases", "x:1"]) == 2
    assert "'x:1' is no phase" in capsys.readouterr().err
