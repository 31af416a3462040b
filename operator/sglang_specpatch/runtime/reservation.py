"""Cache slots reserved for a decode step: enough for drafts, whether or not the step before it drafted.

The scheduler reserves before the worker chooses a mode. SGLang 0.5.18 reserves for the mode in force: after steps
without drafts that is one slot, and a step with drafts would write into slots that belong to other requests.
"""

from __future__ import annotations

_seen = [0]


def most_draft_tokens(tokens: int) -> int:
    """Return the largest number of draft tokens of a step seen in this process, `tokens` included."""
    _seen[0] = max(_seen[0], tokens)
    return _seen[0]
