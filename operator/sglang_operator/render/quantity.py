"""Kubernetes quantities as numbers, so that `1024Mi` and `1Gi` are the same.

Notation: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_FORM: Final = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([eE][+-]?[0-9]{1,3})|([A-Za-z]{0,2}))")
_UNITS: Final[dict[str, Fraction]] = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    **{unit: Fraction(1000**power) for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{unit: Fraction(1024**power) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
}


def parse(text: str) -> Fraction:
    """Return the value of a quantity in its base unit: bytes, CPUs or pieces.

    Raises:
        ValueError: the text is no quantity.
    """
    match = _FORM.fullmatch(text)
    unit = (match[3] or "") if match else None
    if match is None or unit not in _UNITS:
        raise ValueError(f"{text!r} is no Kubernetes quantity")
    return Fraction(match[1]) * Fraction(f"1{match[2] or ''}") * _UNITS[unit]
