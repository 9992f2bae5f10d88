"""What a worker registers with: whether it can be served, and what it is good for."""

from __future__ import annotations

from dataclasses import dataclass

from router.audit import AuditCounters, LayoutAudit
from router.keys import RouterError
from router.kv_groups import bad_groups, is_predictable
from sightline_types import DegradeReason, LayoutContract, WorkerContract, WorkerPush

__all__ = ["ContractRefused", "FamilyStatus", "check_contract", "family_statuses", "worker_reasons"]


class ContractRefused(RouterError):
    """A worker registered with a contract that no keys can be computed for."""


@dataclass(frozen=True, slots=True)
class FamilyStatus:
    """A model family on one worker: what it registered, whether media earn exact credit now, and how its
    predictions came out."""

    family: str
    fingerprint: str
    available: bool
    active: bool
    reason: DegradeReason | None
    detail: str
    audit: LayoutAudit


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
    reasons += [layout.distrust for layout in audit.layouts if layout.distrust is not None]
    return tuple(dict.fromkeys(reasons))


def family_statuses(contract: WorkerContract, audit: AuditCounters) -> tuple[FamilyStatus, ...]:
    audits = {layout.layout: layout for layout in audit.layouts}
    return tuple(
        _family(contract, layout, audits.get(layout.fingerprint, LayoutAudit(layout=layout.fingerprint)))
        for layout in contract.layouts
    )


def _family(contract: WorkerContract, layout: LayoutContract, audit: LayoutAudit) -> FamilyStatus:
    """Active: event-driven routing, a cache that predictions exist for, and an agreeing, trusted layout."""
    reason = layout.reason
    if not layout.exact:
        reason = reason or DegradeReason.CONTRACT_MISMATCH
    elif audit.distrust is not None:
        reason = audit.distrust
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
        audit=audit,
    )
