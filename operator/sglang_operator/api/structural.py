"""From pydantic's JSON schema to the structural schema that a CRD takes.

The API server takes a subset of OpenAPI 3.0, pydantic writes JSON Schema 2020-12. The differences, each handled here:

============================  ==============================================================
pydantic                      structural schema
============================  ==============================================================
`$ref` into `$defs`           the definition itself, in place
`anyOf` of a type and `null`  the type; an unset field is absent, never null
`const`                       `enum` of one value
`exclusiveMinimum` 0          `minimum` 1 (all our numbers are integers)
`additionalProperties: false` nothing: unknown fields are pruned, and errors for strict clients
`propertyNames`               a rule over the keys
`api.forms.Form`              `maxLength`, and a rule with a sentence
models with defaults inside   an object as default, so that what is inside appears when nothing was given
`title`                       nothing
============================  ==============================================================

Any other keyword is an error: a schema that the API server would read otherwise must not be written.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any, Final

from sglang_operator.api.forms import JSON_SCHEMA_KEY, Form
from sglang_operator.api.parts import INT32_MAX

Node = dict[str, Any]

RULES: Final = "x-kubernetes-validations"

_KEPT: Final = frozenset(
    {
        "default",
        "description",
        "enum",
        "format",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "required",
        "type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-preserve-unknown-fields",
    }
)
_DROPPED: Final = frozenset({"$defs", "title"})


class UnsupportedSchema(Exception):
    """A model uses something that a structural schema can't say."""


def structural(schema: Mapping[str, Any]) -> Node:
    """Convert a model's JSON schema (by alias, as `model_json_schema` makes it).

    Raises:
        UnsupportedSchema: naming the keyword and where it stands.
    """
    return _Converter(schema.get("$defs", {})).convert(schema, "")


class _Converter:
    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions

    def convert(self, schema: Mapping[str, Any], path: str) -> Node:
        """Convert one node and all below it."""
        flat = self._inline(schema, path)
        node: Node = {}
        for keyword, value in flat.items():
            self._keyword(node, keyword, value, path)
        if node.get("type") == "integer" and "format" not in node:
            node["format"] = "int32" if node.get("maximum", INT32_MAX + 1) <= INT32_MAX else "int64"
        if node.get("type") == "array":
            node.setdefault("x-kubernetes-list-type", "atomic")
        if "description" in node:
            node["description"] = _described(node, flat)
        return _ordered(node)

    def _inline(self, schema: Mapping[str, Any], path: str) -> Node:
        """Replace `$ref` and a nullable `anyOf` by what they stand for; what stands beside them wins."""
        flat = dict(schema)
        if (options := flat.pop("anyOf", None)) is not None:
            members = [option for option in options if option != {"type": "null"}]
            if len(members) != 1:
                raise UnsupportedSchema(f"{path or 'the root'}: anyOf of several types")
            flat = {**self._inline(members[0], path), **flat}
            if flat.get("default", ...) is None:
                del flat["default"]
        if (reference := flat.pop("$ref", None)) is not None:
            flat = {**self._inline(self._definitions[reference.rsplit("/", 1)[1]], path), **flat}
        return flat

    def _keyword(self, node: Node, keyword: str, value: Any, path: str) -> None:  # noqa: ANN401
        match keyword:
            case "properties":
                node["properties"] = {name: self._property(name, child, path) for name, child in value.items()}
            case "items":
                node["items"] = self.convert(value, f"{path}[]")
            case "additionalProperties":
                if isinstance(value, Mapping):
                    node["additionalProperties"] = self.convert(value, f"{path}.*")
            case "propertyNames":
                node.setdefault(RULES, []).append(_keys_rule(value[JSON_SCHEMA_KEY]))
            case "x-form":
                node["maxLength"] = value.max_length
                node.setdefault(RULES, []).append({"rule": value.cel(), "message": value.message})
            case "const":
                node["enum"] = [value]
            case "exclusiveMinimum":
                node["minimum"] = value + 1
            case "exclusiveMaximum":
                node["maximum"] = value - 1
            case _ if keyword in _KEPT:
                node[keyword] = copy.deepcopy(value)
            case _ if keyword not in _DROPPED:
                raise UnsupportedSchema(f"{path or 'the root'}: {keyword}")

    def _property(self, name: str, schema: Mapping[str, Any], path: str) -> Node:
        node = self.convert(schema, f"{path}.{name}")
        # Only a plain reference is a part that is always there; an optional one stands in `anyOf`.
        if "$ref" in schema and "default" not in node and not node.get("required"):
            defaults = _defaults(node)
            if defaults:
                node = _ordered({**node, "default": defaults})
        return node


def _described(node: Node, source: Node) -> str:
    """Return the description with form, bounds and default, none of which `kubectl explain` shows by itself."""
    words = [" ".join(str(node["description"]).split())]
    for form, start in (
        (source.get(JSON_SCHEMA_KEY), "Must"),
        (source.get("items", {}).get(JSON_SCHEMA_KEY), "Each must"),
    ):
        if isinstance(form, Form) and not form.obvious:
            words.append(f"{start} {form.message.removeprefix('must ')}.")
    if "minimum" in node and node.get("maximum", INT32_MAX) < INT32_MAX:
        words.append(f"{node['minimum']} to {node['maximum']}.")
    if "maxItems" in node:
        words.append(f"At most {node['maxItems']} items.")
    if "maxProperties" in node:
        words.append(f"At most {node['maxProperties']} keys.")
    if isinstance(node.get("default"), str | int) and node["default"] != "":
        words.append(f"Default: {node['default']}.")
    return " ".join(words)


def _keys_rule(form: Form) -> Node:
    allowed = f"key.size() <= {form.max_length} && {form.cel('key')}"
    words = f"each key {form.message}"
    return {
        "rule": f"self.all(key, {allowed})",
        "message": words,
        "messageExpression": f"{json.dumps(words)} + ', not ' + self.filter(key, !({allowed}))[0]",
    }


def _defaults(node: Node) -> Node:
    """Return an object's defaults: written out, since the API server checks rules on a default as it stands."""
    properties = node.get("properties", {})
    return {name: copy.deepcopy(child["default"]) for name, child in properties.items() if "default" in child}


_ORDER: Final = ("description", "type", "format", "enum", "default", "required", "properties", "items")


def _ordered(node: Node) -> Node:
    """Put what a reader looks for first; the rest by name."""
    rest = sorted(key for key in node if key not in _ORDER)
    return {key: node[key] for key in (*_ORDER[:5], *rest, *_ORDER[5:]) if key in node}
