"""The pure end of a prompt's preparation: ids, items and a layout become a `PreparedPrompt`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from processors.layout import Expansion, ImageLayout, SizeRefused, expand
from processors.template import TokenizedChat
from sightline_types import DegradeReason, MediaItem, MediaSpan, PreparedPrompt, TokenView

__all__ = ["UNKNOWN_ITEM_TOKENS", "assemble"]

#: What an item counts for as load when its layout or its size is not known.
UNKNOWN_ITEM_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class _Plan:
    """One item: exact where `replacement` is there, else with a reason and an estimate."""

    item: MediaItem
    replacement: npt.NDArray[np.int64] | None = None
    reason: DegradeReason | None = None
    estimate: int = 0


def assemble(
    chat: TokenizedChat,
    items: Sequence[MediaItem],
    layout: ImageLayout | None,
    *,
    placeholder_id: int | None,
    has_processor_kwargs: bool = False,
) -> PreparedPrompt:
    """
    placeholder_id: of the layout, or of a family without one; None where it is not known.
    has_processor_kwargs: the request changes the engine's processor, so no item's layout or identity
        is known, and the view is exact up to the first item.
    """
    plans = [_plan(item, layout, has_processor_kwargs) for item in items]
    expansion = _expansion(chat.token_ids, placeholder_id, plans)
    spans = tuple(MediaSpan(p.offset, p.length, items[p.index].media_id) for p in expansion.placed)
    reasons = [DegradeReason.MM_PROCESSOR_KWARGS] if has_processor_kwargs else []
    reasons += [plan.reason for plan in plans if plan.reason is not None]
    return PreparedPrompt(
        token_ids=chat.token_ids,
        media=tuple(plan.item for plan in plans),
        view=TokenView(expansion.token_ids, spans, expansion.exact_until),
        reasons=tuple(dict.fromkeys(reasons)),
        estimated_media_tokens=sum(plan.estimate for plan in plans),
        first_turn_tokens=_first_turn(chat, placeholder_id, expansion),
        layout=layout.fingerprint if items and layout is not None else None,
    )


def _plan(item: MediaItem, layout: ImageLayout | None, has_processor_kwargs: bool) -> _Plan:
    if layout is None:
        return _inexact(item, DegradeReason.UNSUPPORTED_FAMILY)
    if item.size is None:
        return _inexact(item, DegradeReason.SIZE_UNKNOWN)
    try:
        ids = layout.replacement(item.size)
    except SizeRefused:
        return _inexact(item, DegradeReason.SIZE_REFUSED)
    if has_processor_kwargs:
        return _inexact(item, DegradeReason.MM_PROCESSOR_KWARGS, len(ids))
    return _Plan(replace(item, num_tokens=len(ids)), ids)


def _inexact(item: MediaItem, reason: DegradeReason, tokens: int = UNKNOWN_ITEM_TOKENS) -> _Plan:
    # The placeholder itself is in the view already.
    return _Plan(item, reason=reason, estimate=tokens - 1)


def _expansion(token_ids: tuple[int, ...], placeholder_id: int | None, plans: Sequence[_Plan]) -> Expansion:
    """Where a family without a layout has other placeholders than its config says, nothing is exact."""
    if not plans:
        return Expansion(np.asarray(token_ids, dtype=np.int64), (), len(token_ids))
    if placeholder_id is None or token_ids.count(placeholder_id) != len(plans):
        return Expansion(np.asarray(token_ids, dtype=np.int64), (), 0)
    return expand(token_ids, placeholder_id, [plan.replacement for plan in plans])


def _first_turn(chat: TokenizedChat, placeholder_id: int | None, expansion: Expansion) -> int:
    """The end of the first user turn in the expanded view."""
    end = chat.first_turn_tokens
    items = chat.token_ids[:end].count(placeholder_id) if placeholder_id is not None else 0
    return end + sum(item.length - 1 for item in expansion.placed if item.index < items)
