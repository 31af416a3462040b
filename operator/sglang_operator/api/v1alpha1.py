"""The custom resource `InferenceService`, version v1alpha1, as models.

These models are the only definition of the resource: the CRD (`api.crd`), its reference page and the operator's
own parsing come from them. The server's part is in `api.v1alpha1_engine`, the status in `api.v1alpha1_status`, forms
of texts in `api.forms`, parts that Kubernetes defines in `api.parts`, rules over several fields in `api.rules`.

Descriptions are what `kubectl explain` prints: what the value does, its unit, and what unset means.
Bounds stand on every number, string, list and map, since an unbounded field makes the API server refuse CEL rules.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, ValidationError

from sglang_operator.api import names
from sglang_operator.api.base import (
    ApiModel,
    AutoBound,
    BatchSize,
    Manifest,
    explain,
    without_unknown_fields,
)
from sglang_operator.api.forms import (
    Argument,
    LabelKey,
    LabelValue,
    ModelURI,
    ObjectName,
    OptionalLabelValue,
    Quantization,
    ResourceName,
    Revision,
    SecretKey,
    ServedName,
    Size,
)
from sglang_operator.api.parts import (
    Affinity,
    ContainerSecurityContext,
    Opaque,
    PodSecurityContext,
    Toleration,
    Volume,
    VolumeMount,
)
from sglang_operator.api.v1alpha1_engine import ApiKeyRef, EngineResources, EngineSpec, EnvVar
from sglang_operator.api.v1alpha1_status import (
    Condition,
    InferenceServiceStatus,
    ThresholdEvidence,
    ThresholdSource,
    ThresholdStatus,
)
from sglang_operator.errors import SpecError

__all__ = [
    "Algorithm",
    "ApiKeyRef",
    "ApiModel",
    "Architecture",
    "Condition",
    "DisableThreshold",
    "DraftModel",
    "EngineResources",
    "EngineSpec",
    "EnvVar",
    "GPUSpec",
    "InferenceService",
    "InferenceServiceSpec",
    "InferenceServiceStatus",
    "Manifest",
    "ModelCache",
    "ModelSpec",
    "OffPath",
    "Opaque",
    "PodTemplate",
    "RolloutSpec",
    "RolloutStrategy",
    "SecretKeyRef",
    "SpeculationSpec",
    "ThresholdEvidence",
    "ThresholdMode",
    "ThresholdSource",
    "ThresholdStatus",
    "parse_spec",
]


class Architecture(StrEnum):
    """GPU architecture that a service's nodes must have."""

    BLACKWELL = "Blackwell"
    ANY = "Any"


class Algorithm(StrEnum):
    """Speculative decoding algorithm."""

    EAGLE3 = "EAGLE3"
    EAGLE = "EAGLE"
    NONE = "None"


class ThresholdMode(StrEnum):
    """Who decides the speculation disable threshold."""

    AUTO = "Auto"
    FIXED = "Fixed"


class OffPath(StrEnum):
    """How a server decodes while drafting is off."""

    AUTO = "Auto"
    DECODE = "Decode"
    ZERO_STEP = "ZeroStep"


class RolloutStrategy(StrEnum):
    """How pods are replaced when the spec changes."""

    RECREATE = "Recreate"
    ROLLING = "RollingUpdate"


class SecretKeyRef(ApiModel):
    """One key of a Secret in the service's namespace."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: SecretKey = Field(default="HF_TOKEN", description="Key of the Secret that holds the token.")


class ModelCache(ApiModel):
    """Where downloaded weights are kept. Neither field set: in the pod, and lost when it goes."""

    claim_name: ObjectName | None = Field(
        default=None,
        description="PersistentVolumeClaim in the service's namespace that keeps weights over restarts. "
        "With more than one replica its access mode must be ReadWriteMany.",
    )
    size_limit: Size | None = Field(
        default=None, description="Upper limit of the pod's own cache. Unset: none. Not with `claimName`."
    )


class ModelSpec(ApiModel):
    """The model to serve."""

    uri: ModelURI = Field(
        description="Model, on the Hugging Face hub or in the pod's files; `podTemplate.volumes` and `volumeMounts` "
        "bring the latter there."
    )
    revision: Revision | None = Field(
        default=None, description="Branch, tag or commit of a model on the hub. Unset: its main branch."
    )
    served_name: ServedName | None = Field(
        default=None,
        description="Name that clients send as `model`. Unset: the model's own, that is `uri` without `hf://`.",
    )
    quantization: Quantization | None = Field(
        default=None, description="SGLang's `--quantization`, for example `fp8`. Unset: as the model's config says."
    )
    token_secret_ref: SecretKeyRef | None = Field(
        default=None, description="Secret with a Hugging Face token, for models that need one."
    )
    cache: ModelCache = Field(default_factory=ModelCache, description="Where downloaded weights are kept.")


class GPUSpec(ApiModel):
    """GPUs of one replica, all of them on one node. Only nodes with 8 GPUs or more are used."""

    count: int = Field(ge=1, le=8, description="GPUs of one replica. It is SGLang's tensor parallel size as well.")
    architecture: Architecture = Field(
        default=Architecture.BLACKWELL,
        description="Architecture that nodes must have, by the labels of GPU feature discovery. "
        "`Blackwell`: `nvidia.com/gpu.compute.major` is 10 or 12. `Any`: nodes are not filtered by it.",
    )
    product: list[LabelValue] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "set"},
        description="Narrows the nodes to these values of their label `nvidia.com/gpu.product`. Empty: every product.",
    )
    resource_name: ResourceName = Field(
        default="nvidia.com/gpu", description="Extended resource that GPUs are requested by."
    )


class DraftModel(ApiModel):
    """The draft model of speculative decoding."""

    uri: ModelURI = Field(description="Draft model, on the Hugging Face hub or in the pod's files.")
    revision: Revision | None = Field(
        default=None, description="Branch, tag or commit of a model on the hub. Unset: its main branch."
    )


class DisableThreshold(ApiModel):
    """The batch size from which on the server stops drafting. Changed in running servers, without a restart."""

    mode: ThresholdMode = Field(
        default=ThresholdMode.AUTO,
        description="Who decides the threshold. `Fixed`: it is `batchSize`. `Auto`: it starts at `batchSize` and then "
        "follows the rates measured with and without drafting, between `min` and `max`; for that, a few of all steps, "
        "worth at most 0.5 percent of the output, run the other way.",
    )
    batch_size: BatchSize | None = Field(
        default=None,
        description="N: no drafting while N or more requests decode together. 1: never draft. 0: always draft (only "
        "with `Fixed`). Required with `Fixed`. With `Auto` it is the value to start from; unset: 32, or the bound next "
        "to it.",
    )
    min: AutoBound = Field(default=1, description="Smallest threshold that `Auto` may choose.")
    max: AutoBound = Field(default=512, description="Largest threshold that `Auto` may choose.")


class SpeculationSpec(ApiModel):
    """Speculative decoding, and when it is used."""

    algorithm: Algorithm = Field(
        default=Algorithm.NONE,
        description="Speculative decoding algorithm. `None`: the server never drafts and the threshold has no effect.",
    )
    draft_model: DraftModel | None = Field(
        default=None, description="Draft model, made for the served model. Required with EAGLE and EAGLE3."
    )
    num_steps: int = Field(
        default=3, ge=1, le=32, description="Tokens drafted one after the other before a verification."
    )
    top_k: int = Field(
        default=1,
        ge=1,
        le=16,
        description="Branches of the draft tree. Must be 1: a wider tree can't be switched off in a running server.",
    )
    num_draft_tokens: int | None = Field(
        default=None,
        ge=2,
        le=64,
        description="Tokens verified together. With `topK` 1 it is `numSteps` + 1, which is also what unset means.",
    )
    disable_threshold: DisableThreshold = Field(
        default_factory=DisableThreshold,
        description="The batch size from which on the server stops drafting: beyond it verification costs more than "
        "drafting saves. Changed in running servers, without a restart.",
    )
    off_path: OffPath = Field(
        default=OffPath.AUTO,
        description="How a server decodes while drafting is off. `Decode`: as one without speculation would, at the "
        "cost of some GPU memory for a second set of CUDA graphs. `ZeroStep`: by SGLang's own verification of one "
        "token, which is slower. `Auto`: `Decode` where the release and the model allow it. `status.threshold.offPath` "
        "says which one runs.",
    )


class RolloutSpec(ApiModel):
    """How pods are replaced when the spec changes. A changed threshold alone replaces none."""

    strategy: RolloutStrategy = Field(
        default=RolloutStrategy.RECREATE,
        description="`Recreate` ends all pods, which frees their GPUs, then starts the new ones. `RollingUpdate` "
        "replaces one replica after another, never with more GPUs than before.",
    )
    progress_deadline_seconds: int | None = Field(
        default=None,
        ge=60,
        le=90_000,
        description="Seconds after which a rollout without progress counts as failed. "
        "Unset: `engine.startupTimeoutSeconds` + 600.",
    )


class PodTemplate(ApiModel):
    """Parts of the pod that are the cluster's business. Each is Kubernetes' own field of the same name."""

    labels: dict[LabelKey, OptionalLabelValue] = Field(
        default_factory=dict, max_length=32, description="Labels to add to the pods."
    )
    annotations: dict[LabelKey, Argument] = Field(
        default_factory=dict, max_length=32, description="Annotations to add to the pods."
    )
    node_selector: dict[LabelKey, OptionalLabelValue] = Field(
        default_factory=dict, max_length=32, description="Labels that nodes must have, beside what `gpus` asks for."
    )
    tolerations: list[Toleration] = Field(
        default_factory=list,
        max_length=32,
        description="Taints to tolerate, beside the taint of GPU nodes, which always is.",
    )
    affinity: Affinity | None = Field(
        default=None, description="Affinity of the pods, joined with what `gpus` asks for."
    )
    volumes: list[Volume] = Field(
        default_factory=list,
        max_length=32,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        description="Volumes to add to the pods, for example one with models.",
    )
    volume_mounts: list[VolumeMount] = Field(
        default_factory=list,
        max_length=32,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["mountPath"]},
        description="Where those volumes appear, in the server's container and in the one that patches SGLang.",
    )
    security_context: PodSecurityContext | None = Field(
        default=None, description="Security context of the pod. Replaces the restricted one that is the default."
    )
    container_security_context: ContainerSecurityContext | None = Field(
        default=None,
        description="Security context of both containers. Replaces the restricted one that is the default.",
    )
    image_pull_secrets: list[ObjectName] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "set"},
        description="Names of Secrets to pull the image with.",
    )
    service_account_name: ObjectName | None = Field(
        default=None, description="Service account of the pods. Unset: the namespace's default. No token is mounted."
    )
    priority_class_name: ObjectName | None = Field(default=None, description="Priority class of the pods.")
    runtime_class_name: ObjectName | None = Field(
        default=None, description="Runtime class of the pods, for clusters where GPUs need one, for example `nvidia`."
    )
    termination_grace_period_seconds: int = Field(
        default=60, ge=0, le=3600, description="Seconds for a server to finish its requests before it is killed."
    )


class InferenceServiceSpec(ApiModel):
    """What to serve, on which GPUs, and how."""

    model: ModelSpec = Field(description="The model to serve.")
    replicas: int = Field(
        default=1, ge=0, le=256, description="Number of pods, each with `gpus.count` GPUs. 0 stops the service."
    )
    gpus: GPUSpec = Field(
        description="GPUs of one replica, all of them on one node. Only nodes with 8 GPUs or more are used."
    )
    engine: EngineSpec = Field(description="The SGLang server.")
    speculation: SpeculationSpec = Field(
        default_factory=SpeculationSpec, description="Speculative decoding, and from which load on it is off."
    )
    rollout: RolloutSpec = Field(
        default_factory=RolloutSpec, description="How pods are replaced when this specification changes."
    )
    pod_template: PodTemplate = Field(
        default_factory=PodTemplate,
        description="Parts of the pod that are the cluster's business. Each is Kubernetes' own field of the same name.",
    )


class InferenceService(ApiModel):
    """One custom resource as read from the API server, with the parts of its metadata that matter here."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: InferenceServiceSpec

    @property
    def key(self) -> names.ServiceKey:
        """Identity in the cluster."""
        return names.ServiceKey(self.namespace, self.name)


def parse_spec(spec: object) -> InferenceServiceSpec:
    """Read a `spec` as the API server stores it.

    Fields that this operator does not know are passed over. The API server refuses or drops what its CRD does not
    know, so one that is left comes from a newer CRD, whose defaults must not stop an operator that is rolled back.

    Raises:
        SpecError: with one sentence that names each wrong field; an older CRD let it through.
    """
    try:
        return InferenceServiceSpec.model_validate(without_unknown_fields(InferenceServiceSpec, spec))
    except ValidationError as error:
        raise SpecError("InvalidSpec", f"Correct the resource and apply it again: {explain(error, 'spec')}.") from error
