"""Texts of a fixed form: label values, quantities, image names, each with its pattern and the words for it.

A regular expression in an error message helps nobody at night. Each form therefore says in words what it wants,
and both sides use the same words: the operator's own parsing (`Form` is a pydantic annotation), and the CRD, where
the form becomes a CEL rule with that message instead of a bare `pattern`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

JSON_SCHEMA_KEY: Final = "x-form"
"""Where `Form` leaves itself in pydantic's JSON schema, for the CRD writer to find."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """The form of a text.

    `pattern` matches the whole text and means the same to Python's `re` and to RE2, which the API server uses.
    `phrase` says the form in words that follow "must be ". `max_length` counts characters. A form that is `obvious`
    needs no words in the field's description.
    """

    pattern: str
    phrase: str
    max_length: int
    obvious: bool = False

    @property
    def message(self) -> str:
        """The sentence that a refused text gets; the field's path stands before it."""
        return f"must be {self.phrase}"

    def check(self, text: str) -> str:
        """Return the text as it is.

        Raises:
            ValueError: with `message`, or with the limit when the text is too long.
        """
        if len(text) > self.max_length:
            raise ValueError(f"must have at most {self.max_length} characters")
        if re.fullmatch(self.pattern, text, re.ASCII) is None:
            raise ValueError(self.message)
        return text

    def cel(self, variable: str = "self") -> str:
        """Return the form as a CEL expression over `variable`."""
        return f"{variable}.matches(r'^(?:{self.pattern})$')"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401
        """Check after pydantic has made sure that the value is a text."""
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Leave the form in the JSON schema as it is: `api.structural` turns it into a rule."""
        return {**handler(schema), JSON_SCHEMA_KEY: self}


_DNS_LABEL: Final = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_SUBDOMAIN: Final = rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*"
_LABEL_NAME: Final = "[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_POSITIVE: Final = r"(?:[1-9][0-9]*(?:\.[0-9]{1,3})?|0\.[0-9]{0,2}[1-9])"
_IMAGE_PART: Final = "[a-z0-9]+(?:[._-]+[a-z0-9]+)*"

CPU_FORM: Final = Form(pattern=f"{_POSITIVE}m?", phrase="a number of CPUs above zero, such as 8 or 500m", max_length=16)
SIZE_FORM: Final = Form(
    pattern=f"{_POSITIVE}(?:k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)",
    phrase="a size above zero with its unit, such as 16Gi or 500M",
    max_length=32,
)
LABEL_VALUE_FORM: Final = Form(
    pattern=_LABEL_NAME,
    phrase="a label value: 1 to 63 of A-Z, a-z, 0-9, '-', '_' and '.', with a letter or digit at both ends",
    max_length=63,
)
OPTIONAL_LABEL_VALUE_FORM: Final = Form(
    pattern=f"(?:{_LABEL_NAME})?",
    phrase="a label value: empty, or up to 63 of A-Z, a-z, 0-9, '-', '_' and '.', with a letter or digit at both ends",
    max_length=63,
)
LABEL_KEY_FORM: Final = Form(
    pattern=f"(?:{_DNS_SUBDOMAIN}/)?{_LABEL_NAME}",
    phrase="a label key: a name of up to 63 characters, after a DNS name and '/' if any, such as example.com/team",
    max_length=317,
    obvious=True,
)
RESOURCE_NAME_FORM: Final = Form(
    pattern=f"{_DNS_SUBDOMAIN}/{_LABEL_NAME}",
    phrase="an extended resource: a DNS name, '/' and a name, such as nvidia.com/gpu",
    max_length=317,
    obvious=True,
)
OBJECT_NAME_FORM: Final = Form(
    pattern=_DNS_SUBDOMAIN,
    phrase="the name of a Kubernetes object: a-z, 0-9, '-' and '.', with a letter or digit at both ends",
    max_length=253,
    obvious=True,
)
SECRET_KEY_FORM: Final = Form(
    pattern="[-._a-zA-Z0-9]+",
    phrase="a key of a Secret: letters, digits, '-', '_' and '.'",
    max_length=253,
    obvious=True,
)
MODEL_URI_FORM: Final = Form(
    pattern=r"hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*|/[^\s]+",
    phrase="hf://organisation/name, or an absolute path inside the pod such as /models/target",
    max_length=512,
)
SERVED_NAME_FORM: Final = Form(pattern=r"[^\x00-\x1f\x7f]+", phrase="a name on one line", max_length=253, obvious=True)
REVISION_FORM: Final = Form(
    pattern="[A-Za-z0-9][A-Za-z0-9._/-]*", phrase="a branch, tag or commit, such as main", max_length=128, obvious=True
)
QUANTIZATION_FORM: Final = Form(
    pattern="[a-z0-9][a-z0-9_-]*", phrase="a value of SGLang's --quantization, such as fp8", max_length=63, obvious=True
)
ENV_NAME_FORM: Final = Form(
    pattern="[A-Za-z_][A-Za-z0-9_]*",
    phrase="the name of an environment variable: letters, digits and '_', not starting with a digit",
    max_length=253,
)
IMAGE_FORM: Final = Form(
    pattern=rf"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?{_IMAGE_PART}(?:/{_IMAGE_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[a-f0-9]{64})?",
    phrase="an image such as lmsysorg/sglang:v0.5.23, with a registry before and a sha256 digest after it if need be",
    max_length=512,
)
ARGUMENT_FORM: Final = Form(pattern=r"[^\x00]*", phrase="text without NUL characters", max_length=4096, obvious=True)
ENV_VALUE_FORM: Final = Form(pattern=r"[^\x00]*", phrase="text without NUL characters", max_length=32_768, obvious=True)

CPU = Annotated[str, CPU_FORM]
Size = Annotated[str, SIZE_FORM]
LabelValue = Annotated[str, LABEL_VALUE_FORM]
OptionalLabelValue = Annotated[str, OPTIONAL_LABEL_VALUE_FORM]
LabelKey = Annotated[str, LABEL_KEY_FORM]
ResourceName = Annotated[str, RESOURCE_NAME_FORM]
ObjectName = Annotated[str, OBJECT_NAME_FORM]
SecretKey = Annotated[str, SECRET_KEY_FORM]
ModelURI = Annotated[str, MODEL_URI_FORM]
ServedName = Annotated[str, SERVED_NAME_FORM]
Revision = Annotated[str, REVISION_FORM]
Quantization = Annotated[str, QUANTIZATION_FORM]
EnvName = Annotated[str, ENV_NAME_FORM]
Image = Annotated[str, IMAGE_FORM]
Argument = Annotated[str, ARGUMENT_FORM]
EnvValue = Annotated[str, ENV_VALUE_FORM]
