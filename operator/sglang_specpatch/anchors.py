"""Find the one syntax-tree node that a hook hangs on: exactly one, or a refusal that names it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import TypeVar

from .edit import SourceFile

Node = TypeVar("Node", bound=ast.AST)


class AnchorMissing(Exception):
    """The anchor isn't there; the text names it."""


class AnchorAmbiguous(Exception):
    """More than one node answers to the anchor; the text names it."""


def only(found: Iterable[Node], anchor: str) -> Node:
    """Return the single node, or raise AnchorMissing or AnchorAmbiguous naming `anchor`."""
    nodes = list(found)
    if not nodes:
        raise AnchorMissing(f"{anchor}: not found")
    if len(nodes) > 1:
        places = ", ".join(str(getattr(node, "lineno", "?")) for node in nodes)
        raise AnchorAmbiguous(f"{anchor}: {len(nodes)} candidates (lines {places}), exactly one is needed")
    return nodes[0]


def class_named(source: SourceFile, name: str) -> ast.ClassDef:
    """Return the module-level class `name` of a file."""
    classes = (node for node in source.tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return only(classes, f"{source.path}: class {name}")


def function_named(tree: ast.Module, name: str, path: str) -> ast.FunctionDef:
    """Return the one function of that name at the top of a file."""
    found = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    return only(found, f"{path}: {name}")


def method_named(source: SourceFile, owner: ast.ClassDef, name: str) -> ast.FunctionDef:
    """Return the plain method `name` of a class in a file."""
    methods = (node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == name)
    return only(methods, f"{source.path}: {owner.name}.{name}")


def statement_where(body: list[ast.stmt], matches: Callable[[ast.stmt], bool], anchor: str) -> ast.stmt:
    """Return the one statement directly in `body` that matches."""
    return only((statement for statement in body if matches(statement)), anchor)


def first_code(function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.stmt:
    """Return the first statement that is not the docstring."""
    body = function.body
    has_docstring = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    if has_docstring and len(body) == 1:
        raise AnchorMissing(f"{function.name}: has no code")
    return body[1] if has_docstring else body[0]


def is_self_attribute(node: ast.AST, name: str) -> bool:
    """Tell whether the node is `self.<name>`."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def is_name(node: ast.AST | None, name: str) -> bool:
    """Tell whether the node is that plain name."""
    return isinstance(node, ast.Name) and node.id == name


def same_function(found: ast.FunctionDef, expected_source: str) -> bool:
    """Tell whether a function's code equals the expected source; docstrings and annotations don't count."""
    expected = ast.parse(expected_source).body[0]
    assert isinstance(expected, ast.FunctionDef)
    return _skeleton(found) == _skeleton(expected)


def _skeleton(function: ast.FunctionDef) -> str:
    arguments = [argument.arg for argument in function.args.args]
    defaults = [ast.dump(default) for default in function.args.defaults]
    start = function.body.index(first_code(function))
    return repr((arguments, defaults, [ast.dump(statement) for statement in function.body[start:]]))
