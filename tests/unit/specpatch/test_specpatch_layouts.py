"""Hooks go where the content says, and a tree that is not understood is refused with the file and the anchor."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable

import mini_sglang
import pytest

from sglang_specpatch import layouts
from sglang_specpatch.result import Reason, Refusal

WORKER = "srt/speculative/eagle_worker_v2.py"
SERVER_ARGS = "srt/server_args.py"
FIELD = "speculative_disable_batch_threshold"


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
        SERVER_ARGS: ("field and flag",),
        WORKER: ("threshold controller", "forward clock"),
    }


def test_the_new_layout_is_recognised_by_content() -> None:
    layout = _plan(_files("new"))
    assert layout.field_file == "srt/arg_groups/fields/spec.py"
    assert layout.live_update_file == "srt/managers/scheduler_components/internal_state.py"
    assert len(layout.members) == 6


@pytest.mark.parametrize("layout", ["old", "new"])
def test_only_the_hooks_are_added_to_the_trees(layout: str) -> None:
    for member in _plan(_files(layout)).members:
        added = [line for line in member.after.splitlines() if line not in member.before.splitlines()]
        assert all(b"specpatch" in line or FIELD.encode() in line for line in added)
        remaining = [line for line in member.after.splitlines() if line not in added]
        assert remaining == member.before.splitlines()


def test_the_field_keeps_the_namespace_of_its_neighbour() -> None:
    after = next(member.after for member in _plan(_files("old")).members if member.path == SERVER_ARGS)
    owner = next(node for node in ast.parse(after).body if isinstance(node, ast.ClassDef))
    fields = [node for node in owner.body if isinstance(node, ast.AnnAssign)]
    names = [ast.unparse(node.target) for node in fields]
    assert names == ["model_path", "speculative_adaptive", "speculative_adaptive_config", FIELD, "port"]
    assert "NS('spec')" in ast.unparse(fields[3].annotation)
    assert ast.unparse(fields[3].value or fields[3]) == "0"


DRESSES: dict[str, Callable[[bytes], bytes]] = {
    "CRLF": lambda text: text.replace(b"\n", b"\r\n"),
    "one CRLF line": lambda text: text.replace(b"\n", b"\r\n", 1),
    "tabs": lambda text: text.replace(b"    ", b"\t"),
    "no final newline": lambda text: text.rstrip(b"\n"),
    "BOM": lambda text: b"\xef\xbb\xbf" + text,
}


@pytest.mark.parametrize("layout", ["old", "new"])
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
            {"srt__server_args": ("    speculative_adaptive_config: A[", "    other_config: A[")},
            "field speculative_adaptive_config",
        ),
        ({"srt__server_args": ("class ServerArgs:", "class Arguments:")}, "field speculative_adaptive_config"),
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
        ("srt__server_args", '    speculative_adaptive_config: A[str, "x"] = ""\n    port: A'),
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


def test_a_version_two_worker_without_a_zero_step_state_is_refused_for_its_worker() -> None:
    files = _files("old")
    del files["srt/speculative/adaptive_runtime_state.py"]
    refusal = _refusal(files, "0.5.12")
    assert refusal.reason is Reason.UNSUPPORTED_WORKER
    assert "no zero-step state" in refusal.message


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
