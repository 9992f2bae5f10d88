"""What a decision takes up on its worker: load, expected blocks, media that come to be encoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from router.columns import CandidateRow
from router.config import RouterConfig
from router.encoders import EncoderCaches
from router.fleet import Fleet, Member
from router.index import BlockIndex, KeyArray
from router.load import BookedLoad, LoadBook
from sightline_types import Decision, DecisionId, RouteQuery

__all__ = ["Bookings", "OpenRequest", "keys_of"]

_NO_KEYS: KeyArray = np.empty(0, dtype=np.uint64)


@dataclass(slots=True)
class OpenRequest:
    """A decision whose request has not ended.

    row: the candidate that serves it. is_late: the decision was made after the request had begun, so that
    it may have seen the request's own blocks.
    """

    query: RouteQuery
    decision: Decision
    row: CandidateRow
    is_late: bool = False


class Bookings:
    """Open requests by decision id, and everything that is booked for them."""

    def __init__(
        self, config: RouterConfig, fleet: Fleet, index: BlockIndex, book: LoadBook, encoders: EncoderCaches
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._index = index
        self._book = book
        self._encoders = encoders
        self._open: dict[DecisionId, OpenRequest] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, decision_id: DecisionId) -> bool:
        return decision_id in self._open

    def __iter__(self) -> Iterator[OpenRequest]:
        return iter(self._open.values())

    def get(self, decision_id: DecisionId) -> OpenRequest | None:
        return self._open.get(decision_id)

    def configure(self, config: RouterConfig) -> None:
        """Live settings, for what is booked from now on."""
        self._config = config

    def begin(self, opened: OpenRequest, now: float) -> BookedLoad:
        """Book a request of which nothing is booked; what was."""
        member, decision_id = self._fleet.at(opened.row.slot), opened.query.decision_id
        load = _load(opened, keys_of(opened, member))
        self._book.book(decision_id, member.slot, load, now + self._config.lease_start_s, now)
        self._expect(opened, member, load.keys, now)
        self._open[decision_id] = opened
        return load

    def move(self, moved: OpenRequest, now: float) -> None:
        """Another worker serves it: everything goes there."""
        member, decision_id = self._fleet.at(moved.row.slot), moved.query.decision_id
        load = _load(moved, keys_of(moved, member))
        self._open[decision_id] = moved
        self._book.move(decision_id, member.slot, load)
        self._expect(moved, member, load.keys, now)

    def _expect(self, opened: OpenRequest, member: Member, keys: KeyArray, now: float) -> None:
        """Expect those blocks whose keys are known to be the worker's own, and the media it encodes."""
        row, config, decision_id = opened.row, self._config, opened.query.decision_id
        ttl = config.expected_ttl_s if row.has_events else config.approximate_ttl_s
        self._index.expect(member.worker, keys[: row.credit_blocks], now + ttl, decision_id)
        if not row.has_events:
            tokens = member.contract.kv_capacity_tokens or config.approximate_capacity_tokens
            self._index.trim_expected(member.worker, tokens // member.contract.block_size)
        left = tuple(span for span in opened.query.spans if span.end > row.cached_tokens)
        self._encoders.expect(decision_id, member.slot, left)

    def close(self, decision_id: DecisionId, *, keep_expected: bool = False) -> OpenRequest | None:
        """Release a decision's load and expected blocks. Idempotent.

        keep_expected: they stay where the worker's events are not followed, as all that is known of its
        cache.
        """
        ended = self._open.pop(decision_id, None)
        self._book.release(decision_id)
        self._encoders.drop(decision_id)
        if not (keep_expected and ended is not None and not ended.row.has_events):
            self._index.drop_expected(decision_id)
        return ended

    def check_integrity(self) -> None:
        """Raise AssertionError where bookings and open decisions contradict each other."""
        self._book.check_integrity()
        self._encoders.check_integrity()
        assert len(self._open) == len(self._book), "bookings without an open decision, or the reverse"
        for decision_id, opened in self._open.items():
            member = self._fleet.get(opened.decision.worker)
            assert member is not None, f"{decision_id}: booked on a lost worker"
            assert self._book.slot_of(decision_id) == member.slot, f"{decision_id}: booked elsewhere"


def keys_of(opened: OpenRequest, member: Member | None) -> KeyArray:
    """The request's keys as `member` has them; none where it is gone or has no view."""
    view = opened.query.views.get(member.spec) if member is not None else None
    return view.key_array() if view is not None else _NO_KEYS


def _load(opened: OpenRequest, keys: KeyArray) -> BookedLoad:
    row = opened.row
    return BookedLoad(max(0, opened.query.num_tokens - row.cached_tokens), row.encode_tokens, keys)
