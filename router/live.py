"""Which replicas Serve would route to, as this process last heard.

Apart from `router.pinned`: Serve (2.60) pickles a request router's whole module by value, so that the
router sees a copy of that module's globals. This one is imported, and is the same for everybody.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["LiveReplicas", "live_replicas"]


@dataclass(slots=True)
class LiveReplicas:
    """The replicas that Serve would route to, as this process last heard; None before the first news."""

    ids: frozenset[str] | None = None


@dataclass(slots=True)
class _Registry:
    """By deployment. Serve makes the request router deep inside the handle, so that the ingress that
    holds the handle cannot reach it; they meet here, once per process."""

    by_deployment: dict[str, LiveReplicas] = field(default_factory=dict)


_registry = _Registry()


def live_replicas(deployment: str, app: str) -> LiveReplicas:
    """What the pinned router of this process knows of a deployment's replicas."""
    return _registry.by_deployment.setdefault(f"{app}#{deployment}", LiveReplicas())
