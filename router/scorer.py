"""From a query and the state of the pool to a table of candidates."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from router.audit import Audit
from router.candidates import CandidateTable, code_of
from router.columns import Rows
from router.copies import NO_COPY, DueCopy, due_copy
from router.cost import Weights
from router.credit import allowance
from router.encoders import EncoderCaches
from router.fleet import Band, Fleet, Slots
from router.index import BlockIndex
from router.kv_groups import cached_tokens
from router.load import LoadBook
from router.scoring import Found, Permits, asked, credit_blocks, score_candidates
from sightline_types import DegradeReason, KeyedView, RouteQuery

__all__ = ["Scorer"]


class Scorer:
    """Reads the pool's tables; changes none."""

    def __init__(
        self, fleet: Fleet, index: BlockIndex, audit: Audit, encoders: EncoderCaches, book: LoadBook,
        weights: Weights,
    ) -> None:  # fmt: skip
        self.weights = weights
        self._fleet = fleet
        self._index = index
        self._audit = audit
        self._encoders = encoders
        self._book = book
        self._permits: dict[str | None, Permits] = {}
        self._permits_of = (-1, -1)

    def table(self, query: RouteQuery, slots: Slots) -> CandidateTable:
        """The candidates at `slots`, in that order."""
        encoded, band = self._encoders.encoded(query.spans, slots), self._fleet.band(slots)
        score = self._score if band.is_uniform else self._score_by_spec
        return CandidateTable(score(query, band, encoded), band.workers, query.spans, encoded)

    def _score_by_spec(self, query: RouteQuery, band: Band, encoded: npt.NDArray[np.bool_]) -> Rows:
        parts, places = [], []
        specs = self._fleet.table.rows["spec"][band.slots]
        for spec in np.unique(specs).tolist():
            mine = np.flatnonzero(specs == spec)
            parts.append(self._score(query, self._fleet.band(band.slots[mine]), encoded[:, mine]))
            places.append(mine)
        order = np.argsort(np.concatenate(places))
        return np.concatenate(parts)[order]

    def _score(self, query: RouteQuery, band: Band, encoded: npt.NDArray[np.bool_]) -> Rows:
        """Of workers that share a key spec."""
        spec = self._fleet.at(int(band.slots[0])).spec
        view = query.views.get(spec)
        permits = self._permits_for(query.layout)
        if view is None:
            unknown = np.full_like(permits.reason, code_of(DegradeReason.CONTRACT_MISSING))
            permits = permits._replace(reason=unknown)
        copy = self._due_copy(view)
        request = asked(query, view, spec.block_size)
        return score_candidates(
            self._fleet.table.rows,
            band.slots,
            request._replace(copy_blocks=copy.blocks, copy_share=copy.share) if copy.blocks else request,
            self._found(query, view, band),
            permits,
            encoded,
            self.weights,
        )

    def _due_copy(self, view: KeyedView | None) -> DueCopy:
        per_copy = self.weights.sharers_per_copy
        if view is None or len(self._book) < per_copy:
            return NO_COPY
        return due_copy(
            self._book.shared(view.key_array()),
            num_open=len(self._book),
            num_workers=len(self._fleet.members),
            sharers_per_copy=per_copy,
        )

    def _found(self, query: RouteQuery, view: KeyedView | None, band: Band) -> Found:
        if view is None:
            none = np.zeros(len(self._fleet.table.rows), dtype=np.int32)
            return Found(none, none, none)
        match = self._index.match(view.key_array())
        found = Found(match.held, match.expected, match.lower)
        if band.has_groups:
            for slot in band.slots[self._fleet.table.rows["is_grouped"][band.slots]].tolist():
                self._find_in_groups(query, view, slot, found)
        return found

    def _find_in_groups(self, query: RouteQuery, view: KeyedView, slot: int, found: Found) -> None:
        """Where several cache groups decide, what they accept stands for the leading run."""
        contract = self._fleet.at(slot).contract
        size, shadow = contract.block_size, self._permits_for(query.layout).shadow[slot]
        limit = min(credit_blocks(shadow, query, view, size), (query.num_tokens - 1) // size)
        coming, run = int(found.expected[slot]), int(found.held[slot])
        held = 0
        if limit > 0:
            keys = view.key_array()[:limit]
            presence = [self._index.presence(keys, group)[slot] for group in range(len(contract.kv_groups))]
            held = cached_tokens(contract, presence, limit * size) // size
        found.held[slot] = found.lower[slot] = held
        found.expected[slot] = max(held, min(coming, limit)) if coming > run else held

    def _permits_for(self, layout: str | None) -> Permits:
        """By slot; kept until the pool's contracts or the audit's trust change."""
        version = (self._fleet.pool.version, self._audit.version)
        if version != self._permits_of:
            self._permits.clear()
            self._permits_of = version
        known = self._permits.get(layout)
        if known is None:
            known = self._permits[layout] = self._make_permits(layout)
        return known

    def _make_permits(self, layout: str | None) -> Permits:
        num_slots = len(self._fleet.table.rows)
        permits = Permits(*(np.zeros(num_slots, dtype=np.uint8) for _ in range(3)))
        for worker, member in self._fleet.members.items():
            allowed = allowance(member.contract, layout, self._audit.distrust_of(worker, layout))
            permits.extent[member.slot] = allowed.extent
            permits.shadow[member.slot] = allowed.shadow
            permits.reason[member.slot] = code_of(allowed.reason)
        return permits
