"""What the router tells of itself: the pool, its workers, its counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from router.audit import AuditCounters
from router.contracts import FamilyStatus
from router.index import IndexStats
from router.load import WorkerLoad
from sightline_types import (
    DecisionReason,
    DegradeReason,
    EngineLoad,
    KeySpec,
    RelayStatus,
    WorkerContract,
    WorkerId,
)

__all__ = ["CoreStats", "Counts", "Holdings", "PoolView", "RateStatus", "WorkerStatus"]


@dataclass(frozen=True)
class PoolView:
    """Who is in the pool; version: higher after each change of the contracts.

    is_limited: admission limits hold, so that even an only worker must be asked for.
    """

    version: int
    contracts: Mapping[WorkerId, WorkerContract]
    is_limited: bool = False

    @cached_property
    def specs(self) -> frozenset[KeySpec]:
        """What a request must be keyed for."""
        return frozenset(contract.spec for contract in self.contracts.values())

    @cached_property
    def max_model_len(self) -> int | None:
        """Tokens of prompt and answer that every worker takes; None in an empty pool."""
        return min((contract.max_model_len for contract in self.contracts.values()), default=None)


@dataclass(frozen=True, slots=True)
class RateStatus:
    """How fast a worker is taken to be, in milliseconds per token, and on how many measurements."""

    prefill_ms_per_token: float
    encode_ms_per_token: float
    prefill_samples: int
    encode_samples: int


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker as the router sees it.

    idle: its relay is idle, and nothing is booked on it.
    silent_s: seconds since it was last heard.
    encoder_cached_tokens: encoder tokens whose output it is thought to keep.
    reasons: why it is less than exact.
    distrusted: why nothing that it says of its blocks is believed; empty where it is.
    by_line: whether its last message came by the direct line.
    """

    worker: WorkerId
    contract: WorkerContract
    epoch: int
    applied_seq: int
    relay: RelayStatus
    load: WorkerLoad
    engine: EngineLoad
    rates: RateStatus
    num_blocks: int
    expected_blocks: int
    encoder_cached_tokens: int
    idle: bool
    silent_s: float
    audit: AuditCounters
    families: tuple[FamilyStatus, ...]
    reasons: tuple[DegradeReason, ...]
    distrusted: str = ""
    by_line: bool = False


@dataclass(frozen=True, slots=True)
class Holdings:
    """What the core holds now."""

    open_requests: int
    receipts: int
    receipts_bytes: int
    sessions: int
    index: IndexStats


@dataclass(frozen=True, slots=True)
class CoreStats:
    """Counts since the core was made, and what it holds now.

    duplicates: messages already applied. gaps: messages whose predecessors are missing.
    malformed: messages that made their worker distrusted.
    expired_leases: bookings released because nothing was heard of them. reconciled: released because
    their worker says that nothing runs. late_decisions: made after the request had begun.
    overloaded: requests refused by the admission limits.
    prompt_tokens, predicted_tokens: of all decided requests, and what the chosen workers held of them.
    regret_tokens: what the best choice for the cache would have held beyond that.
    lines: direct lines that are up. line_calls: calls that came over them.
    """

    policy: str
    decisions: Mapping[DecisionReason, int]
    degraded: Mapping[DegradeReason, int]
    pushes: int
    tables: int
    duplicates: int
    gaps: int
    malformed: int
    cancelled: int
    rebooked: int
    expired_leases: int
    reconciled: int
    late_decisions: int
    overloaded: int
    prompt_tokens: int
    predicted_tokens: int
    regret_tokens: int
    open_requests: int
    receipts: int
    receipts_bytes: int
    sessions: int
    index: IndexStats
    lines: int = 0
    line_calls: int = 0


@dataclass(slots=True)
class Counts:
    """Counts since the core was made; see `CoreStats`."""

    decisions: Counter[DecisionReason] = field(default_factory=Counter)
    degraded: Counter[DegradeReason] = field(default_factory=Counter)
    pushes: int = 0
    tables: int = 0
    duplicates: int = 0
    gaps: int = 0
    malformed: int = 0
    cancelled: int = 0
    rebooked: int = 0
    expired_leases: int = 0
    reconciled: int = 0
    late_decisions: int = 0
    overloaded: int = 0
    prompt_tokens: int = 0
    predicted_tokens: int = 0
    regret_tokens: int = 0

    def stats(self, policy: str, held: Holdings) -> CoreStats:
        return CoreStats(
            policy=policy,
            decisions=dict(self.decisions),
            degraded=dict(self.degraded),
            pushes=self.pushes,
            tables=self.tables,
            duplicates=self.duplicates,
            gaps=self.gaps,
            malformed=self.malformed,
            cancelled=self.cancelled,
            rebooked=self.rebooked,
            expired_leases=self.expired_leases,
            reconciled=self.reconciled,
            late_decisions=self.late_decisions,
            overloaded=self.overloaded,
            prompt_tokens=self.prompt_tokens,
            predicted_tokens=self.predicted_tokens,
            regret_tokens=self.regret_tokens,
            open_requests=held.open_requests,
            receipts=held.receipts,
            receipts_bytes=held.receipts_bytes,
            sessions=held.sessions,
            index=held.index,
        )
