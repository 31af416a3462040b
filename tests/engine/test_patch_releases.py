"""Every release: what is recognised, that only the meant nodes change, and that the source stays as it was."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from real_sglang import RELEASES, REPOSITORY, Workshop, fetch

from sglang_specpatch import tree
from sglang_specpatch.anchors import class_named, method_named
from sglang_specpatch.edit import SourceFile
from sglang_specpatch.fields import FIELD_FILES, FieldStyle
from sglang_specpatch.layouts import plan
from sglang_specpatch.liveupdate import INTERNAL_STATE, SCHEDULER
from sglang_specpatch.locate import Found, release_of
from sglang_specpatch.manifest import digests
from sglang_specpatch.names import FIELDS, RUNTIME_DIRECTORY
from sglang_specpatch.result import Reason, Refusal

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

WORKER = "srt/speculative/eagle_worker_v2.py"
OURS = [field.name for field in FIELDS]
FIELDS_FILE, SERVER_ARGS = FIELD_FILES
IN_FIELDS = {"0.5.20", "0.5.21", "0.5.22", "0.5.23"}
IN_COMPONENT = {"0.5.22", "0.5.23"}
RESERVES_BY_MODE = "0.5.18"
ALWAYS_DRAFTS = set(RELEASES[: RELEASES.index("0.5.14")])
HOOKS = ["fields and flags", "live update", "read back", "verify tile"]
HOOKS_OF_THE_WORKER = [
    "forward clock", "idle clock", "live update request", "off path", "off path graphs", "off path prefill",
    "off path step", "step counters", "threshold controller",
]  # fmt: skip


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
    assert layout.field_style is (FieldStyle.PLAIN if release in ALWAYS_DRAFTS else FieldStyle.ANNOTATED)
    assert layout.live_update_file == (INTERNAL_STATE if release in IN_COMPONENT else SCHEDULER)
    assert layout.worker_file == (None if release in ALWAYS_DRAFTS else WORKER)
    hooks = [hook for member in layout.members for hook in member.hooks]
    more = ["live update refused"] if release in ALWAYS_DRAFTS else HOOKS_OF_THE_WORKER
    assert {*HOOKS, *more} <= set(hooks)
    assert ("live update refused" in hooks) is (release in ALWAYS_DRAFTS)
    assert "off path refused" not in hooks
    assert ("slots for drafts" in hooks) is (release == RESERVES_BY_MODE)


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
            _drop_our_keys(collection)
        assert ast.dump(after) == ast.dump(before)
        lines = member.after.splitlines()
        assert [line for line in lines if not _is_our_line(line)] == member.before.splitlines()


def _is_our_line(line: bytes) -> bool:
    return b"specpatch" in line or line.strip(b' ",').split(b":")[0].decode() in OURS


def _is_ours(node: ast.stmt) -> bool:
    """A leaf statement that names the patch, or a condition that asks it; a class that holds one is not."""
    holds_statements = any(
        isinstance(value, list) and value and isinstance(value[0], ast.stmt) for value in vars(node).values()
    )
    if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) in OURS:
        return True
    if isinstance(node, ast.If):
        return "specpatch." in ast.unparse(node.test)
    return not holds_statements and "specpatch" in ast.unparse(node) and "_UpdateHandler" not in ast.unparse(node)


def _drop_our_keys(node: ast.AST) -> None:
    while isinstance(node, ast.List | ast.Set) and node.elts and _is_key(node.elts[0]):
        del node.elts[0]
    while isinstance(node, ast.Dict) and node.keys and _is_key(node.keys[0]):
        del node.keys[0], node.values[0]


def _is_key(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value in OURS


@pytest.mark.parametrize("release", RELEASES)
def test_the_tree_is_whole_the_source_untouched_and_another_run_finds_it_in_place(
    workshop: Workshop, release: str
) -> None:
    source, patched = workshop.source(release), workshop.patched(release)
    assert patched.exit_code == 0, patched.log
    blueprint = _draw(workshop, release)
    assert tree.is_in_place(blueprint, patched.directory)
    before, after = digests(source), digests(patched.directory / "sglang")
    added = {path for path in after if path.startswith(RUNTIME_DIRECTORY)}
    changed = {path for path in before if after[path] != before[path]}
    assert set(after) - added == set(before)
    assert changed == {member.path for member in blueprint.layout.members}
    wheel = fetch.cache() / "wheels" / fetch.pins()[release][0]
    assert fetch.holds(source.parent, wheel), "patching must leave the source as it was"


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


EVERY_LAYOUT = ["0.5.6", "0.5.12", "0.5.13", "0.5.14", "0.5.19", "0.5.20", "0.5.23"]


@pytest.mark.parametrize("release", EVERY_LAYOUT)
def test_a_field_can_be_put_behind_every_other(workshop: Workshop, release: str) -> None:
    """Whatever a neighbour looks like (multi-line calls, brackets in its help): the new field stays outside of it."""
    path, owner_name = (FIELDS_FILE, "Spec") if release in IN_FIELDS else (SERVER_ARGS, "ServerArgs")
    source = SourceFile(path, (workshop.source(release) / path).read_bytes())
    owner = class_named(source, owner_name)
    fields = [node for node in owner.body if isinstance(node, ast.AnnAssign)]
    assert len(fields) >= (40 if release in IN_FIELDS else 200)
    names = [ast.unparse(field.target) for field in fields]
    for number, field in enumerate(fields):
        source.insert_after(owner.body, field, f"ours_{number}: int = {number}")
    after = class_named(SourceFile(path, source.result()), owner_name)
    found = [ast.unparse(node.target) for node in after.body if isinstance(node, ast.AnnAssign)]
    assert found == [name for number, neighbour in enumerate(names) for name in (neighbour, f"ours_{number}")]


@pytest.mark.parametrize("release", [release for release in EVERY_LAYOUT if release in ALWAYS_DRAFTS])
def test_a_flag_can_be_added_behind_every_other(workshop: Workshop, release: str) -> None:
    """A line put behind the line that names the neighbour's flag would break the server; ours goes behind its call."""
    data = (workshop.source(release) / SERVER_ARGS).read_bytes()
    source = SourceFile(SERVER_ARGS, data)
    adding = method_named(source, class_named(source, "ServerArgs"), "add_cli_args")
    calls = [node for node in adding.body if isinstance(node, ast.Expr) and "add_argument(" in ast.unparse(node)]
    assert len(calls) > 200
    broken = [call for call in calls if _naive_insertion_breaks(data.splitlines(), call)]
    assert len(broken) == len([call for call in calls if call.end_lineno != call.lineno])
    for number, call in enumerate(calls):
        source.insert_after(adding.body, call, f"parser.add_argument('--ours-{number}')")
    after = SourceFile(SERVER_ARGS, source.result())
    body = method_named(after, class_named(after, "ServerArgs"), "add_cli_args").body
    places = [
        number for number, node in enumerate(body) if ast.unparse(node).startswith("parser.add_argument('--ours-")
    ]
    assert [ast.dump(body[place - 1]) for place in places] == [ast.dump(call) for call in calls]
    assert [ast.unparse(body[place]) for place in places] == [
        f"parser.add_argument('--ours-{number}')" for number in range(len(calls))
    ]


def _naive_insertion_breaks(lines: list[bytes], call: ast.Expr) -> bool:
    """Put a line behind the one that holds the flag, as a text search would, and compile the call."""
    own = [line.decode() for line in lines[call.lineno - 1 : call.end_lineno]]
    flag = next(number for number, line in enumerate(own) if '"--' in line)
    indent = own[flag][: len(own[flag]) - len(own[flag].lstrip())]
    naive = textwrap.dedent("\n".join([*own[: flag + 1], f'{indent}parser.add_argument("--ours")', *own[flag + 1 :]]))
    try:
        compile(naive, SERVER_ARGS, "exec")
    except SyntaxError as error:
        return str(error).startswith("invalid syntax. Perhaps you forgot a comma?")
    return False
