"""What the router tells of itself: the pool, its workers, its counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from router.audit import AuditCounters, FamilyStatus
from router.index import IndexStats
from router.load import WorkerLoad
from sightline_types import DecisionReason, DegradeReason, EngineLoad, RelayStatus, WorkerContract, WorkerId

__all__ = ["CoreStats", "Counts", "Holdings", "PoolView", "WorkerStatus"]


@dataclass(frozen=True, slots=True)
class PoolView:
    """Who is in the pool; version: higher after each change of the contracts."""

    version: int
    contracts: Mapping[WorkerId, WorkerContract]


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker as the router sees it.

    idle: its relay is idle, and nothing is booked on it.
    silent_s: seconds since it was last heard.
    reasons: why it is less than exact.
    """

    worker: WorkerId
    contract: WorkerContract
    epoch: int
    applied_seq: int
    relay: RelayStatus
    load: WorkerLoad
    engine: EngineLoad
    num_blocks: int
    expected_blocks: int
    idle: bool
    silent_s: float
    audit: AuditCounters
    families: tuple[FamilyStatus, ...]
    reasons: tuple[DegradeReason, ...]


@dataclass(frozen=True, slots=True)
class CoreStats:
    """Counts since the core was made, and what it holds now.

    duplicates: messages already applied. gaps: messages whose predecessors are missing.
    expired_leases: bookings released because nothing was heard of them.
    """

    decisions: Mapping[DecisionReason, int]
    degraded: Mapping[DegradeReason, int]
    pushes: int
    tables: int
    duplicates: int
    gaps: int
    cancelled: int
    rebooked: int
    expired_leases: int
    open_requests: int
    receipts: int
    index: IndexStats


@dataclass(frozen=True, slots=True)
class Holdings:
    """What the core holds now."""

    open_requests: int
    receipts: int
    index: IndexStats


@dataclass(slots=True)
class Counts:
    """Counts since the core was made; see `CoreStats`."""

    decisions: Counter[DecisionReason] = field(default_factory=Counter)
    degraded: Counter[DegradeReason] = field(default_factory=Counter)
    pushes: int = 0
    tables: int = 0
    duplicates: int = 0
    gaps: int = 0
    cancelled: int = 0
    rebooked: int = 0
    expired_leases: int = 0

    def stats(self, held: Holdings) -> CoreStats:
        return CoreStats(
            decisions=dict(self.decisions),
            degraded=dict(self.degraded),
            pushes=self.pushes,
            tables=self.tables,
            duplicates=self.duplicates,
            gaps=self.gaps,
            cancelled=self.cancelled,
            rebooked=self.rebooked,
            expired_leases=self.expired_leases,
            open_requests=held.open_requests,
            receipts=held.receipts,
            index=held.index,
        )
