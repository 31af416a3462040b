"""Every release: what is recognised, that only the meant nodes change, and that the source stays as it was."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_sglang import RELEASES, REPOSITORY, Workshop, fetch

from sglang_specpatch import tree
from sglang_specpatch.edit import SourceFile
from sglang_specpatch.layouts import INTERNAL_STATE, SCHEDULER, plan
from sglang_specpatch.locate import Found, release_of
from sglang_specpatch.manifest import digests
from sglang_specpatch.names import FIELD, RUNTIME_DIRECTORY
from sglang_specpatch.result import Reason, Refusal

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

FIELDS_FILE = "srt/arg_groups/fields/spec.py"
SERVER_ARGS = "srt/server_args.py"
WORKER = "srt/speculative/eagle_worker_v2.py"
IN_FIELDS = {"0.5.20", "0.5.21", "0.5.22", "0.5.23"}
IN_COMPONENT = {"0.5.22", "0.5.23"}


@functools.cache
def _blueprint(source: Path, release: str) -> tree.Blueprint:
    return tree.draw(Found(source, release), import_check="skipped")


def _draw(workshop: Workshop, release: str) -> tree.Blueprint:
    return _blueprint(workshop.source(release), release)


@pytest.mark.parametrize("release", RELEASES)
def test_the_layout_of_a_release_is_recognised(workshop: Workshop, release: str) -> None:
    layout = _draw(workshop, release).layout
    assert release_of(workshop.source(release)) == release
    assert layout.field_file == (FIELDS_FILE if release in IN_FIELDS else SERVER_ARGS)
    assert layout.live_update_file == (INTERNAL_STATE if release in IN_COMPONENT else SCHEDULER)
    hooks = [hook for member in layout.members for hook in member.hooks]
    assert sorted(hooks) == [
        "field and flag", "forward clock", "idle clock", "live update", "live update request", "read back",
        "step counters", "threshold controller",
    ]  # fmt: skip


def _statements(node: ast.AST) -> list[str]:
    return [ast.dump(statement) for statement in ast.walk(node) if isinstance(statement, ast.stmt)]


@pytest.mark.parametrize("release", RELEASES)
def test_only_the_meant_statements_differ(workshop: Workshop, release: str) -> None:
    for member in _draw(workshop, release).layout.members:
        before, after = ast.parse(member.before), ast.parse(member.after)
        added = [node for node in ast.walk(after) if isinstance(node, ast.stmt) and _is_ours(node)]
        for parent in ast.walk(after):
            for body in (value for value in vars(parent).values() if isinstance(value, list)):
                body[:] = [node for node in body if node not in added]
        for collection in ast.walk(after):
            _drop_our_key(collection)
        assert ast.dump(after) == ast.dump(before)
        lines = member.after.splitlines()
        assert [line for line in lines if b"specpatch" not in line and FIELD.encode() not in line] == (
            member.before.splitlines()
        )
        assert len(lines) - len(member.before.splitlines()) <= 5


def _is_ours(node: ast.stmt) -> bool:
    """A leaf statement that names the patch; a class that holds one is not."""
    holds_statements = any(
        isinstance(value, list) and value and isinstance(value[0], ast.stmt) for value in vars(node).values()
    )
    return not holds_statements and "specpatch" in ast.unparse(node) and "_UpdateHandler" not in ast.unparse(node)


def _drop_our_key(node: ast.AST) -> None:
    if isinstance(node, ast.List | ast.Set) and node.elts and _is_key(node.elts[0]):
        del node.elts[0]
    if isinstance(node, ast.Dict) and node.keys and _is_key(node.keys[0]):
        del node.keys[0], node.values[0]


def _is_key(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value == FIELD


@pytest.mark.parametrize("release", RELEASES)
def test_the_tree_is_whole_the_source_untouched_and_a_second_run_changes_nothing(
    workshop: Workshop, release: str, tmp_path: Path
) -> None:
    source = workshop.source(release)
    before = digests(source)
    for blueprint in (_draw(workshop, release), tree.draw(Found(source, release), import_check="skipped")):
        with tree.locked(tmp_path):
            if not tree.is_in_place(blueprint, tmp_path):
                assert not (tmp_path / "sglang").exists(), "the second run must find everything in place"
                tree.build(blueprint, tmp_path)
                tree.commit(blueprint, tmp_path)
    after = digests(tmp_path / "sglang")
    assert digests(source) == before
    added = {path for path in after if path.startswith(RUNTIME_DIRECTORY)}
    changed = {path for path in before if after[path] != before[path]}
    assert set(after) - added == set(before)
    assert changed == {member.path for member in blueprint.layout.members}
    for path in changed | added:
        compile((tmp_path / "sglang" / path).read_bytes(), path, "exec")


def test_a_second_fetch_does_nothing() -> None:
    command = [sys.executable, str(REPOSITORY / "hack/engine/fetch.py"), "tree", RELEASES[0]]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert said == f"SGLang {RELEASES[0]}: already in {fetch.cache() / 'trees' / RELEASES[0]}\n"


BROKEN = {
    "the decode branch": ("self.activate_step_by_batch(batch.seq_lens.shape[0])", "pass"),
    "the zero-step test": ("elif self.speculative_num_steps == 0:", "elif self.speculative_num_steps <= 0:"),
    "the controller": (
        "            self.adaptive_controller = AdaptiveController(",
        "            self.controller = AdaptiveController(",
    ),
    "the class": ("class EAGLEWorkerV2(", "class EAGLEWorkerV2Fork("),
}  # fmt: skip


@pytest.mark.parametrize("anchor", BROKEN)
@pytest.mark.parametrize("release", ["0.5.14", "0.5.23"])
def test_an_edited_worker_is_refused_by_name_and_nothing_is_written(
    workshop: Workshop, release: str, anchor: str, tmp_path: Path
) -> None:
    source = workshop.source(release)
    data = (source / WORKER).read_bytes()
    old, new = (text.encode() for text in BROKEN[anchor])
    if old not in data:
        old = old.replace(b"elif self.spec", b"if self.spec")
        new = new.replace(b"elif self.spec", b"if self.spec")
    assert data.count(old) == 1

    def read(path: str) -> bytes | None:
        place = source / path
        return data.replace(old, new) if path == WORKER else (place.read_bytes() if place.is_file() else None)

    with pytest.raises(Refusal) as caught:
        plan(read, release)
    assert caught.value.reason is Reason.UNSUPPORTED_SOURCE
    assert WORKER in caught.value.message
    assert release in caught.value.message


@pytest.mark.parametrize("release", ["0.5.16", "0.5.23"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_field_can_be_put_behind_any_other(workshop: Workshop, release: str, data: st.DataObject) -> None:
    """Whatever a neighbour looks like (multi-line calls, brackets in its help): the new field stays outside of it."""
    path, owner_name = (FIELDS_FILE, "Spec") if release in IN_FIELDS else (SERVER_ARGS, "ServerArgs")
    text = (workshop.source(release) / path).read_text(encoding="utf-8")
    owner = next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == owner_name)
    fields_end = max(node.end_lineno or 0 for node in owner.body if isinstance(node, ast.AnnAssign))
    body = "\n".join(text.splitlines()[owner.lineno - 1 : fields_end]).encode()
    source = SourceFile(path, body)
    made = source.tree.body[0]
    assert isinstance(made, ast.ClassDef)
    fields = [node for node in made.body if isinstance(node, ast.AnnAssign)]
    anchor = data.draw(st.sampled_from(fields))
    position = made.body.index(anchor)
    source.insert_after(made.body, anchor, f"{FIELD}: A[int, 'help'] = 0")
    after = ast.parse(source.result()).body[0]
    assert isinstance(after, ast.ClassDef)
    assert ast.unparse(after.body[position + 1]).startswith(f"{FIELD}: A[int, 'help']")
    assert len(after.body) == len(ast.parse(body).body[0].body) + 1  # type: ignore[attr-defined]
