"""Why the kubelet doesn't start a container: the image can't be had, or the container can't be made."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sglang_operator.api.reasons import Reason
from sglang_operator.status.facts import ContainerFacts
from sglang_operator.status.text import paragraph, sentence
from sglang_operator.status.verdict import Wording

_IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_CONFIG_REASONS = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "PreCreateHookError",
        "PreStartHookError",
    }
)
_BACK_OFF = re.compile(r'^Back-off pulling image "[^"]*"(?:: (?:\w+: )?)?')
_RPC = re.compile(r"rpc error: code = \w+ desc = ")
_DENIED = re.compile(r"unauthorized|denied|authori[sz]ation|forbidden|\b401\b|\b403\b", re.IGNORECASE)
_ABSENT = re.compile(r"not found|manifest unknown|no such image", re.IGNORECASE)
_REFERENCE = re.compile(r"secret|configmap", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class WaitingTrouble:
    """Why a container waits, with the next step."""

    reason: Reason
    message: str
    wording: Wording = Wording.EXACT


def trouble_of_waiting(container: ContainerFacts) -> WaitingTrouble | None:
    """Say what stops a waiting container; None when it just waits for its turn."""
    if container.waiting_reason in _IMAGE_REASONS:
        return _image_trouble(container)
    if container.waiting_reason in _CONFIG_REASONS:
        return _config_trouble(container.waiting_message)
    return None


def _image_trouble(container: ContainerFacts) -> WaitingTrouble:
    # The kubelet alternates between the failure and the pause after it; up to 1.31 the pause names no cause.
    cause = _RPC.sub("", _BACK_OFF.sub("", container.waiting_message))
    return WaitingTrouble(
        reason=Reason.IMAGE_PULL_FAILED,
        message=paragraph("the image can't be pulled.", sentence(cause), _image_step(container.waiting_reason, cause)),
        wording=Wording.LOG if cause else Wording.VAGUE,
    )


def _image_step(waiting_reason: str, cause: str) -> str:
    if waiting_reason == "ErrImageNeverPull":
        return "Load the image onto the node, or change engine.imagePullPolicy."
    if waiting_reason == "InvalidImageName":
        return "Correct engine.image."
    if _DENIED.search(cause):
        return "Name a Secret with the registry's credentials in podTemplate.imagePullSecrets, and check engine.image."
    if _ABSENT.search(cause):
        return "Check the name and tag in engine.image."
    return "Check engine.image, and that the node reaches the registry."


def _config_trouble(cause: str) -> WaitingTrouble:
    if _REFERENCE.search(cause):
        step = "Create it, or correct the reference in the spec; the pod then goes on by itself."
    else:
        step = "Look at the pod's events, and correct engine or podTemplate."
    return WaitingTrouble(
        reason=Reason.CONTAINER_CONFIG,
        message=paragraph("a container can't be made.", sentence(cause), step),
    )
