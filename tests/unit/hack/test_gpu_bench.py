"""The GPU scripts as far as they need no GPU: command lines, arithmetic, reports, and a run on stand-ins."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import off_path_table
import pytest

from gpubench import servers
from gpubench.client import Answer, Client, ServerFault, Step, random_prompts
from gpubench.comparing import Verdict, compare, summary
from gpubench.measuring import ALWAYS_ON, MODES, NONE, OFF, ON, Comparison, Measure, Sample, off_share, ratio
from gpubench.models import Pair
from gpubench.reporting import Report
from gpubench.servers import DECODE, PLAIN, SHORT_TILE, UNPATCHED, ZERO_STEP, Kind, Options, Patch, command, rates_in

FAKE = Path(__file__).parents[2] / "support/fake_sglang"
PATCH = Patch(program=Path("/w/specpatch.pyz"), digest="ab" * 32, tree=Path("/w/patched"))
OPTIONS = Options(
    models=Pair("/m/target", "/m/draft", dummy=True),
    steps=3,
    max_requests=128,
    max_tokens=60_000,
    memory_fraction=0.85,
    flags=("--page-size", "16"),
)


def words(kind: Kind) -> list[str]:
    return command(kind, "fa3", OPTIONS, port=31000, nccl_port=32000, patch=PATCH)


def test_only_patched_servers_run_on_the_patched_tree() -> None:
    for kind in (DECODE, ZERO_STEP, SHORT_TILE):
        assert words(kind)[1:6] == ["/w/specpatch.pyz", "run", "--tree", "/w/patched", "--"]
    for kind in (PLAIN, UNPATCHED):
        assert words(kind)[1:3] == ["-m", "sglang.launch_server"]


def test_servers_differ_in_nothing_but_speculation_and_patch() -> None:
    def flags(kind: Kind) -> list[str]:
        given = words(kind)
        return given[given.index("sglang.launch_server") + 1 :]

    plain, unpatched = flags(PLAIN), flags(UNPATCHED)
    speculation = [word for word in unpatched if word not in plain]
    assert speculation[:2] == ["--speculative-algorithm", "EAGLE3"]
    assert [word for word in plain if word not in unpatched] == []
    assert [word for word in flags(DECODE) if word not in unpatched] == ["--speculative-off-path", "decode"]
    assert [word for word in flags(ZERO_STEP) if word not in unpatched] == ["--speculative-off-path", "zero-step"]
    assert [word for word in flags(SHORT_TILE) if word not in flags(DECODE)] == ["--speculative-verify-tile", "16x128"]
    assert plain[-2:] == ["--page-size", "16"]


END_TO_END = Comparison(OFF, NONE, Measure.END_TO_END)


def sample(mode: str, number: int, rate: float, decode: float | None = None, requests: int = 8) -> Sample:
    return Sample(
        backend="fa3",
        mode=mode,
        requests=requests,
        new_tokens=11,
        round=number,
        end_to_end=rate,
        decode=decode,
        tokens_per_verify=None,
    )


def test_ratios_are_formed_within_a_round() -> None:
    """A machine that doubles its speed after the first round changes no ratio."""
    samples = [sample(NONE.name, number, 100 * speed) for number, speed in enumerate((1, 2, 2))]
    samples += [sample(OFF.name, number, 98 * speed) for number, speed in enumerate((1, 2, 2))]
    found = ratio(samples, END_TO_END, backend="fa3", requests=8)
    assert found is not None
    assert (found.median, found.lowest, found.highest, found.rounds) == (0.98, 0.98, 0.98, 3)


def test_a_ratio_takes_only_rounds_that_have_both_sides() -> None:
    samples = [sample(NONE.name, 0, 100, 50), sample(OFF.name, 0, 90, None), sample(OFF.name, 1, 10, 5)]
    found = ratio(samples, END_TO_END, backend="fa3", requests=8)
    assert found is not None
    assert (found.median, found.rounds) == (0.9, 1)
    assert ratio(samples, replace(END_TO_END, measure=Measure.DECODE), backend="fa3", requests=8) is None
    assert ratio(samples, END_TO_END, backend="fa3", requests=1) is None
    assert ratio(samples, END_TO_END, backend="triton", requests=8) is None


def test_verify_steps_leave_out_what_chance_accepted() -> None:
    lucky = replace(sample(ON.name, 0, 300, 300), tokens_per_verify=2.5)
    usual = replace(sample(ALWAYS_ON.name, 0, 240, 240), tokens_per_verify=2.0)
    found = ratio([lucky, usual], Comparison(ON, ALWAYS_ON, Measure.VERIFY_STEPS), backend="fa3", requests=8)
    assert found is not None
    assert found.median == 1.0


@pytest.mark.parametrize(
    ("flips", "share"), [([], 0.0), ([10.0], 1.0), ([10, 11, 12, 13], 0.5), ([10, 12], 0.5), ([12], 0.5), ([14], 0.0)]
)
def test_the_share_of_time_without_drafts(flips: list[float], share: float) -> None:
    assert off_share(flips, 10.0, 14.0) == pytest.approx(share)


def test_rates_come_from_lines_about_all_requests_and_not_from_the_first() -> None:
    line = "Decode batch, #running-req: {}, #token: 9, gen throughput (token/s): {}, #queue-req: 0\n"
    log = "".join(line.format(*pair) for pair in ((8, 1.0), (8, 200.5), (7, 3.0), (8, 201.5))) + "Prefill batch\n"
    assert rates_in(log, 8) == [200.5, 201.5]
    assert rates_in(log, 1) == []


def test_prompts_are_the_same_for_a_seed_and_share_no_beginning() -> None:
    prompts = random_prompts(50, 20, seed=3, vocabulary=1000)
    assert prompts == random_prompts(50, 20, seed=3, vocabulary=1000)
    assert len({prompt[:3] for prompt in prompts}) == 50
    assert all(10 <= token < 1000 for prompt in prompts for token in prompt)


def answer(*tokens: int, logprob: float = -0.5, second: tuple[int, float] = (99, -3.0)) -> Answer:
    steps = tuple(Step(token=token, logprob=logprob, top={token: logprob, second[0]: second[1]}) for token in tokens)
    return Answer(tokens=tokens, verify_steps=0, steps=steps)


@pytest.mark.parametrize(
    ("other", "verdict", "steps"),
    [
        (answer(1, 2, 3), Verdict.EQUAL, 3),
        (answer(1, 2, 3, logprob=-0.52), Verdict.EQUAL, 3),
        (answer(1, 2, 3, logprob=-0.6), Verdict.WRONG, 3),
        (answer(1, 2), Verdict.WRONG, 2),
        (answer(1, 99, 5), Verdict.TIE, 1),
        (answer(1, 98, 5), Verdict.WRONG, 1),
        (answer(1, 99, 5, logprob=-0.9), Verdict.WRONG, 1),
    ],
)
def test_answers_are_compared_up_to_a_tie(other: Answer, verdict: Verdict, steps: int) -> None:
    reference = answer(1, 2, 3, second=(99, -0.54))
    found = compare(reference, other, tolerance=0.05)
    assert (found.verdict, found.steps) == (verdict, steps)


def test_a_token_that_was_far_behind_is_no_tie() -> None:
    reference = answer(1, 2, 3, second=(99, -0.56))
    assert compare(reference, answer(1, 99), tolerance=0.05).verdict is Verdict.WRONG


def test_a_run_is_summed_up() -> None:
    found = summary([answer(1, 2)] * 3, [answer(1, 2), answer(1, 2, logprob=-0.51), answer(1, 7)], tolerance=0.05)
    assert (found.equal, found.ties, found.wrong, found.steps) == (2, 0, 1, 5)
    assert math.isclose(found.difference, 0.01, abs_tol=1e-9)
    assert str(found).startswith("2 equal, 0 part at a tie, 1 wrong; 5 steps compared")


class Scripted(BaseHTTPRequestHandler):
    """Answers by path from a table of the test."""

    answers: Mapping[str, tuple[int, object]]

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        status, body = self.answers[self.path]
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def scripted() -> Iterator[tuple[Client, dict[str, tuple[int, object]]]]:
    answers: dict[str, tuple[int, object]] = {}
    handler = type("Handler", (Scripted,), {"answers": answers})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield Client(server.server_address[1]), answers
    server.shutdown()
    thread.join(10)
    server.server_close()


def test_an_answer_with_its_probabilities(scripted: tuple[Client, dict[str, tuple[int, object]]]) -> None:
    client, answers = scripted
    meta = {
        "spec_verify_ct": 2,
        "output_token_logprobs": [[-0.1, 5, None], [-0.2, 6, None]],
        "output_top_logprobs": [[[-0.1, 5, None], [-2.0, 9, None]], None],
    }
    answers["/generate"] = (200, {"output_ids": [5, 6], "meta_info": meta})
    found = client.generate((1, 2), 2, top=2)
    assert (found.tokens, found.verify_steps) == ((5, 6), 2)
    assert found.steps == (Step(5, -0.1, {5: -0.1, 9: -2.0}), Step(6, -0.2, {}))


def test_a_threshold_that_is_not_taken_is_found_out(
    scripted: tuple[Client, dict[str, tuple[int, object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, answers = scripted
    monkeypatch.setattr("gpubench.client.READ_BACK_SECONDS", 0.1)
    answers["/set_internal_state"] = (200, [True])
    answers["/server_info"] = (200, {"internal_states": [{"speculative_disable_batch_threshold": 1}]})
    client.set_threshold(1)
    with pytest.raises(ServerFault, match="the threshold 8 was not taken"):
        client.set_threshold(8)


def test_an_error_of_the_server_is_told_with_its_words(scripted: tuple[Client, dict[str, tuple[int, object]]]) -> None:
    client, answers = scripted
    answers["/generate"] = (500, {"error": "out of memory"})
    with pytest.raises(ServerFault, match=r"POST /generate: HTTP 500: .*out of memory"):
        client.generate((1,), 1)


def test_the_report_has_a_row_for_each_place_and_says_what_is_missing() -> None:
    samples = [sample(mode.name, number, 100.0, 90.0) for mode in MODES[:3] for number in range(3)]
    report = Report(arguments={}, together=True, patch=PATCH, samples=samples, failures=["triton: no\nTraceback"])
    text = report.markdown()
    assert "| fa3 | 8 | – | – | – | – | – | 1.000 (1.000–1.000) | – |" in text
    assert "| fa3 | 8 | 100 | 100 | 100 | – | – | – |" in text
    assert "| fa3 | 8 | -9 | -9 | -9 | – | – | – |" in text, "8 * (11 / 100 - 10 / 90) seconds"
    assert "Engine patch abababababab." in text
    assert text.endswith("Not measured: triton: no\n")
    assert json.loads(json.dumps(report.manifest()))["samples"][0]["end_to_end"] == 100.0


def run(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    out = tmp_path / "out"
    given = ["--work", str(tmp_path / "work"), "--out", str(out), "--servers", "plain,unpatched", "--together", "yes"]
    given += [
        "--requests",
        "1,3",
        "--rounds",
        "3",
        "--new-tokens",
        "24",
        "--prompt-tokens",
        "8",
        "--start-seconds",
        "60",
    ]
    code = off_path_table.main([*given, *arguments])
    return code, json.loads((out / "off-path.json").read_text()), (out / "off-path.md").read_text()


@pytest.mark.timeout(120)
def test_a_run_on_servers_that_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    code, found, text = run(tmp_path, "--backends", "one,broken", "--most-requests-rounds", "2")
    assert code == 1, "one backend could not be measured"
    assert [item["name"] for item in found["servers"]] == ["plain", "unpatched"]
    assert found["servers"][0]["memory_usage"] == {"weight": 16.0, "graph": 1.5}
    assert len([item for item in found["samples"] if item["requests"] == 1]) == 2 * 3
    assert {item["round"] for item in found["samples"] if item["requests"] == 3} == {0, 1, 2, 3, 4}
    speculating = [item for item in found["samples"] if item["mode"] == "unpatched, speculating"]
    assert {item["tokens_per_verify"] for item in speculating} == {2.0}
    assert {item["decode"] for item in found["samples"] if item["requests"] == 1} == {500.0}
    assert "ValueError: no such backend" in found["failures"][0]
    assert "| one | 3 |" in text


@pytest.mark.timeout(120)
def test_a_run_ends_when_its_time_is_over_and_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    code, found, _ = run(tmp_path, "--backends", "one,two", "--seconds", "0.5")
    assert code == 1
    assert {item["backend"] for item in found["samples"]} == {"one"}
    assert {item["round"] for item in found["samples"]} == {0}
    assert [failure.split(":")[0] for failure in found["failures"]] == ["one", "two, plain, unpatched"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "a"], "--model and --draft-model go together"),
        (["--servers", "plain,other"], "--servers: other must be of plain, unpatched, decode, zero-step, tile"),
    ],
)
def test_arguments_that_make_no_sense(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        off_path_table.parsed(arguments)
    assert said in capsys.readouterr().err


def test_processes_of_a_server_are_told_by_its_session() -> None:
    assert servers._session_of(2**30) is None
