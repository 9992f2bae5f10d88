"""For how long an origin lets its answer be kept (Cache-Control, RFC 9111)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

__all__ = ["freshness_s"]

_LIFETIME = r'{}\s*=\s*"?(\d{{1,12}})"?'
#: The first is meant for caches that serve many, as this one does.
_LIFETIMES = tuple(re.compile(_LIFETIME.format(name)) for name in ("s-maxage", "max-age"))
_FORBIDDEN = {"no-store", "no-cache"}


def freshness_s(headers: Mapping[str, str]) -> float:
    """Seconds; infinite where the origin says nothing."""
    control = headers.get("cache-control", "").lower()
    names = {directive.partition("=")[0].strip() for directive in control.split(",")}
    if names & _FORBIDDEN:
        return 0.0
    found = next((match for pattern in _LIFETIMES if (match := pattern.search(control))), None)
    return float(found[1]) if found else math.inf
