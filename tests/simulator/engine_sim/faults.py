"""Faults that a test can switch on in a running engine, each something that happened to real ones."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Faults:
    """Which faults are active.

    refuse_updates: /set_internal_state answers false and changes nothing.
    lie_about_updates: /set_internal_state answers true and changes nothing (what old releases do when they refuse).
    rank_differs: the last rank group keeps its old value, the others take the new one; the answer is true for all.
    hang_health: /health and /health_generate never answer.
    hang_metrics: /metrics never answers.
    hang_updates: /set_internal_state never answers.
    drop_counters: /metrics leaves out the counters by mode, as if the patch were not active.
    crash: the process ends at once with exit code 1, in the middle of everything.
    """

    refuse_updates: bool = False
    lie_about_updates: bool = False
    rank_differs: bool = False
    hang_health: bool = False
    hang_metrics: bool = False
    hang_updates: bool = False
    drop_counters: bool = False
    crash: bool = False

    def changed(self, changes: Any) -> Faults:
        """These faults with those of a JSON object `{"name": true or false}` changed.

        Raises ValueError naming the unknown fault, or the value that is no boolean.
        """
        if not isinstance(changes, dict):
            raise ValueError('faults are a JSON object such as {"hang_health": true}')
        for name, value in changes.items():
            if name not in fault_names():
                raise ValueError(f"there is no fault {name!r}; known faults: {', '.join(fault_names())}")
            if not isinstance(value, bool):
                raise ValueError(f"fault {name!r} must be true or false, not {value!r}")
        return dataclasses.replace(self, **changes)

    def active(self) -> tuple[str, ...]:
        """Names of the active faults."""
        return tuple(name for name in fault_names() if getattr(self, name))


def fault_names() -> tuple[str, ...]:
    """All faults, in a fixed order."""
    return tuple(field.name for field in dataclasses.fields(Faults))


def faults_from_text(text: str) -> Faults:
    """Faults from a comma-separated list of names. Raises ValueError naming an unknown one."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    return Faults().changed(dict.fromkeys(names, True))
