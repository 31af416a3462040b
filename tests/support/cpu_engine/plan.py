"""Which releases the tests on a real server take, since each costs minutes.

Every run takes the newest release and one of the others, by the week of the year, so that all have their turn; some
tests take the newest alone.
`SGLANG_CPU_RELEASES` names others (`0.5.16,0.5.20`), or `all`.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence

VARIABLE = "SGLANG_CPU_RELEASES"
FIRST = (0, 5, 14)
"""Earlier releases have no zero-step state: the patch is inactive there."""


def able(releases: Sequence[str]) -> list[str]:
    """Return the releases that can stop drafting."""
    return [release for release in releases if tuple(map(int, release.split(".")[:3])) >= FIRST]


def chosen(releases: Sequence[str], wanted: str, day: datetime.date) -> list[str]:
    """Return the releases of a run on a day; raises ValueError for one that is unknown or inactive."""
    known = able(releases)
    if wanted == "all":
        return known
    if wanted:
        names = wanted.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(f"{VARIABLE}: {', '.join(unknown)} can't be chosen; there are {', '.join(known)}")
        return names
    *others, newest = known
    return [others[day.isocalendar().week % len(others)], newest]


def of_this_run(releases: Sequence[str]) -> list[str]:
    """Return the releases of this run."""
    return chosen(releases, os.environ.get(VARIABLE, ""), datetime.date.today())


def newest_of_this_run(releases: Sequence[str]) -> list[str]:
    """Return the named releases of this run, or else the newest one alone."""
    return of_this_run(releases) if os.environ.get(VARIABLE) else [releases[-1]]
