"""Edits put in what was meant and leave every other byte alone, whatever the file looks like."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_specpatch.edit import EditRefused, SourceFile

ADD_ARGUMENT = """
def add_cli_args(parser):
    parser.add_argument("--model-path", type=str)
    parser.add_argument(
        "--speculative-num-steps",
        type=int,
        help="Steps (see [docs] and {more}), e.g. 'x'",
        default=None,
    )
    parser.add_argument("--port", type=int)
""".lstrip()
HOOK = 'parser.add_argument("--speculative-disable-batch-threshold", type=int, default=0)'


def test_the_naive_insertion_that_broke_a_server_is_a_syntax_error_and_ours_is_not() -> None:
    lines = ADD_ARGUMENT.splitlines(keepends=True)
    at = next(row for row, line in enumerate(lines) if "--speculative-num-steps" in line)
    naive = "".join([*lines[: at + 1], f"    {HOOK}\n", *lines[at + 1 :]])
    with pytest.raises(SyntaxError, match=r"invalid syntax\. Perhaps you forgot a comma\?"):
        compile(naive, "server_args.py", "exec")

    source = SourceFile("server_args.py", ADD_ARGUMENT.encode())
    function = source.tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    source.insert_after(function.body, function.body[1], HOOK)
    calls = ast.parse(source.result()).body[0]
    assert isinstance(calls, ast.FunctionDef)
    assert [ast.unparse(call)[20:27] for call in calls.body] == ["'--mode", "'--spec", "'--spec", "'--port"]


NAMES = st.from_regex(r"[a-z][a-z_]{0,8}x", fullmatch=True)
TEXTS = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\n\\\"'\0\x0c", exclude_categories=["Cs"]), max_size=12
)


@st.composite
def statements(draw: st.DrawFn) -> list[str]:
    """One statement as its lines, in a shape that real code has."""
    name, text = draw(NAMES), draw(TEXTS)
    shapes = [
        [f"{name} = {draw(st.integers(0, 99))}"],
        [f'{name}: A[int, "{text}"] = 0  # anchor_field: A['],
        [
            f"{name}: A[",
            f"    int,  # {text.replace('#', '')}",
            f'    Arg(help="{text} ([{{", aliases=["--a"]),',
            "] = 0",
        ],
        [f'"""{text} anchor_field', "  anchor_field: A[int] = 1", '"""'],
        ["call(", f'    "{text}",', ")"],
        [f"if {name}:", "    pass", "else:", f'    {name} = """', "  anchor", '"""'],
        ["@decorated", f"def {name}():", "", "    # anchor_field", "    return 1"],
    ]
    return draw(st.sampled_from(shapes))


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, int]:
    """A module with one class of several statements, and the number of the anchor among them."""
    parts = draw(st.lists(statements(), min_size=1, max_size=6))
    anchor = draw(st.integers(0, len(parts) - 1))
    tab = draw(st.sampled_from(["    ", "\t", "  "]))
    lines = ["import os  # anchor", "", "class Owner:"]
    for part in parts:
        if draw(st.booleans()):
            lines.append(f"{tab}# anchor_field: a comment")
        lines += [
            f"{tab}{line}" if not line.startswith(('"""', "  anchor")) or line == part[0] else line for line in part
        ]
    ends = draw(st.sampled_from([("\n",), ("\r\n",), ("\n", "\r\n")]))
    text = "".join(line + draw(st.sampled_from(ends)) for line in lines)
    if draw(st.booleans()):
        text = text.rstrip("\r\n")
    return (b"\xef\xbb\xbf" if draw(st.booleans()) else b"") + text.encode(), anchor


@given(files(), st.booleans())
def test_an_insertion_adds_its_own_bytes_and_nothing_else(made: tuple[bytes, int], after: bool) -> None:
    data, anchor = made
    source = SourceFile("made.py", data)
    owner = source.tree.body[1]
    assert isinstance(owner, ast.ClassDef)
    before = [ast.dump(statement) for statement in owner.body]
    insert = source.insert_after if after else source.insert_before
    insert(owner.body, owner.body[anchor], "inserted: A[int, 'x'] = 0")
    result = source.result()

    start = result.index(b"inserted: A[")
    line_start = max(result.rfind(b"\n", 0, start), result.rfind(b"\r", 0, start)) + 1
    line_start = max(line_start, 3 if result.startswith(b"\xef\xbb\xbf") else 0)
    end = start + len(b"inserted: A[int, 'x'] = 0")
    while result[end : end + 1] in (b"\r", b"\n") and result[end - 1 : end] != b"\n":
        end += 1
    if end == len(result) and not data.endswith((b"\n", b"\r")):
        line_start -= 2 if result[line_start - 2 : line_start] == b"\r\n" else 1
    assert result[:line_start] + result[end:] == data
    changed = ast.parse(result.removeprefix(b"\xef\xbb\xbf")).body[1]
    assert isinstance(changed, ast.ClassDef)
    dumps = [ast.dump(statement) for statement in changed.body]
    position = anchor + after
    assert dumps[:position] + dumps[position + 1 :] == before
    assert ast.unparse(changed.body[position]) == "inserted: A[int, 'x'] = 0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = set(['b', 'c'])\n", "x = set([\"a\", 'b', 'c'])\n"),
        ("x = set([\n    'b',  # why\n    'c'])\n", "x = set([\n    \"a\",\n    'b',  # why\n    'c'])\n"),
        ("x = set([\r\n\t'b',\r\n])\r\n", "x = set([\r\n\t\"a\",\r\n\t'b',\r\n])\r\n"),
        ("x = {'b'}\n", "x = {\"a\", 'b'}\n"),
    ],
)
def test_an_element_goes_in_front_of_the_others(text: str, expected: str) -> None:
    source = SourceFile("f.py", text.encode())
    collection = next(node for node in ast.walk(source.tree) if isinstance(node, ast.List | ast.Set))
    source.insert_element(collection, '"a"')
    assert source.result().decode() == expected


def test_a_dictionary_gets_its_key_in_front() -> None:
    source = SourceFile("f.py", b"x = {\n    'b': call(\n        1\n    ),\n}\n")
    table = next(node for node in ast.walk(source.tree) if isinstance(node, ast.Dict))
    source.insert_element(table, "other(2)", key="a")
    assert source.result() == b"x = {\n    \"a\": other(2),\n    'b': call(\n        1\n    ),\n}\n"


def _edit_first(text: bytes, *, after: bool = True) -> bytes:
    source = SourceFile("f.py", text)
    edit = source.insert_after if after else source.insert_before
    edit(source.tree.body, source.tree.body[0], "y = 1")
    return source.result()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"x = 1; z = 2\n", "shares its line"),
        (b"# -*- coding: latin-1 -*-\nx = 1\n", "not UTF-8"),
        (b"x = = 1\n", "can't parse"),
        (b"x = '\xff'\n", "can't parse"),
    ],
)
def test_a_file_that_cannot_be_edited_safely_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(EditRefused, match=reason):
        _edit_first(text)


def test_a_body_on_the_line_of_its_header_is_refused() -> None:
    source = SourceFile("f.py", b"class A: x = 1\n")
    owner = source.tree.body[0]
    assert isinstance(owner, ast.ClassDef)
    for edit in (source.insert_after, source.insert_before):
        with pytest.raises(EditRefused, match="does not begin its line"):
            edit(owner.body, owner.body[0], "y = 1")


def test_an_edit_that_would_mean_something_else_is_refused() -> None:
    source = SourceFile("f.py", b"x = [('b'), 'c']\n")
    collection = next(node for node in ast.walk(source.tree) if isinstance(node, ast.List))
    source.insert_element(collection, '"a"')
    with pytest.raises(EditRefused, match="would change more than"):
        source.result()


def test_an_empty_collection_is_refused() -> None:
    source = SourceFile("f.py", b"x = []\n")
    collection = next(node for node in ast.walk(source.tree) if isinstance(node, ast.List))
    with pytest.raises(EditRefused, match="no plain first element"):
        source.insert_element(collection, '"a"')


def test_a_missing_final_newline_stays_missing() -> None:
    assert _edit_first(b"x = 1") == b"x = 1\ny = 1"
    assert _edit_first(b"x = 1\r\n") == b"x = 1\r\ny = 1\r\n"
    assert _edit_first(b"x = 1", after=False) == b"y = 1\nx = 1"


@pytest.mark.parametrize("text", ["class C:\n    x: int = 0\n    y = [9]\n", "class C:\n    y = [9]\n    x: int = 0"])
def test_several_insertions_at_one_place_come_in_the_order_of_calls(text: str) -> None:
    source = SourceFile("f.py", text.encode())
    owner = source.tree.body[0]
    assert isinstance(owner, ast.ClassDef)
    field = next(node for node in owner.body if isinstance(node, ast.AnnAssign))
    values = next(node.value for node in owner.body if isinstance(node, ast.Assign))
    assert isinstance(values, ast.List)
    for name in ("a", "b", "c"):
        source.insert_before(owner.body, field, f"{name}_before = 1")
        source.insert_after(owner.body, field, f"{name}_after = 1")
        source.insert_element(values, repr(name))
    new = source.result().decode()
    assert [word for word in new.split() if word.endswith(("_before", "_after", "x:"))] == [
        "a_before", "b_before", "c_before", "x:", "a_after", "b_after", "c_after",
    ]  # fmt: skip
    assert "['a', 'b', 'c', 9]" in new
