"""The converter from pydantic's JSON schema to a structural one."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from sglang_operator.api.forms import Form
from sglang_operator.api.structural import UnsupportedSchema, structural

SHORT = Form(pattern="[a-z]+", phrase="a short word", max_length=5)
Word = Annotated[str, SHORT]


class Colour(StrEnum):
    """A colour."""

    RED = "Red"
    BLUE = "Blue"


class Inner(BaseModel):
    """An inner part,

    with more to say.
    """

    colour: Colour = Field(default=Colour.RED, description="Its colour.")
    size: int = Field(default=2, gt=0, lt=10, description="Its size.")


class Needy(BaseModel):
    """A part that can't be made from nothing."""

    size: int = 3
    name: str = Field(max_length=3)


class Outer(BaseModel):
    """The whole."""

    inner: Inner = Field(default_factory=Inner)
    optional: Inner | None = Field(default=None, description="Perhaps.")
    needy: Needy = Field(default_factory=lambda: Needy(name="a"))
    kind: Literal["only"] = "only"
    words: list[Word] = Field(default_factory=list, max_length=4, description="Words.")
    table: dict[Word, Word] = Field(default_factory=dict, max_length=4)
    number: int | None = Field(default=None, ge=0)
    big: int = Field(ge=0, le=2**40)


def convert(model: type[BaseModel] = Outer) -> dict[str, Any]:
    return structural(model.model_json_schema())


def properties() -> dict[str, Any]:
    found: dict[str, Any] = convert()["properties"]
    return found


def test_references_are_inlined_with_what_stands_beside_them() -> None:
    inner = properties()["inner"]
    assert inner["type"] == "object"
    assert inner["description"] == "An inner part, with more to say."
    assert properties()["optional"]["description"] == "Perhaps."
    assert properties()["optional"]["properties"] == inner["properties"]


def test_exclusive_bounds_become_inclusive() -> None:
    size = properties()["inner"]["properties"]["size"]
    assert (size["minimum"], size["maximum"]) == (1, 9)
    assert "exclusiveMinimum" not in size


def test_what_is_absent_is_never_null() -> None:
    number = properties()["number"]
    assert number == {"type": "integer", "format": "int64", "minimum": 0}
    assert "default" not in properties()["optional"]


def test_a_constant_is_an_enum_of_one() -> None:
    assert properties()["kind"] == {"type": "string", "enum": ["only"], "default": "only"}


def test_defaults_inside_appear_when_nothing_is_given() -> None:
    assert properties()["inner"]["default"] == {"colour": "Red", "size": 2}


def test_no_default_for_a_part_that_needs_something() -> None:
    assert "default" not in properties()["needy"]


def test_numbers_get_their_format() -> None:
    assert properties()["inner"]["properties"]["size"]["format"] == "int32"
    assert properties()["big"]["format"] == "int64"


def test_forms_become_rules_with_a_sentence() -> None:
    [rule] = properties()["words"]["items"]["x-kubernetes-validations"]
    assert rule == {"rule": "self.matches(r'^(?:[a-z]+)$')", "message": "must be a short word"}
    assert properties()["words"]["items"]["maxLength"] == 5
    [keys] = properties()["table"]["x-kubernetes-validations"]
    assert keys["message"] == "each key must be a short word"
    assert "pattern" not in str(convert())


def test_descriptions_say_what_explain_does_not_show() -> None:
    inner = properties()["inner"]["properties"]
    assert inner["size"]["description"] == "Its size. 1 to 9. Default: 2."
    assert inner["colour"]["description"] == "Its colour. Default: Red."
    assert properties()["words"]["description"] == "Words. Each must be a short word. At most 4 items."


def test_lists_are_atomic_unless_said_otherwise() -> None:
    assert properties()["words"]["x-kubernetes-list-type"] == "atomic"


def test_no_two_nodes_share_an_object() -> None:
    # The YAML writer would mark it with an anchor, which a CRD may not hold.
    first = convert()
    first["properties"]["inner"]["default"]["size"] = 9
    assert first["properties"]["optional"]["properties"]["size"]["default"] == 2


class Either(BaseModel):
    """Two types in one field."""

    value: int | str


class Multiple(BaseModel):
    """A keyword that nobody thought of."""

    value: int = Field(multiple_of=2)


@pytest.mark.parametrize(
    ("model", "words"),
    [(Either, ".value: anyOf of several types"), (Multiple, ".value: multipleOf")],
)
def test_what_a_structural_schema_cannot_say_is_an_error(model: type[BaseModel], words: str) -> None:
    with pytest.raises(UnsupportedSchema) as error:
        convert(model)
    assert str(error.value) == words
