"""Another worker than the decided one serves a request: what the decision says from then on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from router.candidates import CandidateTable, reasons_of
from router.columns import MAX_TOKENS
from router.fleet import Member
from router.scorer import Scorer
from sightline_types import Decision, DecisionReason, RouteQuery, WorkerId

__all__ = ["fell_open", "find_candidate"]


def find_candidate(
    kept: Decision, worker: WorkerId, member: Member | None, query: RouteQuery | None, scorer: Scorer
) -> tuple[CandidateTable, int]:
    """What the decision found for `worker`, and its row there; scored now where it was no candidate: it
    was excluded, or joined since.

    member: None where the pool does not know it. query: None where the request has ended.
    """
    table = kept.candidates
    assert isinstance(table, CandidateTable)
    row = table.row_of(worker)
    if row is not None and (member is None or table.rows["slot"][row] == member.slot):
        return table, row
    if query is not None and member is not None:
        late = scorer.table(query, np.array([member.slot], dtype=np.intp))
    else:
        total = min(kept.num_tokens, MAX_TOKENS) // kept.block_size
        media = int(table.rows["media_total"][0])
        late = CandidateTable.of_stranger(worker, total, media, kept.block_size)
    return table.joined(late), len(table)


def fell_open(
    kept: Decision,
    worker: WorkerId,
    member: Member | None,
    query: RouteQuery | None,
    table: CandidateTable,
    row: int,
) -> Decision:
    """The decision as it is with this candidate."""
    query_reasons = query.reasons if query is not None else kept.degraded
    held = table.rows["overlap"] * table.rows["block_size"]
    return replace(
        kept,
        worker=worker,
        block_size=member.contract.block_size if member is not None else kept.block_size,
        reason=DecisionReason.FELL_OPEN,
        candidates=table,
        applied_seq=member.applied_seq if member is not None else -1,
        degraded=tuple(dict.fromkeys((*query_reasons, *reasons_of(table.row(row))))),
        regret_tokens=int(held.max() - held[row]),
    )
