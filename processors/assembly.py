"""The pure end of a prompt's preparation: ids, items and a layout become a `PreparedPrompt`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from processors.layout import Expansion, FamilyLayout, Refusal, Replacement, expand
from processors.template import TokenizedChat
from sightline_types import DegradeReason, MediaItem, MediaSpan, Modality, PreparedPrompt, TokenView

__all__ = ["UNKNOWN_ITEM_TOKENS", "assemble"]

#: What an item counts for as load when its layout or its size is not known.
UNKNOWN_ITEM_TOKENS = 1024
UNKNOWN_VIDEO_TOKENS = 4096


def assemble(
    chat: TokenizedChat,
    items: Sequence[MediaItem],
    layout: FamilyLayout | None,
    *,
    placeholder_ids: Collection[int],
    has_processor_kwargs: bool = False,
) -> PreparedPrompt:
    """
    placeholder_ids: the tokens that stand for items, of the layout, or of a family without one; empty
        where they are not known.
    has_processor_kwargs: the request changes the engine's processor, so no item's layout or identity
        is known, and the view is exact up to the first item.
    """
    plans = _plans(items, layout, has_processor_kwargs)
    try:
        expansion = _expansion(chat, placeholder_ids, items, plans, layout)
    except ValueError:
        plans = [_inexact(plan, DegradeReason.PLACEHOLDER_MISMATCH) for plan in plans]
        expansion = Expansion(chat.array, (), 0)
    refused = [plan for plan in plans if isinstance(plan, Refusal)]
    spans = tuple(MediaSpan(p.offset, p.length, items[p.index].media_id, p.embeds) for p in expansion.placed)
    reasons = [DegradeReason.MM_PROCESSOR_KWARGS] if has_processor_kwargs else []
    return PreparedPrompt(
        token_ids=chat.token_ids,
        media=tuple(_counted(item, plan) for item, plan in zip(items, plans, strict=True)),
        view=TokenView(expansion.token_ids, spans, expansion.exact_until),
        reasons=tuple(dict.fromkeys(reasons + [plan.reason for plan in refused])),
        # The placeholder itself is in the view already.
        estimated_media_tokens=sum(
            _estimate(item, plan) - 1
            for item, plan in zip(items, plans, strict=True)
            if isinstance(plan, Refusal)
        ),
        first_turn_tokens=_first_turn(chat, placeholder_ids, expansion),
        first_turn_ids=chat.first_turn_tokens,
        layout=layout.fingerprint({i.modality for i in items}) if items and layout is not None else None,
    )


def _plans(
    items: Sequence[MediaItem], layout: FamilyLayout | None, has_processor_kwargs: bool
) -> Sequence[Replacement | Refusal]:
    if layout is None:
        return [Refusal(DegradeReason.UNSUPPORTED_FAMILY)] * len(items)
    shapes = [item.shape for item in items]
    asked = layout.replacements(shapes)
    plans = [_named(item, plan) for item, plan in zip(items, asked, strict=True)]
    if has_processor_kwargs:
        return [_inexact(plan, DegradeReason.MM_PROCESSOR_KWARGS) for plan in plans]
    if layout.holds_only_cold(shapes):
        return [_inexact(plan, DegradeReason.MEDIA_MIX) for plan in plans]
    return plans


def _named(item: MediaItem, plan: Replacement | Refusal) -> Replacement | Refusal:
    """An unknown shape by its own name, where it has one."""
    if isinstance(plan, Refusal) and plan.reason is DegradeReason.SIZE_UNKNOWN and item.unknown_because:
        return replace(plan, reason=item.unknown_because)
    return plan


def _estimate(item: MediaItem, plan: Refusal) -> int:
    unknown = UNKNOWN_VIDEO_TOKENS if item.modality is Modality.VIDEO else UNKNOWN_ITEM_TOKENS
    return plan.num_tokens or unknown


def _inexact(plan: Replacement | Refusal, reason: DegradeReason) -> Refusal:
    return plan if isinstance(plan, Refusal) else Refusal(reason, num_tokens=len(plan.ids))


def _counted(item: MediaItem, plan: Replacement | Refusal) -> MediaItem:
    return item if isinstance(plan, Refusal) else replace(item, num_tokens=len(plan.ids))


def _expansion(
    chat: TokenizedChat,
    placeholder_ids: Collection[int],
    items: Sequence[MediaItem],
    plans: Sequence[Replacement | Refusal],
    layout: FamilyLayout | None,
) -> Expansion:
    """
    Raises:
        ValueError: the prompt has other placeholders than one an item, or in another order.
    """
    if not plans:
        return Expansion(chat.array, (), len(chat.token_ids))
    if layout is not None and not _are_in_order(chat, placeholder_ids, items, layout):
        raise ValueError("the template writes pictures and clips in another order than the request")
    if layout is None or not _knows_all(layout, items):
        return expand(chat.array, placeholder_ids, plans)
    # A layout of its own may ask for more of a sequence than an array gives.
    return layout.expand(chat.token_ids, plans)


def _knows_all(layout: FamilyLayout, items: Sequence[MediaItem]) -> bool:
    """Whether the layout knows what stands for every kind of item; those that it does not are refused."""
    known = {*layout.placeholders, *layout.placeholder_texts}
    return known.issuperset(item.modality for item in items)


def _are_in_order(
    chat: TokenizedChat, placeholder_ids: Collection[int], items: Sequence[MediaItem], layout: FamilyLayout
) -> bool:
    """Whether each placeholder is of its item's modality: some templates write all pictures first."""
    if len({item.modality for item in items}) < 2:
        return True
    own, tokens = layout.placeholders, set(layout.placeholders.values())
    found = chat.array[np.isin(chat.array, list(placeholder_ids))].tolist()
    if len(found) != len(items):
        return True  # refused for that, or by a layout of its own
    return all(
        own[item.modality] == token if item.modality in own else token not in tokens
        for item, token in zip(items, found, strict=True)
    )


def _first_turn(chat: TokenizedChat, placeholder_ids: Collection[int], expansion: Expansion) -> int:
    """The end of the first user turn in the expanded view."""
    end = chat.first_turn_tokens
    if not expansion.placed:
        return end
    # Few ids: comparing with each takes a tenth of `np.isin`'s time.
    ids = chat.array[:end]
    items = sum(int(np.count_nonzero(ids == token)) for token in placeholder_ids)
    return end + sum(item.length - 1 for item in expansion.placed if item.index < items)
