"""Which media items a chunk of a prompt needs encoded: vLLM 0.32's `_try_schedule_encoder_inputs`."""

from __future__ import annotations

import bisect
from collections.abc import Sequence as Indices
from typing import NamedTuple

from simulation.encoder_cache import EncoderCache
from simulation.requests import SimulatedMedia
from simulation.sequence import Sequence

__all__ = ["EncoderChoice", "book_items", "choose_items"]


class EncoderChoice(NamedTuple):
    """num_tokens: that the chunk may compute. encodes: items to encode in this step. duplicates: items whose
    like is among them."""

    num_tokens: int
    encodes: Indices[int] = ()
    duplicates: Indices[int] = ()


def choose_items(
    cache: EncoderCache, sequence: Sequence, computed: int, num_tokens: int, budget: int
) -> EncoderChoice:
    """For the chunk of `num_tokens` from position `computed` on; items that are cached are referenced.

    An item that neither is cached nor fits (budget: encoder tokens left in this step) ends the chunk before
    it; a chunk that would begin within it gets no token.
    """
    media, holds = sequence.request.media, sequence.encoder_holds
    end, planned = computed + num_tokens, 0
    encodes: list[int] = []
    duplicates: list[int] = []
    chosen: set[int] = set()
    for index in range(bisect.bisect_right(media, computed, key=_end), len(media)):
        item = media[index]
        if item.offset >= end:
            break
        if item.media_id in chosen:
            duplicates.append(index)
        elif not cache.hit(sequence.request.request_id, media, index, holds):
            size = item.encoder_tokens
            if size > budget - planned or not cache.make_room(size, planned):
                return EncoderChoice(max(0, item.offset - computed), encodes, duplicates)
            if size:
                planned += size
                chosen.add(item.media_id)
                encodes.append(index)
    return EncoderChoice(num_tokens, encodes, duplicates)


def book_items(cache: EncoderCache, sequence: Sequence, choice: EncoderChoice) -> None:
    """The chunk is scheduled: its items take their place in the cache."""
    request, holds = sequence.request, sequence.encoder_holds
    for index in choice.encodes:
        cache.allocate(request.request_id, request.media, index, holds)
    for index in choice.duplicates:
        cache.hit(request.request_id, request.media, index, holds)


def _end(item: SimulatedMedia) -> int:
    return item.end
