"""Hooks go where the content says, and a tree that is not understood is refused with the file and the anchor."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable

import mini_sglang
import pytest

from sglang_specpatch import layouts
from sglang_specpatch.fields import FieldStyle
from sglang_specpatch.names import FIELDS
from sglang_specpatch.result import Reason, Refusal

WORKER = "srt/speculative/eagle_worker_v2.py"
SERVER_ARGS = "srt/server_args.py"
OURS = [field.name for field in FIELDS]


def _files(layout: str, **changes: tuple[str, str]) -> dict[str, bytes]:
    files = {path: textwrap.dedent(text).lstrip("\n").encode() for path, text in mini_sglang.LAYOUTS[layout].items()}
    for path, (old, new) in changes.items():
        name = path.replace("__", "/") + ".py"
        assert files[name].count(old.encode()) >= 1, f"{name} has no {old!r}"
        files[name] = files[name].replace(old.encode(), new.encode())
    return files


def _plan(files: dict[str, bytes], release: str | None = "0.5.99") -> layouts.Layout:
    return layouts.plan(files.get, release)


def _refusal(files: dict[str, bytes], release: str | None = "0.5.99") -> Refusal:
    with pytest.raises(Refusal) as caught:
        _plan(files, release)
    return caught.value


def test_the_old_layout_is_recognised_by_content() -> None:
    layout = _plan(_files("old"))
    assert (layout.field_file, layout.live_update_file) == (SERVER_ARGS, "srt/managers/scheduler.py")
    assert {member.path: member.hooks for member in layout.members} == {
        "srt/entrypoints/http_server.py": ("live update request",),
        "srt/managers/scheduler.py": ("live update", "read back", "idle clock"),
        "srt/managers/scheduler_components/batch_result_processor.py": ("step counters",),
        SERVER_ARGS: ("fields and flags",),
        WORKER: ("threshold controller", "forward clock", "off path refused"),
    }
    assert (layout.field_style, layout.worker_file) == (FieldStyle.ANNOTATED, WORKER)


def test_the_new_layout_is_recognised_by_content() -> None:
    layout = _plan(_files("new"))
    assert layout.field_file == "srt/arg_groups/fields/spec.py"
    assert layout.live_update_file == "srt/managers/scheduler_components/internal_state.py"
    assert len(layout.members) == 6


def test_the_plain_layout_without_a_zero_step_state_gets_fields_a_refusal_and_a_reason() -> None:
    layout = _plan(_files("plain"))
    assert (layout.field_style, layout.worker_file) == (FieldStyle.PLAIN, None)
    assert {member.path: member.hooks for member in layout.members} == {
        "srt/entrypoints/http_server.py": ("live update refused",),
        "srt/managers/scheduler.py": ("live update", "read back"),
        SERVER_ARGS: ("fields and flags",),
    }


@pytest.mark.parametrize("layout", mini_sglang.LAYOUTS)
def test_only_the_hooks_are_added_to_the_trees(layout: str) -> None:
    for member in _plan(_files(layout)).members:
        added = [line for line in member.after.splitlines() if line not in member.before.splitlines()]
        assert all(b"specpatch" in line or line.strip(b' ",').split(b":")[0].decode() in OURS for line in added)
        remaining = [line for line in member.after.splitlines() if line not in added]
        assert remaining == member.before.splitlines()


def test_the_fields_keep_the_namespace_of_their_neighbour() -> None:
    after = next(member.after for member in _plan(_files("old")).members if member.path == SERVER_ARGS)
    owner = next(node for node in ast.parse(after).body if isinstance(node, ast.ClassDef))
    fields = [node for node in owner.body if isinstance(node, ast.AnnAssign)]
    names = [ast.unparse(node.target) for node in fields]
    assert names == ["model_path", "speculative_adaptive", "speculative_num_draft_tokens", *OURS, "port"]
    ours = fields[3:6]
    assert all("NS('spec')" in ast.unparse(field.annotation) for field in ours)
    assert [ast.literal_eval(field.value) for field in ours if field.value] == [0, 0, "auto"]


def test_plain_fields_stand_behind_their_neighbour_and_flags_behind_its_call() -> None:
    after = next(member.after for member in _plan(_files("plain")).members if member.path == SERVER_ARGS)
    owner = next(node for node in ast.parse(after).body if isinstance(node, ast.ClassDef))
    fields = [ast.unparse(node.target) for node in owner.body if isinstance(node, ast.AnnAssign)]
    assert fields == ["model_path", "speculative_num_steps", "speculative_num_draft_tokens", *OURS, "port"]
    adding = owner.body[-1]
    assert isinstance(adding, ast.FunctionDef)
    calls = [node.value for node in adding.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    flags = [call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)]
    assert flags == [
        "--model-path", "--speculative-num-steps", "--speculative-num-draft-tokens",
        *(field.flag for field in FIELDS), "--port",
    ]  # fmt: skip
    assert "default=ServerArgs.speculative_off_path" in ast.unparse(calls[5])


def test_plain_fields_without_the_call_of_their_neighbour_are_refused() -> None:
    files = _files(
        "plain", srt__server_args=('            "--speculative-num-draft-tokens",\n', '            "--drafts",\n')
    )
    assert 'add_cli_args add_argument("--speculative-num-draft-tokens", …): not found' in _refusal(files).message


DRESSES: dict[str, Callable[[bytes], bytes]] = {
    "CRLF": lambda text: text.replace(b"\n", b"\r\n"),
    "one CRLF line": lambda text: text.replace(b"\n", b"\r\n", 1),
    "tabs": lambda text: text.replace(b"    ", b"\t"),
    "no final newline": lambda text: text.rstrip(b"\n"),
    "BOM": lambda text: b"\xef\xbb\xbf" + text,
}


@pytest.mark.parametrize("layout", mini_sglang.LAYOUTS)
@pytest.mark.parametrize("dress", DRESSES)
def test_line_ends_tabs_bom_and_the_last_newline_stay(layout: str, dress: str) -> None:
    plain = {member.path: member for member in _plan(_files(layout)).members}
    dressed = _plan({path: DRESSES[dress](text) if path in plain else text for path, text in _files(layout).items()})
    for member in dressed.members:
        added = member.after.count(b"\n") - member.before.count(b"\n")
        expected = plain[member.path]
        assert added == expected.after.count(b"\n") - expected.before.count(b"\n")
        assert member.after.startswith(b"\xef\xbb\xbf") == (dress == "BOM")
        assert member.after.endswith(b"\n") == (dress != "no final newline")
        if dress == "CRLF":
            assert member.after.count(b"\n") == member.after.count(b"\r\n")
        if dress == "tabs":
            assert b"    " not in member.after.replace(b"'    '", b"")


@pytest.mark.parametrize(
    ("changes", "anchor"),
    [
        (
            {"srt__server_args": ("    speculative_num_draft_tokens: A[", "    other_tokens: A[")},
            "field speculative_num_draft_tokens",
        ),
        ({"srt__server_args": ("class ServerArgs:", "class Arguments:")}, "field speculative_num_draft_tokens"),
        (
            {"srt__speculative__eagle_worker_v2": ("self.activate_step_by_batch(batch.seq_lens.shape[0])", "pass")},
            "activate_step_by_batch",
        ),
        (
            {"srt__speculative__eagle_worker_v2": ("batch.seq_lens.shape[0]", "len(batch.reqs)")},
            "activate_step_by_batch",
        ),
        (
            {"srt__speculative__eagle_worker_v2": ("self.speculative_num_steps == 0", "self.off")},
            "_build_trivial_verify_input",
        ),
        (
            {
                "srt__speculative__eagle_worker_v2": (
                    "        if server_args.speculative_adaptive:\n",
                    "        while server_args.speculative_adaptive:\n",
                )
            },
            "adaptive controller",
        ),
        (
            {
                "srt__speculative__eagle_worker_v2": (
                    "adaptive_controller.on_verify_complete(\n",
                    "adaptive_controller.learn(\n",
                )
            },
            "on_verify_complete_cpu with the known code",
        ),
        (
            {
                "srt__speculative__adaptive_runtime_state": (
                    "if target != self.worker.speculative_num_steps:",
                    "if target:",
                )
            },
            "AdaptiveController.activate_step_by_batch",
        ),
        (
            {"srt__speculative__spec_info": ("import EAGLEWorkerV2", "import OtherWorker as EAGLEWorkerV2")},
            "create_worker",
        ),
        ({"srt__managers__scheduler": ("args_allow_update = set(", "allowed = set(")}, "args_allow_update"),
        (
            {"srt__managers__scheduler": ("        if_success = True\n", "        if_success = bool(1)\n")},
            "if_success = True",
        ),
        ({"srt__managers__scheduler": ("def on_idle(", "def when_idle(")}, "Scheduler.on_idle"),
        (
            {"srt__managers__scheduler": ("return GetInternalStateReqOutput(internal_state=ret)", "return ret")},
            "GetInternalStateReqOutput",
        ),
        (
            {
                "srt__managers__scheduler_components__batch_result_processor": (
                    "return predict_tokens",
                    "return list(predict_tokens)",
                )
            },
            "return predict_tokens",
        ),
    ],
)
def test_a_missing_anchor_is_named_with_its_file_and_release(changes: dict[str, tuple[str, str]], anchor: str) -> None:
    refusal = _refusal(_files("old", **changes))
    assert refusal.reason is Reason.UNSUPPORTED_SOURCE
    assert anchor in refusal.message
    assert "SGLang 0.5.99" in refusal.message
    assert f"{next(iter(changes)).replace('__', '/')}.py" in refusal.message


@pytest.mark.parametrize(
    ("path", "twice"),
    [
        ("srt__server_args", '    speculative_num_draft_tokens: A[int, "x"] = 1\n    port: A'),
        ("srt__managers__scheduler", "        if_success = True\n        if_success = True\n"),
        ("srt__managers__scheduler", "    def on_idle(self):\n        pass\n\n    def on_idle("),
    ],
)
def test_two_candidates_are_refused(path: str, twice: str) -> None:
    old = {
        "    spec": "    port: A",
        "        ": "        if_success = True\n",
        "    def ": "    def on_idle(",
    }[twice[:8]]
    refusal = _refusal(_files("old", **{path: (old, twice)}))
    assert refusal.reason is Reason.UNSUPPORTED_SOURCE
    assert "2 candidates" in refusal.message


def test_a_field_in_both_places_is_refused() -> None:
    files = _files("old") | {"srt/arg_groups/fields/spec.py": _files("new")["srt/arg_groups/fields/spec.py"]}
    assert "2 found, exactly one is needed" in _refusal(files).message


def test_a_tree_with_the_version_one_worker_alone_is_refused_for_its_worker() -> None:
    files = _files("old")
    files["srt/speculative/eagle_worker.py"] = files.pop(WORKER)
    refusal = _refusal(files, "0.5.6")
    assert refusal.reason is Reason.UNSUPPORTED_WORKER
    assert "EAGLE v1" in refusal.message


@pytest.mark.parametrize(
    ("path", "anchor"),
    [
        ("srt/speculative/adaptive_runtime_state.py", "adaptive_runtime_state.py: no such file"),
        ("srt/speculative/spec_info.py", "create_worker"),
        (WORKER, "EAGLEWorkerV2.activate_step_by_batch: not found"),
    ],
)
def test_a_part_of_the_zero_step_state_alone_is_refused(path: str, anchor: str) -> None:
    """One sign of it and the whole must be there: a tree that could switch is never taken for one that can't."""
    files = _files("old")
    del files[path]
    if path == WORKER:
        files[WORKER] = _files("plain")[WORKER]
    refusal = _refusal(files)
    assert refusal.reason is Reason.UNSUPPORTED_SOURCE
    assert anchor in refusal.message


def test_a_patched_source_is_an_unknown_patch_state() -> None:
    files = _files("old")
    for member in _plan(files).members:
        refusal = _refusal(files | {member.path: member.after})
        assert refusal.reason is Reason.UNKNOWN_PATCH_STATE
        assert member.path in refusal.message


@pytest.mark.parametrize("release", ["0.5.99", "0.0.0.dev1+g12ab", "0.5.14.post1", None])
def test_the_release_is_only_a_hint(release: str | None) -> None:
    assert _plan(_files("old"), release) == _plan(_files("old"), "0.5.14")


def test_a_file_that_is_not_there_is_named() -> None:
    files = _files("new")
    del files["srt/managers/scheduler_components/batch_result_processor.py"]
    refusal = _refusal(files)
    assert "batch_result_processor.py: no such file" in refusal.message
