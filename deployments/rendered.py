"""What the engine's own renderer says of a request, and the prompts that follow from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from deployments.protocol import EngineMedia
from sightline_types import (
    DegradeReason,
    EmbedRun,
    MediaId,
    MediaItem,
    MediaSpan,
    Modality,
    PreparedPrompt,
    TokenView,
)

__all__ = ["RenderRefused", "RenderRequest", "Rendered", "RenderedItem", "rendered_prompt", "text_prefix"]


@dataclass(frozen=True, slots=True)
class RenderRequest:
    """token_ids: unexpanded, one placeholder per media item. media: as the engine would get it."""

    token_ids: Sequence[int]
    media: tuple[EngineMedia, ...]
    mm_processor_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RenderedItem:
    """One media item in the expanded prompt: positions [offset, offset + length).

    media_id: what the engine is to be given as the item's identity: 64 bits of the renderer's own hash.
    key_id: what the engine's events will name it by; another one where the request has processor options,
        which vLLM hashes together with the identity that it is given.
    embeds: runs of placeholder tokens proper; empty where they are the whole span.
    """

    modality: Modality
    offset: int
    length: int
    media_id: MediaId
    key_id: MediaId
    embeds: tuple[EmbedRun, ...] = ()


@dataclass(frozen=True, slots=True)
class Rendered:
    """token_ids: the expanded prompt, little-endian int32. items: of each modality in prompt order.

    layout: fingerprint of what renders; a worker with the same one renders alike.
    """

    token_ids: bytes
    items: tuple[RenderedItem, ...]
    layout: str

    def token_array(self) -> npt.NDArray[np.int64]:
        return np.frombuffer(self.token_ids, dtype="<i4").astype(np.int64)


@dataclass(frozen=True, slots=True)
class RenderRefused:
    """The model's processor raises on this request; the engine would, too."""

    detail: str


def rendered_prompt(prompt: PreparedPrompt, rendered: Rendered) -> PreparedPrompt:
    """`prompt` with the renderer's view and identities: exact to its end.

    Raises:
        ValueError: the renderer speaks of other items than the prompt has.
    """
    items = _in_prompt_order(prompt.media, rendered.items)
    pairs = list(zip(prompt.media, items, strict=True))
    media = tuple(replace(item, media_id=r.media_id, num_tokens=r.length) for item, r in pairs)
    spans = sorted((MediaSpan(r.offset, r.length, r.key_id, r.embeds) for r in items), key=lambda s: s.offset)
    ids = rendered.token_array()
    return replace(
        prompt,
        media=media,
        view=TokenView(ids, tuple(spans), len(ids)),
        reasons=(),
        estimated_media_tokens=0,
        layout=rendered.layout,
    )


def _in_prompt_order(media: Sequence[MediaItem], items: Sequence[RenderedItem]) -> list[RenderedItem]:
    """The n-th item of a modality in the request is the n-th of that modality in the rendered prompt."""
    left: Mapping[Modality, list[RenderedItem]] = {
        modality: [item for item in items if item.modality is modality] for modality in Modality
    }
    if len(media) != len(items) or any(
        len(left[modality]) != sum(item.modality is modality for item in media) for modality in Modality
    ):
        raise ValueError(f"the renderer placed {len(items)} items of the request's {len(media)}")
    return [left[item.modality].pop(0) for item in media]


def text_prefix(prompt: PreparedPrompt, reason: DegradeReason) -> PreparedPrompt:
    """`prompt`, exact up to its first media item only; what is known of the items still counts as load."""
    view = prompt.view
    exact = min([view.exact_until, *(span.offset for span in view.spans)])
    reasons = tuple(dict.fromkeys((*prompt.reasons, reason)))
    return replace(prompt, view=replace(view, exact_until=exact), reasons=reasons)
