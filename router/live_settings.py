"""Settings of the router that change while it runs: the `user_config` of its deployment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from router.config import RouterConfig

__all__ = ["FIXED", "live_settings"]

#: Read by ingresses, engine replicas and the router actor when they start.
FIXED = frozenset(
    {
        "decision_budget_ms",
        "heartbeat_ms",
        "hints",
        "lease_s",
        "lease_start_s",
        "line",
        "line_port",
        "push_interval_ms",
    }
)


def live_settings(start: RouterConfig, given: Mapping[str, Any]) -> RouterConfig:
    """The settings that the application started with, under those of `given`.

    Raises:
        ValueError: an unknown setting, one that cannot change live, or a bad value; says which.
    """
    fixed = sorted(FIXED & given.keys())
    if fixed:
        raise ValueError(
            f"user_config of Router: {', '.join(fixed)} cannot change live; set it under `args: router:`"
        )
    try:
        return RouterConfig.model_validate({**start.model_dump(), **given})
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, detail['loc']))}: {detail['input']!r}: {detail['msg']}"
            for detail in error.errors()
        )
        raise ValueError(f"user_config of Router: {problems}") from None
