"""What all models of the resource share: their base, bounded integers, and words for what is wrong with a value."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from sglang_operator.api import names
from sglang_operator.api.parts import INT32_MAX

MAX_PROBLEMS: Final = 5
"""More than this many wrong fields are counted, not listed."""

BatchSize = Annotated[int, Field(ge=0, le=names.THRESHOLD_MAX)]
AutoBound = Annotated[int, Field(ge=1, le=names.THRESHOLD_MAX)]
Count = Annotated[int, Field(ge=0, le=INT32_MAX)]
Generation = Annotated[int, Field(ge=0)]
"""A 64-bit number that only the API server makes."""
Timestamp = Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})]
"""A time in UTC, as in RFC 3339."""

Manifest = dict[str, Any]
"""A Kubernetes object as the API server takes it."""

Location = tuple[int | str, ...]


class ApiModel(BaseModel):
    """Base: camelCase outside, snake_case inside, frozen, unknown fields refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")

    def manifest(self) -> Manifest:
        """Return the model as the API server takes it: camelCase, and what is unset left out (it refuses null)."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def without_unknown_fields(model: type[ApiModel], value: object) -> object:
    """Return `value` without the fields that `model` does not know; the value itself stays as it is.

    pydantic's own `extra="ignore"` would empty the parts that are opaque on purpose.
    """
    try:
        model.model_validate(value)
    except ValidationError as error:
        known = copy.deepcopy(value)
        for problem in error.errors(include_url=False, include_context=False):
            if problem["type"] == "extra_forbidden":
                _remove(known, problem["loc"])
        return known
    return value


def _remove(value: object, location: Location) -> None:
    holder: Any = value
    for part in location[:-1]:
        holder = holder[part]
    del holder[location[-1]]


def explain(error: ValidationError, root: str) -> str:
    """Return what is wrong as one sentence without its end: `spec.gpus.count: must be …; spec.engine: …`."""
    problems = error.errors(include_url=False, include_context=False)
    sentences = [f"{_path(root, problem['loc'])}: {_words(problem)}" for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        sentences.append(f"and {len(problems) - MAX_PROBLEMS} more")
    return "; ".join(sentences)


def _path(root: str, location: Sequence[int | str]) -> str:
    path = root
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part == "[key]":
            path += " (the key)"
        else:
            path += f".{part}" if part.isidentifier() else f"[{part}]"
    return path


def _words(problem: ErrorDetails) -> str:
    text = problem["msg"].removeprefix("Value error, ").removeprefix("Input ").replace("should be", "must be")
    return "must be set" if problem["type"] == "missing" else text[0].lower() + text[1:]
