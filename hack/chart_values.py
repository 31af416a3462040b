"""Reads a chart's `values.yaml` with its comments, and writes the values' JSON schema and reference table from it.

A comment block stands directly above its key. Its lines are text, `@setting NAME` (the value is that setting of the
operator: type and bounds come from there) or `@schema KEY: VALUE` (a further line of JSON schema, in YAML).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import yaml

from sglang_operator.settings import Settings

Schema = dict[str, Any]

_SETTING_KEYWORDS = ("type", "minimum", "maximum", "minLength", "pattern")
_DEFINITIONS: dict[str, Schema] = {
    "quantities": {
        "type": "object",
        "additionalProperties": {"type": ["string", "number"], "pattern": "^[0-9]+(\\.[0-9]+)?(m|[kMGTPE]i?)?$"},
    },
    "toleration": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "key": {"type": "string"},
            "operator": {"enum": ["Exists", "Equal", "Lt", "Gt"]},
            "value": {"type": "string"},
            "effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
            "tolerationSeconds": {"type": "integer"},
        },
    },
    "topologySpreadConstraint": {
        "type": "object",
        "additionalProperties": False,
        "required": ["maxSkew", "topologyKey", "whenUnsatisfiable"],
        "properties": {
            "maxSkew": {"type": "integer", "minimum": 1},
            "topologyKey": {"type": "string", "minLength": 1},
            "whenUnsatisfiable": {"enum": ["DoNotSchedule", "ScheduleAnyway"]},
            "labelSelector": {"type": "object"},
            "matchLabelKeys": {"type": "array", "items": {"type": "string"}},
            "minDomains": {"type": "integer", "minimum": 1},
            "nodeAffinityPolicy": {"enum": ["Honor", "Ignore"]},
            "nodeTaintsPolicy": {"enum": ["Honor", "Ignore"]},
        },
    },
}
_TYPES = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}


@dataclass(frozen=True, kw_only=True)
class Value:
    """One key of `values.yaml`, with what its comment says. `path` is dotted."""

    path: str
    default: Any
    text: str
    setting: str | None
    keywords: Schema
    children: tuple[Value, ...] = ()


def read_values(source: str) -> tuple[Value, ...]:
    """Read `values.yaml`.

    Raises:
        ValueError: a key has no comment, or its comment names no setting of the operator.
    """
    root = yaml.compose(source, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise ValueError("values.yaml must hold a mapping")
    return _read_mapping(root, source.splitlines(), yaml.safe_load(source), prefix="")


def _read_mapping(node: yaml.MappingNode, lines: list[str], data: dict[str, Any], prefix: str) -> tuple[Value, ...]:
    values = []
    for key, child in node.value:
        path = f"{prefix}{key.value}"
        value = _read_comment(path, _comment_above(lines, key.start_mark.line, key.start_mark.column))
        default = data[key.value]
        value = replace(value, default=default)
        # A value with a schema of its own, such as `resources`, is Kubernetes' and documented there: one row.
        if isinstance(child, yaml.MappingNode) and child.value and not value.keywords:
            value = replace(value, children=_read_mapping(child, lines, default, prefix=f"{path}."))
        values.append(value)
    return tuple(values)


def _comment_above(lines: list[str], line: int, column: int) -> list[str]:
    block: list[str] = []
    start = " " * column + "#"
    while line > 0 and lines[line - 1].startswith(start):
        line -= 1
        block.insert(0, lines[line].removeprefix(start).strip())
    return block


def _read_comment(path: str, block: list[str]) -> Value:
    text: list[str] = []
    setting = None
    keywords: Schema = {}
    for line in block:
        if line.startswith("@setting "):
            setting = line.removeprefix("@setting ").strip()
            if setting not in Settings.model_fields:
                raise ValueError(f"{path}: {setting} is no setting of the operator")
        elif line.startswith("@schema "):
            keywords |= yaml.safe_load(line.removeprefix("@schema "))
        else:
            text.append(line)
    if not text:
        raise ValueError(f"{path}: a comment above the key must say what the value does")
    return Value(path=path, default=None, text=" ".join(text), setting=setting, keywords=keywords)


def schema(values: tuple[Value, ...]) -> Schema:
    """Return the JSON schema (draft 7, which all releases of Helm check), closed at every level."""
    properties = {value.path: _schema_of(value) for value in values}
    # Helm hands `global` to every chart that is part of another.
    properties["global"] = {"type": "object", "description": "Values shared by a chart and its parts. Not used."}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the sglang-operator chart",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "definitions": _DEFINITIONS,
    }


def _schema_of(value: Value) -> Schema:
    node: Schema = {"description": value.text, "type": _TYPES[type(value.default)]}
    if value.setting:
        declared = Settings.model_json_schema()["properties"][value.setting]
        node |= {keyword: declared[keyword] for keyword in _SETTING_KEYWORDS if keyword in declared}
    if value.children:
        node["properties"] = {child.path.rpartition(".")[2]: _schema_of(child) for child in value.children}
    if node["type"] == "object":
        node["additionalProperties"] = False
    node |= value.keywords
    return node


def reference(values: tuple[Value, ...]) -> str:
    """Return a Markdown table of all values."""
    rows = ["| Value | Allowed | Default | What it does |", "|---|---|---|---|"]
    for value in _leaves(values):
        cells = (f"`{value.path}`", _allowed(_schema_of(value)), f"`{_shown(value.default)}`", value.text)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _leaves(values: tuple[Value, ...]) -> list[Value]:
    found: list[Value] = []
    for value in values:
        found.extend(_leaves(value.children) if value.children else [value])
    return found


def _shown(default: object) -> str:
    if isinstance(default, dict | list | str):
        return yaml.safe_dump(default, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
    return str(default).lower()


def _allowed(node: Schema) -> str:
    if "enum" in node:
        return ", ".join(f"`{item}`" for item in node["enum"])
    if node["type"] == "integer" and "minimum" in node and "maximum" in node:
        return f"{node['minimum']} to {node['maximum']}"
    names = {"integer": "whole number", "string": "text", "boolean": "`true`, `false`", "array": "list"}
    if node["type"] == "object":
        return "map of text" if node.get("additionalProperties") == {"type": "string"} else "map"
    return names[node["type"]]
