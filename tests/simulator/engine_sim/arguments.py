"""What the server process needs of SGLang's parsed command line, in a form that survives an exec.

The process that parses imports SGLang and with it torch (about 800 MiB); the process that serves must not keep that.
So the parsed values cross over as one JSON document (see `launch`).
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

THRESHOLD_FIELD = "speculative_disable_batch_threshold"
PROBE_FIELD = "speculative_probe_permille"
OFF_PATH_FIELD = "speculative_off_path"


@dataclasses.dataclass(frozen=True)
class EngineArguments:
    """SGLang's arguments as the simulation uses them, and facts of the tree that parsed them.

    threshold, probe_permille, off_path: None if the tree has no such field, that is, if it is not patched.
    inactive_reason: why the patch can't act on this server, by its own judgement; None if it can, or is not there.
    num_steps: drafted tokens in a chain, None if not given.
    numeric_updates: /set_internal_state takes only numbers (a type of the HTTP layer, from 0.5.16 on).
    answers_true_always: /set_internal_state answers true even when it refuses (0.5.14).
    resolved: whether SGLang's own resolution of defaults and conflicts ran, or only its parser.
    server_args: every field of ServerArgs as a JSON object, secrets masked.
    tree: the imported `sglang` folder.
    """

    host: str
    port: int
    model_path: str
    served_model_name: str
    tp_size: int
    dp_size: int
    api_key: str | None
    admin_api_key: str | None
    enable_metrics: bool
    max_running_requests: int | None
    max_total_tokens: int | None
    chunked_prefill_size: int | None
    context_length: int | None
    stream_interval: int
    speculative_algorithm: str | None
    num_steps: int | None
    threshold: int | None
    probe_permille: int | None
    off_path: str | None
    inactive_reason: str | None
    release: str
    tree: str
    resolved: bool
    numeric_updates: bool
    answers_true_always: bool
    server_args: str

    def to_json(self) -> str:
        """One JSON document that `from_json` takes back."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EngineArguments:
        """Read what `to_json` wrote."""
        return cls(**json.loads(text))


def masked_json(fields: list[tuple[str, Any]]) -> str:
    """The fields as a JSON object; keys of callers are masked, values JSON does not know become text."""
    secrets = {"api_key", "admin_api_key", "ssl_keyfile_password"}
    return json.dumps(
        {name: "***" if name in secrets and value is not None else value for name, value in fields},
        default=str,
        skipkeys=True,
    )
