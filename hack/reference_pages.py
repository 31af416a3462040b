"""Writes the reference pages: the resource's fields from its CRD, conditions and reasons from their explanations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sglang_operator.api import names
from sglang_operator.api.crd import openapi_schema, printer_columns
from sglang_operator.api.explanations import CONDITIONS, EVENTS, REASONS, Explanation
from sglang_operator.api.reasons import Reason
from sglang_operator.api.rules import CEL_RULES
from sglang_operator.api.structural import Node


def inference_service_page(header: str) -> str:
    """Return the page of the resource's fields."""
    schema = openapi_schema()
    spec, status = ("\n".join(_sections(part, schema["properties"][part])) for part in ("spec", "status"))
    name_rules = "\n".join(f"- {rule.message}." for rule in CEL_RULES if not rule.path)
    columns = _table(("Column", "Meaning", "Path"), _column_rows())
    return f"""{header}

# {names.KIND}

{schema["description"]}

API version `{names.API_VERSION}`, short name `{names.SHORT_NAME}`, category `{names.CATEGORY}`. Other projects
have kinds of the same name: write `{names.PLURAL}.{names.GROUP}` or the short name. What stands
here is also in `kubectl explain {names.SHORT_NAME}.spec`.

The API server refuses what breaks a bound or a rule below, with the field's path and the rule's words. It drops
fields that it does not know; `kubectl` asks it to refuse them instead, so that a misspelt field is an error.

Conditions and their reasons: [conditions.md](conditions.md).

## Name

{name_rules}

## Specification

{spec}
## Status

{status}
## Columns of `kubectl get`

{columns}
## Scaling

`kubectl scale {names.SHORT_NAME} NAME --replicas N` and a HorizontalPodAutoscaler work through the scale subresource:
`spec.replicas`, `status.replicas` and the selector in `status.selector`.
"""


def _column_rows() -> Iterator[tuple[str, ...]]:
    for column in printer_columns():
        name = f"{column['name']} (with `-o wide`)" if column["priority"] else column["name"]
        yield name, column["description"], f"`{column['jsonPath']}`"


def _sections(path: str, node: Node) -> Iterator[str]:
    """Yield the section of one object, then those of the objects in it."""
    fields: dict[str, Node] = node["properties"]
    required = node.get("required", ())
    rows = [(_field(name, name in required), *_cells(f"{path}.{name}", child)) for name, child in fields.items()]
    rules = [f"- {rule.message}.\n" for rule in CEL_RULES if rule.path and ".".join(rule.path) == path]
    table = _table(("Field", "Type", "Meaning"), rows)
    yield f"### {path}\n\n{node['description']}\n\n{table}" + ("\n" + "".join(rules) if rules else "")
    for name, child in fields.items():
        if (members := _members(f"{path}.{name}", child)) is not None:
            yield from _sections(*members)


def _members(path: str, node: Node) -> tuple[str, Node] | None:
    """Return path and schema of the object that a field holds, or whose list it holds."""
    if node["type"] == "array":
        return _members(f"{path}[]", node["items"])
    return (path, node) if "properties" in node else None


def _field(name: str, required: bool) -> str:
    return f"`{name}` (required)" if required else f"`{name}`"


def _cells(path: str, node: Node) -> tuple[str, str]:
    meaning = node["description"]
    rules = [rule.message for rule in CEL_RULES if ".".join(rule.path) == path and "properties" not in node]
    return _type(path, node), " ".join([meaning, *(f"Rule: {rule.removesuffix(': ')}." for rule in rules)])


def _type(path: str, node: Node) -> str:
    if (members := _members(path, node)) is not None:
        linked = f"[{'objects' if node['type'] == 'array' else 'object'}](#{_anchor(members[0])})"
        return f"list of {linked}" if node["type"] == "array" else linked
    match node["type"]:
        case "array":
            return f"list of {node['items']['type']}s"
        case "object" if "additionalProperties" in node:
            return f"map of {node['additionalProperties']['type']}s"
        case "object":
            return "object, as in a pod"
        case "string" if "enum" in node:
            return "one of " + ", ".join(f"`{value}`" for value in node["enum"])
        case kind:
            return str(kind)


def _anchor(heading: str) -> str:
    """Return the anchor that GitHub makes for a heading."""
    return "".join(letter for letter in heading.lower() if letter.isalnum() or letter in "-_ ").replace(" ", "-")


def conditions_page(header: str) -> str:
    """Return the page of conditions, reasons and events."""
    overview = [(f"[{kind}](#{_anchor(kind)})", text.meaning) for kind, text in CONDITIONS.items()]
    sections = (
        f"## {kind}\n\n{text.meaning}\n\n{_explanations({reason: REASONS[reason] for reason in text.reasons})}\n"
        for kind, text in CONDITIONS.items()
    )
    unobserved = REASONS[Reason.NOT_OBSERVED]
    return f"""{header}

# Conditions, reasons and events

`kubectl describe {names.SHORT_NAME} NAME` shows them, each with a message about the case at hand. All conditions are
there from the first visit on, each for the generation in its `observedGeneration`.

{_table(("Condition", "True means"), overview)}
While a condition is `Unknown` its reason is often `{Reason.NOT_OBSERVED}`. {unobserved.meaning} {unobserved.next_step}

{"".join(sections)}## Events

{_explanations(EVENTS)}"""


def _explanations(explanations: Mapping[Any, Explanation]) -> str:
    rows = [(f"`{reason}`", text.meaning, text.next_step) for reason, text in explanations.items()]
    return _table(("Reason", "Means", "What to do"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
