"""How much of a request may earn credit on a worker at all, by its contract; and why not more."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from router.kv_groups import is_plain, is_predictable
from sightline_types import DegradeReason, WorkerContract

__all__ = ["Allowance", "Extent", "allowance"]


class Extent(IntEnum):
    """Which of a request's blocks may earn credit."""

    NOTHING = 0
    BEFORE_MEDIA = 1
    EVERYTHING = 2


@dataclass(frozen=True, slots=True)
class Allowance:
    """extent: of the credit. shadow: what it would be if the worker were trusted. reason: why not all."""

    extent: Extent
    shadow: Extent
    reason: DegradeReason | None = None


def allowance(
    contract: WorkerContract, layout: str | None, distrust: DegradeReason | None = None
) -> Allowance:
    """What views of `layout` (None: text) may earn on a worker with this contract.

    distrust: why the audit distrusts the two together, if it does. Its engine contradicted predictions:
    of text and media alike nothing after the text is believed, and of plain text nothing at all.
    """
    if not is_predictable(contract):
        return Allowance(Extent.NOTHING, Extent.NOTHING, DegradeReason.KV_CACHE_GROUPS)
    doubt = _layout_doubt(contract, layout) if layout is not None else None
    shadow = Extent.EVERYTHING if doubt is None else Extent.BEFORE_MEDIA
    if distrust is not None:
        # What several cache groups accept of the whole says nothing of what they accept of a part.
        extent = Extent.NOTHING if layout is None or not is_plain(contract) else Extent.BEFORE_MEDIA
        return Allowance(extent, shadow, distrust)
    return Allowance(shadow, shadow, doubt)


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
