"""One error for everything a person at the keyboard should read as a sentence, not as a traceback."""

from __future__ import annotations


class ClusterError(Exception):
    """What went wrong and what to do next."""
