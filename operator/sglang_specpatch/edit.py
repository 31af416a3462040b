"""Insert whole statements or collection elements into Python source, and nothing else.

Positions come from the syntax tree; bytes around an insertion stay as found: line ends (each line its own),
byte-order mark, tabs, a missing final newline. After editing, the new text is compiled and its tree compared
with the old tree plus the meant nodes: any other difference is refused, so a hook can't end up inside a
neighbour's call.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_BOM = b"\xef\xbb\xbf"
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
_CODING = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_UTF8_NAMES = frozenset({b"utf-8", b"utf8", b"utf-8-sig", b"ascii", b"us-ascii"})


class EditRefused(Exception):
    """The source can't be edited safely; the text says where and why."""


@dataclass
class SourceFile:
    """One Python file, its tree, and the insertions collected for it.

    `path` is for messages only. Raises EditRefused when the bytes are not UTF-8 Python.
    """

    path: str
    data: bytes
    tree: ast.Module = field(init=False)
    _text: bytes = field(init=False)
    _lines: list[bytes] = field(init=False)
    _starts: list[int] = field(init=False)
    _insertions: list[tuple[int, int, bytes]] = field(init=False, default_factory=list)
    _tree_changes: list[tuple[list[ast.stmt], ast.stmt, int, list[ast.stmt]]] = field(init=False, default_factory=list)
    _element_changes: list[tuple[ast.List | ast.Set | ast.Dict, ast.expr | None, ast.expr]] = field(
        init=False, default_factory=list
    )

    def __post_init__(self) -> None:
        self._text = self.data.removeprefix(_BOM)
        self._lines = _LINE.findall(self._text)
        for line in self._lines[:2]:
            coding = _CODING.match(line)
            if coding and coding[1].lower() not in _UTF8_NAMES:
                raise EditRefused(f"{self.path}: encoding {coding[1].decode()} is not UTF-8")
        self.tree = _parse(self._text, self.path)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def insert_before(self, body: list[ast.stmt], statement: ast.stmt, code: str) -> None:
        """Put `code`, one statement on one line, in front of `statement`, an element of `body`."""
        decorators = getattr(statement, "decorator_list", [])
        row = min([statement.lineno, *(decorator.lineno for decorator in decorators)]) - 1
        line = self._lines[row]
        column = statement.col_offset
        if line[:column].strip():
            raise EditRefused(f"{self.path}:{row + 1}: the anchor statement does not begin its line")
        self._add(self._starts[row], line[:column] + code.encode() + self._line_end(row))
        self._tree_changes.append((body, statement, 0, _statements(code)))

    def insert_after(self, body: list[ast.stmt], statement: ast.stmt, code: str) -> None:
        """Put `code`, one statement on one line, behind `statement`, an element of `body`, in the order of calls."""
        first, last = self._lines[statement.lineno - 1], (statement.end_lineno or statement.lineno) - 1
        indent = first[: statement.col_offset]
        rest = self._lines[last][statement.end_col_offset or 0 :].strip()
        if indent.strip():
            raise EditRefused(f"{self.path}:{statement.lineno}: the anchor statement does not begin its line")
        if rest and not rest.startswith(b"#"):
            raise EditRefused(f"{self.path}:{last + 1}: the anchor statement shares its line with another")
        ended = self._lines[last].endswith((b"\n", b"\r"))
        new = indent + code.encode()
        end = self._line_end(last)
        self._add(self._starts[last + 1], new + end if ended else end + new)
        self._tree_changes.append((body, statement, 1, _statements(code)))

    def insert_element(self, collection: ast.List | ast.Set | ast.Dict, code: str, key: str | None = None) -> None:
        """Put an element in front of those of a list, set or (with `key`) dict display, in the order of calls."""
        first = (collection.keys if isinstance(collection, ast.Dict) else collection.elts)[:1]
        if not first or first[0] is None:
            raise EditRefused(f"{self.path}:{collection.lineno}: the anchor collection has no plain first element")
        element = first[0]
        row, column = element.lineno - 1, element.col_offset
        lead = self._lines[row][:column]
        separator = b"," + self._line_end(row) + lead if not lead.strip() else b", "
        text = code if key is None else f'"{key}": {code}'
        self._add(self._starts[row] + column, text.encode() + separator)
        self._element_changes.append(
            (collection, ast.Constant(key) if key is not None else None, ast.parse(code, mode="eval").body)
        )

    def result(self) -> bytes:
        """Return the edited bytes, proven to differ from the source by the inserted nodes only.

        Raises EditRefused when the new text does not compile or its tree is not the meant one.
        """
        pieces, position = [], 0
        for offset, _, text in sorted(self._insertions):
            pieces += [self._text[position:offset], text]
            position = offset
        new = b"".join([*pieces, self._text[position:]])
        meant = self._meant_tree()
        if ast.dump(_parse(new, self.path)) != meant:
            raise EditRefused(f"{self.path}: the edit would change more than the inserted statements")
        try:
            compile(new, self.path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise EditRefused(f"{self.path}: the edited file does not compile: {error}") from error
        return (_BOM if self.data.startswith(_BOM) else b"") + new

    def _meant_tree(self) -> str:
        before = [change for change in self._tree_changes if not change[2]]
        after = [change for change in self._tree_changes if change[2]]
        for body, statement, shift, statements in [*before, *reversed(after)]:
            at = next(index for index, other in enumerate(body) if other is statement) + shift
            body[at:at] = statements
        for collection, key, value in reversed(self._element_changes):
            if isinstance(collection, ast.Dict):
                collection.keys.insert(0, key)
                collection.values.insert(0, value)
            else:
                collection.elts.insert(0, value)
        self._tree_changes.clear()
        self._element_changes.clear()
        return ast.dump(self.tree)

    def _add(self, offset: int, text: bytes) -> None:
        self._insertions.append((offset, len(self._insertions), text))

    def _line_end(self, row: int) -> bytes:
        for line in self._lines_near(row):
            if line.endswith((b"\n", b"\r")):
                return line[len(line.rstrip(b"\r\n")) :]
        return b"\n"

    def _lines_near(self, row: int) -> Iterator[bytes]:
        yield self._lines[row]
        yield from reversed(self._lines[:row])


def _parse(text: bytes, path: str) -> ast.Module:
    try:
        return ast.parse(text, filename=path)
    except (SyntaxError, ValueError) as error:
        raise EditRefused(f"{path}: this Python can't parse the file: {error}") from error


def _statements(code: str) -> list[ast.stmt]:
    return ast.parse(code).body
