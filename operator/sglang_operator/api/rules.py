"""Rules over several fields, in CEL: the API server checks them at apply, with our words.

They stand here and not in the models. What only the operator can know (a server flag
that contradicts a field) raises `SpecError` later.

Every field that a rule reads without `has()` carries a static default or is required.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Literal

from sglang_operator.api import names
from sglang_operator.api.forms import SIZE_FORM

SHARED_MEMORY_FLOOR: Final = "64Mi"
"""What a container gets without any setting; NCCL needs more."""


@dataclass(frozen=True, kw_only=True)
class CelRule:
    """One rule. `path` leads to the object that `rule` calls `self`; `field_path`, from there, to the field to name.

    `offender` is a CEL expression for a text that the message ends with: which of many is wrong.
    """

    path: tuple[str, ...]
    rule: str
    message: str
    field_path: str
    reason: Literal["FieldValueInvalid", "FieldValueRequired"] = "FieldValueInvalid"
    offender: str = ""

    def validation(self) -> dict[str, str]:
        """Return the rule as an entry of `x-kubernetes-validations`."""
        entry = {"rule": self.rule, "message": self.message, "reason": self.reason}
        if self.offender:
            entry["messageExpression"] = f"{json.dumps(self.message)} + {self.offender}"
        if self.field_path:
            entry["fieldPath"] = self.field_path
        return entry


_SPECULATION: Final = ("spec", "speculation")
_THRESHOLD: Final = (*_SPECULATION, "disableThreshold")
_POD_TEMPLATE: Final = ("spec", "podTemplate")
_OWN_LABELS: Final = (names.LABEL_NAME, names.LABEL_INSTANCE, names.LABEL_COMPONENT, names.LABEL_MANAGED_BY)


def _size_rule(comparison: str, *fields: str) -> str:
    """Compare sizes where all `fields` are given. An ill-formed one has its own message already."""
    parents = [field.rsplit(".", 1)[0] for field in fields]
    given = [f"has({parent})" for parent in dict.fromkeys(parents) if parent != "self"]
    given += [f"has({field}) && {SIZE_FORM.cel(field)}" for field in fields]
    return f"!({' && '.join(given)}) || {comparison}"


def _keys_rule(allowed: str) -> tuple[str, str]:
    """Return a rule over a map's keys, and a CEL expression for the first key that breaks it."""
    return f"self.all(key, {allowed})", f"self.filter(key, !({allowed}))[0]"


_LABEL_KEYS, _REFUSED_LABEL = _keys_rule(f"!key.startsWith('{names.GROUP}/') && !(key in {list(_OWN_LABELS)})")
_ANNOTATION_KEYS, _REFUSED_ANNOTATION = _keys_rule(f"!key.startsWith('{names.GROUP}/')")

CEL_RULES: Final[tuple[CelRule, ...]] = (
    CelRule(
        path=(),
        rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && self.metadata.name.size() <= 63",
        message="metadata.name must have at most 63 characters of a-z, 0-9 and '-', "
        "start with a letter and end with a letter or digit",
        field_path=".metadata.name",
    ),
    CelRule(
        path=("spec", "model", "cache"),
        rule="!(has(self.claimName) && has(self.sizeLimit))",
        message="sizeLimit must not be set together with claimName: a claim has its own size",
        field_path=".sizeLimit",
    ),
    CelRule(
        path=("spec", "engine"),
        rule=_size_rule(
            f"quantity(self.sharedMemorySize).compareTo(quantity('{SHARED_MEMORY_FLOOR}')) >= 0",
            "self.sharedMemorySize",
        ),
        message=f"sharedMemorySize must be at least {SHARED_MEMORY_FLOOR}: NCCL fails with less",
        field_path=".sharedMemorySize",
    ),
    CelRule(
        path=("spec", "engine"),
        rule=_size_rule(
            "quantity(self.sharedMemorySize).isLessThan(quantity(self.resources.memoryLimit))",
            "self.sharedMemorySize",
            "self.resources.memoryLimit",
        ),
        message="resources.memoryLimit must be above sharedMemorySize: shared memory counts against the limit",
        field_path=".resources.memoryLimit",
    ),
    CelRule(
        path=("spec", "engine"),
        rule="!has(self.adminApiKeySecretRef) || has(self.apiKeySecretRef)",
        message="apiKeySecretRef must be set together with adminApiKeySecretRef: without an API key everyone may ask "
        "for /server_info, where SGLang shows both keys",
        field_path=".apiKeySecretRef",
        reason="FieldValueRequired",
    ),
    CelRule(
        path=("spec", "engine", "resources"),
        rule=_size_rule(
            "!quantity(self.memory).isGreaterThan(quantity(self.memoryLimit))", "self.memory", "self.memoryLimit"
        ),
        message="memory must not be above memoryLimit",
        field_path=".memory",
    ),
    CelRule(
        path=_SPECULATION,
        rule="self.algorithm == 'None' || has(self.draftModel)",
        message="draftModel must be set when algorithm is EAGLE or EAGLE3",
        field_path=".draftModel",
        reason="FieldValueRequired",
    ),
    CelRule(
        path=_SPECULATION,
        rule="self.topK == 1",
        message="topK must be 1: SGLang can't switch drafting off live with a wider draft tree",
        field_path=".topK",
    ),
    CelRule(
        path=_SPECULATION,
        rule="!has(self.numDraftTokens) || self.numDraftTokens == self.numSteps + 1",
        message="numDraftTokens must be numSteps + 1 (topK is 1), or left unset",
        field_path=".numDraftTokens",
    ),
    CelRule(
        path=_THRESHOLD,
        rule="self.mode != 'Fixed' || has(self.batchSize)",
        message="batchSize must be set when mode is Fixed",
        field_path=".batchSize",
        reason="FieldValueRequired",
    ),
    CelRule(
        path=_THRESHOLD,
        rule="self.min <= self.max",
        message="min must not be above max",
        field_path=".min",
    ),
    CelRule(
        path=_THRESHOLD,
        rule="self.mode != 'Auto' || !has(self.batchSize) || "
        "(self.min <= self.batchSize && self.batchSize <= self.max)",
        message="batchSize must lie between min and max when mode is Auto",
        field_path=".batchSize",
    ),
    CelRule(
        path=(*_POD_TEMPLATE, "labels"),
        rule=_LABEL_KEYS,
        message="labels must not hold keys that the operator sets itself: ",
        offender=_REFUSED_LABEL,
        field_path="",
    ),
    CelRule(
        path=(*_POD_TEMPLATE, "annotations"),
        rule=_ANNOTATION_KEYS,
        message="annotations must not hold keys that the operator sets itself: ",
        offender=_REFUSED_ANNOTATION,
        field_path="",
    ),
)
