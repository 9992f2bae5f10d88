"""What a client may ask of the router: the `x-sightline-*` request headers, where they are switched on."""

from __future__ import annotations

from collections.abc import Mapping

import xxhash

from processors import RequestError
from router.config import HintsConfig
from sightline_types import RouteHints

__all__ = ["PRIORITY", "SESSION", "WORKER", "read_hints"]

SESSION, PRIORITY, WORKER = "x-sightline-session", "x-sightline-priority", "x-sightline-worker"

#: Characters of a session's or a worker's name.
_LONGEST = 256
_PRIORITIES = range(-100, 101)


def read_hints(headers: Mapping[str, str], config: HintsConfig, *, tenant: str | None = None) -> RouteHints:
    """The hints of one request; headers that are not switched on are not read.

    tenant: two tenants' sessions of one name are two.

    Raises:
        RequestError: 400, naming the header, the value and the limit.
    """
    session = _name(headers, SESSION) if config.session != "off" else None
    return RouteHints(
        session=None if session is None else _digest(tenant or "", session),
        is_session_hard=config.session == "hard",
        priority=_priority(headers) if config.priority else 0,
        worker=_name(headers, WORKER) if config.pin else None,
    )


def _name(headers: Mapping[str, str], header: str) -> str | None:
    value = headers.get(header)
    if value is None:
        return None
    if not 0 < len(value.strip()) <= _LONGEST:
        shown = value[:40] + ("..." if len(value) > 40 else "")
        message = f"{header}: {shown!r} has {len(value.strip())} characters; it must have 1 to {_LONGEST}"
        raise RequestError(message, param=header, code="invalid_hint")
    return value.strip()


def _priority(headers: Mapping[str, str]) -> int:
    value = headers.get(PRIORITY)
    if value is None:
        return 0
    try:
        priority = int(value)
    except ValueError:
        priority = _PRIORITIES.stop
    if priority not in _PRIORITIES:
        limits = f"from {_PRIORITIES[0]} to {_PRIORITIES[-1]}"
        message = f"{PRIORITY}: {value[:40]!r} is not an integer {limits}"
        raise RequestError(message, param=PRIORITY, code="invalid_hint")
    return priority


def _digest(tenant: str, session: str) -> int:
    return xxhash.xxh3_64_intdigest(f"{len(tenant)}:{tenant}{session}".encode())
