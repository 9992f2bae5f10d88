"""How much of a request may earn credit on a worker at all, by its contract; and why not more."""

from __future__ import annotations

from dataclasses import dataclass

from router.kv_groups import is_predictable
from sightline_types import DegradeReason, RouteQuery, WorkerContract

__all__ = ["Credit", "credit"]


@dataclass(frozen=True, slots=True)
class Credit:
    """How many leading blocks may earn anything on a worker, and why not more."""

    max_blocks: int
    reasons: tuple[DegradeReason, ...] = ()


def credit(contract: WorkerContract, query: RouteQuery, *, distrusted: bool) -> Credit:
    """What `query` may earn on a worker with this contract.

    distrusted: the engine contradicted the prompt length of this layout before.
    """
    view = query.views.get(contract.spec)
    if view is None:
        return Credit(0, (DegradeReason.CONTRACT_MISSING,))
    if not is_predictable(contract):
        return Credit(0, (DegradeReason.KV_CACHE_GROUPS,))
    num_keys = len(view.keys) // 8
    if query.layout is None:
        return Credit(num_keys)
    reason = DegradeReason.LENGTH_DISTRUST if distrusted else _layout_doubt(contract, query.layout)
    if reason is None:
        return Credit(num_keys)
    return Credit(min(num_keys, (query.first_media_offset or 0) // contract.block_size), (reason,))


def _layout_doubt(contract: WorkerContract, layout: str) -> DegradeReason | None:
    """Why views of this layout may differ from the worker's own; None where it agreed to it."""
    same = [known for known in contract.layouts if known.fingerprint == layout]
    if any(known.exact for known in same):
        return None
    if not contract.layouts:
        return DegradeReason.CONTRACT_MISSING
    # A worker that failed its own probe says why, whatever fingerprint it got to.
    own = [known.reason for known in same or contract.layouts if not known.exact and known.reason]
    return own[0] if own else DegradeReason.CONTRACT_MISMATCH
