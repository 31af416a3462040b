"""Does a live object hold everything that is desired? Then it need not be written.

A live object has more than was applied: defaults, other owners' fields, status. It also says some things in another
way: quantities are brought to one form, empty values are dropped, named lists may be reordered by other owners.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sglang_operator.api.v1alpha1 import Manifest
from sglang_operator.render import quantity

_LIST_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "port"),
    "ownerReferences": ("uid",),
}
"""Lists whose items have an identity, by the field that holds them. All other lists are one value."""

_QUANTITY_MAPS: Final = frozenset({"limits", "requests"})
_QUANTITY_FIELDS: Final = frozenset({"sizeLimit", "divisor"})

_ABSENT_MEANS_TRUE: Final = frozenset({"automountServiceAccountToken", "allowPrivilegeEscalation"})
"""Switches that the API server keeps unset, and whose absence means something else than false."""


def covers(live: Manifest, desired: Manifest) -> bool:
    """Return whether every field of `desired` has the same value in `live`."""
    return _covers(live, desired, ())


def _covers(live: Any, desired: Any, path: tuple[str, ...]) -> bool:  # noqa: ANN401
    if _is_quantity(path):
        return _same_quantity(live, desired)
    if isinstance(desired, Mapping):
        return isinstance(live, Mapping) and all(
            _covers_field(live, key, value, (*path, key)) for key, value in desired.items()
        )
    if isinstance(desired, Sequence) and not isinstance(desired, str):
        return isinstance(live, Sequence) and not isinstance(live, str) and _covers_list(live, desired, path)
    # True equals 1 in Python, and neither is the other in a manifest.
    return isinstance(live, bool) is isinstance(desired, bool) and bool(live == desired)


def _covers_field(live: Mapping[str, Any], key: str, desired: Any, path: tuple[str, ...]) -> bool:  # noqa: ANN401
    if live.get(key) is None:
        return not desired and key not in _ABSENT_MEANS_TRUE
    return _covers(live[key], desired, path)


def _covers_list(live: Sequence[Any], desired: Sequence[Any], path: tuple[str, ...]) -> bool:
    key = _identity_key(path, desired)
    if key is None:
        return len(live) == len(desired) and all(
            _covers(one, other, (*path, "")) for one, other in zip(live, desired, strict=True)
        )
    by_key = {item.get(key): item for item in live if isinstance(item, Mapping)}
    return all(item[key] in by_key and _covers(by_key[item[key]], item, (*path, "")) for item in desired)


def _identity_key(path: tuple[str, ...], desired: Sequence[Any]) -> str | None:
    candidates = _LIST_KEYS.get(path[-1], ()) if path else ()
    for key in candidates:
        if desired and all(isinstance(item, Mapping) and key in item for item in desired):
            return key
    return None


def _is_quantity(path: tuple[str, ...]) -> bool:
    return bool(path) and (path[-1] in _QUANTITY_FIELDS or (len(path) > 1 and path[-2] in _QUANTITY_MAPS))


def _same_quantity(live: Any, desired: Any) -> bool:  # noqa: ANN401
    try:
        return quantity.parse(str(live)) == quantity.parse(str(desired))
    except ValueError:
        return bool(live == desired)
