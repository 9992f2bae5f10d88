"""Exactness is checked, not assumed: contracts at registration, predictions against what engines report.

A prompt length that differs from an exact view's means that the layout is wrong on that worker: it is
distrusted at once. A cached-token figure that differs is counted only, since events may be under way.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from router.keys import RouterError
from router.kv_groups import bad_groups, is_predictable
from sightline_types import (
    Decision,
    DecisionId,
    DegradeReason,
    LayoutContract,
    LifecycleEvent,
    WorkerContract,
    WorkerId,
    WorkerPush,
)

__all__ = [
    "Audit",
    "AuditCounters",
    "ContractRefused",
    "Difference",
    "FamilyStatus",
    "check_contract",
    "family_statuses",
    "worker_reasons",
]


class ContractRefused(RouterError):
    """A worker registered with a contract that no keys can be computed for."""


@dataclass(frozen=True, slots=True)
class FamilyStatus:
    """A model family on one worker: what it registered, and whether media earn exact credit now."""

    family: str
    fingerprint: str
    available: bool
    active: bool
    reason: DegradeReason | None
    detail: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A prediction that the engine contradicted, in tokens."""

    decision_id: DecisionId
    predicted: int
    reported: int


@dataclass(frozen=True, slots=True)
class AuditCounters:
    """One worker's audit.

    agreed, differed: predicted cached tokens against the engine's.
    not_compared: requests where that comparison says nothing.
    length_agreed, length_differed: prompt lengths of exact views.
    distrusted: fingerprints of the layouts that this worker's engine contradicted.
    """

    agreed: int = 0
    differed: int = 0
    not_compared: int = 0
    length_agreed: int = 0
    length_differed: int = 0
    last_difference: Difference | None = None
    last_length_difference: Difference | None = None
    distrusted: tuple[str, ...] = ()


@dataclass(slots=True)
class Audit:
    """Counters by worker; they last as long as the worker is known."""

    _counters: dict[WorkerId, AuditCounters] = field(default_factory=dict)

    def of(self, worker: WorkerId) -> AuditCounters:
        return self._counters.get(worker, AuditCounters())

    def would_distrust(self, worker: WorkerId, layout: str | None) -> bool:
        """Whether `layout` earns no media credit on `worker`."""
        return layout in self.of(worker).distrusted

    def compare_cached(self, decision: Decision, event: LifecycleEvent, *, comparable: bool) -> bool | None:
        """Hold the predicted overlap against `event.cached_tokens`; None where that says nothing.

        It agrees within a range where blocks were expected at decision time: a twin's blocks may have
        come by the time the engine looked.
        """
        worker, score, cached = decision.worker, decision.chosen, event.cached_tokens
        counters = self.of(worker)
        if not comparable or not event.comparable or cached is None:
            self._counters[worker] = replace(counters, not_compared=counters.not_compared + 1)
            return None
        most = max(score.overlap_blocks, score.expected_blocks) * decision.block_size
        if decision.predicted_cached_tokens <= cached <= most:
            self._counters[worker] = replace(counters, agreed=counters.agreed + 1)
            return True
        last = Difference(decision.decision_id, decision.predicted_cached_tokens, cached)
        self._counters[worker] = replace(counters, differed=counters.differed + 1, last_difference=last)
        return False

    def compare_length(self, decision: Decision, layout: str | None, event: LifecycleEvent) -> None:
        """Hold the length of an exact view against `event.prompt_tokens`; distrust `layout` if it differs."""
        worker, reported = decision.worker, event.prompt_tokens
        counters = self.of(worker)
        if reported is None:
            return
        if reported == decision.num_tokens:
            self._counters[worker] = replace(counters, length_agreed=counters.length_agreed + 1)
            return
        known = counters.distrusted
        self._counters[worker] = replace(
            counters,
            length_differed=counters.length_differed + 1,
            last_length_difference=Difference(decision.decision_id, decision.num_tokens, reported),
            distrusted=known if layout is None or layout in known else (*known, layout),
        )

    def forget(self, worker: WorkerId) -> None:
        self._counters.pop(worker, None)


def check_contract(msg: WorkerPush) -> WorkerContract:
    """The contract of a table.

    Raises:
        ContractRefused: it is missing, or no keys can be computed for it.
    """
    contract = msg.contract
    if contract is None:
        raise ContractRefused(f"worker {msg.worker} sent its table without a contract")
    if contract.block_size < 1:
        raise ContractRefused(f"worker {msg.worker}: block_size={contract.block_size}; it must be at least 1")
    wrong = bad_groups(contract)
    if wrong is not None:
        raise ContractRefused(f"worker {msg.worker}: {wrong}")
    return contract


def worker_reasons(contract: WorkerContract, audit: AuditCounters) -> tuple[DegradeReason, ...]:
    """Why a worker is less than exact."""
    reasons = [layout.reason for layout in contract.layouts if layout.reason is not None]
    if not contract.publishes_events:
        reasons.append(DegradeReason.KV_EVENTS_OFF)
    if not is_predictable(contract):
        reasons.append(DegradeReason.KV_CACHE_GROUPS)
    if audit.distrusted:
        reasons.append(DegradeReason.LENGTH_DISTRUST)
    return tuple(dict.fromkeys(reasons))


def family_statuses(contract: WorkerContract, audit: AuditCounters) -> tuple[FamilyStatus, ...]:
    return tuple(_family(contract, layout, audit) for layout in contract.layouts)


def _family(contract: WorkerContract, layout: LayoutContract, audit: AuditCounters) -> FamilyStatus:
    """Active: event-driven routing, a cache that predictions exist for, and an agreeing, trusted layout."""
    reason = layout.reason
    if not layout.exact:
        reason = reason or DegradeReason.CONTRACT_MISMATCH
    elif layout.fingerprint in audit.distrusted:
        reason = DegradeReason.LENGTH_DISTRUST
    elif not contract.publishes_events:
        reason = DegradeReason.KV_EVENTS_OFF
    elif not is_predictable(contract):
        reason = DegradeReason.KV_CACHE_GROUPS
    return FamilyStatus(
        family=layout.family,
        fingerprint=layout.fingerprint,
        available=True,
        active=layout.exact and reason is None,
        reason=reason,
        detail=layout.detail,
    )
