"""The status of an `InferenceService`: what the operator observed. Import it from `api.v1alpha1`."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from sglang_operator.api.base import ApiModel, BatchSize, Count, Generation, Timestamp


class Condition(ApiModel):
    """One condition, as in `metav1.Condition`."""

    type: str = Field(min_length=1, max_length=63, description="What the condition is about, for example `Ready`.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field(min_length=1, max_length=128, description="Why, in one word; all are in the conditions' page.")
    message: str = Field(max_length=4096, description="Why, in words, and what to do.")
    last_transition_time: Timestamp = Field(description="When `status` last changed.")
    observed_generation: Generation = Field(description="Generation of the resource that this is about.")


class ThresholdSource(StrEnum):
    """Where the threshold in force came from."""

    SPEC = "Spec"
    MEASURED = "Measured"


class ThresholdEvidence(ApiModel):
    """The two measured rates that spoke most for a threshold, as they were when it was decided."""

    batch_sizes: str = Field(max_length=16, description="Batch sizes at which both were measured, for example `33-48`.")
    drafting_tokens_per_second: Count = Field(description="Output tokens per second while drafting.")
    not_drafting_tokens_per_second: Count = Field(description="Output tokens per second while not drafting.")
    gain_percent: Count = Field(
        description="What the change was expected to gain at the load of that time, in percent of all output tokens."
    )
    sampled_at: Timestamp = Field(description="Time of the newest sample in it.")


class ThresholdStatus(ApiModel):
    """The threshold last decided, and how far it is in force."""

    batch_size: BatchSize = Field(
        description="The threshold last decided: no drafting while so many requests decode together; 0: always draft."
    )
    source: ThresholdSource = Field(
        description="Where the value came from. `Spec`: given, or the value to start from. `Measured`: compared rates."
    )
    decided_at: Timestamp = Field(description="When the value was decided.")
    message: str = Field(default="", max_length=1024, description="Why, with the measured rates.")
    evidence: ThresholdEvidence | None = Field(
        default=None, description="The rates behind a measured value. Unset: the value was not measured."
    )
    synced_pods: Count = Field(description="Pods that were read back with this value on every rank.")
    off_path: str | None = Field(
        default=None,
        max_length=64,
        description="How the servers decode while drafting is off, by their own word: `Decode` as one without "
        "speculation, `ZeroStep` by SGLang's slower verification of one token. Unset: none has said so.",
    )
    off_path_reason: str | None = Field(
        default=None, max_length=1024, description="Why it is not `Decode`, in the servers' words."
    )


class InferenceServiceStatus(ApiModel):
    """What the operator observed."""

    observed_generation: Generation = Field(description="Generation of the resource that the status is about.")
    replicas: Count = Field(description="Pods that exist.")
    ready_replicas: Count = Field(description="Pods that answer.")
    updated_replicas: Count = Field(description="Pods of the current revision.")
    selector: str = Field(max_length=512, description="Label selector of the pods, for the scale subresource.")
    revision: str | None = Field(default=None, max_length=64, description="Revision that the pods should have.")
    engine_release: str | None = Field(
        default=None, max_length=64, description="SGLang release, as the patch found it in the image."
    )
    patch_digest: str | None = Field(default=None, max_length=64, description="Digest of the engine patch in use.")
    url: str | None = Field(default=None, max_length=512, description="Address of the service inside the cluster.")
    threshold: ThresholdStatus | None = Field(
        default=None, description="The threshold last decided, and how far it is in force."
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        description="Conditions, all of them from the first visit on; `Ready` sums them up.",
    )
