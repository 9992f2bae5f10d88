"""Which worker has encoded which media lately: the engines' encoder caches, as far as one can tell.

Engines do not report their encoder caches. What a worker's request had to encode is there after its first
token; until then it is expected. Each worker's cache is modelled as least recently used, with a capacity
in encoder tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sightline_types import DecisionId, MediaId, MediaSpan

__all__ = ["EncoderCaches"]


@dataclass(slots=True)
class _Cache:
    capacity_tokens: int
    tokens: OrderedDict[MediaId, int] = field(default_factory=OrderedDict)  # least recently used first
    in_all: int = 0


@dataclass(slots=True)
class EncoderCaches:
    """By slot. Items are taken by their identities; an item larger than a cache is never in it."""

    _caches: dict[int, _Cache] = field(default_factory=dict)
    _holders: dict[MediaId, set[int]] = field(default_factory=dict)
    _expected: dict[DecisionId, tuple[int, tuple[MediaSpan, ...]]] = field(default_factory=dict)
    _expected_at: dict[tuple[int, MediaId], int] = field(default_factory=dict)  # decisions that bring it

    def open(self, slot: int, capacity_tokens: int) -> None:
        """A worker with an empty cache. 0: it is not modelled."""
        self.close(slot)
        self._caches[slot] = _Cache(capacity_tokens)

    def close(self, slot: int) -> None:
        cache = self._caches.pop(slot, None)
        for media_id in list(cache.tokens) if cache is not None else ():
            self._unhold(slot, media_id)
        for decision_id in [i for i, (where, _) in self._expected.items() if where == slot]:
            self.drop(decision_id)

    def expect(self, decision_id: DecisionId, slot: int, spans: tuple[MediaSpan, ...]) -> None:
        """The request will have these encoded at `slot`. Replaces what was expected of it before."""
        self.drop(decision_id)
        if slot not in self._caches or not spans:
            return
        self._expected[decision_id] = slot, spans
        for span in spans:
            key = slot, span.media_id
            self._expected_at[key] = self._expected_at.get(key, 0) + 1

    def confirm(self, decision_id: DecisionId) -> None:
        """Its first token came: its media are encoded."""
        expected = self._expected.get(decision_id)
        self.drop(decision_id)
        if expected is not None:
            slot, spans = expected
            for span in spans:
                self._touch(slot, span)

    def drop(self, decision_id: DecisionId) -> None:
        """Nothing (more) will come of it. Idempotent."""
        slot, spans = self._expected.pop(decision_id, (0, ()))
        for span in spans:
            key = slot, span.media_id
            self._expected_at[key] -= 1
            if not self._expected_at[key]:
                del self._expected_at[key]

    def encoded(self, spans: tuple[MediaSpan, ...], slots: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        """Shape (items, slots): encoded there, or expected to be."""
        found = np.zeros((len(spans), len(slots)), dtype=np.bool_)
        for item, span in enumerate(spans):
            holders = self._holders.get(span.media_id)
            if holders:
                found[item] |= np.isin(slots, list(holders))
            if self._expected_at:
                found[item] |= [(slot, span.media_id) in self._expected_at for slot in slots.tolist()]
        return found

    def num_tokens(self, slot: int) -> int:
        """Encoder tokens thought to be cached at `slot`."""
        cache = self._caches.get(slot)
        return cache.in_all if cache is not None else 0

    def check_integrity(self) -> None:
        """Raise AssertionError where the tables contradict each other."""
        for slot, cache in self._caches.items():
            assert cache.in_all == sum(cache.tokens.values()) <= cache.capacity_tokens, f"slot {slot}"
            assert all(slot in self._holders[media_id] for media_id in cache.tokens), f"slot {slot}: lost"
        assert sum(map(len, self._holders.values())) == sum(len(c.tokens) for c in self._caches.values())
        brought = sum(len(spans) for _, spans in self._expected.values())
        assert brought == sum(self._expected_at.values()), "expected media without a decision"

    def _touch(self, slot: int, span: MediaSpan) -> None:
        cache = self._caches[slot]
        if span.num_embeds > cache.capacity_tokens:
            return
        if span.media_id in cache.tokens:
            cache.in_all -= cache.tokens.pop(span.media_id)
        cache.tokens[span.media_id] = span.num_embeds
        cache.in_all += span.num_embeds
        self._holders.setdefault(span.media_id, set()).add(slot)
        while cache.in_all > cache.capacity_tokens:
            media_id, tokens = cache.tokens.popitem(last=False)
            cache.in_all -= tokens
            self._unhold(slot, media_id)

    def _unhold(self, slot: int, media_id: MediaId) -> None:
        holders = self._holders[media_id]
        holders.discard(slot)
        if not holders:
            del self._holders[media_id]
