"""`engine.args`: passed byte for byte, and refused with a sentence where they contradict the spec."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from render_support import PROPERTY, engine, service, template

from sglang_operator.errors import SpecError
from sglang_operator.render.args import literal

EAGLE = [
    "--speculative-algorithm",
    "EAGLE3",
    "--speculative-draft-model-path",
    "example/llama-eagle3",
    "--speculative-num-steps",
    "3",
    "--speculative-eagle-topk",
    "1",
    "--speculative-num-draft-tokens",
    "4",
    "--speculative-disable-batch-threshold",
    "$(SPECULATIVE_DISABLE_BATCH_THRESHOLD)",
]


def refusal(*args: str, speculates: bool = True) -> str:
    with pytest.raises(SpecError) as refused:
        engine(service({"engine.args": list(args)}, speculates=speculates))
    assert refused.value.reason == "ConflictingArgs"
    return str(refused.value)


def kubernetes_expansion(text: str, variables: dict[str, str]) -> str:
    """What the kubelet makes of an argument: `expansion.Expand` of Kubernetes, byte by byte."""
    source, result, cursor = text.encode(), b"", 0
    while cursor < len(source):
        if source[cursor : cursor + 1] != b"$" or cursor + 1 == len(source):
            result += source[cursor : cursor + 1]
            cursor += 1
            continue
        following = source[cursor + 1 : cursor + 2]
        end = source.find(b")", cursor)
        if following == b"$":
            result += b"$"
            cursor += 2
        elif following == b"(" and end >= 0:
            name = source[cursor + 2 : end].decode()
            result += variables.get(name, f"$({name})").encode()
            cursor = end + 1
        else:
            # A byte above 127 is turned into a character here, which garbles UTF-8.
            result += b"$" + chr(following[0]).encode()
            cursor += 2
    return result.decode()


def test_flags_come_in_a_fixed_order_and_the_users_items_last() -> None:
    container = engine(
        service(
            {
                "model.revision": "v2",
                "model.servedName": "llama",
                "model.quantization": "fp8",
                "engine.maxRunningRequests": 128,
                "engine.port": 8000,
                "engine.args": ["--mem-fraction-static", "0.85"],
            }
        )
    )
    assert container["args"] == [
        "--model-path",
        "meta-llama/Llama-3.3-70B-Instruct",
        "--revision",
        "v2",
        "--served-model-name",
        "llama",
        "--host",
        "0.0.0.0",
        "--port",
        "8000",
        "--tp-size",
        "8",
        "--quantization",
        "fp8",
        "--max-running-requests",
        "128",
        "--enable-metrics",
        *EAGLE,
        "--mem-fraction-static",
        "0.85",
    ]


def test_what_is_unset_is_left_to_the_server() -> None:
    assert engine(service(speculates=False))["args"] == [
        "--model-path",
        "meta-llama/Llama-3.3-70B-Instruct",
        "--host",
        "0.0.0.0",
        "--port",
        "30000",
        "--tp-size",
        "8",
        "--enable-metrics",
    ]


def test_keys_come_from_the_environment_in_one_word_with_their_flag() -> None:
    """In one word, since argparse would take a key that begins with a dash for a flag."""
    given = service(
        {
            "engine.apiKeySecretRef": {"name": "keys", "key": "clients"},
            "engine.adminApiKeySecretRef": {"name": "keys", "key": "admin"},
        }
    )
    args = [
        kubernetes_expansion(word, {"SGLANG_API_KEY": "-a b$", "SGLANG_ADMIN_API_KEY": "$(HOME)"})
        for word in engine(given)["args"]
    ]
    assert [word for word in args if "api-key" in word] == ["--api-key=-a b$", "--admin-api-key=$(HOME)"]
    assert not [word for word in engine(service())["args"] if "api-key" in word]


@pytest.mark.parametrize(("asked", "flag"), [("Decode", "decode"), ("ZeroStep", "zero-step")])
def test_the_off_path_is_passed_where_it_is_chosen(asked: str, flag: str) -> None:
    args = engine(service({"speculation.offPath": asked}))["args"]
    assert args[-2:] == ["--speculative-off-path", flag]


def test_the_servers_own_choice_of_off_path_changes_no_pod() -> None:
    """A pod that was rendered before the field existed is the same pod now, so nothing restarts."""
    assert template(service({"speculation.offPath": "Auto"})) == template(service())
    assert "--speculative-off-path" not in engine(service())["args"]
    assert "--speculative-off-path" not in engine(service({"speculation": {"offPath": "Decode"}}))["args"]


def test_a_model_in_the_pods_files_keeps_its_path_and_a_draft_its_revision() -> None:
    args = engine(
        service(
            {
                "model.uri": "/models/target",
                "speculation.draftModel": {"uri": "/models/draft", "revision": "r1"},
                "speculation.numSteps": 5,
            }
        )
    )["args"]
    assert args[:2] == ["--model-path", "/models/target"]
    pairs = dict(itertools.pairwise(args))
    assert pairs["--speculative-draft-model-path"] == "/models/draft"
    assert pairs["--speculative-draft-model-revision"] == "r1"
    assert pairs["--speculative-num-draft-tokens"] == "6"


@pytest.mark.parametrize(
    "value",
    [
        '{"enable_multithread_load": true, "num_threads": 64}',
        "$(HOME)",
        "$$",
        "$$(HOME)",
        "a\\b",
        "line\nbreak",
        "{{ x }}",
        "Ünïcode $é",
        "$",
        "$(SPECULATIVE_DISABLE_BATCH_THRESHOLD)",
        "",
    ],
)
def test_a_value_reaches_the_server_byte_for_byte(value: str) -> None:
    variables = {"HOME": "/home/sglang", "SPECULATIVE_DISABLE_BATCH_THRESHOLD": "4"}
    args = engine(service({"engine.args": ["--model-loader-extra-config", value]}))["args"]
    assert kubernetes_expansion(args[-1], variables) == value
    assert kubernetes_expansion(args[-3], variables) == "4", "the operator's own reference is expanded"


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
@PROPERTY
def test_any_text_is_the_same_after_kubernetes_expanded_it(text: str) -> None:
    assert kubernetes_expansion(literal(text), {"HOME": "/root", "": "x"}) == text


def test_a_served_name_is_not_expanded_either() -> None:
    args = engine(service({"model.uri": "/models/$(HOME)"}))["args"]
    assert args[1] == "/models/$$(HOME)"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--tp=4"], ["--tp=4", "--tp-size", "spec.gpus.count (8)", "use spec.gpus.count"]),
        (["--tp", "4"], ["--tp-size", "spec.gpus.count"]),
        (["--tp", "8"], ["--tp-size", "spec.gpus.count (8)"]),
        (["--tensor-parallel-size", "4"], ["spec.gpus.count"]),
        (["--tensor", "4"], ["spec.gpus.count"]),
        (["--speculative-algo", "NEXTN"], ["--speculative-algorithm", "spec.speculation.algorithm (EAGLE3)"]),
        (["--speculative-disable", "8"], ["spec.speculation.disableThreshold"]),
        (["--speculative-disable-batch-threshold=8"], ["spec.speculation.disableThreshold"]),
        (["--speculative-draft-model", "x/y"], ["spec.speculation.draftModel.uri (example/llama-eagle3)"]),
        (["--port", "9000"], ["spec.engine.port (30000)"]),
        (["--host", "127.0.0.1"], ["must be reachable at the pod's address"]),
        (["--model", "x/y"], ["spec.model.uri"]),
        (["--served", "m"], ["spec.model.servedName"]),
        (["--quantization", "fp8"], ["spec.model.quantization"]),
        (["--max-running-requests", "4"], ["spec.engine.maxRunningRequests"]),
        (["--enable-metrics"], ["always on"]),
        (["--api-key", "hunter2"], ["everyone who may read", "into a Secret", "spec.engine.apiKeySecretRef"]),
        (["--admin-api-key=hunter2"], ["spec.engine.adminApiKeySecretRef"]),
        (["--admin-api", "hunter2"], ["short for --admin-api-key", "spec.engine.adminApiKeySecretRef"]),
        (["--speculative-off-path", "decode"], ["use spec.speculation.offPath"]),
        (["--speculative-off=zero-step"], ["short for --speculative-off-path"]),
        (["--speculative-probe-permille", "20"], ["in running servers", "leave the flag out"]),
        (["--enable-dp-attention"], ["each rank would decide", "spec.speculation.algorithm to None"]),
        (["--dp-size", "8"], ["each rank would decide"]),
        (["--dp=2"], ["each rank would decide"]),
        (["--data-parallel-size", "2"], ["each rank would decide"]),
        (["--attn-dp-size", "8"], ["each rank would decide"]),
        (["--nnodes", "2"], ["one pod on one node"]),
        (["--pp-size", "2"], ["spec.gpus.count"]),
        (["--ssl-keyfile", "/k"], ["plain HTTP"]),
        (["--help"], ["print its help"]),
        (["-h"], ["print its help"]),
        (["--mem-fraction-static", "0.8", "--port", "1"], ["spec.engine.args[2]"]),
    ],
)
def test_a_flag_that_a_field_sets_is_refused_with_the_field(args: list[str], said: list[str]) -> None:
    message = refusal(*args)
    assert all(part in message for part in said), message
    assert message.endswith(".")
    assert "hunter2" not in message


def test_the_tile_of_verifies_is_the_users_to_choose() -> None:
    args = engine(service({"engine.args": ["--speculative-verify-tile", "16x128"]}))["args"]
    assert args[-2:] == ["--speculative-verify-tile", "16x128"]


def test_an_abbreviation_of_several_flags_is_refused_with_all_of_them() -> None:
    message = refusal("--speculative-num", "4")
    assert "--speculative-num-steps (use spec.speculation.numSteps)" in message
    assert "--speculative-num-draft-tokens (use spec.speculation.numDraftTokens)" in message
    assert "write flags in full" in message


def test_speculation_by_arguments_alone_is_refused_too() -> None:
    assert "use spec.speculation.algorithm" in refusal("--speculative-algorithm", "NGRAM", speculates=False)


@pytest.mark.parametrize(
    "args",
    [
        ["--enable-dp-attention", "--dp-size", "8"],
        ["--dp-size=8"],
        ["--attention-data-parallel-size", "8"],
    ],
)
def test_data_parallel_attention_is_fine_without_speculation(args: list[str]) -> None:
    assert engine(service({"engine.args": args}, speculates=False))["args"][-len(args) :] == args


@pytest.mark.parametrize(
    "args",
    [
        ["--dp-size", "1"],
        ["--dp-size=1"],
        ["--enable-metrics-for-all-schedulers"],
        ["--enable-dp-attention-local-control-broadcast"],
        ["--model-loader-extra-config", "{}"],
        ["--quantization-param-path", "/q"],
        ["--trust-remote-code", "--mem-fraction-static", "0.8"],
        ["--trust-remote-code"],
        ["--lora-paths", "a=/a", "b=/b"],
        ["--chat-template=/opt/my template"],
        ["--random-seed", "-1"],
        ["--preferred-sampling-params", "'it' is {quoted}'"],
        ["--completion-template", "'{text}'"],
    ],
)
def test_other_flags_pass(args: list[str]) -> None:
    assert engine(service({"engine.args": args}))["args"][-len(args) :] == args


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--tp 4"], 'write it as "--tp", "4"'),
        (["--mem-fraction-static\t0.8"], 'write it as "--mem-fraction-static", "0.8"'),
        (["--trust-remote-code "], 'write it as "--trust-remote-code"'),
        (["--api-key hunter2"], 'write it as "--api-key", "…"'),
        (["trust-remote-code"], "is no flag"),
        (["--"], "ends the flags"),
        (["--trust-remote-code", "true"], 'write "--trust-remote-code" alone, without "true"'),
        (["--trust-remote-code", "-1"], 'write "--trust-remote-code" alone'),
        (["--trust-remote-code=true"], 'write "--trust-remote-code" alone'),
        (["--trust-remote-code", "False"], 'leave out both it and "False"'),
        (["--json-model-override-args", """'{"a": [1]}'"""], "leave the quotes out"),
        (["--mem-fraction-static", "0.8", "--mem-fraction-static=0.9"], "is there twice"),
    ],
)
def test_slips_that_no_shell_will_repair_are_refused_with_the_right_form(args: list[str], said: str) -> None:
    assert said in refusal(*args)


@pytest.mark.parametrize(
    "args",
    [["--api-key hunter2"], ["--api-key=a", "--api-key=hunter2"], ["--admin-api-key hunter2"]],
)
def test_secrets_never_enter_the_message(args: list[str]) -> None:
    assert "hunter2" not in refusal(*args)


def test_a_long_item_is_cut_in_the_message() -> None:
    assert len(refusal("x" * 4000)) < 300


@given(
    st.lists(
        st.one_of(
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
            st.sampled_from(["--tp", "--chat-template", "--log-requests", "--trust-remote-code=1", "--a b", "x", "--"]),
        ),
        max_size=6,
    )
)
@PROPERTY
def test_any_list_is_either_passed_whole_or_refused_with_a_sentence(args: list[str]) -> None:
    passed, message = passed_or_refused(args)
    if message:
        assert re.fullmatch(r"spec\.engine\.args\[\d\] \".*\" .+\.", message, re.DOTALL)
    else:
        assert [kubernetes_expansion(item, {}) for item in passed[len(passed) - len(args) :]] == args


def passed_or_refused(args: list[str]) -> tuple[list[str], str]:
    try:
        return engine(service({"engine.args": args}))["args"], ""
    except SpecError as refused:
        return [], str(refused)
